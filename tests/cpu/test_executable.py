"""The CPU executable: memory reuse that nobody can see, donation, lines of errors,
TorchInductor."""

from __future__ import annotations

import gc
import warnings

import numpy as np
import pytest
import torch

import genesis_fn.numpy as jnp
from genesis_fn import lax
from genesis_fn.backends.cpu.compile import TensorProgram, has_function, tensor_program
from genesis_fn.compiler.simplify.simplify import simplify_jaxpr
from genesis_fn.core import dtypes, errors
from genesis_fn.core.array import ArrayImpl, from_numpy
from genesis_fn.core.aval import aval, sig
from genesis_fn.core.device import cpu
from genesis_fn.lax.fused.cross_entropy import cross_entropy_last
from genesis_fn.primitives import elementwise as ops
from genesis_fn.primitives.shape import (
    broadcast_in_dim,
    index_in_dim,
    reshape,
    slice_in_dim,
    transpose,
)
from genesis_fn.transforms.control_flow.loops import while_loop
from genesis_fn.transforms.control_flow.scanning import scan
from genesis_fn.transforms.jitting import jit
from genesis_fn.transforms.staging.stage_trace import stage
from tests.cpu.programs import random_inputs, random_program, same

X = aval((3, 4), dtypes.F32)


def program(f, *kinds, donated=()) -> TensorProgram:
    """The compiled program of a function that returns an array or a list of them."""

    def listed(*xs):
        out = f(*xs)
        return list(out) if isinstance(out, (list, tuple)) else [out]

    return tensor_program(stage(listed, kinds)[0], tuple(donated))


def array(*shape, seed=0) -> ArrayImpl:
    return from_numpy(np.random.default_rng(seed).normal(size=shape).astype(np.float32))


def numpy(x: ArrayImpl) -> np.ndarray:
    return np.array(x.device.backend.to_numpy(x))


def fresh(*shape) -> ArrayImpl:
    """An array whose memory torch allocated, so that donation may reuse it."""
    return jit(lambda x: ops.exp(x))(array(*shape))


# ---- random programs: with and without reuse ----


@pytest.mark.parametrize("chunk", range(6))
def test_reuse_changes_no_result_and_no_input(chunk):
    for seed in range(1000 + 30 * chunk, 1030 + 30 * chunk):
        jaxpr, xs = random_program(seed), random_inputs(seed)
        plain = TensorProgram(simplify_jaxpr(jaxpr, has_function), reuse=False, fold=False)
        expected = plain.run(*[x.clone() for x in xs])
        kept = [x.clone() for x in xs]
        for y, e in zip(tensor_program(jaxpr).run(*xs), expected, strict=True):
            assert same(y, e), seed
        assert all(torch.equal(x, k) for x, k in zip(xs, kept)), seed


@pytest.mark.parametrize("chunk", range(4))
def test_donation_changes_no_result_and_no_other_input(chunk):
    for seed in range(2000 + 30 * chunk, 2030 + 30 * chunk):
        jaxpr, xs = random_program(seed), random_inputs(seed)
        plain = TensorProgram(simplify_jaxpr(jaxpr, has_function), reuse=False, fold=False)
        expected = plain.run(*[x.clone() for x in xs])
        for mask in ((True,) * 4, (True, False, True, False)):
            given = [x.contiguous().clone() for x in xs]
            kept = [x.clone() for x in given]
            done = tensor_program(jaxpr, mask)
            for y, e in zip(done.run(*given), expected, strict=True):
                assert same(y, e), (seed, mask)
            for i, (x, k) in enumerate(zip(given, kept)):
                assert i in done.overwritten or torch.equal(x, k), (seed, mask)
                assert mask[i] or i not in done.overwritten


# ---- what is written over ----


def test_dying_intermediates_are_written_over():
    p = program(lambda x: ops.add(ops.mul(ops.exp(x), x), 1.0), X)
    assert ".mul_(" in p.source and ".add_(" in p.source and p.overwritten == ()


def test_an_input_is_never_written_over():
    p = program(lambda x: ops.exp(x), X)
    assert ".exp()" in p.source


