"""Which computations share a kernel, index algebra against NumPy, packing, what is saved."""

from __future__ import annotations

import numpy as np
import programs
import pytest
from hypothesis import given, settings, strategies as st

import genesis_fn as g
import genesis_fn.numpy as gnp
from genesis_fn import lax
from genesis_fn.compiler.fusion.fuse import fuse_jaxpr
from genesis_fn.compiler.loop_ir import reindex
from genesis_fn.compiler.loop_ir.kernel import Instr
from genesis_fn.compiler.memory.memory_plan import ALIGNMENT, aligned, pack
from genesis_fn.compiler.memory.rematerialise import rematerialise_jaxpr
from genesis_fn.compiler.simplify.simplify import simplify_jaxpr
from genesis_fn.compiler.target import H200
from genesis_fn.core import dtypes
from genesis_fn.core.backend import index as ix
from genesis_fn.core.jaxpr import check

rng = np.random.default_rng(0)


def normal(*shape: int, dtype: type = np.float32) -> np.ndarray:
    return rng.standard_normal(shape).astype(dtype)


def groups(f, *args):
    jaxpr, _ = programs.traced(f, *args)
    return fuse_jaxpr(simplify_jaxpr(jaxpr), H200).groups


def names(f, *args) -> list[str]:
    """Each step as the number of values it writes, or the name of its opaque equation."""
    return [str(len(x.writes)) if x.eqn is None else x.eqn.prim.name for x in groups(f, *args)]


# ---- grouping ----


def test_softmax_is_one_kernel() -> None:
    def softmax(x):
        e = gnp.exp(x - gnp.max(x, -1, keepdims=True))
        return e / gnp.sum(e, -1, keepdims=True)

    (one,) = groups(softmax, normal(64, 128))
    assert one.domain.kept == 64 and one.domain.reduced == 128
    assert sum(one.reads.values()) == 64 * 128 * 4


def test_views_make_no_kernel_of_their_own() -> None:
    def f(x):
        y = gnp.concatenate([x[:, 8:], -x[:, :8]], 1).T
        return gnp.pad(y * 2, ((1, 0), (0, 0)))[::-1] + 1

    assert names(f, normal(32, 16)) == ["1"]


def test_contractions_stand_between_kernels() -> None:
    def f(x, w):
        return gnp.tanh(gnp.exp(x) @ w) + 1

    assert names(f, normal(80, 8), normal(8, 8)) == ["1", "dot_general", "1"]
    few = names(f, normal(16, 8), normal(8, 8))
    assert few == ["1", "dot_general"], "a product of few rows finishes its result"


def test_operands_of_contractions_are_not_copied_by_reshapes() -> None:
    def f(x, w):
        return (x.reshape(-1, 8) @ w).reshape(2, 4, 8)

    assert names(f, normal(2, 4, 8), normal(8, 8)) == ["dot_general"]


def test_no_kernel_waits_for_itself() -> None:
    # b needs the product of a, so a and c = a + b cannot share a kernel.
    def f(x, w):
        a = gnp.exp(x)
        return gnp.sin(a) + a @ w

    assert names(f, normal(80, 8), normal(8, 8)) == ["1", "dot_general", "1"]
    few = names(f, normal(16, 8), normal(8, 8))
    assert few == ["1", "dot_general"], "a product of few rows finishes its result"


def test_row_and_column_reductions_share_a_kernel() -> None:
    (one,) = groups(lambda x: (gnp.sum(x, 0), gnp.sum(x, 1)), normal(512, 512))
    assert (one.domain.kept, one.domain.reduced, one.domain.inner) == (512, 512, True)
    assert one.domain.row_column and sum(one.reads.values()) == 512 * 512 * 4


def test_row_and_column_reductions_of_few_rows_are_two_kernels() -> None:
    found = groups(lambda x: (gnp.sum(x, 0), gnp.sum(x, 1)), normal(100, 512))
    assert [(x.domain.kept, x.domain.reduced, x.domain.inner) for x in found] == [
        (512, 100, False),
        (100, 512, True),
    ]


def test_what_needs_whole_columns_waits_for_them() -> None:
    # Rows cannot use the sum of their column before all of them are read.
    found = groups(
        lambda x: (x / gnp.sum(x, 1, keepdims=True), x - gnp.sum(x, 0)), normal(1024, 64)
    )
    assert [(x.domain.row_column, len(x.writes)) for x in found] == [(True, 2), (False, 1)]


