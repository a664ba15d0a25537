"""Kernels around libraries' routines of linear algebra."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from genesis_fn.backends.cuda.lowerings import plan_for
from genesis_fn.compiler.target import H200
from genesis_fn.core.aval import aval
from genesis_fn.core.dtypes import NAMES as DTYPES
from genesis_fn.core.primitive import Primitive
from genesis_fn.kernels.plan import Launch, Plan
from genesis_fn.primitives import linalg

TARGET = replace(H200, interpreted=True, libraries=True)  # which knows no device's scratch memory


def cases() -> dict[str, Plan]:
    """The kernels of each decomposition."""
    found: dict[str, Plan] = {}
    for kind in ("float32", "complex128"):
        for name, plan in _plans(kind):
            # Those that are compiled from a library's text are not the library's.
            launches = [s for s in plan.steps if isinstance(s, Launch)]
            kernels = [s for s in launches if s.kernel.__module__.startswith("genesis_fn.kernels")]
            for step in {s.kernel.__name__: s for s in kernels}.values():
                only = replace(plan, steps=(step,))
                found[f"{step.kernel.__name__} of {name} {kind}"] = only
    return found


def _plans(kind: str) -> Iterator[tuple[str, Plan]]:
    many, tall = aval((64, 32, 32), DTYPES[kind]), aval((64, 128, 32), DTYPES[kind])
    plan: Callable[..., Plan] = lambda prim, *avals, **params: _planned(prim, avals, params)
    yield "cholesky", plan(linalg.cholesky_p, aval((64, 160, 160), DTYPES[kind]))
    if kind == "float32":
        yield "panels", plan(linalg.cholesky_p, aval((64, 128, 128), DTYPES[kind]))
    yield "small", plan(linalg.cholesky_p, aval((64, 12, 12), DTYPES[kind]))
    n = 4 if kind[0] == "c" else 8
    small, side = aval((64, n, n), DTYPES[kind]), aval((64, n, 2), DTYPES[kind])
    yield "small", plan(linalg.lu_p, small)
    for transposed in (False, True):
        name = "small transposed" if transposed else "small"
        yield name, plan(linalg.solve_p, small, side, transpose_a=transposed)
    triangle = dict.fromkeys(("transpose_a", "conjugate_a", "unit_diagonal"), False)
    yield (
        "small",
        plan(linalg.triangular_solve_p, small, side, left_side=True, lower=True, **triangle),
    )
    yield "small", plan(linalg.qr_p, small, full_matrices=False)
    yield "small", plan(linalg.eigh_p, small)
    for vectors in (False, True):
        name = "small with vectors" if vectors else "small"
        yield name, plan(linalg.svd_p, small, full_matrices=False, compute_uv=vectors)
    yield "32 rows", plan(linalg.cholesky_p, many)
    yield "32 rows", plan(linalg.lu_p, many)
    medium, sides = aval((64, 64, 64), DTYPES[kind]), aval((64, 64, 64), DTYPES[kind])
    yield "64 rows", plan(linalg.lu_p, medium)
    if kind == "float32":
        yield "64 rows", plan(linalg.solve_p, medium, sides, transpose_a=False)
        yield (
            "64 rows",
            plan(linalg.triangular_solve_p, medium, sides, left_side=True, lower=True, **triangle),
        )
    else:
        yield "32 rows", plan(linalg.solve_p, many, many, transpose_a=True)
    narrow = aval((64, 64, 64), DTYPES["float64" if kind == "float32" else "complex64"])
    yield "64 rows of half", plan(linalg.cholesky_p, narrow)
    turned = {"transpose_a": True, "conjugate_a": True, "unit_diagonal": False}
    sides = aval((64, 3, 64), DTYPES["float32" if kind == "float32" else "complex64"])
    yield (
        "64 rows from the right",
        plan(
            linalg.triangular_solve_p,
            medium if kind == "float32" else narrow,
            sides,
            left_side=False,
            lower=False,
            **turned,
        ),
    )
    n = 16 if kind[0] == "c" else 32
    largest = aval((64, n, n), DTYPES[kind])
    yield f"{n} rows", plan(linalg.svd_p, largest, full_matrices=False, compute_uv=True)
    yield "lu", plan(linalg.lu_p, aval((1024, 1024), DTYPES[kind]))
    yield "qr", plan(linalg.qr_p, tall, full_matrices=False)
    yield "svd", plan(linalg.svd_p, tall, full_matrices=True, compute_uv=True)
    yield "eig", plan(linalg.eig_p, many, compute_vectors=True)


def _planned(prim: Primitive, avals: tuple, params: dict) -> Plan:
    plan = plan_for(prim, avals, params, TARGET)
    assert type(plan) is Plan
    return plan