def test_a_value_that_a_view_still_shows_is_not_written_over():
    def f(x):
        y = ops.exp(x)
        return [transpose(y, (1, 0)), ops.mul(y, 2.0)]

    x = torch.randn(3, 4)
    turned, doubled = program(f, X).run(x)
    torch.testing.assert_close(turned, x.exp().t())
    torch.testing.assert_close(doubled, x.exp() * 2)


def test_a_broadcast_value_is_not_written_over():
    def f(x):
        row = ops.exp(index_in_dim(x, 0, 0, keepdims=False))
        return ops.add(broadcast_in_dim(row, (3, 4), (1,)), 1.0)

    x = torch.randn(3, 4)
    torch.testing.assert_close(program(f, X).run(x)[0], (x[0].exp() + 1).expand(3, 4))


def test_an_output_is_not_written_over():
    x = torch.randn(3, 4)
    y, z = program(lambda x: [ops.exp(x), ops.neg(ops.exp(x))], X).run(x)
    torch.testing.assert_close(y, x.exp())
    torch.testing.assert_close(z, -x.exp())


def test_a_product_does_not_write_over_its_own_factor():
    from genesis_fn.primitives.dot_general import dot

    square = aval((4, 4), dtypes.F32)

    def f(x):
        y = ops.exp(x)
        return ops.add(dot(y, y), y)

    x = torch.randn(4, 4)
    torch.testing.assert_close(program(f, square).run(x)[0], x.exp() @ x.exp() + x.exp())


def test_values_are_dropped_after_their_last_use():
    live = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            if type(out) is torch.Tensor:
                import weakref

                live.append(weakref.ref(out))
                counts.append(sum(r() is not None for r in live))
            return out

    counts: list[int] = []

    def f(x):
        for _ in range(20):
            x = reshape(transpose(ops.exp(ops.neg(x)), (1, 0)), (3, 4))
        return x

    with Watch():
        program(f, X).run(torch.zeros(3, 4))
    gc.collect()
    assert len(counts) > 60 and max(counts) < 10


def test_constants_are_computed_once_and_never_written_over():
    from genesis_fn.primitives.shape import iota

    def f(x):
        angles = ops.exp(ops.mul(ops.convert(iota(dtypes.I32, (3, 4), 1), dtypes.F32), -0.5))
        return [ops.add(ops.mul(x, angles), angles), angles]

    p = program(f, X)
    assert "exp" not in p.source
    x = torch.randn(3, 4)
    first = [y.clone() for y in p.run(x)]
    for y, e in zip(p.run(x), first):
        torch.testing.assert_close(y, e)


def test_many_small_arrays_are_worked_on_in_one_call():
    count = 12

    def f(*xs):
        doubled = [ops.mul(x, 2.0) for x in xs]
        return [*doubled, *[ops.add(d, x) for d, x in zip(doubled, xs)], *map(ops.exp, xs)]

    p = program(f, *[X] * count)
    assert p.source.count("foreach_") == 3
    xs = [torch.randn(3, 4) for _ in range(count)]
    outs = p.run(*xs)
    for i, x in enumerate(xs):
        torch.testing.assert_close(outs[i], x * 2)
        torch.testing.assert_close(outs[count + i], x * 3)
        torch.testing.assert_close(outs[2 * count + i], x.exp())


def test_a_chain_of_equal_operations_is_not_one_call():
    def f(x):
        for _ in range(10):
            x = ops.add(x, x)
        return x

    assert "foreach" not in program(f, X).source
    x = torch.randn(3, 4)
    torch.testing.assert_close(program(f, X).run(x)[0], x * 1024)


# ---- donation through jit ----


def pointer(x: ArrayImpl) -> int:
    return x.data.data_ptr()


def test_a_donated_array_gives_its_memory_to_the_result():
    step = jit(lambda x, y: ops.add(x, y), donate_argnums=0)
    x, y = fresh(3, 4), array(3, 4)
    # Not through NumPy: torch then takes the memory for lent, and donation copies it once.
    expected, before = (x.data + y.data).numpy(), pointer(x)
    z = step(x, y)
    assert pointer(z) == before
    np.testing.assert_array_equal(numpy(z), expected)
    with pytest.raises(errors.DonatedError, match="donated"):
        ops.add(x, 1.0)


HOLDERS = {
    "a view": lambda x: x.data[1:],
    "another Array of the same tensor": lambda x: ArrayImpl(x.data, x.sig),
    "NumPy": lambda x: np.asarray(x),
    "DLPack": lambda x: x.data.detach().__dlpack__(),
    "a tensor from DLPack": lambda x: torch.from_dlpack(x.data),
}


