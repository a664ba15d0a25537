"""Training over processes: the numbers of one device, and the same bits each time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.distributed import programs
from tests.distributed.conftest import Launcher


# Fifty steps, and ten.
@pytest.mark.parametrize("size", [pytest.param(2, marks=pytest.mark.slow), 4])
def test_losses_in_every_layout(launcher: Launcher, tmp_path: Path, size: int):
    world = launcher.start("trained", size, tmp_path)
    assert world.wait() == [0] * size, "".join(map(world.said, range(size)))
    everyone = [programs.read(tmp_path, r) for r in range(size)]
    one = everyone[0]["one"]
    assert one[-2] < one[0] - 0.02 * len(one) / 10
    ways = [n for n in everyone[0] if n != "one"]
    assert len(ways) == (4 if size == 2 else 2)
    for way in ways:
        np.testing.assert_allclose(everyone[0][way], one, rtol=1e-5, err_msg=way)
        for found in everyone:
            np.testing.assert_array_equal(found[way], everyone[0][way])
            if way == "fsdp":
                np.testing.assert_array_equal(found[way], found["fsdp again"])


@pytest.mark.parametrize("size", [2, 4])
def test_sequences_experts_and_layouts(launcher: Launcher, tmp_path: Path, size: int):
    world = launcher.start("divided", size, tmp_path)
    assert world.wait() == [0] * size, "".join(map(world.said, range(size)))
    for rank in range(size):
        found = programs.read(tmp_path, rank)
        mine = [n for n in found if n.startswith("mine")]
        assert len(mine) == 2 * 4 + 6 + 1
        for name in mine:
            whole = found[name.replace("mine", "whole")]
            assert found[name].shape == whole.shape
            away = np.linalg.norm(found[name] - whole)
            assert away <= ("layout" not in name) * 1e-5 * np.linalg.norm(whole), name


def test_another_program_is_an_error_that_shows_where_it_differs(
    launcher: Launcher, tmp_path: Path
):
    world = launcher.start("disagree", 2, tmp_path)
    assert world.wait() == [1, 1]
    for rank in range(2):
        said = world.said(rank)
        assert f"rank {rank} of 2 runs another program than rank {1 - rank}" in said
        assert "mul" in said and " 2.0" in said and " 3.0" in said and "programs.py" in said
