"""Every first-order primitive and every fused function on CUDA against the CPU, small, in several
dtypes. A primitive without a lowering, or without a case here, fails."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

import genesis_fn  # noqa: F401 - defines every primitive
from genesis_fn.backends.cpu.lower import RULES, has_lowering as runs_on_cpu
from genesis_fn.backends.cpu.lowerings import call, host
from genesis_fn.backends.cuda.eager import PlanRunner
from genesis_fn.backends.cuda.lowerings import has_lowering, plan_for
from genesis_fn.backends.cuda.run.runtime import device_runtime
from genesis_fn.compiler.complex_parts.represent import has_parts
from genesis_fn.core import dtypes, errors, tree
from genesis_fn.core.array import ArrayImpl, from_numpy
from genesis_fn.core.aval import aval
from genesis_fn.core.configuration import config
from genesis_fn.core.device import cpu, cuda
from genesis_fn.core.dtypes import (
    BF16,
    BOOL,
    C64,
    C128,
    F8E4,
    F8E5,
    F16,
    F32,
    F64,
    I8,
    I16,
    I32,
    I64,
    U8,
    U16,
    U32,
    U64,
)
from genesis_fn.core.primitive import PRIMITIVES, Primitive, bind
from genesis_fn.lax.fused import attention, cross_entropy, norms, softmax  # noqa: F401
from genesis_fn.nn import expert_rows  # noqa: F401
from genesis_fn.primitives.conv import ConvDimensionNumbers
from genesis_fn.primitives.fft import FftType
from genesis_fn.primitives.indexing.constants import constant_numbers
from genesis_fn.primitives.indexing.gather_dims import (
    GatherDimensionNumbers,
    ScatterDimensionNumbers,
)
from genesis_fn.primitives.reductions.reduce_window import Window
from genesis_fn.transforms.control_flow.associative import formula_of
from genesis_fn.transforms.custom.fused_functions import FUSED
from tests.kernels.planned import has_expression
from tests.primitives.specials import BINARY

REAL = (BOOL, I8, I16, I32, I64, U8, U16, U32, U64, F8E4, F8E5, BF16, F16, F32, F64)
SOME = (BOOL, I8, U8, I32, U32, I64, U64, BF16, F16, F32, F64)
FLOATS = (F8E4, BF16, F16, F32, F64)
# Units in the last place where the two devices compute by different formulas.
TOLERANCE = {
    F8E4: 0.14,
    F8E5: 0.27,
    BF16: 2e-2,
    F16: 2e-3,
    F32: 4e-6,
    F64: 1e-11,
    C64: 1e-5,
    C128: 1e-11,
}

# Operations that make -0.0 of 0.0 or keep it, on both devices.
SIGNED_ZEROS = ("neg", "abs", "sign", "copy", "floor", "trunc")

# Casts to float8_e4m3fn beyond its range give the largest value, as the hardware does; torch's gave
# NaN before 2.13.
TORCH_SATURATES = not torch.tensor(1e4).to(torch.float8_e4m3fn).isnan().item()

Case = tuple[Sequence[Any], dict[str, Any]]


def values(shape: Sequence[int], kind: Any, seed: int = 0) -> np.ndarray:
    """Values with zeros, ties and the awkward ones among them."""
    rng = np.random.default_rng(seed)
    kind = np.dtype(kind)
    if kind == BOOL:
        return rng.random(shape) < 0.5
    if dtypes.is_integer(kind):
        return rng.integers(0 if kind.kind == "u" else -6, 7, shape).astype(kind)
    x = np.asarray(rng.normal(size=shape)).round(2)
    if dtypes.is_complex(kind):
        return (x + 1j * rng.normal(size=shape)).astype(kind)
    return x.astype(kind)


def awkward(shape: Sequence[int], kind: Any, seed: int = 0) -> np.ndarray:
    """`values` with limits, infinities and NaN in front."""
    x = values(shape, kind, seed)
    kind = np.dtype(kind)
    if dtypes.is_integer(kind):
        limits = np.iinfo(kind)
        x.flat[:3] = [0, limits.max, limits.min]
    elif dtypes.is_float(kind):
        special = [0.0, -0.0, np.nan] if kind == F8E4 else [0.0, -0.0, np.nan, np.inf, -np.inf]
        x.flat[: len(special)] = np.array(special, np.float64).astype(kind)
    return x


# ---- elementwise ----


def elementwise_cases(prim: Primitive) -> Iterator[Case]:
    """Operands of every dtype that the shape rule takes, with scalars in each place."""
    name = prim.name
    for kind in REAL:
        x = awkward((37,), kind)
        if name in ("convert_element_type", "bitcast_convert_type"):
            for target in REAL:
                if name[0] == "c" or target.itemsize == kind.itemsize:
                    # NumPy, which casts unsigned integers on the CPU, does not saturate.
                    plain = name[0] == "c" and target == F8E4 and dtypes.is_unsigned(kind)
                    yield [values((37,), kind) if plain else x], {"dtype": target}
            continue
        if name == "integer_pow":
            yield from (([values((37,), kind)], {"y": y}) for y in (2, 3, 0, -2))
        elif name == "reduce_precision":
            yield [x], {"exponent_bits": 4, "mantissa_bits": 3}
            yield [x], {"exponent_bits": 8, "mantissa_bits": 7}
        elif name == "select":
            c = values((37,), BOOL, 5)
            yield [c, x, values((37,), kind, 1)], {}
            yield [c, x, 1], {}
        elif name == "name":
            yield [x], {"name": "kept"}
        elif name in ("polygamma", "safe_mul"):
            if dtypes.is_float(kind) and kind not in (F8E4, F8E5):
                y = values((37,), kind, 1)
                yield ([np.abs(y) + 1], {"n": 1}) if name == "polygamma" else ([x, y], {})
        elif name == "add_n":
            yield [x, values((37,), kind, 1), values((37,), kind, 2)], {}
        elif name in BINARY or name == "nextafter":
            yield [x, awkward((37,), kind, 1)], {}
            yield [awkward((37,), kind, 2), values((37,), kind, 3)], {}
            if kind != BOOL:
                yield [x, 3], {}
                yield [2, x], {}
        else:
            yield [x], {}


# ---- everything else ----


def along(kinds: Sequence[Any], **params: Any) -> Iterator[Case]:
    for kind in kinds:
        yield [awkward((3, 7, 4), kind)], params


def reductions() -> Iterator[Case]:
    for axes in ((0,), (1,), (2,), (0, 2), (0, 1, 2)):
        yield from along(SOME if axes in ((1,), (0, 2)) else (F32, I32), axes=axes)
    yield [values((3, 0, 2), F32)], {"axes": (1,)}
    yield [values((1, 5000), F32)], {"axes": (0, 1)}


def products() -> Iterator[Case]:
    for axes in ((0,), (1,), (0, 2)):
        for kind in SOME if axes == (1,) else (F32, BF16):
            yield [values((3, 5, 2), kind)], {"axes": axes}


def positions() -> Iterator[Case]:
    for axis in (0, 1, 2):
        yield from along(REAL if axis == 1 else (F32,), axis=axis, index_dtype=I32)
    yield [values((2, 6000), F32)], {"axis": 1, "index_dtype": I64}


def cumulative(kinds: Sequence[Any]) -> Iterator[Case]:
    for axis, reverse in ((0, False), (1, True), (2, False)):
        for kind in kinds if axis == 1 else (F32,):
            yield [values((3, 7, 4), kind)], {"axis": axis, "reverse": reverse}


def shapes() -> dict[str, list[Case]]:
    x = values((3, 4, 5), F32)
    wide = [values((3, 4, 5), k) for k in (BOOL, I8, U16, BF16, F64, F8E5)]
    every = [x, *wide]
    scalar = np.float32(7.0)
    pads = [((1, 2, 0), (0, 0, 1), (-1, 3, 2)), ((-1, 0, 0), (-2, -1, 0), (0, 0, 0))]
    return {
        "broadcast_in_dim": [([v], {"shape": (2, 3, 4, 5), "dims": (1, 2, 3)}) for v in every]
        + [([values((3, 1), F32)], {"shape": (3, 2, 4), "dims": (0, 2)})],
        "reshape": [([v], {"shape": (12, 5)}) for v in every],
        "transpose": [([v], {"permutation": (2, 0, 1)}) for v in every]
        + [([values((1, 4, 1), F32)], {"permutation": (1, 0, 2)})]
        + [([values((2, 70, 40), k)], {"permutation": (0, 2, 1)}) for k in (F32, BOOL, BF16)],
        "slice": [
            ([v], {"start": (0, 1, 2), "limit": (3, 4, 5), "strides": (2, 1, 2)}) for v in every
        ]
        + [([values((4, 4), F32)], {"start": (1, 0), "limit": (3, 4), "strides": (1, 1)})],
        "pad": [([v, scalar], {"config": c}) for v in (x,) for c in pads]
        + [([v, v.reshape(-1)[0]], {"config": pads[0]}) for v in wide]
        + [([x, 2.5], {"config": pads[0]})],
        "concatenate": [([v, v[:, :2], v[:, :1]], {"dimension": 1}) for v in every]
        + [([x, x], {"dimension": 0}), ([x, x], {"dimension": 2})],
        "split": [([v], {"sizes": (1, 3), "axis": 1}) for v in every]
        + [([values((8, 4), F32)], {"sizes": (4, 3, 1), "axis": 0})],
        "rev": [([v], {"dimensions": (0, 2)}) for v in every],
        "iota": [
            ([], {"dtype": k, "shape": (3, 4), "dimension": d}) for k in REAL[1:] for d in (0, 1)
        ],
        "constant": [([], {"numbers": constant_numbers(values((3, 4), k))}) for k in REAL[:9]],
        "full": [([], {"value": 3, "shape": (2, 3), "dtype": k}) for k in REAL]
        + [
            ([], {"value": float("nan"), "shape": (4,), "dtype": F32}),
            ([], {"value": -1.5, "shape": (4,), "dtype": F64}),
        ],
        "copy": [([v], {}) for v in every],
        "optimization_barrier": [([x, wide[0]], {})],
    }


def indexing() -> dict[str, list[Case]]:
    gathers, scatters = [], []
    x = values((5, 4, 3), F32)
    rows = np.array([[0], [4], [2], [2]], np.int32)
    plain = GatherDimensionNumbers((1, 2), (0,), (0,))
    pairs = GatherDimensionNumbers((1,), (0, 1), (1, 0))
    window = GatherDimensionNumbers((0, 2), (1,), (0, 1))
    batched = GatherDimensionNumbers((2,), (1,), (1,), (0,), (0,))
    off = np.array([[3, 1], [0, 9], [-1, 0], [1, 2]], np.int32)
    fixed = {"unique_indices": False, "indices_are_sorted": False}
    ordered = {"deterministic": True}
    batch = np.array([[[0], [3]], [[1], [1]], [[2], [0]], [[3], [3]], [[0], [2]]], np.int32)
    for mode in ("clip", "fill"):
        for kind in (F32, BOOL, U8, BF16, I64, F8E4):
            gathers.append(
                (
                    [values((5, 4, 3), kind), off],
                    {
                        "dimension_numbers": pairs,
                        "slice_sizes": (1, 1, 3),
                        "mode": mode,
                        "fill_value": None,
                        **fixed,
                    },
                )
            )
        gathers.append(
            (
                [x, off.astype(np.int64)],
                {
                    "dimension_numbers": window,
                    "slice_sizes": (2, 1, 2),
                    "mode": mode,
                    "fill_value": 7.0 if mode == "fill" else None,
                    **fixed,
                },
            )
        )
    gathers.append(
        (
            [x, rows],
            {
                "dimension_numbers": plain,
                "slice_sizes": (1, 4, 3),
                "mode": "check",
                "fill_value": None,
                **fixed,
            },
        )
    )
    gathers.append(
        (
            [x, batch],
            {
                "dimension_numbers": batched,
                "slice_sizes": (1, 1, 3),
                "mode": "check",
                "fill_value": None,
                **fixed,
            },
        )
    )
    for how in ("set", "add", "mul", "min", "max"):
        for kind in (F32, I32, BF16) if how != "set" else (F32, BOOL, U8, I64, F16):
            scatters.append(
                (
                    [values((5, 4, 3), kind), off, values((4, 3), kind, 3)],
                    {
                        "kind": how,
                        "dimension_numbers": ScatterDimensionNumbers(*pairs),
                        "mode": "fill",
                        **fixed,
                        **ordered,
                    },
                )
            )
    scatters.append(
        (
            [x, off, values((2, 4, 2), F32, 3)],
            {
                "kind": "add",
                "dimension_numbers": ScatterDimensionNumbers(*window),
                "mode": "clip",
                **fixed,
                **ordered,
            },
        )
    )
    scatters.append(
        (
            [x, batch, values((5, 2, 3), F32, 3)],
            {
                "kind": "add",
                "dimension_numbers": ScatterDimensionNumbers(*batched),
                "mode": "check",
                **fixed,
                **ordered,
            },
        )
    )
    table = values((6, 5), F32)
    places = np.array([[0, 5], [3, 3]], np.int32)
    starts = [np.int32(-2), np.int64(9), np.uint64(2**63)]
    return {
        "gather": gathers,
        "scatter": scatters,
        "take_rows": [
            ([values((6, 5), k), places.astype(i)], {"mode": "check", "fill_value": None})
            for k, i in ((F32, I32), (BOOL, I64), (BF16, U8), (F64, U64))
        ]
        + [
            ([table, places * 3], {"mode": m, "fill_value": f})
            for m, f in (("clip", None), ("fill", None), ("fill", 0), ("fill", 2.5))
        ],
        "segment_sum": [
            (
                [values((4, 3), k), np.array([1, 0, 1, 5], i)],
                {"num_segments": 4, "mode": "fill", **fixed, **ordered},
            )
            for k, i in ((F32, I32), (BF16, I64), (I32, U8), (U64, I32), (BOOL, I32))
        ],
        "dynamic_slice": [
            ([values((4, 5, 6), k), *starts], {"slice_sizes": (2, 3, 4)})
            for k in (F32, BOOL, BF16, U64)
        ]
        + [([values((4, 6), F32), 1, np.int32(3)], {"slice_sizes": (2, 2)})],
        "dynamic_update_slice": [
            ([values((4, 5, 6), k), values((2, 3, 4), k, 2), *starts], {})
            for k in (F32, BOOL, BF16, U64)
        ],
    }


def contractions() -> Iterator[Case]:
    base = {"precision": "highest", "preferred_element_type": None}
    plain, swapped = (((1,), (0,)), ((), ())), (((0,), (1,)), ((), ()))
    for kind in (F32, BF16, F16, F64, I8, I32, U8, F8E4):
        a, b = values((5, 16), kind), values((16, 7), kind, 1)
        yield [a, b], {"dimension_numbers": plain, **base}
    for kind, out in ((BF16, F32), (I8, I32), (F16, F32)):
        a, b = values((17, 33), kind), values((20, 17), kind, 1)
        yield [a, b], {"dimension_numbers": swapped, **base, "preferred_element_type": out}
    batch = values((2, 3, 4, 5), F32), values((3, 2, 5, 6), F32, 1)
    yield list(batch), {"dimension_numbers": (((3,), (2,)), ((0, 1), (1, 0))), **base}
    several = values((3, 4, 5), F32), values((5, 2, 3), F32, 1)
    yield list(several), {"dimension_numbers": (((0, 2), (2, 0)), ((), ())), **base}
    yield (
        [values((4,), F32), values((5,), F32, 1)],
        {"dimension_numbers": (((), ()), ((), ())), **base},
    )
    yield (
        [values((9,), F32), values((9,), F32, 1)],
        {"dimension_numbers": (((0,), (0,)), ((), ())), **base},
    )
    yield [values((3, 0), F32), values((0, 2), F32)], {"dimension_numbers": plain, **base}
    yield [values((3, 4), BOOL), values((4, 2), BOOL)], {"dimension_numbers": plain, **base}


def ragged() -> Iterator[Case]:
    """Operands and parameters of `ragged_contraction`; its lhs and sizes suit `ragged_dot`, too."""
    base = {"precision": "highest", "preferred_element_type": None}
    sizes = np.array([3, 0, 7], np.int32)
    for kind in (F32, BF16, F16, F64, I32, F8E4):
        yield [values((12, 16), kind), values((12, 8), kind, 1), sizes], base
    for other, out in ((F32, F32), (F32, BF16), (BF16, F32)):
        mixed = [values((12, 5), BF16), values((12, 3), other, 1), sizes.astype(np.int64)]
        yield mixed, {**base, "preferred_element_type": out}
    batch = np.array([[3, 0, 7], [0, 20, 1]], np.int32)
    yield [values((2, 12, 16), F32), values((2, 12, 8), F32, 1), batch], base
    yield [values((0, 4), F32), values((0, 2), F32), sizes], base


def ragged_dots() -> Iterator[Case]:
    for (x, y, sizes), params in ragged():
        n = y.shape[-1]
        for turned in (False, True):
            shape = (3, n, x.shape[-1]) if turned else (3, x.shape[-1], n)
            yield [x, values(shape, y.dtype, 2), sizes], {**params, "rhs_transposed": turned}
    batched = [values((2, 12, 16), F32), values((2, 3, 16, 8), F32), sizes[None].repeat(2, 0)]
    yield batched, {**params, "rhs_transposed": False}


def convolutions() -> Iterator[Case]:
    base = {
        "window_strides": (2, 1),
        "padding": ((1, 1), (0, 2)),
        "lhs_dilation": (1, 1),
        "rhs_dilation": (1, 2),
        "feature_group_count": 1,
        "batch_group_count": 1,
        "precision": "highest",
        "preferred_element_type": None,
        "dimension_numbers": ConvDimensionNumbers((0, 1, 2, 3), (0, 1, 2, 3), (0, 1, 2, 3)),
    }
    for kind in (F32, BF16, F64):
        yield [values((2, 4, 6, 7), kind), values((6, 4, 3, 2), kind, 1)], base
    yield (
        [values((2, 4, 6, 7), F32), values((6, 2, 3, 2), F32, 1)],
        {**base, "feature_group_count": 2, "lhs_dilation": (2, 1)},
    )
    yield (
        [values((4, 3, 6, 7), F32), values((6, 3, 3, 2), F32, 1)],
        {**base, "batch_group_count": 2},
    )
    last = ConvDimensionNumbers((0, 3, 1, 2), (3, 2, 0, 1), (0, 3, 1, 2))
    yield (
        [values((2, 6, 7, 4), F32), values((3, 2, 4, 6), F32, 1)],
        {**base, "dimension_numbers": last},
    )
    yield [values((2, 4, 6, 7), I32), values((6, 4, 3, 2), I32, 1)], base


WINDOW = Window((1, 3, 2), (1, 2, 1), ((0, 0), (1, 1), (0, 1)), (1, 1, 1), (1, 1, 2))
DILATED = Window((1, 2, 2), (1, 1, 1), ((0, 0), (1, 0), (0, 0)), (1, 2, 1), (1, 1, 1))


def windows() -> dict[str, list[Case]]:
    found: dict[str, list[Case]] = {}
    kinds = {"sum": (F32, BF16, I32, F64), "max": SOME, "min": SOME}
    for name, allowed in kinds.items():
        found[f"reduce_window_{name}"] = [
            ([values((2, 7, 5), k)], {"window": w}) for k in allowed for w in (WINDOW, DILATED)
        ]
    nan = values((2, 7, 5), F32)
    nan[0, 3, 2] = np.nan
    found["window_offset"] = [
        ([values((2, 7, 5), k)], {"window": w, "greatest": g})
        for k in (F32, I32, U8)
        for w in (WINDOW, DILATED)
        for g in (True, False)
    ] + [([nan], {"window": WINDOW, "greatest": True})]
    # Padding has the same value, and is no element of a window.
    least, most = np.full((2, 7, 5), -np.inf, np.float32), np.full((2, 7, 5), 255, np.uint8)
    for x, greatest in ((least, True), (-least, False), (most, False)):
        found["window_offset"] += [
            ([x], {"window": w, "greatest": greatest}) for w in (WINDOW, DILATED)
        ]
    outputs = WINDOW.outputs((2, 7, 5), "", None)
    offset = np.random.default_rng(0).integers(0, 6, outputs).astype(np.int32)
    facts = {"window": WINDOW, "shape": (2, 7, 5)}
    found["window_take"] = [([values((2, 7, 5), k), offset], facts) for k in (F32, BF16)]
    found["window_put"] = [([values(outputs, k), offset], facts) for k in (F32, BF16, F64)]
    return found


def random_bits() -> dict[str, list[Case]]:
    keys = np.array([[1, 2], [2**32 - 1, 7]], np.uint32)
    return {
        "random_bits": [
            ([k], {"shape": (13,), "width": w, "impl": impl})
            for impl in ("philox", "threefry2x32")
            for w in (8, 16, 32, 64)
            for k in (keys[0], keys)
        ],
        "key_hash": [
            ([keys, np.arange(6, dtype=np.uint32).reshape(2, 3)], {"impl": impl, "tag": 1})
            for impl in ("philox", "threefry2x32")
        ],
    }


def decompositions() -> dict[str, list[Case]]:
    a = values((2, 4, 4), F32)
    spd = a @ a.transpose(0, 2, 1) + 4 * np.eye(4, dtype=np.float32)
    b = values((2, 4, 3), F32, 1)
    z = values((8,), C64)
    solve = {
        "left_side": True,
        "lower": True,
        "transpose_a": False,
        "conjugate_a": False,
        "unit_diagonal": False,
    }
    return {
        "cholesky": [([spd], {})],
        "triangular_solve": [([spd, b], solve)],
        "solve": [([spd, b], {"transpose_a": t}) for t in (False, True)],
        "lu": [([spd], {})],
        "qr": [([a], {"full_matrices": False})],
        "eigh": [([spd], {})],
        "svd": [([a], {"full_matrices": False, "compute_uv": True})],
        "eig": [([spd], {"compute_vectors": True})],
        "fft": [([z], {"fft_type": FftType.FFT, "fft_lengths": (8,)})],
        "real": [([z], {})],
        "imag": [([z], {})],
        "conj": [([z], {})],
        "complex": [([values((8,), F32), values((8,), F32, 1)], {})],
    }


def sorts() -> dict[str, list[Case]]:
    facts = {"is_stable": True}
    return {
        "sort": [([awkward((3, 9), k)], {"dimension": 1, "num_keys": 1, **facts}) for k in REAL]
        + [
            (
                [values((6, 4), I32), values((6, 4), F32, 1)],
                {"dimension": 0, "num_keys": n, **facts},
            )
            for n in (1, 2)
        ],
        "top_k": [([values((3, 9), k)], {"k": 3, "axis": 1}) for k in SOME]
        + [([values((9, 2), F32)], {"k": 4, "axis": 0})],
    }


@functools.cache
def cases() -> dict[str, list[Case]]:
    """Operands and parameters for every first-order primitive."""
    found: dict[str, list[Case]] = {
        **calls(),
        **shapes(),
        **indexing(),
        **windows(),
        **random_bits(),
        **decompositions(),
        **sorts(),
        "argmax": list(positions()),
        "argmin": list(positions()),
        "reduce_prod": list(products()),
        "dot_general": list(contractions()),
        "ragged_dot": list(ragged_dots()),
        "ragged_contraction": list(ragged()),
        "conv_general_dilated": list(convolutions()),
        "linear_recurrence": [
            ([values((3, 7, 4), k), values((3, 7, 4), k, 1)], {"axis": a, "reverse": r})
            for k, a, r in ((F32, 1, False), (F32, 0, True), (BF16, 2, False), (F64, 1, True))
        ],
        "cumsum": list(cumulative(SOME[1:])),
        "cumprod": list(cumulative((I32, BF16, F32, F64))),
        "cummax": list(cumulative(SOME)),
        "cummin": list(cumulative(SOME)),
        "cumlogsumexp": list(cumulative(FLOATS)),
    }
    for name in ("sum", "max", "min"):
        found[f"reduce_{name}"] = list(reductions())
    for name in ("and", "or", "xor"):
        found[f"reduce_{name}"] = [
            ([values((3, 7, 4), k)], {"axes": axes})
            for k in (BOOL, I8, U32, I64)
            for axes in ((1,), (0, 2))
        ]
    for name, prim in PRIMITIVES.items():
        others = name in ("polygamma", "copy", "name", "stop_gradient")
        if name not in found and (others or has_expression(prim)):
            found[name] = list(elementwise_cases(prim))
    return found


@triton.jit
def scaled_sum(x, factor, y, out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.load(x + i) * factor + tl.load(y + i))


def calls() -> dict[str, list[Case]]:
    """The user's own functions and kernels."""
    x, y = values((16,), F32), values((16,), F32, 1)
    out = (aval((16,), F32),)
    settings = {
        "kernel": scaled_sum,
        "grid": 1,
        "out_avals": out,
        "constants": (("N", 16),),
        "scalars": ((1, 3.0),),
    }
    return {
        "triton_call": [([x, y], settings)],  # compared in test_triton_call
        "torch_call": [([x, y], {"f": lambda x, y: [x * y], "out_avals": out})],
    }