def test_few_long_rows_do_not_wait_for_their_own_result() -> None:
    # One kernel would read the whole array with one program.
    found = groups(lambda x: x / gnp.sqrt(gnp.sum(x * x)), normal(1 << 16))
    assert [x.domain.reduced for x in found] == [1 << 16, 1]


def test_a_value_that_is_cheap_is_made_again() -> None:
    def f(x, w, v):
        h = x.astype(gnp.float32)
        return (h * 2 + w, lax.rev(h, (0,)) * v)

    assert all(
        set(map(str, (v.aval for v in x.reads))) <= {"bf16[64,64]", "f32[64,64]"}
        for x in groups(f, normal(64, 64).astype(gnp.bfloat16), normal(64, 64), normal(64, 64))
    )


def test_residual_chains_are_cut() -> None:
    def f(x, ws):
        total = []
        for w in ws:
            x = x + gnp.sum(x, 1, keepdims=True) * w
            total.append(gnp.max(x, 0))
        return total

    found = groups(f, normal(300, 40), [normal(300, 40) for _ in range(12)])
    assert max(len(x.reads) for x in found) <= 24


def test_a_chain_with_its_sum_and_gradient_is_one_kernel() -> None:
    def chain(x):
        for k in range(24):
            x = x / (1 + 0.01 * k * x * x) + 0.1
        return gnp.sum(x)

    (found,) = groups(g.value_and_grad(chain), normal(1 << 18))
    assert len(found.reads) == 1 and len(found.writes) == 2
    # Rows that a program holds whole leave no room for that.
    rows = groups(g.value_and_grad(chain), normal(64, 64))
    assert sorted(x.domain.reduced for x in rows) == [1, 64 * 64]


def test_what_a_step_adds_elsewhere_does_not_part_a_loss_from_its_derivatives() -> None:
    """Two tables' rows are updated: the second update comes behind the first one's scatter, and
    shares a kernel with the loss all the same."""

    def step(u, v, i, j, ratings):
        def loss(a, b):
            error = gnp.sum(a * b, -1) - ratings
            return gnp.sum(error * error + 0.02 * gnp.sum(a * a + b * b, -1))

        value, (da, db) = g.value_and_grad(loss, argnums=(0, 1))(u[i], v[j])
        return value, u.at[i].add(-0.1 * da), v.at[j].add(-0.1 * db)

    def inputs(count):
        i, j = rng.integers(0, 300, (2, count)).astype(np.int32)
        return normal(500, 64), normal(300, 64), i, j, normal(count)

    jaxpr, _ = programs.traced(step, *inputs(1 << 16))
    found = fuse_jaxpr(rematerialise_jaxpr(simplify_jaxpr(jaxpr)), H200).groups
    assert len([x for x in found if x.domain is not None and x.domain.reduced == 64]) == 1
    programs.compare(step, *inputs(500), tolerance=1e-4)


def test_a_loss_shares_a_kernel_with_its_first_derivatives_only() -> None:
    def loss(w, x):
        return gnp.mean(gnp.tanh(gnp.tanh(x @ w) @ w) ** 2)

    found = groups(g.value_and_grad(loss), normal(64, 64), normal(4096, 64))
    # Behind the second product: the loss, and the gradient that the first products back read.
    kernels = [sorted(v.aval.shape for v in x.writes) for x in found if x.kernel is not None]
    assert [(), (4096, 64)] in kernels
    # What the backward pass computes of the first layer is not computed ahead of that.
    assert [(4096, 64), (4096, 64)] not in kernels


# ---- index algebra ----


@st.composite
def views(draw: st.DrawFn):
    """A shape, and view operations with their NumPy and symbolic forms."""
    shape = tuple(draw(st.lists(st.integers(1, 7), min_size=1, max_size=4)))
    steps = []
    x = np.arange(int(np.prod(shape))).reshape(shape)
    y = x
    for _ in range(draw(st.integers(1, 5))):
        kind = draw(st.sampled_from(["reshape", "transpose", "slice", "rev", "broadcast"]))
        if kind == "reshape":
            factors = draw(st.permutations([p for n in y.shape for p in _primes(n)]))
            cut = draw(st.integers(0, len(factors)))
            new = (int(np.prod(factors[:cut], initial=1)), int(np.prod(factors[cut:], initial=1)))
            steps.append((kind, y.shape, new))
            y = y.reshape(new)
        elif kind == "transpose":
            order = tuple(draw(st.permutations(range(y.ndim))))
            steps.append((kind, y.shape, order))
            y = y.transpose(order)
        elif kind == "slice":
            axis = draw(st.integers(0, y.ndim - 1))
            start = draw(st.integers(0, y.shape[axis] - 1))
            step = draw(st.integers(1, 3))
            steps.append((kind, y.shape, (axis, start, step)))
            y = y[(slice(None),) * axis + (slice(start, None, step),)]
        elif kind == "rev":
            axis = draw(st.integers(0, y.ndim - 1))
            steps.append((kind, y.shape, axis))
            y = np.flip(y, axis)
        elif y.size < 400:
            steps.append((kind, y.shape, 3))
            y = np.broadcast_to(y, (3, *y.shape))
    return shape, steps, y


