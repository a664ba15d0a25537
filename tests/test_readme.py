"""The README's examples run, one after the other, and print what it says."""

from __future__ import annotations

import contextlib
import io
import pathlib
import re

ROOT = pathlib.Path(__file__).parent.parent
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")


def test_examples_print_what_they_say():
    blocks = re.findall(r"```python\n(.*?)```", TEXT, re.S)
    assert len(blocks) >= 10
    names: dict = {}
    for block in blocks:
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            exec(compile(block, "README.md", "exec"), names)
        expected = re.findall(r"^#> (.*)$", block, re.M)
        assert said.getvalue().splitlines() == expected, block


def test_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)]+)\)", re.sub(r"```.*?```", "", TEXT, flags=re.S)):
        assert (ROOT / target).exists(), target


def test_the_picture_shows_the_floors_of_the_contract():
    import importlib.util

    spec = importlib.util.spec_from_file_location("draw_floors", ROOT / "docs" / "draw_floors.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    drawn = (ROOT / "docs" / "floors.svg").read_text(encoding="utf-8")
    for row in module.floors():
        for name in row:
            assert f"<!-- {name} -->" in drawn, f"{name}: run docs/draw_floors.py again"