def first_order() -> list[str]:
    """The primitives that hold no program, name no axis and do not call the user's code."""
    return [
        n for n, p in PRIMITIVES.items() if n not in HIGHER and not p.collective and not p.effect
    ]


# What holds a program or calls the user's code on the host, and what backends never see.
HIGHER = frozenset(
    n
    for n, p in PRIMITIVES.items()
    if not runs_on_cpu(p)
    or p.program is not None
    or RULES.get(p) in vars(call).values()
    or RULES.get(p) in vars(host).values()
)


def run(prim: Primitive, operands: Sequence[Any], params: dict[str, Any], device: Any) -> list:
    given = [
        from_numpy(np.asarray(x), device) if isinstance(x, (np.ndarray, np.generic)) else x
        for x in operands
    ]
    if not operands:
        from genesis_fn.core.device import using_device

        with using_device(device):
            out = bind(prim, **params)
    else:
        out = bind(prim, *given, **params)
    return list(out) if prim.multi else [out]


def accepted(prim: Primitive, operands: Sequence[Any], params: dict[str, Any]) -> bool:
    """Whether the shape rule takes these dtypes."""
    avals = [
        aval(x.shape, np.dtype(x.dtype)) if isinstance(x, (np.ndarray, np.generic)) else x
        for x in operands
    ]
    try:
        prim.abstract(tuple(avals), params)
    except errors.DTypeError:
        return False
    return True


