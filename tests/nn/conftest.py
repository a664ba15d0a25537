"""Random numbers of the tests of layers."""

from __future__ import annotations

import zlib

import numpy as np
import pytest


@pytest.fixture(autouse=True)
def own_numbers(request: pytest.FixtureRequest) -> None:
    """A module's generator begins anew with each test: what a test draws depends on its name, and
    not on the tests that ran before it."""
    if hasattr(request.module, "RNG"):
        request.module.RNG = np.random.default_rng(zlib.crc32(request.node.name.encode()))
