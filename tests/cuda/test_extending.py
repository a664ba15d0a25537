"""The kernel that `docs/extending.md` adds is the one that runs."""

from __future__ import annotations

import importlib

from tests.support.documents import run


def test_the_kernel_of_the_document_runs(tmp_path, monkeypatch) -> None:
    assert run("extending.md", tmp_path, monkeypatch, cuda=True) >= 7
    plans = importlib.import_module("genesis_fn.backends.cuda.lowerings.fused").KERNELS
    assert "my_normalize" in plans
