"""What users type has a docstring to work with: arguments, results, an example that runs.

`pytest tests/test_docstrings.py -k optim.losses` for one namespace. Examples know `gf`, `jnp`,
`lax`, `nn`, `optim`, `random`, `np` and the names of the module that defines the function.
"""

from __future__ import annotations

import doctest
import inspect
import re
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import genesis_fn as gf
from genesis_fn import lax, nn, optim, random
from tests.public.names import exported, module_of

# Namespaces whose functions and layers are typed by users every day.
NAMESPACES = [
    "transforms",
    "amp",
    "random",
    "nn",
    "nn.initializers",
    "optim.losses",
    "optim.schedules",
    "models",
    "models.qwen",
    "io",
    "cuda",
]
GLOBALS = {
    "gf": gf,
    "jnp": gf.numpy,
    "lax": lax,
    "nn": nn,
    "optim": optim,
    "random": random,
    "np": np,
}


def is_documented_by_its_fields(x: Any) -> bool:
    """Classes that are read, caught or matched, and made by the library alone; aliases of types."""
    if hasattr(x, "__origin__"):
        return True
    if not inspect.isclass(x):
        return False
    made_by_users = {nn.Module, gf.amp.LossScale, gf.models.Qwen, gf.models.QwenConfig}
    return not made_by_users & {*x.__mro__} and x not in (gf.custom_jvp, gf.custom_vjp)


def documented() -> Iterator[tuple[str, Any]]:
    """(name, function) of everything that must have arguments, results and an example."""
    for space in NAMESPACES:
        for name in sorted(exported(space)):
            f = getattr(module_of(space), name)
            if callable(f) and not is_documented_by_its_fields(f) and not inspect.ismodule(f):
                yield f"{space}.{name}", f
    for name in ("dot_product_attention", "layer_norm", "linear_cross_entropy", "rms_norm"):
        yield f"lax.{name}", getattr(lax, name)
    for name in sorted(exported("optim")):
        f = getattr(optim, name)
        home = getattr(f, "__module__", "")
        if inspect.isfunction(f) and home.startswith("genesis_fn.optim.optimizers"):
            yield f"optim.{name}", f


CASES = [pytest.param(f, id=name) for name, f in documented()]


def parameters(f: Any) -> list[str]:
    try:
        found = inspect.signature(f).parameters
    except (TypeError, ValueError):
        return []
    return [n for n in found if n not in ("self", "cls")]


@pytest.mark.parametrize("f", CASES)
def test_arguments_results_and_an_example_are_described(f: Any) -> None:
    text = inspect.getdoc(f) or ""
    given = text.partition("Args:")[2]
    missing = [n for n in parameters(f) if not re.search(rf"(?<!\w)\*{{0,2}}{n}\b", given)]
    assert missing == [], "not under Args:"
    returns = inspect.isclass(f) or "-> None" in _source_head(f)
    assert returns or "Returns:" in text or "Yields:" in text, "says nothing of what it returns"
    assert ">>> " in text, "has no example"


def _source_head(f: Any) -> str:
    """`-> None` of a function's own annotation."""
    try:
        return f"-> {inspect.signature(f).return_annotation}"
    except (TypeError, ValueError):
        return ""


NUMBER = re.compile(r"[-+]?(?:\d+\.\d*|\.\d+)(?:e[-+]?\d+)?")


class RoundedChecker(doctest.OutputChecker):
    """Compares floats by value, since processors differ in a result's last digits."""

    def check_output(self, want: str, got: str, optionflags: int) -> bool:
        if super().check_output(want, got, optionflags):
            return True
        texts = [
            " ".join(re.sub(r"([\[\](),])", r" \1 ", NUMBER.sub("#", t)).split())
            for t in (want, got)
        ]
        numbers = [[float(n) for n in NUMBER.findall(t)] for t in (want, got)]
        return texts[0] == texts[1] and np.allclose(*numbers, rtol=1e-4, atol=1e-6)


def test_the_checker_tells_values_apart() -> None:
    check = RoundedChecker().check_output
    assert check("Array([1.5 , 2.25], dtype=float32)", "Array([1.500001, 2.25], dtype=float32)", 0)
    assert not check("Array([1.5], dtype=float32)", "Array([1.51], dtype=float32)", 0)
    assert not check("Array([1.5], dtype=float32)", "Array([1.5], dtype=float64)", 0)
    assert not check("Array([1.5, 2.0])", "Array([1.5])", 0)


@pytest.mark.cpu
@pytest.mark.parametrize("f", CASES)
def test_the_example_runs(f: Any) -> None:
    text = inspect.getdoc(f) or ""
    home = vars(sys.modules[f.__module__]) if getattr(f, "__module__", None) in sys.modules else {}
    example = doctest.DocTestParser().get_doctest(text, {**home, **GLOBALS}, f.__name__, None, 0)
    assert example.examples, "has no example"
    said: list[str] = []
    runner = doctest.DocTestRunner(
        RoundedChecker(), optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    )
    with gf.default_device(gf.cpu()):
        runner.run(example, out=said.append)
    assert runner.failures == 0, "".join(said)


def test_every_docstring_is_in_one_form() -> None:
    """Sections are `Args:`, `Returns:`, `Raises:`, `Yields:`, not another project's headings."""
    found = []
    for param in CASES:
        text = inspect.getdoc(param.values[0]) or ""
        found += [
            f"{param.id}: {line}"
            for line in text.splitlines()
            if re.fullmatch(r"(Arguments?|Parameters?|Return|Examples?|Notes?):?", line.strip())
        ]
    assert found == []


def test_what_users_type_is_walked() -> None:
    assert len(CASES) > 200
