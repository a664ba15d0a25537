"""A GPU says that an index or an assertion was bad when somebody waits for it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

import genesis_fn.numpy as jnp


def wait() -> None:
    """Return when all queued work is done, after raising what it reported."""
    jnp.zeros(()).block_until_ready()


@contextlib.contextmanager
def raises(kind: Any, match: str | None = None) -> Iterator[Any]:
    """`pytest.raises` that waits for the work of its block."""
    with pytest.raises(kind, match=match) as caught:
        yield caught
        wait()
