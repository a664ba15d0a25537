"""JAX computes in 64 bits while these tests run, and only then."""

from __future__ import annotations

from collections.abc import Iterator

import jax
import pytest


@pytest.fixture(autouse=True)
def sixty_four_bits() -> Iterator[None]:
    """The dtypes of the inputs are the dtypes of JAX's results."""
    with jax.enable_x64(True):
        yield
