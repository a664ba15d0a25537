"""Gather and scatter with random dimension numbers, against loops that define them."""

from __future__ import annotations

import itertools
import random as stdlib_random

import numpy as np
import pytest
import torch

from genesis_fn.backends.cpu.lowerings.indexing import WindowLayout
from genesis_fn.core import dtypes
from genesis_fn.core.array import ArrayImpl
from genesis_fn.primitives.indexing import gather as G, scatter as S
from genesis_fn.primitives.indexing.gather_dims import (
    GatherDimensionNumbers,
    ScatterDimensionNumbers,
)
from tests.primitives.check import (
    assert_same,
    check_batched,
    check_numeric,
    check_staged,
    random,
    to_array,
)

SCATTERS = {
    "set": (S.scatter, lambda x, u: u),
    "add": (S.scatter_add, np.add),
    "mul": (S.scatter_mul, np.multiply),
    "min": (S.scatter_min, np.minimum),
    "max": (S.scatter_max, np.maximum),
}


# ---- the definition, one window at a time ----


def windows(shape, indices, numbers, sizes, mode):
    """For every batch position: the window in the operand (slices), or None if out of bounds."""
    _, _, mapped, batching, index_batching = numbers
    for b in np.ndindex(*indices.shape[:-1]):
        start, outside = [0] * len(shape), False
        for d, i in zip(mapped, indices[b]):
            bound = shape[d] - sizes[d]
            outside = outside or not 0 <= i <= bound
            start[d] = min(max(int(i), 0), bound)
        for d, k in zip(batching, index_batching):
            start[d] = b[k]
        cut = tuple([slice(s, s + n) for s, n in zip(start, sizes)])
        yield b, None if outside and mode == "fill" else cut


def places(b, numbers, rank):
    """Where the window of batch position `b` lies in the result."""
    rest = iter(b)
    return tuple([slice(None) if i in numbers[0] else next(rest) for i in range(rank)])


def gather_reference(x, indices, numbers, sizes, mode, fill):
    offset, collapsed, _, batching, _ = numbers
    kept = [n for d, n in enumerate(sizes) if d not in collapsed and d not in batching]
    rank = indices.ndim - 1 + len(kept)
    lengths, batch = iter(kept), iter(indices.shape[:-1])
    out = np.zeros([next(lengths) if i in offset else next(batch) for i in range(rank)], x.dtype)
    for b, cut in windows(x.shape, indices, numbers, sizes, mode):
        out[places(b, numbers, rank)] = fill if cut is None else x[cut].reshape(kept)
    return out


def scatter_reference(x, indices, u, numbers, sizes, mode, combine):
    out = x.copy()
    for b, cut in windows(x.shape, indices, numbers, sizes, mode):
        if cut is not None:
            value = u[places(b, numbers, u.ndim)].reshape(out[cut].shape)
            out[cut] = combine(out[cut], value)
    return out


# ---- random cases ----


def draw(seed):
    """(operand shape, index batch shape, dimension numbers, window sizes)."""
    r = stdlib_random.Random(seed)
    ndim = r.randint(0, 4)
    shape = [r.choice([1, 2, 3, 4]) for _ in range(ndim)]
    dims = list(range(ndim))
    batching = sorted(r.sample(dims, r.randint(0, min(2, ndim))))
    free = [d for d in dims if d not in batching]
    mapped = r.sample(free, r.randint(0, len(free)))
    least = 0 if r.random() < 0.05 else 1
    sizes = [
        1 if d in batching else r.choice([1, 1, shape[d], r.randint(least, shape[d])]) for d in dims
    ]
    collapsed = [d for d in free if sizes[d] == 1 and r.random() < 0.7]
    slots = [(None, r.choice([1, 2, 3])) for _ in range(r.randint(0, 2))]
    slots += [(d, shape[d]) for d in batching]
    r.shuffle(slots)
    index_batching = [next(i for i, (t, _) in enumerate(slots) if t == d) for d in batching]
    count = len(free) - len(collapsed)
    offset = sorted(r.sample(range(len(slots) + count), count))
    numbers = [tuple(v) for v in (offset, collapsed, mapped, batching, index_batching)]
    return tuple(shape), tuple([n for _, n in slots]), numbers, tuple(sizes)


def draw_indices(seed, shape, batch, mapped, sizes, beyond):
    rng = np.random.default_rng(seed)
    columns = [rng.integers(-beyond, shape[d] - sizes[d] + 1 + beyond, batch) for d in mapped]
    kind = [np.int32, np.int64, np.int8][seed % 3]
    return (np.stack(columns, -1) if columns else np.zeros((*batch, 0))).astype(kind)


def inputs(seed, mode):
    shape, batch, numbers, sizes = draw(seed)
    beyond = 2 if mode in ("clip", "fill") else 0
    indices = draw_indices(seed, shape, batch, numbers[2], sizes, beyond)
    return random(shape, seed=seed), indices, numbers, sizes


def examples(seed, mode, *others):
    """Variants of (x, indices, ...) to batch."""
    found = []
    for k in range(3):
        shape, batch, numbers, sizes = draw(seed)
        beyond = 2 if mode in ("clip", "fill") else 0
        indices = draw_indices(seed + 300 * k, shape, batch, numbers[2], sizes, beyond)
        xs = [random(shape, seed=seed + k), *[random(o.shape, seed=seed + 9 + k) for o in others]]
        found.append([xs[0], indices, *xs[1:]])
    return found


MODES = ["clip", "fill", "check", "promise_in_bounds"]


