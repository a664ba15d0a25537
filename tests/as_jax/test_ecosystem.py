"""Libraries written for JAX run on the library unchanged, and give JAX's numbers.

Each program of `examples/as_jax` runs in two processes at once, on JAX and on the library. What
they print is compared: text exactly, numbers at 1e-5 of the largest of their entry.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

TOP = Path(__file__).parents[2]
EXAMPLES = TOP / "examples" / "as_jax"
# The library that each program is about.
PROGRAMS = {
    "with_optax": "optax", "with_chex": "chex", "with_jmp": "jmp", "with_blackjax": "blackjax",
    "with_numpyro": "numpyro", "with_haiku": "haiku", "with_flax": "flax",
    "with_equinox": "equinox",
}  # fmt: skip
TOLERANCE = 1e-5


def start(script: Path, *options: str) -> subprocess.Popen[str]:
    # One thread each: the two run side by side, and what they compute is tiny.
    quiet = {"JAX_PLATFORMS": "cpu", "GENESIS_DEVICE": "cpu", "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, *options, str(script)],
        cwd=TOP,
        env={**os.environ, "PYTHONHASHSEED": "0", **quiet},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def leaves(entry: Any) -> list[Any]:
    """Numbers and texts of an entry, in order."""
    if isinstance(entry, dict):
        return [x for name in entry for x in (name, *leaves(entry[name]))]
    return [x for v in entry for x in leaves(v)] if isinstance(entry, list) else [entry]


def compare(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    assert list(ours) == list(theirs)
    for name in theirs:
        mine, expected = leaves(ours[name]), leaves(theirs[name])
        texts = [[x for x in xs if isinstance(x, str)] for xs in (mine, expected)]
        assert texts[0] == texts[1], name
        a, b = [np.array([x for x in xs if not isinstance(x, str)]) for xs in (mine, expected)]
        assert a.shape == b.shape and np.isfinite(b).all(), name
        scale = np.abs(b).max(initial=0.0)
        np.testing.assert_allclose(a, b, rtol=0, atol=TOLERANCE * scale, err_msg=name)


@pytest.mark.cpu
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_gives_the_numbers_of_jax(name: str) -> None:
    if importlib.util.find_spec(PROGRAMS[name]) is None:
        pytest.skip(f"{PROGRAMS[name]} is not installed")
    script = EXAMPLES / f"{name}.py"
    sides = [start(script), start(script, "-m", "genesis_fn.as_jax")]
    (theirs, theirs_said), (ours, ours_said) = [side.communicate(timeout=300) for side in sides]
    assert sides[0].returncode == 0, theirs_said
    assert sides[1].returncode == 0, ours_said
    compare(json.loads(ours), json.loads(theirs))


def test_every_program_is_run() -> None:
    assert {p.stem for p in EXAMPLES.glob("*.py")} == {*PROGRAMS}


def test_the_comparison_sees_a_difference() -> None:
    compare({"w": [1.0, {"a": 2.0}], "t": "x"}, {"w": [1.0, {"a": 2.00001}], "t": "x"})
    for other in ({"w": [1.0, 2.0001]}, {"w": [1.0]}, {"w": ["a", 2.0]}, {"v": [1.0, 2.0]}):
        with pytest.raises(AssertionError):
            compare(other, {"w": [1.0, 2.0]})
