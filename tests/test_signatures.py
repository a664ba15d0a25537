"""Every public function takes the parameters of JAX's or optax's function of its name, but for the
differences in `signatures.toml`, each of which has a reason there."""

from __future__ import annotations

import importlib
import inspect
import tomllib
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import pytest

import genesis_fn as gf
from tests.public.names import DISTRIBUTIONS

TABLE = Path(__file__).parent / "signatures.toml"
# Namespaces here, and those that define what their names take.
NAMESPACES = {
    "": "jax",
    "numpy": "jax.numpy",
    "numpy.linalg": "jax.numpy.linalg",
    "numpy.fft": "jax.numpy.fft",
    "lax": "jax.lax",
    "lax.linalg": "jax.lax.linalg",
    "nn": "jax.nn",
    "nn.initializers": "jax.nn.initializers",
    "scipy.linalg": "jax.scipy.linalg",
    "scipy.special": "jax.scipy.special",
    "experimental.ode": "jax.experimental.ode",
    "scipy.cluster.vq": "jax.scipy.cluster.vq",
    "scipy.fft": "jax.scipy.fft",
    "scipy.integrate": "jax.scipy.integrate",
    "scipy.interpolate": "jax.scipy.interpolate",
    "scipy.ndimage": "jax.scipy.ndimage",
    "scipy.optimize": "jax.scipy.optimize",
    "scipy.signal": "jax.scipy.signal",
    "scipy.sparse.linalg": "jax.scipy.sparse.linalg",
    "scipy.spatial.transform": "jax.scipy.spatial.transform",
    "scipy.stats": "jax.scipy.stats",
    **{f"scipy.stats.{n}": f"jax.scipy.stats.{n}" for n in DISTRIBUTIONS},
    "random": "jax.random",
    "tree": "jax.tree",
    "tree_util": "jax.tree_util",
    "ad_checkpoint": "jax.ad_checkpoint",
    "custom_derivatives": "jax.custom_derivatives",
    "experimental.checkify": "jax.experimental.checkify",
    "optim": "optax",
    "optim.assignment": "optax.assignment",
    "optim.contrib": "optax.contrib",
    "optim.losses": "optax.losses",
    "optim.microbatching": "optax.microbatching",
    "optim.perturbations": "optax.perturbations",
    "optim.projections": "optax.projections",
    "optim.schedules": "optax.schedules",
    "optim.second_order": "optax.second_order",
    "optim.transforms": "optax.transforms",
    "optim.tree": "optax.tree",
    "optim.tree_utils": "optax.tree_utils",
}
POSITIONAL = inspect.Parameter.POSITIONAL_ONLY
NAMED = inspect.Parameter.KEYWORD_ONLY
EITHER = inspect.Parameter.POSITIONAL_OR_KEYWORD
MANY = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
KINDS = {POSITIONAL: "by position", NAMED: "by name", EITHER: "either way"}


def _module(root: Any, path: str) -> Any:
    for name in filter(None, path.split(".")):
        root = getattr(root, name)
    return root


def _public(path: str) -> Iterator[tuple[str, Callable, Callable]]:
    """(name, function here, function there) of a namespace."""
    mine, theirs = _module(gf, path), importlib.import_module(NAMESPACES[path])
    for name in sorted(dir(mine)):
        f = getattr(mine, name)
        if name.startswith("_") or isinstance(f, types.ModuleType) or not callable(f):
            continue
        g = getattr(theirs, name, None)
        if callable(g) and not _is_dtype(f):
            yield f"{path}.{name}".lstrip("."), f, g


def _is_dtype(f: Any) -> bool:
    """Whether `f` is a scalar type: `float32(x)` has tests of its own."""
    try:
        return isinstance(f, type) and np.dtype(f) != np.dtype(object)
    except TypeError:
        return False


def _signature(f: Callable) -> inspect.Signature | None:
    try:
        return inspect.signature(f)
    except (TypeError, ValueError):
        return None