@pytest.mark.parametrize("holder", HOLDERS)
def test_memory_that_someone_else_holds_is_copied(holder):
    step = jit(lambda x: ops.mul(x, 2.0), donate_argnums=0)
    x = fresh(3, 4)
    value, before = numpy(x), pointer(x)
    held = HOLDERS[holder](x)
    memory = torch.empty(0).set_(x.data.untyped_storage(), 0, (3, 4))
    y = step(x)
    assert pointer(y) != before
    np.testing.assert_array_equal(numpy(y), value * 2)
    np.testing.assert_array_equal(memory.numpy(), value)
    assert held is not None


def test_memory_that_numpy_lent_is_never_written():
    lent = np.arange(12, dtype=np.float32).reshape(3, 4)
    x = ArrayImpl(torch.from_numpy(lent), sig(X, cpu()))
    y = jit(lambda x: ops.mul(x, 2.0), donate_argnums=0)(x)
    np.testing.assert_array_equal(lent, np.arange(12).reshape(3, 4))
    np.testing.assert_array_equal(numpy(y), lent * 2)


def test_one_array_as_donated_and_as_other_argument():
    x = fresh(3, 4)
    value = numpy(x)
    y = jit(lambda a, b: ops.add(ops.mul(a, 2.0), b), donate_argnums=0)(x, x)
    np.testing.assert_allclose(numpy(y), value * 3, rtol=1e-6)


def test_a_strided_donated_array():
    x = fresh(3, 4)
    t = jit(lambda x: transpose(x, (1, 0)))(x)
    value = numpy(t)
    del x
    y = jit(lambda x: ops.mul(x, 2.0), donate_argnums=0)(t)
    np.testing.assert_array_equal(numpy(y), value * 2)


def test_results_of_earlier_calls_stay():
    step = jit(lambda x: ops.mul(x, 2.0), donate_argnums=0)
    x = fresh(3, 4)
    value = numpy(x)
    y = step(x)
    seen = np.asarray(y)
    z = step(y)
    np.testing.assert_array_equal(seen, value * 2)
    np.testing.assert_array_equal(numpy(z), value * 4)


def test_an_output_may_be_an_input():
    x = array(3, 4)
    y, z = jit(lambda x: (x, reshape(x, (4, 3))))(x)
    assert pointer(y) == pointer(z) == pointer(x)
    w = jit(lambda x: ops.mul(x, 0.0), donate_argnums=0)(y)
    assert not numpy(w).any()
    assert numpy(x).any() and numpy(z).any()


def test_unusable_donations_are_reported():
    with pytest.warns(UserWarning, match="no output is left of its type f32"):
        jit(lambda x: ops.exp(index_in_dim(x, 0)), donate_argnums=0)(array(3, 4))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        jit(lambda x: ops.exp(x), donate_argnums=0)(array(3, 4))


# ---- loops ----