def _primes(n: int) -> list[int]:
    return next(([p, *_primes(n // p)] for p in range(2, n + 1) if n % p == 0), [])


@settings(max_examples=200, deadline=None)
@given(views())
def test_index_expressions_equal_numpy(case) -> None:
    shape, steps, y = case
    index = ix.unravel(ix.var("p", y.size), y.shape)
    for kind, before, how in reversed(steps):
        if kind == "reshape":
            index = ix.unravel(ix.ravel(index, how), before)
        elif kind == "transpose":
            index = tuple(index[how.index(i)] for i in range(len(index)))
        elif kind == "slice":
            axis, start, step = how
            index = tuple(
                ix.shift(ix.scale(e, step), start) if i == axis else e for i, e in enumerate(index)
            )
        elif kind == "rev":
            index = tuple(
                ix.shift(ix.scale(e, -1), before[i] - 1) if i == how else e
                for i, e in enumerate(index)
            )
        else:
            index = index[1:]
    where = ix.ravel(index, shape)
    found = [where.evaluate({"p": p}) for p in range(y.size)]
    np.testing.assert_array_equal(found, y.reshape(-1))
    np.testing.assert_array_equal([eval(where.text(), {"p": p}) for p in range(y.size)], found)
    assert where.lo <= min(found) and max(found) <= where.hi


def test_round_trips_are_the_identity() -> None:
    p = ix.var("p", 24 * 35)
    for shape in [(24, 35), (8, 3, 7, 5), (840,), (2, 420)]:
        assert ix.ravel(ix.unravel(p, shape), shape) == p
    mixed = ix.unravel(ix.ravel(ix.unravel(p, (24, 35)), (24, 35)), (6, 4, 5, 7))
    assert ix.ravel(mixed, (6, 4, 5, 7)) == p


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 30), st.integers(1, 12), st.integers(-6, 6)),
        min_size=1, max_size=3,
    ),
    st.integers(0, 20), st.integers(1, 24), st.integers(1, 24),
)  # fmt: skip
def test_remainders_of_sums_of_remainders(parts, constant, first, second) -> None:
    """(k (p % a) + l (q % b) + c) % m % n and the like, against NumPy."""
    names = ["p", "q", "r"][: len(parts)]
    sizes = [n for n, _, _ in parts]
    e = ix.const(constant)
    at = np.meshgrid(*map(np.arange, sizes), indexing="ij")
    want = constant
    for name, x, (n, a, k) in zip(names, at, parts, strict=True):
        e = ix.add(e, ix.scale(ix.mod(ix.var(name, n), a), k))
        want = want + k * (x % a)
    e, want = ix.mod(e, first), want % first
    nested, then = ix.mod(e, second), want % second
    for found, numbers in ((e, want), (nested, then), (ix.div(e, second), want // second)):
        got = [found.evaluate(dict(zip(names, i))) for i in np.ndindex(*sizes)]
        np.testing.assert_array_equal(got, numbers.reshape(-1))
        assert found.lo <= min(got) and max(got) <= found.hi


def test_a_remainder_takes_apart_remainders_that_it_divides() -> None:
    p, q = ix.var("p", 100), ix.var("q", 100)
    assert ix.mod(ix.mod(p, 12), 4) == ix.mod(p, 4)
    assert ix.mod(ix.add(ix.mod(p, 12), q), 4) == ix.mod(ix.add(p, q), 4)
    assert ix.mod(ix.add(ix.scale(ix.mod(p, 6), 2), q), 4) == ix.mod(ix.add(ix.scale(p, 2), q), 4)
    # Where that would leave 32 bits, they stay.
    wide = ix.var("w", 2**31 - 1)
    assert ix.mod(ix.add(ix.scale(ix.mod(wide, 6), 3), q), 9).hi < 9


@pytest.mark.parametrize(("c", "n"), [(8, 32), (5, 7), (6, 4)])
def test_a_remainder_is_put_together_of_its_digits(c: int, n: int) -> None:
    p = ix.var("p", 10 * c * n + 3)
    digits = ix.add(ix.scale(ix.mod(ix.div(p, c), n), 3 * c), ix.scale(ix.mod(p, c), 3))
    assert digits == ix.scale(ix.mod(p, c * n), 3)
    # Of other numbers, of another order, or with another step it is none.
    for e in (
        ix.add(ix.scale(ix.mod(ix.div(p, c), n), c + 1), ix.mod(p, c)),
        ix.add(ix.scale(ix.mod(ix.div(p, c + 1), n), c), ix.mod(p, c)),
        ix.add(ix.scale(ix.mod(ix.div(ix.shift(p, 1), c), n), c), ix.mod(p, c)),
    ):
        values = np.array([e.evaluate({"p": k}) for k in range(10 * c * n + 3)])
        assert (values != np.arange(10 * c * n + 3) % (c * n)).any()


def test_rows_are_as_long_as_what_repeats() -> None:
    # p // 8 % 32 repeats every 256 elements, and not every 32.
    p = ix.var("p", 1 << 16)
    e = ix.mod(ix.div(p, 8), 32)
    load = Instr("load", (), (None, e, frozenset()), dtypes.F32, e.names, 0)
    assert reindex.row_length([load], 1 << 16) == 256


def test_substitution_keeps_the_value() -> None:
    p = ix.var("p", 60)
    e = ix.add(ix.scale(ix.mod(p, 12), 5), ix.div(p, 12))
    by = ix.add(ix.scale(ix.var("i", 5), 12), ix.var("j", 12))
    put = ix.substitute(e, "p", by)
    for i in range(5):
        for j in range(12):
            assert put.evaluate({"i": i, "j": j}) == e.evaluate({"p": 12 * i + j})
    assert put.text() in ("j * 5 + i", "i + j * 5")


# ---- memory ----


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 20), st.integers(0, 6), st.integers(1, 2000)),
        min_size=1,
        max_size=40,
    )
)
def test_live_buffers_do_not_overlap(buffers) -> None:
    lives = {b: (first, first + more) for b, (first, more, _) in enumerate(buffers)}
    sizes = {b: size for b, (_, _, size) in enumerate(buffers)}
    offsets, total = pack(sizes, lives)
    for a in lives:
        assert offsets[a] % ALIGNMENT == 0 and offsets[a] + sizes[a] <= total
        for b in lives:
            if a < b and lives[a][0] <= lives[b][1] and lives[b][0] <= lives[a][1]:
                assert offsets[a] + sizes[a] <= offsets[b] or offsets[b] + sizes[b] <= offsets[a]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 2000)), min_size=1, max_size=40))