def host(x: ArrayImpl) -> np.ndarray:
    return x.device.backend.to_numpy(x)


def compare(got: np.ndarray, want: np.ndarray, what: str, loose: float = 1.0) -> None:
    assert got.dtype == want.dtype and got.shape == want.shape, f"{what}: {got.dtype}{got.shape}"
    kind = np.dtype(want.dtype)
    if not dtypes.is_inexact(kind):
        np.testing.assert_array_equal(got, want, err_msg=what)
        return
    wide = np.complex128 if dtypes.is_complex(kind) else np.float64
    if kind == F8E4 and not TORCH_SATURATES:
        want = np.where(np.isnan(want.astype(wide)) & (np.abs(got.astype(wide)) == 448), got, want)
    t = TOLERANCE[kind] * loose
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(
            got.astype(wide), want.astype(wide), rtol=t, atol=t, err_msg=what
        )


def canonical(name: str, results: list[np.ndarray]) -> list[np.ndarray]:
    """Results with free phases, signs and order chosen: of each vector the largest number is
    positive, and general eigenvalues ascend."""
    if name not in ("eigh", "svd", "eig", "qr"):
        return results
    rest = list(results)
    at = {"eigh": 0, "svd": 1, "eig": 1, "qr": 0}[name]
    vectors = results[at]
    if name == "eig":
        order = np.argsort(np.round(results[0].real, 3), -1, kind="stable")
        rest[0] = np.take_along_axis(results[0], order, -1)
        vectors = np.take_along_axis(vectors, order[..., None, :], -1)
    largest = np.argmax(np.round(np.abs(vectors), 3), -2, keepdims=True)
    phase = np.take_along_axis(vectors, largest, -2)
    phase = phase / np.abs(phase)
    rest[at] = vectors / phase
    if name in ("svd", "qr"):  # the other factor turns the other way
        other = at + 1
        rest[other] = results[other] * np.swapaxes(phase, -1, -2)
    return [r.astype(x.dtype) for r, x in zip(rest, results)]


