"""debug.print, debug.callback, debug.breakpoint and assert_ in traced code."""

from __future__ import annotations

import io

import numpy as np
import pytest

import genesis_fn.numpy as jnp
from genesis_fn.core import errors
from genesis_fn.transforms.autodiff.checkpointing import checkpoint
from genesis_fn.transforms.autodiff.derivatives import grad, jvp, linearize, vjp
from genesis_fn.transforms.batching.mapped_axes import vmap
from genesis_fn.transforms.control_flow.conditionals import cond
from genesis_fn.transforms.control_flow.loops import while_loop
from genesis_fn.transforms.control_flow.scanning import scan
from genesis_fn.transforms.custom.callback import debug_callback, debug_print
from genesis_fn.transforms.debugging.assertions import assert_
from genesis_fn.transforms.debugging.breakpoints import breakpoint
from genesis_fn.transforms.jitting import jit
from tests.support.late import raises


def printed(capsys):
    return capsys.readouterr().out.splitlines()


def test_print_eager_and_jit(capsys):
    def f(x):
        debug_print("x={x:.2f} {0} {name!r}", x * 2, x=x, name="run")
        return x

    f(jnp.array(1.5))
    g = jit(f)
    g(jnp.array(1.5))
    g(jnp.array(2.5))
    assert printed(capsys) == ["x=1.50 3.0 'run'", "x=1.50 3.0 'run'", "x=2.50 5.0 'run'"]


def test_print_arrays_and_dtypes(capsys):
    jit(lambda x: debug_print("{}", x))(jnp.arange(3))
    jit(lambda x: debug_print("{x:.3f}", x=x))(jnp.array(0.5).astype("bfloat16"))
    debug_print("{} {} {}", 1, 1.0, True)
    assert printed(capsys) == ["[0 1 2]", "0.500", "1 1.0 True"]


def test_print_under_vmap_scan_while_cond(capsys):
    vmap(lambda x, y: debug_print("{} {}", x, y), in_axes=(0, None))(jnp.arange(2), jnp.array(7))
    jit(lambda xs: scan(lambda c, x: (debug_print("s{}", x), (c, None))[1], 0, xs))(jnp.arange(2))
    jit(lambda n: while_loop(lambda i: i < n, lambda i: (debug_print("w{}", i), i + 1)[1], 0))(2)
    jit(lambda p: cond(p, lambda: debug_print("yes"), lambda: debug_print("no")))(True)
    vmap(lambda xs: scan(lambda c, x: (debug_print("v{}", x), (c, None))[1], 0, xs)[0])(
        jnp.arange(4).reshape(2, 2)
    )
    expected = ["0 7", "1 7", "s0", "s1", "w0", "w1", "yes", "v0", "v2", "v1", "v3"]
    assert printed(capsys) == expected


def test_print_under_derivatives_once(capsys):
    def f(x):
        debug_print("x={}", x)
        return jnp.sin(x) * x

    def runs(g):
        g(jnp.array(2.0))
        return printed(capsys)

    assert runs(grad(f)) == ["x=2.0"]
    assert runs(jit(grad(jit(f)))) == ["x=2.0"]
    assert runs(lambda x: jvp(f, (x,), (x,))) == ["x=2.0"]
    assert runs(lambda x: vjp(f, x)[1](x)) == ["x=2.0"]
    assert runs(grad(checkpoint(f))) == ["x=2.0"]
    assert runs(jit(grad(checkpoint(jit(f))))) == ["x=2.0"]
    assert runs(lambda x: linearize(checkpoint(f), x)[1](x)) == ["x=2.0"]
    assert runs(grad(grad(checkpoint(f)))) == ["x=2.0"]


def test_print_order_is_program_order(capsys):
    @jit
    def f(x):
        for i in range(5):
            debug_print("{i} {x}", i=i, x=x)
            x = x + 1
        return x

    f(jnp.array(0))
    assert printed(capsys) == [f"{i} {i}" for i in range(5)]


def test_format_errors():
    with pytest.raises(ValueError, match="has no argument for y.*f-string|does not use x"):
        debug_print("{y}", x=1)
    with pytest.raises(ValueError, match="does not use 1"):
        debug_print("{}", 1, 2)
    with pytest.raises(TypeError, match="format string first"):
        debug_print(jnp.ones(2))
    debug_print("{x:{w}.1f}", x=1.0, w=6)
    with pytest.raises(ValueError, match=r"debug.assert_: the format .*\n.*\n  write debug.as"):
        assert_(True, "{} {}", 1)


def test_debug_callback_gets_numpy_and_strings():
    seen = []
    jit(lambda x: debug_callback(lambda *a, **k: seen.append((a, k)), x, "tag", k={"y": x}))(
        jnp.arange(2)
    )
    (x, tag), kwargs = seen[0]
    assert type(x) is np.ndarray and tag == "tag" and kwargs["k"]["y"].tolist() == [0, 1]


def test_breakpoint_shows_the_values_of_the_run():
    out = io.StringIO()

    def f(x):
        y = {"a": x * 2}
        breakpoint(stdin=io.StringIO("locals\np y['a'] + 1\nnothing\nl\nc\n"), stdout=out)
        return y["a"]

    jit(f)(jnp.array(3.0))
    text = out.getvalue()
    assert "x = array(3., dtype=float32)" in text and "np.float32(7.0)" in text
    assert "NameError" in text and "breakpoint(stdin" in text and "->" in text


def test_breakpoint_quits():
    with pytest.raises(SystemExit):
        breakpoint(stdin=io.StringIO("q\n"), stdout=io.StringIO())


# ---- assert_ ----


def check_positive(x):
    assert_((x > 0).all(), "x must be positive, its minimum is {m}", m=x.min())
    return jnp.sqrt(x)


@pytest.mark.parametrize("wrap", [lambda f: f, jit, lambda f: jit(grad(lambda x: f(x).sum()))])
def test_assert(wrap):
    f = wrap(check_positive)
    f(jnp.ones(3))
    with pytest.raises(errors.AssertionFailed, match=r"minimum is -2.0\n  at .*test_debug.py:\d+"):
        f(jnp.array([1.0, -2.0, 3.0]))
    with pytest.raises(AssertionError):
        f(jnp.array([-2.0, 0.0, 0.0]))
    f(jnp.ones(3))


def test_assert_elements_and_examples():
    f = jit(lambda x: assert_(x > 0, "negative"))
    with raises(errors.AssertionFailed, match=r"first at element \(1, 0\) of \(2, 2\)"):
        f(jnp.array([[1.0, 1.0], [-1.0, 1.0]]))
    with pytest.raises(errors.AssertionFailed, match=r"minimum is -3.0 \(example \(1,\)"):
        vmap(check_positive)(jnp.array([[1.0, 2.0], [-3.0, 1.0]]))
    with pytest.raises(errors.AssertionFailed, match=r"-3.0"):
        scan(lambda c, x: (c, check_positive(x)), 0, jnp.array([[1.0], [-3.0]]))


def test_assert_in_lanes_that_are_not_active():
    def f(x):
        return cond(x > 0, lambda x: check_positive(x), lambda x: x, x)

    np.testing.assert_allclose(np.asarray(vmap(f)(jnp.array([4.0, -1.0]))), [2, -1])


def test_assert_takes_booleans():
    with pytest.raises(TypeError, match="boolean condition, got f32"):
        assert_(jnp.ones(2), "no")
