"""The kernel that `docs/tour.md` shows is the one that is generated."""

from __future__ import annotations

from tests.support.documents import run


def test_the_generated_kernel_is_that_of_the_page(tmp_path, monkeypatch) -> None:
    assert run("tour.md", tmp_path, monkeypatch, cuda=True) >= 5