def test_triton_call():
    ((x, y), params) = calls()["triton_call"][0]
    (out,) = run(PRIMITIVES["triton_call"], [x, y], params, cuda())
    np.testing.assert_allclose(host(out), x * 3 + y, rtol=1e-6)


@pytest.mark.parametrize("name", [n for n in first_order() if n != "triton_call"])
def test_primitive(name):
    prim = PRIMITIVES[name]
    assert has_lowering(prim) or has_parts(prim), f"{name} has no lowering on CUDA"
    listed = cases().get(name)
    assert listed, f"{name} has no case in this file"
    tried = 0
    for operands, params in listed:
        if not accepted(prim, operands, params):
            continue
        want = run(prim, operands, params, cpu())
        got = run(prim, operands, params, cuda())
        shown = [f"{x.dtype}{list(x.shape)}" if hasattr(x, "dtype") else x for x in operands]
        assert len(got) == len(want)
        assert all([g.device is cuda() for g in got])
        ours, theirs = [canonical(name, list(map(host, found))) for found in (got, want)]
        for g, w in zip(ours, theirs):
            if name in SIGNED_ZEROS:
                a, b = g.astype(np.float64), w.astype(np.float64)
                compare(np.signbit(a[b == b]), np.signbit(b[b == b]), f"sign of {name} {shown}")
            compare(g, w, f"{name} {shown} {params}")
        tried += 1
    assert tried, f"no case of {name} ran"