def _default(value: Any) -> str:
    """A default in words that do not change from run to run."""
    if hasattr(value, "_fields"):  # a transformation: a pair of functions
        return type(value).__name__
    if value is None or isinstance(value, bool | int | float | complex | str | tuple | frozenset):
        return repr(value)
    if isinstance(value, np.generic):
        return repr(value.item())
    if value is inspect.Parameter.empty:
        return "required"
    try:
        return np.dtype(value).name
    except TypeError:
        return getattr(value, "__name__", "unset")


def _as_named_there(mine: inspect.Signature, theirs: inspect.Signature) -> dict[str, Any]:
    """`mine`'s parameters, with those that callers there cannot name called as there. What its
    `*args` takes there is left out."""
    there = [*theirs.parameters.values()]
    found = {}
    for i, (name, p) in enumerate(mine.parameters.items()):
        if p.kind == POSITIONAL and there[0].kind == MANY[0]:
            continue
        if i < len(there) and there[i].kind == POSITIONAL and p.kind in (POSITIONAL, EITHER):
            name = there[i].name
        found[name] = p
    return found


def differences(mine: inspect.Signature, theirs: inspect.Signature) -> list[str]:
    """How one signature differs from another, in words."""
    a, b = _as_named_there(mine, theirs), theirs.parameters
    found = [f"lacks {n}" for n, p in b.items() if n not in a and p.kind not in MANY]
    found += [f"adds {n}" for n, p in a.items() if n not in b and p.kind not in MANY]
    by_position = any(p.kind == POSITIONAL for p in mine.parameters.values())
    for kind, stars in zip(MANY, ("*args", "**kwargs"), strict=True):
        have, want = (any(p.kind == kind for p in s.values()) for s in (a, b))
        if kind == MANY[0] and by_position:
            continue
        if have != want:
            found.append(f"{'adds' if have else 'lacks'} {stars}")
    both = [n for n in a if n in b]
    for n in both:
        if a[n].kind != b[n].kind:
            found.append(f"{n} {KINDS.get(a[n].kind)}, there {KINDS.get(b[n].kind)}")
        x, y = _default(a[n].default), _default(b[n].default)
        if x != y:
            found.append(f"{n}={x}, there {y}")
    placed = [n for n in both if a[n].kind != NAMED and b[n].kind != NAMED]
    if placed != [n for n in b if n in {*placed}]:
        found.append(f"order of {', '.join(placed)}")
    return found


def _found() -> dict[str, list[str]]:
    """Every difference, and the names that have it."""
    found: dict[str, list[str]] = {}
    for path in NAMESPACES:
        for name, f, g in _public(path):
            mine, theirs = _signature(f), _signature(g)
            if mine is None or theirs is None:
                continue
            for text in differences(mine, theirs):
                found.setdefault(text, []).append(name)
    return found


def _listed() -> dict[tuple[str, str], str]:
    """(difference, name) -> reason."""
    listed: dict[tuple[str, str], str] = {}
    for group in tomllib.loads(TABLE.read_text())["group"]:
        for text, names in group["differences"].items():
            for name in names:
                assert (text, name) not in listed, f"{name} {text!r} is listed twice"
                listed[text, name] = group["reason"]
    return listed


def _written_for(name: str, version: str) -> bool:
    return version.startswith(tomllib.loads(TABLE.read_text())[name] + ".")


@pytest.mark.skipif(
    not (_written_for("jax", jax.__version__) and _written_for("optax", optax.__version__)),
    reason="the table is of other versions of JAX and optax",
)
def test_every_difference_is_listed_and_every_listed_one_is_there() -> None:
    found = {(text, name) for text, names in _found().items() for name in names}
    listed = _listed()
    unlisted = sorted(f"{name}: {text}" for text, name in found - {*listed})
    gone = sorted(f"{name}: {text}" for text, name in {*listed} - found)
    assert not unlisted, "not in signatures.toml: mend them, or list them with a reason"
    assert not gone, "in signatures.toml, but no longer so"


def test_every_reason_is_given() -> None:
    assert all(reason.strip() for reason in _listed().values())
