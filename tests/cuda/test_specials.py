"""Generated kernels on NaN, infinities, signed zeros, subnormal and extreme numbers: the table of
`tests/primitives/specials.py`, every primitive of one dtype in one program."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

import genesis_fn as gf
from genesis_fn.core import errors
from genesis_fn.core.array import from_numpy
from genesis_fn.core.device import cuda
from genesis_fn.core.dtypes import BF16, BOOL, F16, F32, F64, I8, I16, I32, I64, U8, U16, U32, U64
from genesis_fn.core.primitive import PRIMITIVES, bind
from genesis_fn.primitives.factories import batch_elementwise
from tests.kernels.planned import has_expression
from tests.primitives.specials import (
    BINARY,
    OTHERS,
    UNARY,
    cast,
    mismatch,
    operands,
    show,
    specials,
)

KINDS = (BOOL, I8, I16, I32, I64, U8, U16, U32, U64, BF16, F16, F32, F64)
# Units in the last place as `docs/design.md` states them, and one rounding of narrow floats.
BOUND = {BF16: 9e-3, F16: 2e-3, F32: 4e-6, F64: 1e-11}


def table(names: Any, kind: Any) -> list[str]:
    """The primitives with a generated form that take operands of a dtype."""
    found = []
    for name in names:
        prim = PRIMITIVES[name]
        if name in OTHERS or not has_expression(prim):
            continue
        try:
            prim.shape(*[from_numpy(x).aval for x in operands(name, kind)])
        except (errors.DTypeError, errors.ShapeError):
            continue
        found.append(name)
    return found


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.name)
@pytest.mark.parametrize("count", [1, 2])
def test_specials(kind: Any, count: int) -> None:
    names = table([*(UNARY if count == 1 else BINARY), *(["nextafter"] * (count - 1))], kind)
    if not names:
        pytest.skip("nothing takes it")
    xs = operands(names[0], kind)

    @gf.jit
    def all_of(*xs: Any) -> list[Any]:
        return [bind(PRIMITIVES[n], *xs) for n in names]

    results = all_of(*[from_numpy(x, cuda()) for x in xs])
    wrong = []
    for name, result in zip(names, results):
        got = np.asarray(result)
        bad = mismatch(name, got, xs, BOUND.get(got.dtype, 0.0), flushes=True)
        if bad.any():
            wrong.append(show(name, kind, xs, got, bad))
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.name)
def test_casts(kind: Any) -> None:
    x = specials(kind)
    f = gf.jit(
        lambda v: [bind(PRIMITIVES["convert_element_type"], v, dtype=k) for k in KINDS if k != kind]
    )
    for got in map(np.asarray, f(from_numpy(x, cuda()))):
        want = cast(x, got.dtype)
        if got.dtype.name == "bfloat16":
            got, want = got.astype(np.float32), want.astype(np.float32)
        np.testing.assert_array_equal(got, want, err_msg=f"{kind} to {got.dtype}")


def test_every_elementwise_primitive_is_in_the_table() -> None:
    elementwise = {
        name
        for name, prim in PRIMITIVES.items()
        if isinstance(prim.batch, functools.partial) and prim.batch.func is batch_elementwise
    }
    assert elementwise <= {*UNARY, *BINARY, *OTHERS, "nextafter"}
