"""The names of `jax.extend.source_info_util` that libraries import."""

from __future__ import annotations


def register_exclusion(path: str) -> None:
    """Nothing: errors name the user's line by the frames outside the library."""