def test_an_arena_is_no_larger_than_its_buffers_and_no_smaller_than_what_lives_at_once(
    buffers,
) -> None:
    lives = {b: (b, b + more) for b, (more, _) in enumerate(buffers)}
    sizes = {b: size for b, (_, size) in enumerate(buffers)}
    live = max(
        sum(aligned(sizes[b]) for b in lives if lives[b][0] <= step <= lives[b][1])
        for step in lives
    )
    assert live <= pack(sizes, lives)[1] <= sum(map(aligned, sizes.values()))


def test_memory_is_reused() -> None:
    lives = {b: (b, b + 1) for b in range(50)}
    assert pack(dict.fromkeys(lives, 1000), lives)[1] <= 3 * 1024


# ---- rematerialisation ----


def test_activations_are_computed_again() -> None:
    def loss(w, x):
        for _ in range(3):
            x = gnp.tanh(x @ w)
            x = x * lax.logistic(x) + 1
        return gnp.sum(x)

    jaxpr, inputs = programs.traced(g.grad(loss), normal(16, 16), normal(64, 16))
    before = simplify_jaxpr(jaxpr)
    after = check(rematerialise_jaxpr(before))
    assert _crossing(after) < _crossing(before)
    for a, b in zip(programs.on_cpu(before, inputs), programs.on_cpu(after, inputs), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)


def _crossing(jaxpr) -> int:
    """Bytes of forward values that the backward pass reads."""
    made = {o for e in jaxpr.eqns if not e.backward for o in e.outs}
    used = {i for e in jaxpr.eqns if e.backward for i in e.ins if i in made}
    return sum(v.aval.nbytes for v in used)
