"""Stages in processes of their own."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.distributed import programs
from tests.distributed.conftest import Launcher


def test_a_decoder_in_two_processes(launcher: Launcher, tmp_path: Path):
    world = launcher.start("stages", 2, tmp_path)
    assert world.wait() == [0, 0], world.said(0) + world.said(1)
    for rank in range(2):
        found = programs.read(tmp_path, rank)
        for name in [n for n in found if n.startswith("mine")]:
            mine, whole = found[name], found[name.replace("mine", "whole")]
            assert mine.shape == whole.shape
            assert np.linalg.norm(mine - whole) <= 1e-6 * np.linalg.norm(whole), name
