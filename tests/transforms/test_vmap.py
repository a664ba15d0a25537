"""vmap against JAX: axes as trees, nesting, unbatched values, sizes, refusals."""

from __future__ import annotations

import numpy as np
import pytest

import genesis_fn.numpy as jnp
from genesis_fn.core import errors
from genesis_fn.core.primitive import Primitive, bind
from genesis_fn.transforms.autodiff.derivatives import grad
from genesis_fn.transforms.batching.mapped_axes import vmap
from tests.transforms.both import OURS, agree, normal, ours

A, B, V = normal(3, 4), normal(4, 3, seed=1), normal(4, seed=2)
C = normal(2, 3, 4, seed=3)


@pytest.mark.parametrize("in_axes, out_axes", [
    (0, 0), (1, 0), (-1, -1), (0, 1), ((0, None), 0), ((1, 1), 1), ((None, 2), -1),
])  # fmt: skip
def test_axes(in_axes, out_axes):
    args = {
        (0, None): (A, V),
        (1, 1): (A, A),
        (None, 2): (A[0], C.swapaxes(0, 2).swapaxes(0, 1)),
    }.get(in_axes, (A, A))
    f = lambda m: lambda x, y: m.np.outer(x, m.np.ravel(y)) if out_axes else x * y
    agree(lambda m, *xs: m.vmap(f(m), in_axes, out_axes)(*xs), *args)


def test_axes_as_trees():
    params = {"w": C, "b": (V, B)}
    f = lambda m: lambda p, x: {"y": p["w"] @ x + p["b"][0].sum(), "z": (p["b"][1].sum(), x)}

    def program(m, p, x):
        axes = ({"w": 1, "b": (None, 0)}, 0)
        p = {"w": p["w"], "b": (p["b"][0], p["b"][1][:3])}
        return m.vmap(f(m), in_axes=axes, out_axes={"y": 1, "z": (0, None)})(p, m.np.stack([x] * 3))

    with pytest.raises(ValueError, match="out_axes is None"):
        program(OURS, *ours((params, V)))

    def right(m, p, x):
        axes = ({"w": 1, "b": (None, 0)}, None)
        p = {"w": p["w"], "b": (p["b"][0], p["b"][1][:3])}
        return m.vmap(f(m), in_axes=axes, out_axes={"y": 1, "z": (0, None)})(p, x)

    agree(right, params, V)


def test_nested_and_differentiated():
    f = lambda m: lambda x, y: m.np.sum(m.np.sin(x) * y)
    agree(lambda m, x, y: m.vmap(m.vmap(f(m), (0, None)), (None, 0))(x, y), A, A)
    agree(lambda m, x: m.vmap(m.vmap(m.vmap(lambda v: v * v + 1, 0, 0), 0, 1), 1, 1)(x), C)
    agree(lambda m, x, y: m.vmap(m.grad(f(m)), (0, None))(x, y), A, V)
    agree(lambda m, x, y: m.grad(lambda v: m.vmap(f(m), (0, None))(x, v).sum())(y), A, V)
    agree(lambda m, x: m.jit(m.vmap(lambda v: m.vmap(lambda s: s * v.sum())(v)))(x), A)


def test_outputs_that_do_not_depend_on_the_batch():
    agree(lambda m, x: m.vmap(lambda v: (m.np.ones(2, x.dtype), v, x.sum()))(x), A)
    agree(lambda m, x: m.vmap(lambda v: x.sum(), out_axes=None)(x), A)


def test_keyword_arguments_and_axis_size():
    agree(lambda m, x, y: m.vmap(lambda a, *, b: a + b, in_axes=1)(x, b=y), A, V)
    agree(lambda m, x: m.vmap(lambda: x * 2, axis_size=3)(), V)
    agree(lambda m, x: m.vmap(lambda a: a, axis_size=3)(x), A)


def test_python_scalars_and_lists():
    out = vmap(lambda x, s: x * s, in_axes=(0, None))(ours(V), 2.0)
    np.testing.assert_allclose(np.asarray(out), V * 2)
    agree(lambda m, x, y: m.vmap(lambda p: p[0] + p[1])([x, y]), V, V)


def test_zero_size_batch():
    agree(lambda m, x: m.vmap(lambda v: m.np.sin(v).sum())(x), np.zeros((0, 3)))
    agree(lambda m, x: m.vmap(m.grad(lambda v: m.np.sin(v).sum()))(x), np.zeros((0, 3)))


def test_sizes_differ():
    with pytest.raises(ValueError) as error:
        vmap(lambda x, y: x)(ours(A), {"k": ours(V)})
    text = str(error.value)
    assert "argument 0: f64[3,4] has 3 along axis 0" in text
    assert "argument 1['k']: f64[4] has 4 along axis 0" in text
    assert len(text.splitlines()) <= 6 and "test_vmap.py" in text
    with pytest.raises(ValueError, match="and 2 more"):
        vmap(lambda *xs: xs)(*[ours(np.zeros(i + 1)) for i in range(5)])


@pytest.mark.parametrize("call, kind, match", [
    (lambda: vmap(jnp.sin, in_axes="0"), TypeError, "in_axes must be"),
    (lambda: vmap(jnp.sin, in_axes=(0, 0))(ours(V)), ValueError, "2 entries for 1"),
    (lambda: vmap(jnp.sin, in_axes=2)(ours(A)), ValueError, "axis 2 does not exist in argument 0"),
    (lambda: vmap(jnp.sin, in_axes=({"a": 0},))(ours(A)), errors.TreeError,
     "in_axes for argument 0"),
    (lambda: vmap(jnp.sin, in_axes=("x",))(ours(A)), TypeError, "axes are ints or None"),
    (lambda: vmap(jnp.sin, in_axes=None)(ours(A)), ValueError, "at least one mapped argument"),
    (lambda: vmap(lambda x: x, out_axes=(0, 0))(ours(A)), errors.TreeError, "out_axes"),
    (lambda: vmap(lambda x: "no")(ours(A)), errors.TreeError, "returned 'no'"),
    (lambda: vmap(lambda x: x, axis_size=5)(ours(A)), ValueError, "different sizes"),
])  # fmt: skip
def test_refusals(call, kind, match):
    with pytest.raises(kind, match=match):
        call()


def test_a_primitive_without_a_batching_rule():
    prim = Primitive("test_no_batching", lambda x: x)
    with pytest.raises(
        errors.NotDifferentiableError, match="test_no_batching has no batching rule"
    ):
        vmap(lambda x: bind(prim, x))(ours(V))
    with pytest.raises(errors.NotDifferentiableError, match="test_no_batching has no derivative"):
        grad(lambda x: bind(prim, x).sum())(ours(V))


def test_origin_of_a_batched_tracer():
    seen = []
    vmap(lambda x: seen.append((x.origin(), repr(x), x.concrete())) or x)(ours(V))
    [(origin, *rest)] = seen
    assert "argument x of <lambda>, vmap called at " in origin and "test_vmap.py:" in origin
    assert rest == ["Traced<f64[]> in vmap", None]
