"""What is around a jitted function decides what it traces to, so every such thing is in its key."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import genesis_fn as gf
import genesis_fn.numpy as jnp
from genesis_fn import lax, nn, random
from genesis_fn.core.configuration import config
from genesis_fn.core.primitive import ctx, trace_context_key
from genesis_fn.transforms.jitting.retrace import RecompilationWarning
from genesis_fn.transforms.staging.stage_trace import inlined


@pytest.fixture(autouse=True)
def fresh_programs():
    gf.clear_caches()
    with config.override(matmul_precision="default"):
        yield


def masked_log(x):
    return jnp.sum(jnp.where(x > 0, jnp.log(x), 0.0))


WRAPPED = {
    "jit": lambda f: gf.jit(f),
    "jit of jit": lambda f: gf.jit(gf.jit(f)),
    "checkpoint": lambda f: gf.jit(gf.checkpoint(f)),
    "scan": lambda f: gf.jit(
        lambda x: lax.scan(lambda c, row: (c + f(row), None), 0.0, x[None])[0]
    ),
    "cond": lambda f: gf.jit(lambda x: lax.cond(jnp.array(True), f, lambda v: 0.0 * f(v), x)),
    "vmap": lambda f: gf.jit(lambda x: jnp.sum(gf.vmap(f)(x[None]))),
    "custom_jvp": lambda f: _with_jvp(f),
}


def _with_jvp(f):
    g = gf.custom_jvp(lambda x: f(x))
    g.defjvp(lambda xs, ts: gf.jvp(f, xs, ts))
    return gf.jit(g)


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("name", WRAPPED)
def test_safe_zero_is_in_the_key(name, first):
    x = jnp.array([0.0, 2.0])
    f = WRAPPED[name](masked_log)
    for safe in (first, not first, first, not first):
        got = gf.grad(f, safe_zero=safe)(x)
        np.testing.assert_allclose(got, [0.0 if safe else np.nan, 0.5])


@pytest.mark.parametrize("first", [True, False])
def test_safe_zero_reaches_a_derivative_inside_a_jitted_function(first):
    @gf.jit
    def slope(x):
        return jnp.sum(gf.grad(masked_log)(x) ** 2)

    x = jnp.array([0.0, 2.0])
    for safe in (first, not first, first):
        value, _ = gf.value_and_grad(slope, safe_zero=safe)(x)
        np.testing.assert_allclose(float(value), 0.25 if safe else np.nan)


def test_the_reason_for_tracing_again_names_the_context():
    f = gf.jit(lambda x: jnp.sum(gf.grad(masked_log)(x)))
    gf.grad(f)(jnp.ones(2))
    gf.grad(f)(jnp.ones(3))
    with pytest.warns(RecompilationWarning, match="  safe_zero: False -> True"):
        gf.grad(f, safe_zero=True)(jnp.ones(3))
    with gf.default_matmul_precision("highest"):
        with pytest.warns(RecompilationWarning, match="setting matmul_precision: default -> high"):
            gf.grad(f)(jnp.ones(3))


def test_named_axes_are_in_the_key():
    f = gf.jit(lambda x: x / lax.axis_size("i"))
    x = jnp.arange(6.0)
    for rows in (2, 3, 2):
        got = gf.vmap(f, axis_name="i")(x.reshape(rows, -1))
        np.testing.assert_allclose(got, np.arange(6.0).reshape(rows, -1) / rows)


def test_a_program_called_in_a_backward_pass_is_backward_when_it_is_inlined():
    shared = gf.jit(lambda x: jnp.sin(x) * 2.0)

    @gf.custom_vjp
    def f(x):
        return shared(x)

    f.defvjp(lambda x: (shared(x), x), lambda x, ct: (ct * shared(x),))
    program = inlined(gf.make_jaxpr(gf.value_and_grad(f))(1.0).jaxpr)
    assert [e.backward for e in program.eqns if e.prim.name == "sin"] == [False, True]


# Setting -> (value, function, arguments, what it must do under the value).
SETTINGS = {
    "matmul_precision": ("highest", lambda f, x: "highest" in str(gf.make_jaxpr(f)(x))),
    "random_impl": (
        "threefry2x32",
        lambda f, x: np.allclose(
            f(x) - x[0], jax.random.normal(jax.random.key(0), (2,)), atol=1e-5
        ),
    ),
    "numpy_dtype_promotion": ("strict", lambda f, x: _raises(gf.errors.DTypeError, f, x)),
    "numpy_rank_promotion": ("raise", lambda f, x: _raises(ValueError, f, x)),
}
FUNCTIONS = {
    "matmul_precision": lambda x: x @ x,
    "random_impl": lambda x: random.normal(random.key(0), (2,)) + x[0],
    "numpy_dtype_promotion": lambda x: x + jnp.arange(2),
    "numpy_rank_promotion": lambda x: x + x[0],
}


def _raises(error, f, x):
    with pytest.raises(error):
        f(x)
    return True


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_that_change_the_program_are_in_the_key(name):
    value, holds = SETTINGS[name]
    x = jnp.ones((2, 2))
    f = gf.jit(FUNCTIONS[name])
    f(x)
    assert len(f.traces) == 1
    with config.override(**{name: value}):
        assert holds(f, x)
        if not name.startswith("numpy"):
            f(x)
            assert len(f.traces) == 2
    f(x)
    assert len(f.traces) == (1 if name.startswith("numpy") else 2)


def test_the_precision_in_force_reaches_fused_functions_that_were_staged_before():
    q = jnp.ones((1, 4, 2, 8))

    def attention(q):
        return nn.dot_product_attention(q, q, q)

    assert "precision=highest" not in str(gf.make_jaxpr(attention)(q)).replace("'", "")
    before = trace_context_key()
    with gf.default_matmul_precision("highest"):
        assert trace_context_key() != before
        f = gf.jit(lambda x: nn.softmax(x @ x))
        assert "highest" in str(gf.make_jaxpr(f)(jnp.ones((2, 2))))


@pytest.mark.parametrize(
    "changes",
    [{"log_compiles": True}, {"explain_cache_misses": False}, {"debug_nans": True},
     {"transfer_guard": "log"}],
    ids=lambda c: next(iter(c)),
)  # fmt: skip
def test_settings_that_only_report_do_not_trace_again(changes):
    f = gf.jit(lambda x: jnp.log(x))
    f(jnp.ones(2))
    with config.override(**changes):
        f(jnp.ones(2))
        if "debug_nans" in changes:
            with pytest.raises(gf.errors.NanError):
                f(-jnp.ones(2))
    assert len(f.traces) == 1 and f.cache_size() == 1


def test_every_field_of_the_context_is_accounted_for():
    in_the_key = {"axes", "safe_zero", "backward", "apart", "checked"}
    not_in_it = {
        "trace",  # a program that captured a tracer is not kept; others do not depend on it
        "scope",
        "line",  # names and places in messages
        "match",  # there within shard_map alone, whose axes are in the key
        "no_tracing",
        "watch",  # raise, or look at results
    }
    assert in_the_key | not_in_it == {n for n in vars(type(ctx)) if not n.startswith("_")}
