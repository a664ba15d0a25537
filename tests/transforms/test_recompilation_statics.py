"""The reason for tracing again names the static argument that changed, given or not."""

from __future__ import annotations

import dataclasses
import os

import numpy as np
import pytest

import genesis_fn as gf
import genesis_fn.numpy as jnp
from genesis_fn.transforms.jitting.retrace import RecompilationWarning


def test_a_static_argument_that_was_not_given_before():
    @gf.jit(static_argnames=("n", "eos"))
    def f(x, *, n, eos=None):
        return x

    f(jnp.ones(2), n=1)
    f(jnp.ones(2), n=2)
    with pytest.warns(RecompilationWarning, match="static eos: not given -> 57"):
        f(jnp.ones(2), n=2, eos=57)
    with pytest.warns(RecompilationWarning, match="static n: 2 -> 3"):
        f(jnp.ones(2), n=3)


def test_a_static_argument_by_position_and_by_name_is_one():
    @gf.jit(static_argnums=1)
    def f(x, n, y=None):
        return x * n if y is None else x * n + y

    x, y = jnp.ones(2), jnp.full((2,), 3.0, "float32")
    for _ in range(3):  # traced, then found by the generated code
        assert f(x, 2).tolist() == f(x, n=2).tolist() == f(n=2, x=x).tolist() == [2.0, 2.0]
    assert len(f.traces) == 1 and f.cache_size() == 1
    for _ in range(3):
        for got in (f(x, 2, y), f(x, 2, y=y), f(x, n=2, y=y), f(y=y, n=2, x=x)):
            assert got.tolist() == [5.0, 5.0]
    assert len(f.traces) == 2 and f.cache_size() == 2
    with pytest.warns(RecompilationWarning, match="static n: 2 -> 4; pass it as an array"):
        assert f(n=4, x=x).tolist() == [4.0, 4.0]
    assert f.traces[-1] == {"x": "f32[2]", "n": "4"}


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, -0.0])
def test_a_static_float_without_a_literal_is_found_again(value):
    f = gf.jit(lambda x, kind: jnp.maximum(x, kind[1]), static_argnums=1)
    for _ in range(3):  # traced, then found by the generated code
        np.testing.assert_array_equal(f(jnp.ones(2), ("max", value)), np.maximum(np.ones(2), value))
    assert len(f.traces) == 1
    assert f(jnp.ones(2), ("max", 3.0)).tolist() == [3.0, 3.0]


def test_arguments_by_name_in_any_order_are_the_right_ones():
    @gf.jit
    def f(b, a, *, c):
        return {"b": b["x"] + 1, "a": a * 10, "c": c * 100}

    a, b, c = jnp.array([1]), {"x": jnp.array([2])}, jnp.array([3])
    for _ in range(3):
        for got in (f(b, a, c=c), f(a=a, b=b, c=c), f(b, c=c, a=a), f(c=c, b=b, a=a)):
            assert {k: int(v[0]) for k, v in got.items()} == {"b": 3, "a": 10, "c": 300}
    assert len(f.traces) == 1 and f.cache_size() == 1


def test_donation_follows_an_argument_given_by_name():
    f = gf.jit(lambda w, s: s + w, donate_argnums=1)
    w, s = jnp.ones(3), jnp.ones(3) * 2
    f(s=s, w=w)
    assert s.is_deleted() and not w.is_deleted()
    t = jnp.ones(3) * 3
    assert f(s=t, w=w).tolist() == [4.0] * 3 and t.is_deleted() and not w.is_deleted()


def test_a_wrapper_that_takes_names_only_gets_names():
    import functools

    def g(x, n):
        return x * n

    @functools.wraps(g)
    def named(**kwargs):
        return g(**kwargs)

    assert gf.jit(named)(x=jnp.ones(2), n=3.0).tolist() == [3.0, 3.0]
    assert gf.jit(functools.partial(g, n=2))(x=jnp.ones(2)).tolist() == [2.0, 2.0]


@dataclasses.dataclass
class Settings:
    """A configuration that may change, and so has no hash."""

    scale: int = 2
    window: slice = dataclasses.field(default_factory=lambda: slice(0, 2))