# ---- fused functions ----


def fused_calls(kind: Any) -> dict[str, tuple[Any, tuple, dict[str, Any]]]:
    """For each fused function: (itself, operands as it takes them, static parameters)."""
    rng = np.random.default_rng(1)

    def normal(*shape: int, dtype: Any = kind) -> np.ndarray:
        return rng.normal(size=shape).astype(dtype)

    wide = F64 if kind == F64 else F32
    x, ct = normal(3, 5, 48), normal(3, 5, 48)
    weight, bias = normal(48), normal(48)
    mean, rstd = normal(3, 5, dtype=wide), np.abs(normal(3, 5, dtype=wide)) + 1
    eps = {"eps": 1e-5}
    found: dict[str, tuple] = {
        "rms_norm": ((x, weight), eps),
        "rms_norm_forward": ((x, weight), eps),
        "rms_norm_backward": (((x, weight, rstd), (ct)), {**eps, "needs": (True, True)}),
        "layer_norm": ((x, weight, bias), eps),
        "layer_norm_forward": ((x, weight, bias), eps),
        "layer_norm_backward": (
            ((x, weight, bias, mean, rstd), ct),
            {**eps, "needs": (True, True, True)},
        ),
    }
    # Six tokens, each of which chose two of four experts; the last choice is of none.
    tokens, rows, experts = normal(6, 16), normal(6, 2, 16), normal(4, 8, 16)
    chosen = np.append(rng.integers(0, 4, 11), 4).astype(np.int32).reshape(6, 2)
    order = np.argsort(chosen.reshape(-1), kind="stable").astype(np.int32).reshape(6, 2)
    values, one = normal(6, 2), {"needs": (True,)}
    found |= {
        "expert_order": ((chosen,), {"count": 4}),
        "rows_of_tokens": ((tokens, order), {}),
        "rows_of_tokens_forward": ((tokens, order), {}),
        "rows_of_tokens_backward": (((order,), rows), one),
        "tokens_of_rows": ((rows, order), {}),
        "tokens_of_rows_forward": ((rows, order), {}),
        "tokens_of_rows_backward": (((order,), tokens), one),
        "rows_of_choices": ((values, order), {}),
        "rows_of_choices_forward": ((values, order), {}),
        "rows_of_choices_backward": (((order,), values), one),
        "expert_product": ((rows, experts, chosen), {}),
        "expert_product_forward": ((rows, experts, chosen), {}),
        "expert_product_backward": (
            ((rows, experts, chosen), normal(6, 2, 8)),
            {"needs": (True, True)},
        ),
    }
    for name in ("softmax", "log_softmax", "logsumexp"):
        found[name] = ((x,), {})
        found[f"{name}_forward"] = ((x,), {})
    probabilities = np.exp(x.astype(np.float64))
    probabilities = (probabilities / probabilities.sum(-1, keepdims=True)).astype(kind)
    total = np.log(np.exp(x.astype(np.float64)).sum(-1)).astype(kind)
    needs = {"needs": (True,)}
    found["softmax_backward"] = (((probabilities,), ct), needs)
    found["log_softmax_backward"] = (
        ((np.log(probabilities.astype(np.float64)).astype(kind),), ct),
        needs,
    )
    found["logsumexp_backward"] = (((x, total), normal(3, 5)), needs)

    labels = rng.integers(0, 48, (3, 5)).astype(np.int32)
    found["cross_entropy"] = ((x, labels), {})
    found["cross_entropy_forward"] = ((x, labels), {})
    found["cross_entropy_backward"] = (((x, labels, total.astype(wide)), normal(3, 5)), needs)
    options = {
        "ignore_index": 3,
        "label_smoothing": 0.1,
        "z_loss": 1e-3,
        "softcap": 0.0,
        "reduction": "mean",
    }
    rows, table = normal(15, 32), normal(48, 32)
    found["linear_cross_entropy"] = ((rows, table, labels.reshape(-1)), options)
    found["linear_cross_entropy_forward"] = ((rows, table, labels.reshape(-1)), options)
    found["linear_cross_entropy_backward"] = (
        ((rows, table), np.asarray(2.0, wide)),
        {**options, "needs": (True, True)},
    )
    del (options := dict(options))["reduction"]
    flat, of_class = labels.reshape(-1), np.abs(normal(48, dtype=wide))
    of_row = normal(15, dtype=wide)
    for name in ("linear_cross_entropy_rows", "linear_cross_entropy_rows_forward"):
        found[name] = ((rows, table, flat, of_class), options)
    needs_two = {**options, "needs": (True, True, False)}
    found["linear_cross_entropy_rows_backward"] = (
        ((rows, table, flat, of_class), of_row), needs_two)  # fmt: skip
    for name in ("linear_cross_entropy_weighted", "linear_cross_entropy_weighted_forward"):
        found[name] = ((rows, table, flat, of_row, of_class), options)
    found["linear_cross_entropy_weighted_backward"] = (
        ((rows, table, of_row, (rows, table, flat, of_row)), np.asarray(2.0, wide)),
        {**options, "needs": (True, True, True, True)},
    )

    q, k, v = normal(2, 20, 4, 16), normal(2, 24, 2, 16), normal(2, 24, 2, 16)
    static = {"scale": 0.25, "causal": True, "window": None, "softcap": 0.0}
    static["has"] = (False,) * 5  # bias, mask, lengths, segments of queries and of keys
    found["attention"] = ((q, k, v), static)
    found["attention_forward"] = ((q, k, v), static)
    lse, out = _attention_by_hand(q, k, v, wide)
    backward = {**static, "needs": (True, True, True)}
    found["attention_backward"] = (((q, k, v, out, lse), normal(2, 20, 4, 16)), backward)
    kinds = [aval((), kind)] * 2
    formula = formula_of(lambda p, q: [p[0] * q[0], q[0] * p[1] + q[1]], kinds)
    scan = {"formula": formula, "axis": 1, "reverse": True, "kept": (0, 1)}
    found["prefixes"] = ((normal(3, 9, 5), normal(3, 9, 5)), scan)
    return {name: (FUSED[name], *found[name]) for name in found}


