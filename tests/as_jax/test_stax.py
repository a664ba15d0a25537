"""`jax.example_libraries.stax` under as_jax against JAX's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.as_jax.test_ecosystem import compare, start

PROGRAM = Path(__file__).with_name("stax_program.py")


@pytest.mark.cpu
def test_every_layer_is_that_of_jax() -> None:
    sides = [start(PROGRAM), start(PROGRAM, "-m", "genesis_fn.as_jax")]
    (theirs, theirs_said), (ours, ours_said) = [side.communicate(timeout=300) for side in sides]
    assert sides[0].returncode == 0, theirs_said
    assert sides[1].returncode == 0, ours_said
    compare(json.loads(ours), json.loads(theirs))
    assert json.loads(ours)["block: any batch"] == [-1, 3]
