"""What editors and type checkers know of arrays is what arrays have: the declarations in
`core/types/array_interface.py` against the operators and methods that are installed."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from typing import Any

import pytest

import genesis_fn as gf
import genesis_fn.numpy as jnp
from genesis_fn.core import array
from genesis_fn.core.aval import Described
from genesis_fn.core.types import array_interface as declared
from genesis_fn.numpy.arrays import methods
from tests.public.names import exported

# Python's own, which every class has, and what NumPy and torch look for on arrays alone.
OWN = {
    "__module__", "__doc__", "__slots__", "__annotations__", "__firstlineno__",
    "__static_attributes__", "__hash__", "__dict__", "__weakref__", "__orig_bases__",
}  # fmt: skip
# Metadata that arrays and tracers each define for themselves.
EACH = {"weak", "weak_type"}
DECLARED = {n: v for n, v in vars(declared.ArrayInterface).items() if n not in OWN}


def in_class_body(value: Any) -> bool:
    """Whether `core/array.py` defines this attribute of `Array` itself, where checkers see it."""
    function = value.fget if isinstance(value, property) else value
    return getattr(function, "__module__", array.__name__) == array.__name__


def installed() -> dict[str, Any]:
    """The attributes of `Array` that were set on it after it was defined."""
    return {
        name: value
        for name, value in vars(gf.Array).items()
        if name not in OWN and type(value) is not methods._Lacking and not in_class_body(value)
    }


def parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """Those after `self`."""
    return list(inspect.signature(function).parameters.values())[1:]


def arguments(function: Callable[..., Any]) -> list[Any]:
    """How a special method is called: kinds and defaults, but no names, which Python passes by
    position."""
    found = []
    for p in parameters(function):
        by_name = p.kind in (p.KEYWORD_ONLY, p.VAR_KEYWORD) or p.name in ("dtype", "copy")
        found.append((p.name if by_name else "", p.default))
    return found


def interface(function: Callable[..., Any]) -> list[Any]:
    """The names, kinds and defaults of a method's parameters."""
    return [(p.name, p.kind, p.default) for p in parameters(function)]


def test_every_installed_name_is_declared_and_no_other() -> None:
    assert set(installed()) - set(DECLARED) == set()
    assert set(DECLARED) - set(installed()) - EACH == set()


def test_checkers_see_the_interface_as_a_base_of_array() -> None:
    assert issubclass(declared.ArrayInterface, Described)
    assert not issubclass(gf.Array, declared.ArrayInterface)  # at run time: what is installed
    assert not hasattr(gf.Array, "__getattr__")


@pytest.mark.parametrize("name", sorted(set(DECLARED) - EACH))
def test_a_declaration_is_that_of_the_installed_method(name: str) -> None:
    said, real = DECLARED[name], installed()[name]
    assert isinstance(said, property) == isinstance(real, property)
    if isinstance(said, property):
        return
    if name == "compress":  # the method passes its options on
        whole = {p.name: (p.name, p.kind, p.default) for p in parameters(jnp.compress)}
        own = [p for p in interface(real) if p[1] != inspect.Parameter.VAR_KEYWORD]
        taken = {n for n, *_ in own} | {"a"}
        assert interface(said) == own + [p for n, p in whole.items() if n not in taken]
    elif name.startswith("__"):
        assert arguments(said) == arguments(real)
    else:
        assert interface(said) == interface(real)


@pytest.mark.parametrize("name", sorted(set(DECLARED) | {"devices", "block_until_ready"}))
def test_a_declaration_says_every_type(name: str) -> None:
    said = DECLARED.get(name) or vars(gf.Array)[name]
    function = said.fget if isinstance(said, property) else said
    assert set(function.__annotations__) == {*inspect.signature(function).parameters, "return"} - {
        "self"
    }


UPDATES = {n: f for n, f in vars(declared.IndexedUpdate).items() if n not in OWN}


def test_at_is_declared_with_its_updates() -> None:
    update = jnp.zeros(2).at[0]
    assert set(UPDATES) == {n for n in dir(update) if n[0] != "_"} - {"array", "index"}
    assert hasattr(jnp.zeros(2).at, "__getitem__")


@pytest.mark.parametrize("name", sorted(UPDATES))
def test_an_update_takes_the_options_that_are_declared(name: str) -> None:
    update = jnp.zeros(2).at[0]
    method, said = getattr(update, name), parameters(UPDATES[name])
    real = {p.name: p for p in inspect.signature(method).parameters.values()}
    for p in said:
        if p.name in real:
            assert (p.kind, p.default) == (real[p.name].kind, real[p.name].default)
    value: Any = {"apply": [lambda v: v + 1], "get": []}.get(name, [1.0])
    options = {p.name: p.default for p in said if p.kind is p.KEYWORD_ONLY}
    assert {"mode", "unique_indices", "indices_are_sorted"} <= set(options)
    method(*value, **options)
    with pytest.raises(TypeError):
        method(*value, **options, no_such_option=1)


def test_an_array_does_what_is_declared() -> None:
    x = jnp.arange(6.0).reshape(2, 3)
    assert [type(row) for row in x] == [type(x)] * 2
    assert type(x.item(0)) is float and type(x.astype("int32").tolist()[0][0]) is int
    assert type(x == x) is type(x) and isinstance(divmod(x, 2), tuple)
    assert isinstance(x.nonzero(), tuple) and type(x.tobytes()) is bytes


@pytest.mark.parametrize("name", ["amp", "cuda"])
def test_a_module_that_can_be_called_is_a_class_to_checkers(name: str) -> None:
    """`genesis_fn/__init__.py` declares it with all that the module exports, and no more."""
    tree = ast.parse(inspect.getsource(gf))
    (said,) = [n for n in ast.walk(tree) if isinstance(n, ast.ClassDef) and n.name == name]
    names = {t.id for n in said.body if isinstance(n, ast.Assign) for t in n.targets}  # type: ignore[attr-defined]
    assert names == exported(name)
    assert callable(getattr(gf, name))