@pytest.mark.parametrize("length", [0, 1, 2, 5])
@pytest.mark.parametrize("reverse", [False, True])
def test_scan_carries_in_place(length, reverse):
    def f(x, rows):
        def body(carry, row):
            a, b = carry
            new = ops.add(ops.mul(a, 0.5), row)
            return (new, ops.add(b, 1.0)), (a, b)

        return scan(body, (x, ops.exp(x)), rows, reverse=reverse)

    x, rows = array(4), array(length, 4, seed=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # one more length of the rows is one more program
        (a, b), (as_, bs) = jit(f)(x, rows)
    state, others, seen, counts = numpy(x), np.exp(numpy(x)), [], []
    for row in numpy(rows)[:: -1 if reverse else 1]:
        seen.append(state)
        counts.append(others)
        state, others = state * 0.5 + row, others + 1
    step = -1 if reverse else 1
    np.testing.assert_allclose(numpy(a), state, rtol=1e-6)
    np.testing.assert_allclose(numpy(b), others, rtol=1e-6)
    np.testing.assert_allclose(numpy(as_), np.reshape(seen[::step], (length, 4)), rtol=1e-6)
    np.testing.assert_allclose(numpy(bs), np.reshape(counts[::step], (length, 4)), rtol=1e-6)
    assert numpy(x).tolist() == numpy(array(4)).tolist()


def test_a_loop_that_swaps_its_carries():
    def f(x, y):
        def body(c):
            i, a, b = c
            return ops.add(i, 1), ops.add(b, 1.0), a

        return while_loop(lambda c: ops.lt(c[0], 5), body, (jnp.asarray(0), x, y))[1:]

    x, y = array(4), array(4, seed=1)
    a, b = jit(f)(x, y)
    np.testing.assert_allclose(numpy(a), numpy(y) + 3, rtol=1e-6)
    np.testing.assert_allclose(numpy(b), numpy(x) + 2, rtol=1e-6)


# ---- lines of errors ----


def test_an_index_error_in_a_compiled_program_names_the_line():
    @jit
    def f(x, i):
        y = ops.exp(x)
        return y[i]  # the culprit

    with pytest.raises(errors.IndexOutOfRange, match="(?s)out of range.*# the culprit") as info:
        f(array(3, 4), from_numpy(np.asarray(7, np.int32)))
    assert info.value.axis == 0 and info.value.index == 7


def test_an_index_error_inside_a_loop_names_the_line_in_its_body():
    @jit
    def f(x):
        def body(i, a):
            return a + x[i]  # the culprit

        return scan(lambda c, _: ((c[0] + 1, body(*c)), None), (jnp.asarray(0), x[0]), length=9)[0]

    with pytest.raises(errors.IndexOutOfRange, match="# the culprit"):
        f(array(3, 4))


def test_an_eager_index_error_names_the_line():
    x, i = array(3, 4), from_numpy(np.asarray(7, np.int32))
    with pytest.raises(errors.IndexOutOfRange, match="# the eager culprit"):
        x[i]  # the eager culprit


# ---- TorchInductor ----


def test_inductor_runs_the_same_program():
    def f(x, w):
        h = ops.tanh(jnp.matmul(x, w))
        return {"y": jnp.sum(h * h, axis=0), "x": x, "rows": slice_in_dim(h, 0, 2)}

    x, w = array(8, 4), array(4, 6, seed=1)
    compiled, plain = jit(f, compiler="inductor")(x, w), jit(f)(x, w)
    for k in plain:
        np.testing.assert_allclose(numpy(compiled[k]), numpy(plain[k]), rtol=2e-5, atol=1e-6)


def test_inductor_checks_indices():
    def f(table, i):
        return jnp.take(table, i, axis=0) * 2.0  # the culprit

    g = jit(f, compiler="inductor")
    table = array(3, 4)
    y = g(table, from_numpy(np.array([2, 0], np.int32)))
    np.testing.assert_allclose(numpy(y), numpy(table)[[2, 0]] * 2)
    with pytest.raises(errors.IndexOutOfRange, match="index 3 out of range.*\n.*# the culprit"):
        g(table, from_numpy(np.array([0, 3], np.int32)))


def test_inductor_checks_labels_and_calls_special_functions():
    x, y = from_numpy(np.ones((2, 8), np.float32)), from_numpy(np.array([0, 7], np.int32))
    g = jit(cross_entropy_last, compiler="inductor")
    # A few units in the last place: TorchInductor's logarithm is its own.
    np.testing.assert_allclose(np.asarray(g(x, y)), np.log([8.0, 8.0]), rtol=1e-6)
    with pytest.raises(errors.IndexOutOfRange, match="9"):
        g(x, from_numpy(np.array([0, 9], np.int32)))
    a = from_numpy(np.linspace(0.5, 3, 6, dtype=np.float32))
    for f in (lax.igamma, lax.igammac):
        got = jit(lambda a: f(a, a) * 2, compiler="inductor")(a)
        # The same function of torch, which may take other elements together.
        np.testing.assert_allclose(np.asarray(got), np.asarray(f(a, a)) * 2, rtol=1e-6)


def test_inductor_says_what_it_cannot_compile():
    def f(x):
        return ops.population_count(x)

    with pytest.raises(errors.BackendError, match="TorchInductor"):
        jit(f, compiler="inductor")(from_numpy(np.arange(4, dtype=np.int32)))


def test_an_unknown_compiler_is_refused():
    with pytest.raises(errors.BackendError, match="inductor"):
        jit(lambda x: ops.exp(x), compiler="nothing")(array(3))
