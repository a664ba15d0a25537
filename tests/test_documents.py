"""What the documents say is there is there; the tour and the settings are those of the code."""

from __future__ import annotations

import importlib.util
import re

import pytest

from tests.documents import DOCS, run

ROOT = DOCS.parent
PAGES = [*sorted(DOCS.glob("*.md")), ROOT / "CONTRIBUTING.md", ROOT / "README.md"]


@pytest.mark.cpu
def test_the_tour_runs_and_prints_what_it_says(tmp_path, monkeypatch) -> None:
    assert run("tour.md", tmp_path, monkeypatch) >= 4


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_files_that_are_named_exist(page) -> None:
    """`compiler/target.py`, of the package or of the repository; links, too."""
    text = page.read_text(encoding="utf-8")
    named = re.findall(r"`((?:[\w.]+/)+[\w.]*\.\w+)`", text)
    named += re.findall(r"\]\(([^)#:]+)\)", re.sub(r"```.*?```|`[^`]*`", "", text, flags=re.S))
    roots = ROOT, ROOT / "genesis_fn", DOCS, ROOT / "benchmarks", ROOT / "genesis_fn/backends/cuda"
    missing = [n for n in named if not any((root / n).exists() for root in roots)]
    assert sorted(set(missing)) == []


def test_the_settings_are_those_of_the_code() -> None:
    spec = importlib.util.spec_from_file_location("write_settings", DOCS / "write_settings.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    written = (DOCS / "settings.md").read_text(encoding="utf-8")
    assert written == module.settings(), "run docs/write_settings.py"


def test_the_environment_is_read_in_one_place() -> None:
    reading = [
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / "genesis_fn").rglob("*.py"))
        if re.search(r"os\.environ[^\n]*GENESIS_", path.read_text())
    ]
    assert set(reading) <= {"genesis_fn/core/configuration/config.py"}


def test_the_glossary_names_what_is_there() -> None:
    """Names in code beside a term: `Primitive` of `core/primitive.py` is defined there."""
    text = (DOCS / "glossary.md").read_text(encoding="utf-8")
    places = re.findall(r"`(\w+)`\s+\(`([\w/]+\.py)`\)", text)
    assert len(places) > 40
    missing = [
        f"{path}: {name}"
        for name, path in places
        if not re.search(rf"\b{name}\b", (ROOT / "genesis_fn" / path).read_text(encoding="utf-8"))
    ]
    assert missing == []
