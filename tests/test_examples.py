"""Every example runs, in small, and reaches what it should."""

from __future__ import annotations

import importlib.util
import pathlib
import sys

import pytest

EXAMPLES = pathlib.Path(__file__).parent.parent / "examples"
CASES = {
    "mlp_digits": ({"steps": 120}, lambda accuracy: accuracy > 0.9),
    "cnn_digits": ({"steps": 40}, lambda accuracy: accuracy > 0.85),
    "rnn_scan": ({"steps": 60, "length": 6}, lambda error: error < 0.1),
    "vit_digits": ({"steps": 200, "batch": 32}, lambda accuracy: accuracy > 0.7),
    "custom_primitive": ({}, lambda error: error < 1e-4),
    "higher_order": ({}, lambda error: error < 2e-3),
}


@pytest.mark.parametrize("name", CASES)
def test_example(name, monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    arguments, reached = CASES[name]
    result = module.main(**arguments)
    assert reached(result), result


def test_no_example_is_left_out():
    assert {p.stem for p in EXAMPLES.glob("*.py")} == set(CASES)
