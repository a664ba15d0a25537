"""What holds for every exported layer: the module convention, transforms, precision, values."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import numpy as np
import pytest

import genesis_fn as gf
import genesis_fn.numpy as jnp
from genesis_fn import amp, nn, random, tree
from genesis_fn.test_util import check_grads
from tests.nn.table import ROWS, Row
from tests.public.names import exported

LAYERS = sorted(
    n for n in exported("nn")
    if inspect.isclass(getattr(nn, n)) and issubclass(getattr(nn, n), nn.Module) and n != "Module"
)  # fmt: skip
EVERY = pytest.mark.parametrize("row", ROWS.values(), ids=ROWS.keys())


def outputs(row: Row, params: Any, x: Any, train: bool = False, state: Any = None) -> Any:
    """The output of a call with `state`; None stands for a fresh one if the layer has one that
    needs no size, else for none."""
    state = row.layer.init_state() if state is None else state
    key = random.key(1) if train else None
    if state is None:
        return row.layer(params, x, key=key, train=train)
    return row.layer(params, x, state=state, key=key, train=train)[0]


def same(a: Any, b: Any, tolerance: float = 1e-5) -> None:
    assert tree.structure(a) == tree.structure(b)
    for x, y in zip(tree.leaves(a), tree.leaves(b)):
        x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
        np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", LAYERS)
def test_every_layer_has_a_row(name: str):
    assert name in ROWS, f"add a small nn.{name} to ROWS in tests/nn/table.py"
    assert type(ROWS[name].layer).__name__ == name


@EVERY
def test_a_layer_is_a_value(row: Row):
    """Equal ones are equal, hash alike, print as the call that makes them, and hold no arrays."""
    layer = row.layer
    again = dataclasses.replace(layer) if dataclasses.is_dataclass(layer) else layer  # type: ignore[type-var]
    assert again == layer and hash(again) == hash(layer)
    assert repr(layer).startswith(type(layer).__name__ + "(")
    assert not any(isinstance(v, gf.Array) for v in vars(layer).values())
    assert list(inspect.signature(type(layer).__call__).parameters)[:3] == ["self", "params", "x"]


@EVERY
def test_parameters(row: Row):
    """One key gives one tree; dtype= is obeyed; nothing but arrays with names."""
    params = row.params()
    same(params, row.params(), 0.0)
    shapes = gf.jit(lambda: row.layer.init(random.key(0))).eval_shape()
    assert [x.shape for x in tree.leaves(shapes)] == [x.shape for x in tree.leaves(params)]
    if dataclasses.is_dataclass(row.layer) and hasattr(row.layer, "dtype"):
        narrow = dataclasses.replace(row.layer, dtype=jnp.bfloat16).init(random.key(0))  # type: ignore[type-var]
        kept = {np.dtype("float32")} if row.wide else set[np.dtype]()
        assert {x.dtype for x in tree.leaves(narrow)} - kept <= {np.dtype("bfloat16")}


@EVERY
@pytest.mark.parametrize("train", [False, True])
def test_jit(row: Row, train: bool):
    params, x = row.params(), row.input()
    same(gf.jit(lambda p, x: outputs(row, p, x, train))(params, x), outputs(row, params, x, train))


@EVERY
def test_vmap_and_batches(row: Row):
    params, x = row.params(), row.input()
    stacked = jnp.stack([x, x[::-1]])
    mapped = gf.vmap(lambda x: outputs(row, params, x))(stacked)
    same(mapped, jnp.stack([outputs(row, params, y) for y in stacked]), 1e-4)
    if row.batched:
        same(outputs(row, params, x)[:1], outputs(row, params, x[:1]), 1e-4)


@EVERY
def test_gradients(row: Row):
    """By the parameters and the input, to second order, against finite differences in float64."""
    wide = lambda v: v.astype(jnp.float64) if jnp.issubdtype(v.dtype, jnp.floating) else v
    params, x = tree.map(wide, row.params()), wide(row.input())
    state = row.layer.init_state()
    if state is not None:
        # A settled one: spectral norm's first vectors depend on the weights, without derivatives.
        state = tree.map(wide, row.layer(params, x, state=state, key=random.key(1), train=True)[1])
    if jnp.issubdtype(x.dtype, jnp.floating):
        check_grads(
            lambda p, x: outputs(row, p, x, state=state), (params, x), order=2, atol=1e-4, rtol=1e-4
        )
    else:
        check_grads(lambda p: outputs(row, p, x), (params,), order=2, atol=1e-4, rtol=1e-4)


@EVERY
def test_state_is_returned_where_it_is_given(row: Row):
    """(y, state) with a state of the same structure and shapes; in containers as alone."""
    state = row.state()
    if state is None:
        pytest.skip("no state")
    params, x = row.params(), row.input()
    y, new = row.layer(params, x, state=state)
    assert tree.structure(new) == tree.structure(state)
    for a, b in zip(tree.leaves(new), tree.leaves(state)):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
    held = nn.Sequential(inner=row.layer)
    given = held.init_state(**dict(row.sizes))
    outer, kept = held({"inner": params}, x, state=given)
    same(outer, y)
    same(kept["inner"], new)


@EVERY
def test_half_precision(row: Row):
    """Under amp outputs keep their dtype and come near; 16-bit parameters and inputs stay so."""
    params, x = row.params(), row.input()
    expected = outputs(row, params, x)
    found = amp(lambda p, x: outputs(row, p, x), "bfloat16")(params, x)
    assert [v.dtype for v in tree.leaves(found)] == [v.dtype for v in tree.leaves(expected)]
    same(found, expected, 0.1)
    narrow = lambda v: v.astype(jnp.bfloat16) if jnp.issubdtype(v.dtype, jnp.floating) else v
    low = outputs(row, tree.map(narrow, params), narrow(x))
    same(low, expected, 0.1)


@EVERY
def test_keys(row: Row):
    params, x = row.params(), row.input()
    state = row.layer.init_state()
    if not row.random:
        return
    draws = [row.layer(params, x, state=state, key=random.key(i), train=True) for i in (1, 1, 2)]
    first, again, other = [d[0] if state is not None else d for d in draws]
    same(first, again, 0.0)
    assert not np.array_equal(first, other)
    with pytest.raises(ValueError, match="key="):
        row.layer(params, x, state=state, train=True)
