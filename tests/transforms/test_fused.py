"""fused: one operation with a reference, derivatives by a kernel pair, batches folded into rows."""

from __future__ import annotations

import numpy as np
import pytest

import genesis_fn.numpy as jnp
from genesis_fn.core.primitive import typeof
from genesis_fn.transforms.autodiff.derivatives import grad, jvp
from genesis_fn.transforms.batching.mapped_axes import vmap
from genesis_fn.transforms.custom.fused_functions import FUSED, Fused, fused
from genesis_fn.transforms.jitting import jit
from genesis_fn.transforms.staging.stage_trace import stage
from tests.transforms.both import normal, ours

A, W = normal(3, 4), normal(4, seed=1)
used: list[str] = []


@fused("test_scaled", static=("power",), rows=(True, False))
def scaled(x, w, *, power):
    """x**power * w."""
    used.append("reference")
    return x**power * w


@fused("test_scaled_forward")
def scaled_forward(x, w, *, power):
    used.append("forward")
    return (x**power * w,), (x**power,)


@fused("test_scaled_backward")
def scaled_backward(residuals, ct, *, needs, power):
    used.append(f"backward{needs}")
    (y,) = residuals
    # Ten times the truth for w, so that the test sees which rule ran.
    return ct * 0 + 2.0, (ct * y * 10).reshape(-1, 4).sum(0)


scaled.defvjp(scaled_forward, scaled_backward)


@fused("test_plain", rows=(True,))
def plain(x):
    """Without a pair of its own: derivatives of the reference."""
    return jnp.sin(x) * x


def equations(f, *args) -> list[tuple]:
    jaxpr, _ = stage(lambda *xs: [f(*xs)], [typeof(a) for a in args])
    return [(e.prim.name, getattr(e.params.get("op"), "name", None)) for e in jaxpr.eqns]


def test_one_equation():
    f = lambda x, w: scaled(x, w, power=2)
    assert equations(f, ours(A), ours(W)) == [("fused", "test_scaled")]
    np.testing.assert_allclose(np.asarray(f(ours(A), ours(W))), A**2 * W)
    np.testing.assert_allclose(np.asarray(jit(f)(ours(A), ours(W))), A**2 * W)


def test_reference_is_staged_once_per_signature():
    scaled(ours(A), ours(W), power=3)
    count = used.count("reference")
    scaled(ours(A), ours(W), power=3)
    assert used.count("reference") == count
    scaled(ours(A), ours(W), power=4)
    assert used.count("reference") == count + 1


def test_gradient_uses_the_pair():
    f = lambda x, w: scaled(x, w, power=2).sum()
    gx, gw = grad(f, (0, 1))(ours(A), ours(W))
    np.testing.assert_allclose(np.asarray(gx), A * 0 + 2)
    np.testing.assert_allclose(np.asarray(gw), 10 * (A**2).sum(0))
    names = [n for _, n in equations(grad(f), ours(A), ours(W)) if n]
    assert names == ["test_scaled_forward"]
    assert "backward(True, True)" in used
    grad(f)(ours(A), ours(W))
    assert "backward(True, False)" in used


def test_forward_mode_is_that_of_the_reference():
    f = lambda x, w: scaled(x, w, power=2)
    _, t = jvp(f, (ours(A), ours(W)), (ours(A), ours(W)))
    np.testing.assert_allclose(np.asarray(t), 3 * A**2 * W)
    linear = jvp(lambda x: grad(lambda v: f(v, ours(W)).sum())(x).sum(), (ours(A),), (ours(A),))[1]
    assert float(linear) == 0.0  # the derivative of the pair's constant 2


def test_batches_fold_into_rows():
    batch = ours(normal(5, 3, 4))
    g = vmap(lambda x: scaled(x, ours(W), power=2))
    jaxpr, _ = stage(lambda x: [g(x)], [typeof(batch)])
    (eqn,) = [e for e in jaxpr.eqns if e.prim.name == "fused"]
    assert eqn.params["op"] is scaled and eqn.ins[0].aval.shape == (5, 3, 4)
    np.testing.assert_allclose(np.asarray(g(batch)), np.asarray(batch) ** 2 * W)


def test_a_batched_weight_falls_back_to_the_reference():
    g = vmap(lambda x, w: scaled(x, w, power=2))
    xs, ws = normal(5, 3, 4), normal(5, 4, seed=9)
    np.testing.assert_allclose(np.asarray(g(ours(xs), ours(ws))), xs**2 * ws[:, None])
    both = vmap(grad(lambda x, w: scaled(x, w, power=2).sum(), (0, 1)))(ours(xs), ours(ws))
    np.testing.assert_allclose(np.asarray(both[1]), 10 * (xs**2).sum(1))


def test_a_batching_rule_of_its_own():
    def batch(size, xs, dims):
        return None if dims[0] == 1 else ([xs[0] * 100], [dims[0]])

    f = Fused("test_own_batch", lambda x: x * 2, (), None, "follow", batch)
    np.testing.assert_allclose(np.asarray(vmap(f)(ours(A))), A * 100)
    np.testing.assert_allclose(np.asarray(vmap(f, 1, 1)(ours(A))), A * 2)


def test_derivatives_of_a_plain_reference():
    g = grad(lambda x: plain(x).sum())(ours(A))
    np.testing.assert_allclose(np.asarray(g), np.cos(A) * A + np.sin(A))
    second = grad(lambda y: grad(lambda x: plain(x).sum())(y).sum())(ours(A))
    np.testing.assert_allclose(np.asarray(second), 2 * np.cos(A) - A * np.sin(A))


def test_names_are_unique():
    assert FUSED["test_plain"] is plain and repr(plain) == "<fused test_plain>"
    with pytest.raises(ValueError, match="defined twice"):
        fused("test_plain")(lambda x: x)


def test_static_parameters_are_declared():
    with pytest.raises(TypeError, match=r"test_scaled.* no static parameter w \(it has power\)"):
        scaled(ours(A), w=ours(W), power=2)
    with pytest.raises(TypeError, match=r"no static parameter eps \(it has none\)"):
        plain(ours(A), eps=1)


def test_arrays_are_given_as_arguments():
    table = ours(A)
    f = Fused("test_closing_over", lambda x: x + table, (), None, "follow", None)
    for run in (f, jit(f), vmap(f), grad(lambda x: f(x).sum())):
        with pytest.raises(TypeError, match=r"test_closing_over.* closes over f\d+\[3,4\]"):
            run(ours(A))
