"""Nothing is left to the host: every primitive, with every dtype that it accepts, has a lowering
for GPUs, but for those that run a user's Python or show a user values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from test_every_primitive import HIGHER, REAL, Case, cases

from genesis_fn.backends.cuda.lower.steps import _CONTROL
from genesis_fn.backends.cuda.lowerings import HostCall, has_lowering, plan_for
from genesis_fn.backends.cuda.lowerings.call import RULES
from genesis_fn.compiler.complex_parts.represent import represented
from genesis_fn.compiler.complex_parts.steps import called
from genesis_fn.compiler.target import H200
from genesis_fn.core import dtypes, errors
from genesis_fn.core.array import from_numpy
from genesis_fn.core.aval import Aval, aval
from genesis_fn.core.device import cuda, using_device
from genesis_fn.core.dtypes import C64, C128, F32, DType
from genesis_fn.core.jaxpr import Jaxpr, jaxprs_in, of_one_equation
from genesis_fn.core.primitive import PRIMITIVES, Primitive
from genesis_fn.primitives import linalg
from genesis_fn.primitives.fft import FftType
from genesis_fn.transforms.debugging.assertions import assert_p

TARGET = replace(H200, interpreted=True, libraries=True)
EVERY = (*REAL, C64, C128)
ASKED_FOR = {
    "torch_call": "a user's function of CPU tensors",
    "pure_callback": "a user's Python",
    "io_callback": "a user's Python",
    "debug_callback": "what it prints is text",
    "assert": "its message shows values, where it has any; else the device checks",
}
# A user's kernel, which has the types that it has.
OF_USERS = {"triton_call"}


def substituted(case: Case, old: DType | None, new: DType) -> Case:
    """A case with avals for arrays, and dtype `new` wherever `old` was."""
    operands, params = case
    change = lambda d: new if d == old else d
    xs = [aval(np.shape(x), change(x.dtype)) if hasattr(x, "dtype") else x for x in operands]
    kinds = ("dtype", "preferred_element_type")
    named = {k: change(v) if k in kinds and v is not None else v for k, v in params.items()}
    return xs, named


def variants(prim: Primitive) -> Iterator[Case]:
    """The cases of a primitive, each operand's dtype replaced by every dtype that it accepts; each
    combination of avals and parameters once."""
    seen = set()
    for case in cases()[prim.name]:
        given = {x.dtype for x in case[0] if hasattr(x, "dtype")} or {case[1].get("dtype")}
        for old in given:
            for new in EVERY:
                xs, params = substituted(case, old, new)
                key = (*xs, *[f"{k}={v}" for k, v in params.items()])
                if key not in seen and accepts(prim, xs, params):
                    seen.add(key)
                    yield xs, params


def accepts(prim: Primitive, xs: list[Any], params: dict[str, Any]) -> bool:
    value, kind = params.get("value"), params.get("dtype")
    if value is not None and value != value and not dtypes.is_inexact(kind):
        return False  # no integer is NaN
    try:
        prim.abstract(tuple(xs), params)
    except (errors.DTypeError, errors.ShapeError):
        return False
    return True


def goes_to_host(prim: Primitive, avals: Any, params: dict[str, Any]) -> bool:
    # What has no rule of its own, but a kind of lowering, is computed in generated kernels.
    if not has_lowering(prim) or prim not in RULES:
        return not has_lowering(prim)
    return type(plan_for(prim, avals, params, TARGET)) is HostCall


def left_to_host(jaxpr: Jaxpr) -> list[str]:
    """The equations that the host computes, of the program on parts of complex numbers."""
    found = []
    for e in represented(jaxpr).eqns:
        found += [x for inner in jaxprs_in(e.params) for x in left_to_host(inner)]
        if e.prim in _CONTROL or any(jaxprs_in(e.params)):
            continue
        prim, avals, params = called(e)
        if goes_to_host(prim, avals, params):
            found.append(f"{prim.name} of {[str(a) for a in avals]} {params}")
    return found


def test_every_primitive_of_every_dtype() -> None:
    wrong, tried = [], 0
    for name in set(cases()) - set(ASKED_FOR) - OF_USERS:
        prim = PRIMITIVES[name]
        for xs, params in variants(prim):
            real = not any(type(a) is Aval and dtypes.is_complex(a.dtype) for a in xs)
            made = prim.abstract(tuple(xs), params)
            outs = made if prim.multi else [made]
            tried += 1
            if real and not any(dtypes.is_complex(a.dtype) for a in outs):
                alone = type(plan_for(prim, xs, params, TARGET)) is HostCall
                wrong += [f"{name} of {[str(a) for a in xs]} {params}"] * alone
            else:
                wrong += left_to_host(of_one_equation(prim, xs, params))
    assert tried > 3000
    assert not wrong, "\n".join([f"{len(wrong)} lower to the host:", *wrong[:40]])


def test_every_other_primitive_is_a_program_or_asked_for() -> None:
    """What has no case of its own holds programs, is exchanged between processes, never reaches a
    backend, or is in the list above."""
    never = {"random_wrap", "random_unwrap", "pvary", "assume_invariant", "if_active"}
    never |= {"sharding_constraint", "shard_map"}
    for name, prim in PRIMITIVES.items():
        if name in cases() or prim.collective or prim.program is not None or prim in _CONTROL:
            continue
        assert name in ASKED_FOR or name in never, f"{name} may lower to the host"
    assert set(ASKED_FOR) <= set(HIGHER) | {"torch_call"}


def test_a_failed_check_without_values_is_seen_on_the_device() -> None:
    params = {"function": None, "line": "", "lead": 0}
    assert type(plan_for(assert_p, [aval((4,), dtypes.BOOL)], params, TARGET)) is not HostCall


@using_device(cuda())
def test_matrices_of_no_elements() -> None:
    """Results that have elements all the same are made on the device."""
    for kind in (F32, C128):
        empty = [np.zeros(shape, kind) for shape in ((2, 4, 0), (0, 3), (3, 0), (0, 0), (3, 3))]
        tall, wide, other, none, square = [from_numpy(x, cuda()) for x in empty]
        q, r = (np.asarray(x) for x in linalg.qr(tall, full_matrices=True))
        np.testing.assert_array_equal(q, np.broadcast_to(np.eye(4), (2, 4, 4)))
        assert r.shape == (2, 4, 0) and q.dtype == kind
        u, s, vh = (np.asarray(x) for x in linalg.svd(wide, full_matrices=True))
        np.testing.assert_array_equal(vh, np.eye(3))
        assert u.shape == (0, 0) and s.shape == (0,) and vh.dtype == kind
        _, pivots, order = (np.asarray(x) for x in linalg.lu(other))
        assert pivots.shape == (0,) and order.tolist() == [0, 1, 2]
        assert np.asarray(linalg.cholesky(none)).shape == (0, 0)
        assert np.asarray(linalg.solve(square, other)).shape == (3, 0)
    for name, shapes, params in (
        ("qr", [(2, 4, 0)], {"full_matrices": True}),
        ("eigh", [(0, 0)], {}),
        ("eig", [(2, 0, 0)], {"compute_vectors": True}),
        ("triangular_solve", [(0, 0), (0, 2)], {}),
        ("fft", [(0, 8)], {"fft_type": FftType.FFT, "fft_lengths": (8,)}),
    ):
        kinds = [aval(shape, C64) for shape in shapes]
        if name == "triangular_solve":
            params = cases()[name][0][1]
        assert not goes_to_host(PRIMITIVES[name], kinds, params), name