@pytest.mark.parametrize("options", [{}, {"static_argnums": 1}])
def test_what_has_no_hash_is_static_by_its_value(options):
    f = gf.jit(lambda x, s: x[s.window] * s.scale, **options)
    x, settings = jnp.arange(4.0), Settings()
    for _ in range(3):
        assert f(x, settings).tolist() == f(x, Settings()).tolist() == [0.0, 2.0]
    assert len(f.traces) == 1
    settings.scale = 5
    for _ in range(3):
        assert f(x, settings).tolist() == [0.0, 5.0]
    settings.window = slice(2, 4)
    with pytest.warns(RecompilationWarning, match="slice"):
        assert f(x, settings).tolist() == [10.0, 15.0]
    assert len(f.traces) == 3
    assert f.lower(x, settings).compile()(x, settings).tolist() == [10.0, 15.0]

    cut = gf.jit(lambda x, s: x[s], **options)
    for _ in range(2):
        assert cut(x, slice(1, 3)).tolist() == [1.0, 2.0]
        assert cut(x, slice(None, None, 2)).tolist() == [0.0, 2.0]
    with pytest.raises(
        TypeError, match=r"\.scale\[0\] in it is an array.*\n.*test_recomp.*\n.*pytree"
    ):
        gf.jit(lambda x, s: x, **options)(x, Settings(scale=[x]))


def test_captured_arrays_are_told_of_at_the_user_s_line():
    table = jnp.zeros((17 << 20,), "float32")
    f = gf.jit(lambda x: x + table[0])
    with pytest.warns(UserWarning, match=r"captured 68 MiB.*\n.*test_recompilation") as caught:
        f(jnp.ones(2))
    assert caught[0].filename == __file__


class Mode:
    """Equal only to itself."""


REASONS = {
    "shape": ([{"ids": np.zeros((2, n), "i4")} for n in (1, 2, 3)],
        "batch['ids']: i32[2,2] -> i32[2,3]"),
    "dtype": ([np.zeros(2, d) for d in ("i4", "i2", "f4")], "batch: i16[2] -> f32[2]"),
    "weak type": ([{"a": x} for x in (True, np.ones((), "f4"), 1.0)],
        "batch['a']: f32[] -> Python float"),
    "kind of number": ([{"a": x} for x in (True, 1, 1.0)],
        "batch['a']: Python int -> Python float"),
    "container": ([{"a": x} for x in ({}, [1.0, 2.0], (1.0, 2.0))],
        "batch['a']: a list of 2 -> a tuple of 2"),
    "empty containers": ([{"a": x} for x in ((), [], None)], "batch['a']: a list of 0 -> None"),
    "more leaves": ([{"a": [1.0] * n} for n in (1, 2, 3)], "new leaf batch['a'][2]"),
    "fewer leaves": ([{"a": x, "b": 1.0} for x in ((), 1)] + [{"a": 1}], "missing leaf batch['b']"),
    "static value": ([{"a": x} for x in "uvw"], "batch['a']: 'v' -> 'w'"),
    "static object": ([{"a": Mode()} for _ in range(3)], "equal only themselves: make it once"),
}  # fmt: skip


@pytest.mark.parametrize("name", REASONS)
@pytest.mark.parametrize("within", ["eager", "vmap", "grad"])
def test_the_reason_of_a_new_trace_names_the_leaf(name, within):
    gf.clear_caches()  # the functions of all cases are one
    batches, reason = REASONS[name]
    f = gf.jit(lambda x, batch: x * 2.0)
    calls = {
        "eager": lambda b: f(1.0, b),
        "vmap": lambda b: gf.vmap(lambda x: f(x, b))(jnp.ones(2)),
        "grad": lambda b: gf.grad(lambda x: f(x, b))(1.0),
    }
    with pytest.warns(RecompilationWarning) as caught:
        for b in batches:
            calls[within](b)
    assert len(caught) == 1 and len(f.traces) == 3
    text = str(caught[0].message)
    assert reason in text and len(text.splitlines()) <= 6, text
    assert caught[0].filename == __file__
    assert f"{os.path.basename(__file__)}:{caught[0].lineno}  " in text.splitlines()[-1]


def test_too_many_traces_are_refused_at_the_user_s_line():
    f = gf.jit(lambda x: x, max_traces=1)
    f(jnp.ones(2))
    with pytest.raises(
        gf.errors.GenesisError, match=r"(?s)x: f32\[2\] -> f32\[3\]\n.*test_recomp.*raise"
    ):
        f(jnp.ones(3))
