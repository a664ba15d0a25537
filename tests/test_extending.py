"""`docs/extending.md` runs as it stands, and prints what it says; the blocks of kernels run on a
GPU or in Triton's interpreter (`tests/cuda/test_extending.py`)."""

from __future__ import annotations

import pytest

from tests.support.documents import run


@pytest.mark.cpu
def test_every_block_runs_and_prints_what_it_says(tmp_path, monkeypatch) -> None:
    assert run("extending.md", tmp_path, monkeypatch) >= 6
