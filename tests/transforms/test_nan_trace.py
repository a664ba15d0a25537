"""The origin of NaN and infinite values, found by replaying the program."""

from __future__ import annotations

import numpy as np
import pytest

import genesis_fn.numpy as jnp
from genesis_fn.core import errors
from genesis_fn.core.configuration import config
from genesis_fn.transforms.autodiff.checkpointing import checkpoint
from genesis_fn.transforms.autodiff.derivatives import grad
from genesis_fn.transforms.batching.mapped_axes import vmap
from genesis_fn.transforms.control_flow.conditionals import cond
from genesis_fn.transforms.control_flow.loops import while_loop
from genesis_fn.transforms.control_flow.scanning import scan
from genesis_fn.transforms.custom.callback import debug_print
from genesis_fn.transforms.custom.derivative_rules import custom_jvp
from genesis_fn.transforms.debugging.nan_tracing import nan_trace
from genesis_fn.transforms.jitting import clear_caches, jit


@pytest.fixture(autouse=True)
def fresh_programs():
    clear_caches()


def error_of(f, *args, **options):
    with nan_trace(**options), pytest.raises(errors.NanError) as found:
        f(*args)
    text = str(found.value)
    assert len(text.splitlines()) <= 6
    return text


def log_of(x):
    return jnp.log(x)  # the line to find


def has_line(text):
    return "test_nan_trace.py" in text and "# the line to find" in text


def test_jit_names_primitive_line_operands_and_carriers():
    def f(x, y):
        safe = jnp.exp(y)
        return (log_of(x - 1.0) * safe).sum()

    text = error_of(jit(f), jnp.array([2.0, 0.5, 3.0]), jnp.zeros(3))
    assert text.startswith("log produced nan: 1 of 3 elements of f32[3]") and has_line(text)
    assert "f32[3]: min -0.5, max 2, 0 nan, 0 inf" in text
    assert "carried to the output by mul" in text and "reduce_sum" in text


def test_finite_results_are_left_alone():
    f = jit(lambda x: jnp.where(x > 0, jnp.log(x), 0.0))  # a masked NaN is no error
    with nan_trace():
        out = f(jnp.array([-1.0, 1.0]))
    np.testing.assert_array_equal(np.asarray(out), [0, 0])
    assert f.cache_size() == 1


def test_the_program_is_not_compiled_again():
    f = jit(log_of)
    f(jnp.ones(2))
    error_of(f, -jnp.ones(2))
    assert f.cache_size() == 1


def test_a_masked_nan_is_not_blamed():
    def f(x):
        masked = jnp.where(x > 0, jnp.sqrt(x), 0.0)
        return masked.sum() + log_of(x - 10.0).sum()

    text = error_of(jit(f), jnp.array([-1.0, 1.0]), infs=False)
    assert text.startswith("log") and has_line(text)


def test_scan_iteration():
    def step(c, x):
        return c * 0.5 + log_of(x), c

    text = error_of(jit(lambda xs: scan(step, 1.0, xs)[0]), jnp.array([1.0, 2.0, -3.0, 4.0]))
    assert text.startswith("log produced nan") and has_line(text) and "iteration 2 of scan" in text
    text = error_of(
        jit(lambda xs: scan(step, 1.0, xs, reverse=True)[1]), jnp.array([1.0, -2.0, 3.0, 4.0])
    )
    assert "iteration 1 of scan" in text


def test_scan_carry_is_followed_through_iterations():
    def step(c, x):
        a, b = c
        return (b, log_of(x)), None

    text = error_of(jit(lambda xs: scan(step, (0.0, 0.0), xs)[0][0]), jnp.array([1.0, -1.0, 1.0]))
    assert "iteration 1 of scan" in text and has_line(text)


def test_value_from_before_the_loop():
    def f(x):
        start = log_of(x)
        return scan(lambda c, _: (c * 0.5, None), start, None, length=3)[0]

    text = error_of(jit(f), jnp.array(-1.0))
    assert text.startswith("log") and has_line(text) and "carried to the output by scan" in text


def test_while_and_cond():
    def f(x):
        return while_loop(
            lambda c: c[0] < 5, lambda c: (c[0] + 1, log_of(c[1]) if True else c[1]), (0, x)
        )[1]

    text = error_of(jit(f), jnp.array(3.0))  # log log log 3 < 0
    assert "iteration 3 of while_loop" in text or "iteration 2 of while_loop" in text
    text = error_of(jit(lambda x: cond(x < 0, log_of, lambda x: x, x)), jnp.array(-3.0))
    assert "branch 1 of cond" in text and has_line(text)


def test_calls_and_custom_rules():
    @custom_jvp
    def inner(x):
        return log_of(x)

    inner.defjvp(lambda p, t: (inner(*p), t[0] / p[0]))
    for f in (jit(jit(log_of)), jit(checkpoint(log_of)), jit(inner), jit(vmap(log_of))):
        text = error_of(f, jnp.array([-3.0]))
        assert text.startswith("log produced nan") and has_line(text)


def test_backward_pass():
    def f(x):
        return jnp.sqrt(x).sum()  # its derivative at 0 is infinite

    text = error_of(jit(grad(f)), jnp.array([1.0, 0.0]))
    assert "produced inf in the backward pass" in text and "its derivative at 0" in text
    text = error_of(grad(f), jnp.array([1.0, 0.0]))
    assert "produced inf" in text


def test_inputs_are_named():
    text = error_of(jit(lambda params: params["w"] * 2), {"w": jnp.array([1.0, np.nan])})
    assert "was already in input params['w']" in text


def test_infs_only_where_asked():
    f = jit(lambda x: jnp.log(x))
    assert "produced inf" in error_of(f, jnp.zeros(2))
    with nan_trace(infs=False):
        f(jnp.zeros(2))


def test_print_goes_on(capsys):
    with nan_trace(action="print"):
        out = jit(log_of)(jnp.array(-1.0))
    assert np.isnan(np.asarray(out)) and "log produced nan" in capsys.readouterr().err


def test_donated_inputs_are_kept_for_the_replay():
    f = jit(lambda x: log_of(x) + 1.0, donate_argnums=0)
    assert has_line(error_of(f, jnp.array([-1.0, 2.0])))


def test_side_effects_are_not_replayed(capsys):
    def f(x):
        debug_print("once")
        return scan(lambda c, v: (debug_print("step"), (c + log_of(v), None))[1], 0.0, x)[0]

    error_of(jit(f), jnp.array([1.0, -1.0]))
    assert capsys.readouterr().out.splitlines() == ["once", "step", "step"]


def test_debug_nans_in_eager_and_jit_code():
    with config.override(debug_nans=True):
        for f in (log_of, jit(log_of)):
            with pytest.raises(FloatingPointError, match="log produced nan"):
                f(-jnp.ones(2))
            f(jnp.zeros(2))  # infinities are allowed
        with pytest.raises(errors.NanError, match="iteration 1 of scan"):
            scan(lambda c, x: (log_of(x), None), 0.0, jnp.array([1.0, -1.0]))
    with config.override(debug_infs=True), pytest.raises(errors.NanError, match="produced inf"):
        log_of(jnp.zeros(2))
    assert np.isnan(np.asarray(log_of(-jnp.ones(())))).all()


def test_half_precision_and_complex():
    text = error_of(jit(log_of), jnp.array([-1.0]).astype("bfloat16"))
    assert text.startswith("log produced nan: 1 of 1 elements of bf16[1]")
    text = error_of(jit(lambda z: z / 0.0), jnp.array([1.0 + 1.0j]))
    assert "c64[1]" in text