def _attention_by_hand(q: np.ndarray, k: np.ndarray, v: np.ndarray, wide: Any) -> tuple:
    """(log-sum-exp [B, N, T], output) of causal attention with scale 0.25 and two query heads for
    each key head."""
    q64, k64, v64 = [x.astype(np.float64) for x in (q, k, v)]
    k64, v64 = np.repeat(k64, 2, 2), np.repeat(v64, 2, 2)
    logits = np.einsum("btnh,bsnh->bnts", q64, k64) * 0.25
    t, s = logits.shape[2:]
    logits = np.where(np.arange(s)[None] <= np.arange(t)[:, None], logits, -np.inf)
    lse = np.log(np.exp(logits).sum(-1))
    out = np.einsum("bnts,bsnh->btnh", np.exp(logits - lse[..., None]), v64)
    return lse.astype(wide), out.astype(q.dtype)


def special(op: Any, kind: Any) -> tuple:
    """Operands of an elementwise special function: orders above 1, the last in (0, 1)."""
    count = len(inspect.signature(op.reference).parameters)
    rng = np.random.default_rng(2)
    orders = [(1.5 + 2 * rng.random((2, 5))).astype(kind) for _ in range(count - 1)]
    return (*orders, (0.1 + 0.8 * rng.random((2, 5))).astype(kind)), {}


