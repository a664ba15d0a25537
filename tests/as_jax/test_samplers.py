"""Samplers of `jax.random` under as_jax draw JAX's numbers, as far as docs/as-jax.md says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

TOP = Path(__file__).parents[2]
PROGRAM = Path(__file__).with_name("sampler_program.py")
EPS = {"bfloat16": 2.0**-7, "float16": 2.0**-10}

Drawn = dict[str, np.ndarray]


def promised() -> dict[str, str]:
    """{sampler: what the table says of its numbers}."""
    text = (TOP / "docs" / "as-jax.md").read_text()
    rows = re.findall(r"^\| (`.+) \| (equal|other|\d+ ulp) \|", text, re.M)
    return {name: said for names, said in rows for name in re.findall(r"`([^`]+)`", names)}


PROMISED = promised()


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> tuple[Drawn, Drawn]:
    """What (the library, JAX) drew."""
    folder = tmp_path_factory.mktemp("drawn")
    quiet = {"JAX_PLATFORMS": "cpu", "GENESIS_DEVICE": "cpu", "OMP_NUM_THREADS": "1"}
    started = []
    for name, options in (("ours", ["-m", "genesis_fn.as_jax"]), ("theirs", [])):
        command = [sys.executable, *options, str(PROGRAM), str(folder / f"{name}.npz")]
        env = {**os.environ, **quiet}
        started.append(
            subprocess.Popen(command, cwd=TOP, env=env, stderr=subprocess.PIPE, text=True)
        )
    for side in started:
        _, said = side.communicate(timeout=300)
        assert side.returncode == 0, said
    ours, theirs = [dict(np.load(folder / f"{name}.npz")) for name in ("ours", "theirs")]
    return ours, theirs


@pytest.mark.cpu
def test_the_table_has_every_sampler(drawn: tuple[Drawn, Drawn]) -> None:
    ours, theirs = drawn
    assert sorted(PROMISED) == sorted(ours) == sorted(theirs)


@pytest.mark.cpu
@pytest.mark.parametrize("name", PROMISED)
def test_a_sampler_draws_what_the_table_says(name: str, drawn: tuple[Drawn, Drawn]) -> None:
    ours, theirs = drawn[0][name], drawn[1][name]
    assert ours.dtype == theirs.dtype and ours.shape == theirs.shape
    said = PROMISED[name]
    if said == "equal":
        np.testing.assert_array_equal(ours, theirs)
    elif said == "other":
        assert (ours != theirs).any()
    else:
        unit = EPS.get(name.rpartition(", ")[2], 2.0**-23) * np.abs(theirs).max()
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=int(said.split()[0]) * unit)
