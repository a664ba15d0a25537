"""Every name of the promised surface is there, by namespace and tier."""

from __future__ import annotations

import importlib
import json
import pathlib

import pytest

import genesis_fn

NAMES = json.loads((pathlib.Path(__file__).parent.parent / "api_names.json").read_text())


def resolve(path: str):
    """A module, or an attribute of one."""
    head, *rest = path.split(".")
    found = importlib.import_module(head)
    for part in rest:
        try:
            found = getattr(found, part)
        except AttributeError:
            found = importlib.import_module(f"{found.__name__}.{part}")
    return found


@pytest.mark.parametrize("space", NAMES)
@pytest.mark.parametrize("tier", ["must", "should"])
def test_names(space, tier):
    expected = NAMES[space].get(tier)
    if not expected:
        pytest.skip(f"{space} has no names in this tier")
    target = resolve(space)
    missing = [n for n in expected if not hasattr(target, n)]
    assert not missing, f"{space} lacks {len(missing)} of {len(expected)}: {' '.join(missing)}"


def test_all_lists_are_true():
    for module in (genesis_fn, *(resolve(s) for s in NAMES if s.count(".") == 1)):
        for name in getattr(module, "__all__", ()):
            assert hasattr(module, name), f"{module.__name__}.__all__ names {name}"


def test_public_modules_import_alone():
    for name in dir(genesis_fn):
        getattr(genesis_fn, name)
