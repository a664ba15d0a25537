"""checkify: errors as values, held against JAX's."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jjnp
import numpy as np
import pytest
from jax.experimental import checkify as jcheckify

import genesis_fn as gf
import genesis_fn.numpy as jnp
from genesis_fn.experimental import checkify

OURS, THEIRS = (gf, jnp, checkify), (jax, jjnp, jcheckify)
MATRIX = np.arange(12, dtype=np.float32).reshape(3, 4)


def message(error: Any) -> str | None:
    """The messages without the lines that the library adds, which say where."""
    text = error.get()
    if text is None:
        return None
    return "\n".join(line.strip() for line in text.split("\n") if not line.startswith("  at "))


def of_operation(text: str | None) -> str | None:
    """A message without array and axis: `x[1, i]` may be an index into the row `x[1]`."""
    return text and re.sub(r" of shape .*?: | axis \d", " ", text).strip()


def scalar_check(m, np_, c):
    def f(x):
        c.check(x > 0, "x is {x}, twice {}", 2 * x, x=x)
        return np_.log(x)

    return f


def in_jit_scan_and_cond(m, np_, c):
    @m.jit
    def double(x):
        c.check(x < 3, "too large: {}", x)
        return 2 * x

    def step(carry, _):
        c.check(carry < 10, "carry {value}", value=carry)
        return double(carry), carry

    def f(x):
        x, _ = m.lax.scan(step, x, None, length=4)
        return m.lax.cond(x > 1, double, lambda v: v + 1, x)

    return f


def in_while(m, np_, c):
    def test(x):
        c.check(x < 50, "test {}", x)
        return x < 100

    def body(x):
        c.check(x < 20, "body {}", x)
        return 2 * x

    return lambda x: m.lax.while_loop(test, body, x)


def in_custom_jvp(m, np_, c):
    @m.custom_jvp
    def root(x):
        c.check(x > 0, "root of {}", x)
        return np_.sqrt(x)

    root.defjvp(lambda primals, tangents: (np_.sqrt(primals[0]), 3.0 * tangents[0]))
    return root


def in_checkpoint(m, np_, c):
    @m.checkpoint
    def f(x):
        c.check(x > 0, "within checkpoint: {}", x)
        return np_.sin(np_.log(x))

    return f


def quotient(m, np_, c):
    return lambda x, y: x / y


def element(m, np_, c):
    return lambda x, i: x[i]


def several_elements(m, np_, c):
    return lambda x, i, j: x[i, j]


def update(m, np_, c):
    return lambda x, i: x.at[i].add(1.0)


def window(m, np_, c):
    return lambda x, i: m.lax.dynamic_slice(x, (0, i), (2, 2))


def window_update(m, np_, c):
    return lambda x, i: m.lax.dynamic_update_slice(x, x[:2, :2], (0, i))


CASES = [
    (scalar_check, "user_checks", [(-1.0,), (2.0,)]),
    (scalar_check, "all_checks", [(-1.0,), (2.0,)]),
    (scalar_check, "nan_checks", [(-1.0,), (2.0,)]),
    (scalar_check, "index_checks", [(-1.0,)]),
    (in_jit_scan_and_cond, "user_checks", [(1.0,), (0.01,), (3.0,), (-1.0,)]),
    (in_while, "user_checks", [(1,), (200,), (60,), (30,)]),
    (in_custom_jvp, "user_checks", [(-1.0,), (4.0,)]),
    (in_custom_jvp, "float_checks", [(-1.0,), (4.0,)]),
    (in_checkpoint, "user_checks", [(-1.0,), (2.0,)]),
    (in_checkpoint, "float_checks", [(-1.0,), (2.0,)]),
    (quotient, "div_checks", [(1.0, 0.0), (0.0, 0.0), (1.0, 2.0)]),
    (quotient, "float_checks", [(0.0, 0.0), (1.0, 2.0)]),
    (quotient, "nan_checks", [(0.0, 0.0), (1.0, 0.0)]),
    (element, "index_checks", [(MATRIX, 3), (MATRIX, 2), (MATRIX, -3)]),
    (element, "index_checks", [(MATRIX, np.array([0, 5, 7])), (MATRIX, np.array([0, 2, -1]))]),
    (several_elements, "index_checks", [(MATRIX, 1, 4), (MATRIX, 3, 3), (MATRIX, 2, 3)]),
    (update, "index_checks", [(MATRIX, 4), (MATRIX, np.array([1, 1])), (MATRIX, np.array([1, 3]))]),
    (window, "index_checks", [(MATRIX, 3), (MATRIX, 2)]),
    (window_update, "index_checks", [(MATRIX, 3), (MATRIX, 2)]),
]  # fmt: skip


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("make, errors, calls", CASES, ids=lambda v: getattr(v, "__name__", None))
def test_error_and_output_are_jaxs(make: Callable, errors: str, calls: list, compiled: bool):
    for args in calls:
        results = []
        for m, np_, c in (OURS, THEIRS):
            f = c.checkify(make(m, np_, c), errors=getattr(c, errors))
            err, out = (m.jit(f) if compiled else f)(*[np_.asarray(a) for a in args])
            results.append((message(err), np.asarray(out)))
        (mine, out), (theirs, want) = results
        assert of_operation(mine) == of_operation(theirs), args
        np.testing.assert_allclose(out, want, rtol=1e-6)


@pytest.mark.parametrize("make", [scalar_check, in_jit_scan_and_cond, in_custom_jvp, in_checkpoint])
def test_vmap_gives_an_error_for_each_example(make: Callable):
    xs = [0.5, -2.0, 3.5]
    results = []
    for m, np_, c in (OURS, THEIRS):
        err, out = m.jit(m.vmap(c.checkify(make(m, np_, c))))(np_.asarray(xs))
        results.append((message(err), np.asarray(out)))
    assert results[0][0] == results[1][0]
    np.testing.assert_allclose(results[0][1], results[1][1], rtol=1e-6)


def test_vmap_of_a_loop_that_examples_leave_at_different_steps():
    xs = [200, 30, 1, 60]
    err, out = gf.vmap(checkify.checkify(in_while(*OURS)))(jnp.asarray(xs))
    alone = [checkify.checkify(in_while(*OURS))(jnp.asarray(x)) for x in xs]
    assert [int(y) for y in out] == [int(y) for _, y in alone]
    lines = [f"at mapped index {i}: {message(e)}" for i, (e, _) in enumerate(alone)]
    assert message(err) == "\n".join(lines)


def test_checkify_of_vmap_reports_the_first_example_that_failed():
    def f(x):
        checkify.check(x > 0, "not positive: {}", x)
        return x

    err, _ = gf.jit(checkify.checkify(gf.vmap(f)))(jnp.asarray([1.0, -2.0, -3.0]))
    assert "not positive: -2.0 (`check` failed) (example (1,) of the batch)" in err.get()
    err, _ = checkify.checkify(gf.vmap(gf.vmap(f)))(jnp.asarray([[1.0, 2.0], [3.0, -4.0]]))
    assert "not positive: -4.0" in err.get() and "(1, 1)" in err.get()


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("make", [scalar_check, in_custom_jvp, in_checkpoint, in_jit_scan_and_cond])
def test_gradients_are_those_of_the_function(make: Callable, compiled: bool):
    wanted = make(*OURS)
    f = checkify.checkify(wanted, errors=checkify.all_checks)
    derivative = gf.value_and_grad(lambda x: f(x)[::-1], has_aux=True)
    (value, err), slope = (gf.jit(derivative) if compiled else derivative)(0.1)
    assert err.get() is None
    expected = gf.value_and_grad(wanted)(0.1)
    np.testing.assert_allclose([value, slope], expected, rtol=1e-6)
    _, forward = gf.jvp(lambda x: f(x)[1], (0.1,), (1.0,))
    np.testing.assert_allclose(forward, expected[1], rtol=1e-6)


def test_a_rule_that_calls_its_function_reports_the_error_as_a_value():
    @gf.custom_jvp
    def root(x):
        checkify.check(x > 0, "root of {}", x)
        return jnp.sqrt(x)

    root.defjvp(lambda primals, tangents: (root(*primals), 3.0 * tangents[0]))
    f = checkify.checkify(root)
    (_, err), slope = gf.jit(gf.value_and_grad(lambda x: f(x)[::-1], has_aux=True))(-1.0)
    assert message(err) == "root of -1.0 (`check` failed)" and float(slope) == 3.0


def test_a_custom_vjp_keeps_its_rule():
    @gf.custom_vjp
    def f(x):
        checkify.check(x > 0, "x is {}", x)
        return 2 * x

    f.defvjp(lambda x: (f(x), None), lambda _, ct: (7 * ct,))
    (_, err), slope = gf.value_and_grad(lambda x: checkify.checkify(f)(x)[::-1], has_aux=True)(-1.0)
    assert message(err) == "x is -1.0 (`check` failed)" and float(slope) == 7.0


def test_a_custom_vmap_keeps_its_rule():
    @gf.custom_batching.custom_vmap
    def f(x):
        checkify.check(x > 0, "x is {}", x)
        return 2 * x

    f.def_vmap(lambda size, batched, x: (5 * x, True))
    err, out = gf.vmap(checkify.checkify(f))(jnp.asarray([1.0, -1.0]))
    assert message(err) == "at mapped index 1: x is -1.0 (`check` failed)"
    assert out.tolist() == [5.0, -5.0]


def test_labels_of_a_fused_loss_are_checked_as_indices():
    logits = jnp.zeros((2, 3))
    loss = lambda y: gf.optim.losses.softmax_cross_entropy_with_integer_labels(logits, y).sum()
    f = gf.jit(checkify.checkify(loss, errors=checkify.index_checks))
    assert f(jnp.asarray([0, 2]))[0].get() is None
    assert "index 3 is out of bounds for axis" in f(jnp.asarray([0, 3]))[0].get()


def test_explicit_modes_are_no_errors():
    f = lambda x: (x.at[7].set(1.0, mode="drop"), x.at[7].get(mode="fill", fill_value=2.0))
    err, (_, filled) = checkify.checkify(f, errors=checkify.index_checks)(jnp.zeros(3))
    assert err.get() is None and float(filled) == 2.0


def test_the_first_error_counts():
    def f(x):
        y = jnp.log(x)
        checkify.check(y > 0, "y is {}", y)
        return 1 / (x + 1)

    err, _ = checkify.checkify(f, errors=checkify.all_checks)(jnp.asarray(-1.0))
    assert message(err) == "nan generated by primitive: log."
    err, _ = checkify.checkify(f, errors=checkify.user_checks | checkify.div_checks)(
        jnp.asarray(-1.0)
    )
    assert message(err) == "y is nan (`check` failed)"
    err, _ = checkify.checkify(f, errors=checkify.div_checks)(jnp.asarray(-1.0))
    assert message(err) == "division by zero"


def test_messages_show_arrays_trees_and_python_values():
    def f(x):
        checkify.check(jnp.all(x > 0), "{} of {tree} {name}", x, tree={"a": x[0]}, name="w")

    err, _ = gf.jit(checkify.checkify(f))(jnp.asarray([1, -2]))
    assert "[ 1 -2] of {'a': array(1, dtype=int32)} w (`check` failed)" in err.get()


def test_assertions_of_the_library_are_checks():
    def f(x):
        gf.debug.assert_(x > 0, "not positive")
        return x

    err, _ = gf.jit(checkify.checkify(f))(jnp.asarray([1.0, -1.0]))
    assert "not positive (first at element (1,) of (2,))" in err.get()
    with pytest.raises(gf.errors.AssertionFailed, match="not positive"):
        # A GPU says it where a value is read.
        np.asarray(checkify.checkify(f, errors=checkify.nan_checks)(jnp.asarray([1.0, -1.0]))[1])


def test_check_raises_where_nothing_makes_a_value_of_it():
    f = gf.jit(lambda x: checkify.check(x > 0, "x is {}", x))
    f(1.0)
    with pytest.raises(ValueError, match="x is -1.0 .`check` failed") as caught:
        f(-1.0)
    assert isinstance(caught.value, (checkify.JaxRuntimeError, AssertionError))


def test_debug_checks_count_under_checkify_alone():
    @gf.jit
    def f(x):
        checkify.debug_check(x > 0, "debugged")
        checkify.check(x < 9, "too large", debug=True)
        return x

    assert float(f(-1.0)) == -1.0
    assert message(checkify.checkify(f)(-1.0)[0]) == "debugged (`check` failed)"
    assert message(checkify.checkify(f)(9.0)[0]) == "too large (`check` failed)"
    assert float(f(-1.0)) == -1.0


def test_check_error_raises_again_or_passes_on():
    inner = checkify.checkify(scalar_check(*OURS))

    def f(x):
        err, out = gf.jit(inner)(x)
        checkify.check_error(err)
        return out

    assert float(f(1.0)) == 0.0
    for run in (f, gf.jit(f)):
        with pytest.raises(checkify.JaxRuntimeError, match="x is -1.0, twice -2.0"):
            run(-1.0)
    err, _ = checkify.checkify(f)(-1.0)
    assert "x is -1.0, twice -2.0 (`check` failed)" in err.get()
    err, _ = gf.vmap(inner)(jnp.asarray([1.0, -1.0]))
    with pytest.raises(ValueError, match="at mapped index 1: x is -1.0"):
        err.throw()
    checkify.init_error.throw()
    assert checkify.init_error.get() is None and checkify.init_error.get_exception() is None
    with pytest.raises(TypeError, match="check_error takes an Error"):
        checkify.check_error(None)


def test_errors_are_pytrees_that_loops_carry():
    f = checkify.checkify(scalar_check(*OURS))
    start, _ = f(jnp.asarray(1.0))

    def step(err, x):
        new, out = f(x)
        return gf.tree.map(lambda a, b: jnp.where(err.code > 0, a, b), err, new), out

    err, _ = gf.lax.scan(step, start, jnp.asarray([1.0, -1.0, -2.0]))
    assert message(err) == "x is -1.0, twice -2.0 (`check` failed)"


def test_other_dtypes_and_effects():
    seen: list[float] = []

    def f(x):
        gf.debug.callback(lambda v: seen.append(float(v)), x)
        return jnp.sqrt(x)

    for dtype in ("float64", "bfloat16", "float16", "complex64"):
        x = jnp.asarray(4.0, dtype=dtype)
        err, out = checkify.checkify(jnp.sqrt, errors=checkify.all_checks)(x)
        assert err.get() is None and out.dtype == x.dtype
    err, _ = checkify.checkify(f, errors=checkify.nan_checks)(jnp.asarray(-1.0, dtype="float64"))
    assert message(err) == "nan generated by primitive: sqrt." and seen == [-1.0]


def test_keys_pass():
    key = gf.random.key(0)
    f = checkify.checkify(lambda k: gf.random.normal(k, (3,)), errors=checkify.all_checks)
    err, out = gf.jit(f)(key)
    assert err.get() is None
    np.testing.assert_array_equal(out, gf.random.normal(gf.random.key(0), (3,)))


REFUSED = [
    (lambda: checkify.check(jnp.ones(2) > 0, "m"), TypeError, "boolean scalar"),
    (lambda: checkify.check(1.0, "m"), TypeError, "boolean scalar"),
    (lambda: checkify.check(True, "m {}"), ValueError, "no argument for 0"),
    (lambda: checkify.check(True, "m", 1), ValueError, "does not use 0"),
    (lambda: checkify.checkify(jnp.sin, errors={"nan"}), ValueError, "errors is a union"),
    (lambda: checkify.checkify(jnp.sin, errors=None), ValueError, "errors is a union"),
]


@pytest.mark.parametrize("call, kind, words", REFUSED, ids=range(len(REFUSED)))
def test_what_is_refused(call: Callable, kind: type[Exception], words: str):
    with pytest.raises(kind, match=words):
        call()


def test_checks_within_shard_map_are_refused_by_name():
    mesh = gf.make_mesh((1,), ("x",))

    @functools.partial(gf.shard_map, mesh=mesh, in_specs=gf.P("x"), out_specs=gf.P("x"))
    def f(x):
        checkify.check(jnp.all(x > 0), "m")
        return x

    with pytest.raises(ValueError, match="checkify does not look into shard_map"):
        checkify.checkify(f)(jnp.ones(2))


def test_sets_of_checks():
    assert checkify.float_checks == checkify.nan_checks | checkify.div_checks
    assert checkify.automatic_checks == checkify.float_checks | checkify.index_checks
    assert checkify.all_checks == {*checkify.ErrorCategory}


def test_the_reason_for_tracing_again_names_checkify():
    f = gf.jit(lambda x: jnp.sum(x))
    f(jnp.ones(2))
    f(jnp.ones(3))
    with pytest.warns(gf.errors.RecompilationWarning, match="within checkify: False -> True"):
        checkify.checkify(f)(jnp.ones(3))
