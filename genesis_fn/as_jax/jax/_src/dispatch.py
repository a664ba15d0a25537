"""What libraries import of JAX's dispatch."""

from __future__ import annotations


def wait_for_tokens() -> None:
    """Nothing: results are waited for where they are read."""