FUSED_TOLERANCE = {BF16: 3e-2, F16: 4e-3, F32: 2e-5, F64: 1e-10}
NAMES_WITHOUT_KERNEL = {
    "linear_cross_entropy_backward", "linear_cross_entropy_weighted_backward", "expert_order",
    *[
        f"{name}{part}"
        for name in ("rows_of_tokens", "tokens_of_rows", "rows_of_choices", "expert_product")
        for part in ("", "_forward", "_backward")
    ],
}  # fmt: skip


def every_fused() -> list[str]:
    return [n for n, f in FUSED.items() if f.reference.__module__.startswith("genesis_fn.")]


@pytest.mark.parametrize("name", every_fused())
def test_fused(name):
    elementwise = FUSED[name].reference.__module__.endswith(".special")
    for kind in (F32,) if elementwise else (F32, BF16, F16, F64):
        if elementwise:
            op = FUSED[name]
            operands, static = special(op, kind)
        else:
            calls = fused_calls(kind)
            assert name in calls, f"the fused function {name} has no case in this file"
            op, operands, static = calls[name]
        leaves, in_tree = tree.flatten(operands)
        avals = tuple([aval(x.shape, x.dtype) for x in map(np.asarray, leaves)])
        fixed = tuple(sorted(static.items()))
        with config.override(matmul_precision="highest"):
            jaxpr = op.program(avals, in_tree, fixed)
            prim, params = PRIMITIVES["fused"], {"op": op, "static": fixed, "jaxpr": jaxpr}
            lowered = plan_for(prim, avals, params, device_runtime(0).driver.info.target)
            reference_runs = elementwise or name in NAMES_WITHOUT_KERNEL
            if not reference_runs and not (kind == F64 and "attention" in name):
                assert lowered is not None, f"{name} has no kernel for {kind}"
            got = run(prim, leaves, params, cuda())
        # The reference, not the CPU's own kernels, in float64 where operands are floats.
        want = reference(op, leaves, in_tree, static)
        for i, (g, w) in enumerate(zip(got, want, strict=True)):
            g = host(g)
            assert g.shape == w.shape
            t = FUSED_TOLERANCE[kind]
            scale = max(1.0, float(np.abs(w.astype(np.float64)).max()))
            np.testing.assert_allclose(
                g.astype(np.float64),
                w.astype(np.float64),
                rtol=t,
                atol=t * scale,
                err_msg=f"{name} {kind}, result {i}",
            )