@pytest.mark.parametrize("seed", range(60))
def test_gather(seed):
    for mode in MODES:
        x, indices, numbers, sizes = inputs(seed, mode)
        gather_numbers = GatherDimensionNumbers(*numbers)

        def f(x, i, n=gather_numbers, sizes=sizes, mode=mode):
            return G.gather(x, i, n, sizes, mode=mode, fill_value=7.0)

        expected = gather_reference(x, indices, numbers, sizes, mode, 7.0)
        assert_same(f(to_array(x), to_array(indices)), expected, mode)
        backwards = tuple(reversed(range(x.ndim)))
        strided = to_array(x)
        if strided.device.kind == "cpu":  # arrays elsewhere are dense
            strided = ArrayImpl(to_array(x.T).data.permute(backwards), strided.sig)
        assert_same(f(strided, to_array(indices)), expected, "strided")
    check_staged(f, x, indices)
    check_batched(f, x, indices, examples=examples(seed, mode))
    if not x.size:
        return
    check_numeric(f, x, indices)


@pytest.mark.parametrize("seed", range(60))
def test_scatter(seed):
    for kind, mode in itertools.product(SCATTERS, MODES):
        x, indices, numbers, sizes = inputs(seed, mode)
        u = gather_reference(x, indices, numbers, sizes, mode, 7.0)
        u = random(u.shape, seed=seed + 1)
        function, combine = SCATTERS[kind]
        scatter_numbers = ScatterDimensionNumbers(*numbers)

        def f(x, i, u, n=scatter_numbers, function=function, mode=mode):
            return function(x, i, u, n, mode=mode)

        expected = scatter_reference(x, indices, u, numbers, sizes, mode, combine)
        assert_same(f(*map(to_array, (x, indices, u))), expected, f"{kind} {mode}")
        if mode == MODES[seed % 4]:
            check_numeric(f, x, indices, u)
            check_staged(f, x, indices, u)
            check_batched(f, x, indices, u, examples=examples(seed, mode, u))


def test_the_random_cases_reach_every_form():
    forms = []
    for seed in range(60):
        x, indices, numbers, sizes = inputs(seed, "clip")
        kinds = to_array(x).aval, to_array(indices).aval
        forms.append(WindowLayout(*kinds, GatherDimensionNumbers(*numbers), sizes).form())
    for form in ("slice", "axis", "along", "rows"):
        assert forms.count(form) >= 3, (form, forms.count(form))


# ---- dtypes ----


@pytest.mark.parametrize("kind", dtypes.ALL, ids=str)
@pytest.mark.parametrize("seed", [3, 21, 33, 47])
def test_every_dtype(kind, seed):
    for mode in ("clip", "fill"):
        x, indices, numbers, sizes = inputs(seed, mode)
        x = random(x.shape, kind, seed)
        fill = np.ones((), kind)
        out = gather_reference(x, indices, numbers, sizes, mode, fill)
        actual = G.gather(
            to_array(x),
            to_array(indices),
            GatherDimensionNumbers(*numbers),
            sizes,
            mode=mode,
            fill_value=fill,
        )
        assert_same(actual, out, f"gather {mode}")
        u = random(out.shape, kind, seed + 1)
        for name, (function, combine) in SCATTERS.items():
            if name in ("min", "max") and dtypes.is_complex(kind):
                continue
            wide = wider(kind)
            expected = scatter_reference(
                x.astype(wide), indices, u.astype(wide), numbers, sizes, mode, combine
            ).astype(kind)
            numbers_ = ScatterDimensionNumbers(*numbers)
            actual = function(*map(to_array, (x, indices, u)), numbers_, mode=mode)
            assert_same(actual, expected, f"{name} {mode}")


def wider(kind):
    """The dtype in which the reference computes: 16-bit and smaller floats in float32."""
    small = dtypes.is_float(kind) and kind.itemsize < 4
    return np.dtype(np.float32) if small else kind


def test_repeated_indices_have_one_result_with_any_number_of_threads():
    rng = np.random.default_rng(1)
    i = rng.integers(0, 7, (40000, 1))
    x, u = np.zeros((7, 64)), random((40000, 64))
    numbers = ScatterDimensionNumbers((1,), (0,), (0,))
    last = np.stack([u[np.nonzero(i[:, 0] == r)[0][-1]] for r in range(7)])
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        outs = [S.scatter(*map(to_array, (x, i, u)), numbers) for _ in range(3)]
        sums = [S.scatter_add(*map(to_array, (x, i, u)), numbers) for _ in range(3)]
        sums += [S.segment_sum(to_array(u), to_array(i[:, 0]), 7) for _ in range(3)]
    finally:
        torch.set_num_threads(before)
    for out in outs:
        assert_same(out, last, exact=True)
    for total in sums:
        assert_same(total, sums[0], exact=True)


@pytest.mark.parametrize("kind", dtypes.INTEGERS, ids=str)
def test_every_index_dtype(kind):
    x = to_array(random((20, 2)))
    i = np.array([0, 19, 3, 100, 127]).astype(kind)
    if kind.kind == "i":
        i[3] = -5
    numbers = GatherDimensionNumbers((1,), (0,), (0,))
    expected = gather_reference(
        random((20, 2)), i[:, None].astype(object), numbers, (1, 2), "clip", 0
    )
    actual = G.gather(x, to_array(i[:, None]), numbers, (1, 2), mode="clip")
    assert_same(actual, expected)
    largest = np.array([np.iinfo(kind).max]).astype(kind)
    filled = G.take_rows(x, to_array(largest), mode="fill", fill_value=3.0)
    assert_same(filled, np.full((1, 2), 3.0))
    last = G.take_rows(x, to_array(largest), mode="clip")
    assert_same(last, random((20, 2))[-1:])
