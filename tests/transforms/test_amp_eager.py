"""amp op by op: Python sees values inside, and the results are those of the recorded program."""

from __future__ import annotations

import numpy as np
import pytest

import genesis_fn.numpy as jnp
from genesis_fn import nn
from genesis_fn.lax import stop_gradient
from genesis_fn.transforms.autodiff.checkpointing import checkpoint
from genesis_fn.transforms.autodiff.derivatives import grad, jvp, value_and_grad
from genesis_fn.transforms.batching.mapped_axes import vmap
from genesis_fn.transforms.control_flow.scanning import scan
from genesis_fn.transforms.custom.derivative_rules import custom_vjp
from genesis_fn.transforms.jitting import jit
from genesis_fn.transforms.precision.autocast import amp
from tests.transforms.both import normal, ours

W, X = normal(4, 4).astype(np.float32), normal(3, 4, seed=1).astype(np.float32)


def model(w, x):
    h = nn.relu(x @ w)
    return jnp.mean(jnp.exp((h @ w + x).sum(-1) * 0.1))


def test_python_sees_values():
    seen = []

    @amp
    def f(w):
        y = jnp.tanh(w @ w)
        if y[0, 0] > 5:
            return y.sum()
        z = stop_gradient(y)
        seen.append((float(z[0, 0]), np.asarray(z).dtype, y.dtype, f"{y.sum():.3f}"))
        return (y * y).sum()

    value, gradient = value_and_grad(f)(ours(W))
    plain = float(f(ours(W)))
    assert float(value) == plain and gradient.dtype == np.float32
    assert len(seen) == 2 and seen[0] == seen[1]
    assert seen[0][1] == seen[0][2] == np.float32
    assert abs(seen[0][0] - np.tanh((W @ W)[0, 0])) < 0.02
    assert jvp(grad(f), (ours(W),), (ours(W),))[1].shape == (4, 4)
    with pytest.raises(TypeError):
        jit(f)(ours(W))


def closing(w, x):
    """A custom rule that closes over a value computed under amp."""
    k = jnp.mean(x @ x.T)
    f = custom_vjp(lambda v: jnp.sin(v) * k)
    f.defvjp(lambda v: (jnp.sin(v) * k, v), lambda v, ct: (ct * jnp.cos(v) * k,))
    return f(w @ w).sum()


PROGRAMS = {
    "plain": model,
    "checkpoint": lambda w, x: checkpoint(model)(w, x),
    "scan": lambda w, x: scan(lambda c, r: (c + model(w, r[None]), None), 0.0, x)[0],
    "vmap": lambda w, x: vmap(lambda r: model(w, r[None]))(x).sum(),
    "jit": lambda w, x: jit(model)(w, x),
    "grad": lambda w, x: (grad(model)(w, x) ** 2).sum(),
    "nested": lambda w, x: amp(model, "float16")(w, x) + (x @ w).sum(),
    "shielded under vmap": lambda w, x: vmap(lambda r: amp(model, enabled=False)(w, r[None]))(
        x
    ).sum(),
    "closing": closing,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_as_the_recorded_program(name):
    f = amp(PROGRAMS[name])
    args = ours(W), ours(X)
    np.testing.assert_allclose(float(f(*args)), float(jit(f)(*args)), rtol=2e-3)
    got, want = grad(f)(*args), jit(grad(f))(*args)
    assert got.dtype == want.dtype
    scale = np.abs(np.asarray(want)).max()
    np.testing.assert_allclose(np.asarray(got), np.asarray(want), atol=5e-3 * scale)