def reference(op: Any, leaves: Sequence[Any], in_tree: Any, static: dict[str, Any]) -> list:
    """The results of a fused function's reference program on the CPU, computed in float64."""
    exact = [np.asarray(x, np.float64) if dtypes.is_float(np.dtype(x.dtype)) else x for x in leaves]
    given = [from_numpy(np.asarray(x), cpu()) for x in exact]
    out = op.reference(*tree.unflatten(in_tree, given), **static)
    return [host(x) for x in tree.leaves(out)]


@pytest.mark.parametrize("name", ["dynamic_update_slice", "scatter"])
def test_updates_in_place(name):
    """The plan for memory that holds the operand already gives what the other plan gives."""
    prim, device = PRIMITIVES[name], cuda()
    for operands, params in cases()[name]:
        arrays = [from_numpy(np.asarray(x), device) for x in operands]
        avals = tuple([x.aval for x in arrays])
        place = device_runtime(device.index)
        plan = plan_for(prim, avals, params, place.driver.info.target, in_place=True)
        buffers = [x.data for x in arrays]
        checked = [place.alloc(8)] * (plan.outputs - 1)
        addresses = [b.address for b in (*buffers, buffers[0], *checked)]
        PlanRunner(place, plan)(addresses, [b.bytes for b in (*buffers, buffers[0], *checked)])
        (want,) = run(prim, operands, params, cpu())
        compare(host(arrays[0]), host(want), f"{name} in place {avals} {params}")
