"""amp: dtypes by precision class, through every transform; torch.autocast's choices."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import genesis_fn.lax as lax
import genesis_fn.numpy as jnp
from genesis_fn.amp import Policy
from genesis_fn.core import dtypes
from genesis_fn.core.jaxpr import e_jaxprs
from genesis_fn.core.primitive import PRIMITIVES, typeof
from genesis_fn.transforms.autodiff.checkpointing import checkpoint
from genesis_fn.transforms.autodiff.derivatives import grad
from genesis_fn.transforms.batching.mapped_axes import vmap
from genesis_fn.transforms.control_flow.conditionals import cond
from genesis_fn.transforms.control_flow.loops import while_loop
from genesis_fn.transforms.control_flow.scanning import scan
from genesis_fn.transforms.custom.derivative_rules import custom_vjp
from genesis_fn.transforms.jitting import jit
from genesis_fn.transforms.precision.autocast import AutocastPolicy, amp, as_autocast_policy
from genesis_fn.transforms.staging.stage_trace import stage
from tests.transforms.both import normal, ours

W, X = normal(4, 4).astype(np.float32), normal(3, 4, seed=1).astype(np.float32)
LABELS = np.array([0, 2, 1])


def model(w, x):
    h = jnp.tanh(x @ w)
    h = h @ w + x
    return jnp.mean(jnp.sum(jnp.exp(h * 0.1), -1))


def kinds(f, *args) -> dict[str, set[str]]:
    """The dtypes of float operands of every primitive in the program of `f`, at any depth."""
    jaxpr, _ = stage(lambda *xs: [f(*xs)], [typeof(ours(a)) for a in args])
    found: dict[str, set[str]] = {}

    def walk(program):
        for e in program.eqns:
            names = {
                i.aval.dtype.name
                for i in e.ins
                if hasattr(i, "aval") and dtypes.is_float(i.aval.dtype)
            }
            found.setdefault(e.prim.name, set()).update(names)
            for sub in e_jaxprs(e):
                walk(sub)

    walk(jaxpr)
    return found


def test_classes():
    found = kinds(amp(model), W, X)
    assert found["dot_general"] == {"bfloat16"}
    for name in ("tanh", "exp", "reduce_sum"):
        assert found[name] == {"float32"}, name
    assert kinds(amp(model, "float16"), W, X)["dot_general"] == {"float16"}
    assert kinds(amp(model, Policy("float32", "float16", "float32")), W, X)["dot_general"] == {
        "float16"
    }


def test_outputs_keep_their_dtypes():
    f = lambda w, x: (x @ w, x.sum(), jnp.argmax(x), w)
    plain, mixed = f(ours(W), ours(X)), amp(f)(ours(W), ours(X))
    assert [o.dtype for o in mixed] == [o.dtype for o in plain]
    np.testing.assert_allclose(np.asarray(mixed[0]), X @ W, rtol=0.03, atol=0.05)
    assert np.any(np.asarray(mixed[0]) != np.asarray(plain[0])), "the product was rounded"


def test_grad_of_amp_is_amp_of_grad():
    inside = grad(amp(model))(ours(W), ours(X))
    outside = amp(grad(model))(ours(W), ours(X))
    exact = grad(model)(ours(W), ours(X))
    assert inside.dtype == outside.dtype == np.float32
    scale = np.abs(np.asarray(exact)).max()
    np.testing.assert_allclose(np.asarray(inside), np.asarray(exact), atol=0.03 * scale)
    np.testing.assert_allclose(np.asarray(outside), np.asarray(exact), atol=0.03 * scale)
    assert kinds(grad(amp(model)), W, X)["dot_general"] == {"bfloat16"}
    assert kinds(amp(grad(model)), W, X)["dot_general"] == {"bfloat16"}


STACKS = {
    "jit": lambda f: jit(f), "checkpoint": lambda f: checkpoint(f), "amp(jit)": lambda f: jit(f),
    "vmap": lambda f: lambda w, x: vmap(lambda r: f(w, r[None]))(x).sum(),
    "scan": lambda f: lambda w, x: scan(lambda c, r: (c + f(w, r[None]), None), 0.0, x)[0],
    "cond": lambda f: lambda w, x: cond(x[0, 0] < 99, f, lambda w, x: x.sum(), w, x),
    "while": lambda f: lambda w, x: while_loop(
        lambda c: c[0] < 2, lambda c: (c[0] + 1, c[1] + f(w, x)), (0, 0.0)
    )[1],
}  # fmt: skip


@pytest.mark.parametrize("name", STACKS)
def test_reaches_into_every_transform(name):
    f = STACKS[name](model)
    assert kinds(amp(f), W, X)["dot_general"] == {"bfloat16"}
    value = float(amp(f)(ours(W), ours(X)))
    np.testing.assert_allclose(value, float(f(ours(W), ours(X))), rtol=0.03)
    if name != "while":
        g = grad(amp(f))(ours(W), ours(X))
        exact = np.asarray(grad(f)(ours(W), ours(X)))
        np.testing.assert_allclose(np.asarray(g), exact, atol=0.04 * np.abs(exact).max())
        np.testing.assert_allclose(float(jit(amp(f))(ours(W), ours(X))), value, rtol=1e-2)


def test_scan_carries_keep_their_dtype():
    f = lambda w, x: scan(lambda c, r: (jnp.tanh(c @ w) + r, c), x[0], x)
    carry, ys = amp(f)(ours(W), ours(X))
    assert carry.dtype == ys.dtype == np.float32


def test_nested_and_disabled():
    shielded = amp(lambda w, x: x @ w, enabled=False)
    assert kinds(amp(lambda w, x: shielded(w, x) + x @ w), W, X)["dot_general"] == {
        "float32",
        "bfloat16",
    }
    inner = amp(lambda w, x: x @ w, "float16")
    assert kinds(amp(lambda w, x: inner(w, x) + x @ w), W, X)["dot_general"] == {
        "float16",
        "bfloat16",
    }
    assert kinds(amp(model, enabled=False), W, X)["dot_general"] == {"float32"}


def test_overrides():
    f = amp(model, overrides={"dot_general": "high", "tanh": "follow", "exp": "low"})
    found = kinds(f, W, X)
    assert found["dot_general"] == {"float32"} and found["exp"] == {"bfloat16"}
    assert kinds(amp(lambda x: x + 1, overrides={"add": "low"}), X)["add"] == {"bfloat16"}
    twice = as_autocast_policy(as_autocast_policy("float16", {"exp": "low"}), {"tanh": "low"})
    assert twice == AutocastPolicy(dtypes.F16, (("exp", "low"), ("tanh", "low")))
    with pytest.raises(ValueError, match='override .* must be "low"'):
        amp(model, overrides={"exp": "wide"})
    with pytest.raises(TypeError, match="must be floating"):
        amp(model, "int8")


def test_float64_is_left_alone():
    f = lambda w, x: jnp.exp(x @ w)
    found = kinds(amp(f), W.astype(np.float64), X.astype(np.float64))
    assert found["dot_general"] == {"float64"} and found["exp"] == {"float64"}


def test_mixed_inputs_follow_the_widest():
    f = amp(lambda w, x: (x @ w) * x + x)
    found = kinds(f, W, X)
    assert found["mul"] == {"float32"} and found["add"] == {"float32"}


def test_custom_rules_keep_the_dtypes_they_were_traced_with():
    f = custom_vjp(lambda x: jnp.sin(x))
    f.defvjp(lambda x: (jnp.sin(x), x), lambda x, ct: (ct * jnp.cos(x),))
    g = lambda w, x: f(x @ w).sum()
    exact = np.asarray(grad(g)(ours(W), ours(X)))
    np.testing.assert_allclose(np.asarray(grad(amp(g))(ours(W), ours(X))), exact, atol=0.05)


def test_decorator_kwargs_and_captures():
    w = ours(W)

    @amp(policy="float16")
    def f(x, *, scale):
        return (x @ w * scale).sum()

    assert f.__name__ == "f"
    np.testing.assert_allclose(float(f(ours(X), scale=2.0)), 2 * (X @ W).sum(), rtol=0.05)
    outer = grad(lambda v: amp(lambda x: (x @ v).sum())(ours(X)))(w)
    np.testing.assert_allclose(np.asarray(outer), X.sum(0)[:, None] * np.ones((1, 4)), atol=0.05)


# torch.autocast's lists for the CPU and CUDA, for operations that are one primitive here.
LOW = {"dot_general": lambda x, w: x @ w, "conv_general_dilated": None}
HIGH = {
    "exp": torch.exp, "log": torch.log, "log1p": torch.log1p, "pow": None, "rsqrt": torch.rsqrt,
    "reduce_sum": torch.sum, "reduce_prod": torch.prod, "cumsum": None, "cumprod": None,
    "acos": torch.acos, "asin": torch.asin, "cosh": torch.cosh, "sinh": torch.sinh,
    "tan": torch.tan, "expm1": torch.expm1, "erf_inv": torch.erfinv,
}  # fmt: skip


def test_choices_of_torch():
    """torch.autocast's CUDA lists: products low; these float32."""
    for name in LOW:
        assert PRIMITIVES[name].precision == "low", name
    for name in HIGH:
        assert PRIMITIVES[name].precision == "high", name
    x, w = torch.tensor(X), torch.tensor(W)
    with torch.autocast("cpu", torch.bfloat16):
        low = x @ w
        added = low + x
    assert low.dtype == torch.bfloat16 and added.dtype == torch.float32
    jaxpr, _ = stage(
        lambda a, b: [amp(lambda c, d: (c @ d, c @ d + c))(a, b)[1]],
        [typeof(ours(X)), typeof(ours(W))],
    )
    mine = np.asarray(amp(lambda a, b: a @ b)(ours(X), ours(W)))
    np.testing.assert_allclose(mine, low.float().numpy(), rtol=1e-2, atol=1e-2)


def test_losses_run_wide():
    f = lambda x: -lax.log(lax.exp(x) / jnp.sum(lax.exp(x), -1, keepdims=True)).sum()
    half = kinds(amp(f), X.astype(np.float16))
    assert half["log"] == {"float32"} and half["exp"] == {"float32"}
