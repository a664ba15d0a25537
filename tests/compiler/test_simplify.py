"""simplify: specific rewrites, and random programs that mean the same before and after."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import genesis_fn.numpy as gnp
from genesis_fn.compiler.simplify.rules import can_represent
from genesis_fn.compiler.simplify.simplify import simplify_jaxpr
from genesis_fn.core import dtypes
from genesis_fn.core.array import ArrayImpl, from_numpy
from genesis_fn.core.aval import aval, sig
from genesis_fn.core.device import cpu, using_device
from genesis_fn.core.jaxpr import Jaxpr, check, e_jaxprs
from genesis_fn.core.primitive import bind
from genesis_fn.lax.fused.softmax import softmax_last
from genesis_fn.primitives import elementwise as ops
from genesis_fn.primitives.dot_general import dot_general
from genesis_fn.primitives.factories import full
from genesis_fn.primitives.random_bits import random_bits_p
from genesis_fn.primitives.reductions.reduce import reduce_sum
from genesis_fn.primitives.shape import (
    broadcast_in_dim,
    concatenate,
    copy,
    optimization_barrier,
    pad,
    reshape,
    slice_in_dim,
    transpose,
)
from genesis_fn.transforms.autodiff.checkpointing import checkpoint, checkpoint_name
from genesis_fn.transforms.autodiff.derivatives import grad
from genesis_fn.transforms.control_flow.conditionals import cond
from genesis_fn.transforms.control_flow.loops import fori_loop, while_loop
from genesis_fn.transforms.control_flow.scanning import scan
from genesis_fn.transforms.jitting import jit
from genesis_fn.transforms.staging.stage_trace import evaluate, stage
from tests.cpu.programs import random_inputs, random_program, same

X = aval((3, 4), dtypes.F32)
ROW = aval((4,), dtypes.F32)


def simple(f, *kinds, **options) -> Jaxpr:
    """The simplified program of a function of one array or several, checked."""

    def listed(*xs):
        out = f(*xs)
        return list(out) if isinstance(out, (list, tuple)) else [out]

    result = simplify_jaxpr(stage(listed, kinds)[0], **options)
    check(result)
    return result


def names(jaxpr: Jaxpr) -> list[str]:
    return [e.prim.name for e in jaxpr.eqns]


def values(jaxpr: Jaxpr, *xs):
    return [
        o.device.backend.to_numpy(o)
        for o in evaluate(jaxpr, *[from_numpy(np.array(x)) for x in xs])
    ]


# ---- what goes away ----

GONE = {
    "copy": lambda x: copy(x),
    "stop_gradient": lambda x: ops.stop_gradient(x),
    "name": lambda x: checkpoint_name(x, "n"),
    "times one": lambda x: ops.mul(x, 1.0),
    "one times": lambda x: ops.mul(1.0, x),
    "over one": lambda x: ops.div(x, 1.0),
    "plus negative zero": lambda x: ops.add(x, -0.0),
    "minus zero": lambda x: ops.sub(x, 0.0),
    "twice negated": lambda x: ops.neg(ops.neg(x)),
    "maximum of itself": lambda x: ops.max(x, x),
    "wider and back": lambda x: ops.convert(ops.convert(x, dtypes.F64), dtypes.F32),
    "reshapes that undo": lambda x: reshape(reshape(x, (4, 3)), (3, 4)),
    "transposes that undo": lambda x: transpose(transpose(x, (1, 0)), (1, 0)),
    "empty pad": lambda x: pad(x, 0.0, ((0, 0, 0), (0, 0, 0))),
    "concatenated nothing": lambda x: concatenate([x, full((0, 4), 0.0, dtypes.F32)], 0),
    "a choice that is known": lambda x: ops.select(full((3, 4), True, dtypes.BOOL), x, ops.exp(x)),
    "a choice of the same": lambda x: ops.select(ops.lt(x, 0.0), x, x),
    "a call": lambda x: jit(lambda y: y)(x),
    "a branch that is known": lambda x: cond(
        full((), True, dtypes.BOOL), lambda y: y, lambda y: ops.exp(y), x
    ),
    "a scan that changes nothing": lambda x: scan(lambda c, _: (c, None), x, None, length=5)[0],
}


@pytest.mark.parametrize("name", GONE)
def test_identity_is_removed(name):
    jaxpr = simple(GONE[name], X)
    assert jaxpr.eqns == [] and jaxpr.outs == jaxpr.invars


KEPT = {
    "plus zero": (lambda x: ops.add(x, 0.0), -0.0),
    "zero minus": (lambda x: ops.sub(0.0, x), 0.0),
    "times zero": (lambda x: ops.mul(x, 0.0), np.inf),
    "narrower and back": (
        lambda x: ops.convert(ops.convert(x, dtypes.BF16), dtypes.F32), 1.00001,
    ),
    "to integers and back": (lambda x: ops.convert(ops.convert(x, dtypes.I32), dtypes.F32), 1.5),
}  # fmt: skip


@pytest.mark.parametrize("name", KEPT)
def test_what_is_not_exact_stays(name):
    f, value = KEPT[name]
    jaxpr = simple(f, X)
    (y,) = values(jaxpr, np.full((3, 4), value, np.float32))
    (z,) = values(stage(lambda x: [f(x)], [X])[0], np.full((3, 4), value, np.float32))
    np.testing.assert_array_equal(y, z)
    np.testing.assert_array_equal(np.signbit(y), np.signbit(z))
    assert jaxpr.eqns


# ---- what is merged and folded ----


def test_equal_equations_are_merged():
    jaxpr = simple(lambda x: ops.add(ops.exp(x), ops.exp(x)), X)
    assert names(jaxpr) == ["exp", "add"]


def test_numbers_of_two_types_or_signs_are_not_equal():
    jaxpr = simple(lambda x: [ops.mul(x, 0.0), ops.mul(x, -0.0)], X)
    assert names(jaxpr) == ["mul", "mul"]
    y, z = values(jaxpr, np.ones((3, 4), np.float32))
    assert not np.signbit(y).any() and np.signbit(z).all()


def test_barriers_keep_computations_apart():
    def f(x):
        return [
            ops.exp(x),
            ops.exp(optimization_barrier([x])[0]),
            ops.exp(optimization_barrier([x])[0]),
        ]

    assert names(simple(f, X)).count("exp") == 3


def test_recomputation_is_not_merged_with_the_first_computation():
    from genesis_fn.transforms.autodiff.derivatives import grad

    def f(x):
        return grad(lambda v: reduce_sum(checkpoint(lambda u: ops.sin(ops.sin(u)))(v), (0, 1)))(x)

    assert names(simple(f, X)).count("sin") == 1 and names(simple(f, X)).count("cos") == 2


def test_random_bits_of_one_key_are_one_computation():
    params = {"shape": (4,), "width": 32, "impl": "philox"}
    key = aval((2,), dtypes.U32)
    jaxpr = simple(lambda k: [bind(random_bits_p, k, **params) for _ in range(2)], key)
    assert names(jaxpr) == ["random_bits"] and jaxpr.outs[0] is jaxpr.outs[1]


def test_constants_become_literals():
    jaxpr = simple(lambda x: ops.mul(x, broadcast_in_dim(full((), 2.0, dtypes.F32), (3, 4), ())), X)
    assert names(jaxpr) == ["mul"] and jaxpr.eqns[0].ins[1] == 2.0


def test_literals_are_rounded_to_the_dtype_of_the_array_they_replace():
    kind = aval((2,), dtypes.BF16)
    jaxpr = simple(lambda x: ops.mul(x, full((2,), 0.1, dtypes.BF16)), kind)
    assert jaxpr.eqns[0].ins[1] == float(np.asarray(0.1, dtypes.BF16))


def test_operations_on_constants_are_done():
    def f(x):
        a = ops.add(full((3, 4), 1.5, dtypes.F32), full((3, 4), 2.0, dtypes.F32))
        return ops.mul(x, ops.neg(ops.convert(ops.convert(a, dtypes.F64), dtypes.F32)))

    jaxpr = simple(f, X)
    assert names(jaxpr) == ["mul"] and jaxpr.eqns[0].ins[1] == -3.5


def test_integer_arithmetic_folds_with_wrap_around():
    kind = aval((2,), dtypes.I8)
    jaxpr = simple(
        lambda x: ops.add(x, ops.add(full((2,), 100, dtypes.I8), full((2,), 100, dtypes.I8))), kind
    )
    assert names(jaxpr) == ["add"] and jaxpr.eqns[0].ins[1] == -56


def test_reductions_over_single_elements_are_reshapes():
    kind = aval((3, 1, 4, 1), dtypes.F32)
    assert names(simple(lambda x: reduce_sum(x, (1, 3)), kind)) == ["reshape"]
    jaxpr = simple(lambda x: reduce_sum(x, (1, 2)), kind)
    assert names(jaxpr) == ["reshape", "reduce_sum"] and jaxpr.eqns[1].params["axes"] == (1,)


def test_sums_of_cotangents_become_one():
    def f(x, y):
        return ops.add_n(ops.add_n(x, y), ops.exp(x), ops.add_n(y, y, x))

    jaxpr = simple(f, X, X)
    assert names(jaxpr) == ["exp", "add_n"] and len(jaxpr.eqns[1].ins) == 6


def test_a_sum_with_two_uses_stays():
    def f(x, y):
        a = ops.add_n(x, y)
        return [ops.add_n(a, x), a]

    assert names(simple(f, X, X)) == ["add_n", "add_n"]


def test_views_are_composed():
    jaxpr = simple(lambda x: broadcast_in_dim(reshape(x, (1, 4)), (3, 4), (0, 1)), ROW)
    assert names(jaxpr) == ["broadcast_in_dim"] and jaxpr.eqns[0].params["dims"] == (1,)
    jaxpr = simple(
        lambda x: slice_in_dim(slice_in_dim(x, 1, 9, 2), 1, 4, 2), aval((9,), dtypes.F32)
    )
    assert names(jaxpr) == ["slice"]
    (y,) = values(jaxpr, np.arange(9, dtype=np.float32))
    np.testing.assert_array_equal(y, np.arange(9)[1:9:2][1:4:2])


# ---- products of transposed matrices ----


def product(x, y, contracting, batch=((), ())):
    return dot_general(x, y, (contracting, batch))


def test_products_read_and_write_transposed_matrices_in_place():
    w = aval((5, 4), dtypes.F32)
    jaxpr = simple(lambda x, w: product(x, transpose(w, (1, 0)), ((1,), (0,))), X, w)
    assert names(jaxpr) == ["dot_general"]
    # Cast weights, and both gradients of their product: no transpose is left.
    jaxpr = simple(
        lambda x, w: grad(
            lambda x, w: reduce_sum(
                ops.sin(product(x, ops.convert(transpose(w, (1, 0)), dtypes.BF16), ((1,), (0,)))),
                (0, 1),
            ).astype("float32"),
            (0, 1),
        )(x, w),
        aval((3, 4), dtypes.BF16),
        w,
    )
    assert "transpose" not in names(jaxpr) and names(jaxpr).count("dot_general") == 3
    # A product of few rows is quicker than one of few columns, and its result small.
    for rows, columns, found in (
        (1, 80, ["dot_general", "reshape"]),
        (4, 80, ["dot_general", "transpose"]),
        (64, 80, ["dot_general", "transpose"]),
        (65, 80, ["dot_general"]),
        (80, 4, ["dot_general"]),
        (4, 64, ["dot_general"]),
    ):
        x, w = aval((rows, 6), dtypes.F32), aval((6, columns), dtypes.F32)
        jaxpr = simple(lambda x, w: transpose(product(x, w, ((1,), (0,))), (1, 0)), x, w)
        assert names(jaxpr) == found, (rows, columns)
    w = aval((5, 4), dtypes.F32)
    # What reads the product as it is keeps it; a transpose of its own is no second product.
    jaxpr = simple(lambda x, w: [y := product(x, w, ((1,), (1,))), transpose(y, (1, 0))], X, w)
    assert names(jaxpr) == ["dot_general", "transpose"]
    # Left free dimensions that change places are an order that no product writes or reads.
    x = aval((2, 3, 4), dtypes.F32)
    jaxpr = simple(lambda x, w: product(transpose(x, (1, 0, 2)), w, ((2,), (1,))), x, w)
    assert names(jaxpr) == ["transpose", "dot_general"]


@pytest.mark.parametrize("seed", range(40))
def test_products_of_permuted_operands_and_results_mean_the_same(seed):
    """Operands and result permuted at random, batch dimensions among them, through casts or not:
    beside np.einsum."""
    rng = np.random.default_rng(seed)
    batch, left, right, inner = [[*rng.integers(1, 4, rng.integers(0, 3))] for _ in range(4)]

    def operand(free):
        """(array, permutation, batch places, contracting places) once permuted."""
        sizes = np.array([*batch, *free, *inner], dtype=int)
        order = rng.permutation(len(sizes))  # dimension i of the result is order[i] of `sizes`
        place = np.argsort(order)
        stored = rng.permutation(len(sizes))
        x = rng.standard_normal(tuple(sizes[order][np.argsort(stored)])).astype(np.float32)
        n = len(batch) + len(free)
        return x, tuple(map(int, stored)), place[: len(batch)], place[n:]

    (x, px, xb, xc), (y, py, yb, yc) = operand(left), operand(right)
    of_batch = [*rng.permutation(len(batch))]
    ndim = len(batch) + len(left) + len(right)
    last = tuple(map(int, rng.permutation(ndim)))
    cast = rng.random() < 0.5

    def f(x, y):
        x, y = [
            ops.convert(transpose(v, p), dtypes.F64) if cast else transpose(v, p)
            for v, p in ((x, px), (y, py))
        ]
        numbers = [tuple(int(d[i]) for i in of_batch) for d in (xb, yb)]
        out = product(x, y, [tuple(map(int, d)) for d in (xc, yc)], numbers)
        return transpose(ops.convert(out, dtypes.F64) if cast else out, last)

    kinds = [aval(v.shape, dtypes.F32) for v in (x, y)]
    found = values(simple(f, *kinds), x, y)[0]
    xs, ys = x.transpose(px), y.transpose(py)
    letters = [None] * xs.ndim, [None] * ys.ndim
    for n, (i, j) in enumerate([*zip(xb[of_batch], yb[of_batch]), *zip(xc, yc)]):
        letters[0][i] = letters[1][j] = n
    free = [[d for d, at in enumerate(of) if at is None] for of in letters]
    for of, dims, start in ((letters[0], free[0], 20), (letters[1], free[1], 40)):
        for d in dims:
            of[d] = start + d
    out = [*range(len(batch)), *[20 + d for d in free[0]], *[40 + d for d in free[1]]]
    expected = np.einsum(xs, letters[0], ys, letters[1], out).transpose(last)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


# ---- calls ----


def test_calls_are_inlined_and_fused_functions_stay_unless_asked():
    def f(x):
        return softmax_last(jit(lambda y: checkpoint(lambda z: ops.mul(z, 2.0))(y))(x))

    assert names(simple(f, X)) == ["mul", "fused"]
    assert "fused" not in names(simple(f, X, opaque=lambda e: False))


def test_a_function_called_twice_is_inlined_twice():
    g = jit(lambda x: ops.exp(x))
    assert names(simple(lambda x: g(g(x)), X)) == ["exp", "exp"]


# ---- loops and branches ----


def scans(jaxpr: Jaxpr):
    return [e for e in jaxpr.eqns if e.prim.name == "scan"]


def test_dead_carries_and_results_leave_a_scan():
    def f(x):
        def body(carry, row):
            a, dead, helper = carry
            return (ops.add(a, helper), ops.exp(dead), ops.mul(helper, 0.5)), (row, ops.exp(row))

        (a, _, _), (_, _) = scan(body, (x, x, x), broadcast_in_dim(x, (5, 3, 4), (1, 2)))
        return a

    (e,) = scans(simple(f, X))
    assert e.params["carry"] == 2 and len(e.outs) == 2 and e.params["consts"] == 0
    assert names(e.params["jaxpr"]) == ["add", "mul"] and len(e.ins) == 2


def test_unchanged_carries_become_constants_and_their_work_leaves_the_loop():
    def f(x, y):
        def body(carry, _):
            a, b = carry
            return (ops.add(a, ops.exp(b)), b), None

        return scan(body, (x, y), None, length=5)[0]

    jaxpr = simple(f, X, X)
    (e,) = scans(jaxpr)
    assert names(jaxpr) == ["exp", "scan"] and names(e.params["jaxpr"]) == ["add"]
    assert e.params["consts"] == 1 and jaxpr.outs[1] is jaxpr.invars[1]


def test_large_invariants_stay_in_the_loop():
    big = aval((2000,), dtypes.F32)

    def f(x, y):
        # y is read by another equation too: hoisting exp(y) would keep one more array alive.
        def body(a, _):
            return ops.add(a, ops.mul(ops.exp(y), ops.mul(y, a))), None

        return scan(body, x, None, length=5)[0]

    (e,) = scans(simple(f, big, big))
    assert "exp" in names(e.params["jaxpr"])


@pytest.mark.parametrize(
    ("first", "step", "length", "compare", "bound", "decided"),
    [
        (0, 1, 8, ops.lt, 0, True),
        (0, 1, 8, ops.ge, -8, True),
        (0, 1, 8, ops.lt, 8, True),
        (0, 1, 8, ops.lt, 7, False),
        (7, -1, 8, ops.lt, 0, True),
        (7, -1, 9, ops.lt, 0, False),
        (5, 3, 4, ops.gt, 14, True),
        (5, 3, 4, ops.gt, 13, False),
        (2**31 - 3, 1, 8, ops.lt, 0, False),  # it goes around
    ],
)
def test_comparisons_of_counters_are_decided(first, step, length, compare, bound, decided):
    def f(x):
        def body(carry, _):
            i, total = carry
            seen = broadcast_in_dim(ops.convert(compare(i, bound), dtypes.F32), (3, 4), ())
            return (ops.add(i, step), ops.add(total, ops.mul(x, seen))), ops.add(total, 1.0)

        return scan(body, (full((), first, dtypes.I32), x), None, length=length)[0][1]

    jaxpr = simple(f, X)
    found = {"lt", "gt", "ge"} & {n for e in scans(jaxpr) for n in names(e.params["jaxpr"])}
    assert bool(found) is not decided
    x = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    counts = np.arange(length, dtype=np.int64) * step + first
    counts = (counts + 2**31) % 2**32 - 2**31
    seen = {"lt": np.less, "gt": np.greater, "ge": np.greater_equal}[compare.prim.name]
    want = x * (1 + np.sum(seen(counts, bound)))
    np.testing.assert_allclose(values(jaxpr, x)[0], want, rtol=1e-5)


def test_a_loop_reads_at_its_counter_without_counting_from_the_end():
    def f(x):
        return gnp.sum(x) + fori_loop(0, 3, lambda i, total: total + x[i, 0] * x[i, 1], 0.0)

    jaxpr = simple(f, X)
    assert "select" not in [n for e in scans(jaxpr) for n in names(e.params["jaxpr"])]


def test_invariant_results_are_broadcast():
    def f(x, y):
        def body(a, row):
            return ops.add(a, row), (y, row)

        return scan(body, x, broadcast_in_dim(x, (5, 3, 4), (1, 2)))

    jaxpr = simple(lambda x, y: [f(x, y)[0], *f(x, y)[1]], X, X)
    (e,) = scans(jaxpr)
    assert len(e.outs) == 1
    assert names(jaxpr).count("broadcast_in_dim") == 2


def test_a_scan_of_one_step_is_inlined():
    def f(x):
        return scan(lambda c, r: (ops.add(c, r), r), x, reshape(x, (1, 3, 4)))

    jaxpr = simple(lambda x: list(f(x)), X)
    assert "scan" not in names(jaxpr)


LOOPS = {
    "scan": lambda x: scan(lambda c, r: (ops.tanh(ops.add(c, r)), c), x, reshape(XS, (3,)))[0],
    "while": lambda x: while_loop(lambda c: ops.lt(c, 9.0), lambda c: ops.add(ops.exp(c), 1.0), x),
    "cond": lambda x: cond(ops.lt(x, 0.5), ops.sin, lambda c: ops.mul(c, c), x),
}
XS = from_numpy(np.array([0.1, 0.2, 0.3], np.float32))


@pytest.mark.parametrize("name", LOOPS)
def test_loops_in_a_program_that_is_called_twice(name):
    """Each copy has results of its own."""
    call = jit(LOOPS[name])

    def f(x):
        first = call(x)
        second = call(ops.sin(first))
        return [first, second, ops.mul(first, second)]

    x = from_numpy(np.array(0.3, np.float32))
    jaxpr = simple(f, x.aval)
    captured = stage(f, [x.aval])[1]
    for got, want in zip(evaluate(jaxpr, *captured, x), f(x), strict=True):
        np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol=1e-6)


def test_while_loses_dead_and_unchanged_carries():
    def f(x, y):
        def body(c):
            i, a, b, dead = c
            return ops.add(i, 1.0), ops.mul(a, b), b, ops.exp(dead)

        start = reduce_sum(x, (0, 1))
        return while_loop(lambda c: ops.lt(c[0], 3.0), body, (start, x, y, x))[1]

    jaxpr = simple(f, X, X)
    e = jaxpr.eqns[-1]
    assert e.prim.name == "while" and len(e.outs) == 2 and e.params["body_consts"] == 1
    assert names(e.params["body"]) == ["add", "mul"]


def test_cond_loses_dead_results_and_passes_operands_through():
    def f(x, y):
        pred = ops.gt(reduce_sum(x, (0, 1)), 0.0)
        a, b, c = cond(pred, lambda u, v: (u, ops.exp(u), v), lambda u, v: (ops.neg(u), v, v), x, y)
        return [a, c]

    jaxpr = simple(f, X, X)
    e = jaxpr.eqns[-1]
    assert e.prim.name == "cond" and len(e.outs) == 1 and len(e.ins) == 2
    assert jaxpr.outs[1] is jaxpr.invars[1]


# ---- casts ----


def test_holds_agrees_with_every_value_of_small_types():
    small = [dtypes.BOOL, dtypes.I8, dtypes.U8, dtypes.F8E4, dtypes.F8E5, dtypes.BF16, dtypes.F16]
    wide = [*small, dtypes.I16, dtypes.U16, dtypes.I32, dtypes.F32, dtypes.F64, dtypes.C64]
    for a in small:
        bits = np.arange(256 if a.itemsize == 1 else 65536)
        unsigned = bits.astype(f"u{a.itemsize}")
        all_values = bits[:2].astype(bool) if a == dtypes.BOOL else unsigned.view(a)
        for b in wide:
            if not can_represent(b, a):
                continue
            with np.errstate(all="ignore"), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                back = all_values.astype(b).astype(a)
            ok = (back == all_values) | ((back != back) & (all_values != all_values))
            assert ok.all(), (a, b)


def test_holds_is_false_where_values_are_lost():
    lossy = [
        (dtypes.F32, dtypes.I32),
        (dtypes.F64, dtypes.I64),
        (dtypes.F16, dtypes.BF16),
        (dtypes.BF16, dtypes.F16),
        (dtypes.U8, dtypes.I8),
        (dtypes.I8, dtypes.U8),
        (dtypes.F32, dtypes.F64),
        (dtypes.F32, dtypes.C64),
        (dtypes.I32, dtypes.F32),
    ]
    assert not any(can_represent(wide, narrow) for wide, narrow in lossy)


# ---- random programs ----


def checked(jaxpr: Jaxpr) -> None:
    check(jaxpr)
    for e in jaxpr.eqns:
        for inner in e_jaxprs(e):
            checked(inner)


@pytest.mark.parametrize("chunk", range(6))
def test_random_programs_mean_the_same(chunk):
    for seed in range(30 * chunk, 30 * chunk + 30):
        jaxpr, xs = random_program(seed), random_inputs(seed)
        arrays = [ArrayImpl(x, sig(v.aval, cpu())) for x, v in zip(xs, jaxpr.invars)]
        with using_device(cpu()):
            expected = evaluate(jaxpr, *arrays)
        for opaque in (lambda e: False, lambda e: e.prim.name == "fused"):
            result = simplify_jaxpr(jaxpr, opaque)
            checked(result)
            assert len(result.eqns) <= len(jaxpr.eqns) + 60
            with using_device(cpu()):
                found = evaluate(result, *arrays)
            for a, b in zip(expected, found, strict=True):
                assert same(a.data, b.data), seed


def test_simplified_programs_stay_as_they_are():
    for seed in range(5):
        once = simplify_jaxpr(random_program(seed))
        assert simplify_jaxpr(once) is once
