"""Complex numbers on CUDA: every primitive that takes them, against the CPU and without the host;
their special values; programs of many of them against JAX, NumPy and the CPU."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from programs import get, put
from test_every_primitive import HIGHER, REAL, Case, accepted, cases, compare, host, run, values

import genesis_fn as gf
import genesis_fn.numpy as gnp
from genesis_fn import lax
from genesis_fn.backends.cuda.lowerings.call import RULES as LOWERED
from genesis_fn.backends.cuda.pipeline import compile_jaxpr
from genesis_fn.backends.cuda.run.executable import CudaExecutable
from genesis_fn.backends.cuda.run.graph import HostStep, Step, has_host
from genesis_fn.compiler.complex_parts.represent import has_parts
from genesis_fn.core import dtypes, errors
from genesis_fn.core.array import from_numpy
from genesis_fn.core.aval import aval
from genesis_fn.core.device import cpu, cuda, using_device
from genesis_fn.core.dtypes import BOOL, C64, C128, F32, F64, I8, I32, I64
from genesis_fn.core.jaxpr import of_one_equation
from genesis_fn.core.primitive import PRIMITIVES, Primitive, bind
from tests.primitives.specials import BINARY, UNARY, expected, operands

Z = values((6, 5), C64)
W = values((6, 5), C64, 1) + np.complex64(0.5)


# ---- every primitive ----


def as_complex(x: Any) -> Any:
    """A float operand as a complex one with imaginary parts, and finite; any other as it is."""
    kind = _COMPLEX_OF.get(getattr(x, "dtype", None))
    if kind is None:
        return x
    finite = np.where(np.isfinite(x), x, 2)
    return (finite + 1j * np.roll(finite, 1)[()] - 0.25j).astype(kind)


_COMPLEX_OF = {F32: C64, F64: C128}
_KINDS = ("dtype", "preferred_element_type")


def complex_cases(name: str) -> Iterator[Case]:
    """The cases of float32 and float64, with complex operands in their place."""
    for xs, params in cases().get(name, ()):
        changed = {k: _COMPLEX_OF.get(v, v) if k in _KINDS else v for k, v in params.items()}
        made = [as_complex(x) for x in xs]
        arrays = any(dtypes.is_complex(getattr(x, "dtype", F32)) for x in made)
        if arrays or (not xs and changed != params):
            yield made, changed


def others() -> dict[str, list[Case]]:
    """Cases that no case of float32 stands for."""
    wide, bits = values((4, 6), C128), values((4, 2), F64)
    to = [*REAL, C64, C128]
    return {
        "convert_element_type": [([Z], {"dtype": d}) for d in to if d != C64]
        + [([values((5,), d)], {"dtype": C64}) for d in REAL]
        + [([wide], {"dtype": C64})],
        "bitcast_convert_type": [([Z], {"dtype": d}) for d in (I8, I32, I64, F32, F64)]
        + [([wide], {"dtype": d}) for d in (I64, C64)]
        + [([bits], {"dtype": d}) for d in (C64, C128)]
        + [([values((3, 4, 2), F32)], {"dtype": C64})],
        "conj": [([Z], {})],
        "real": [([Z], {})],
        "imag": [([Z], {})],
        "complex": [([values((8,), F32), values((8,), F32, 1)], {})],
        "full": [([], {"value": 1.5 - 2j, "shape": (2, 3), "dtype": C64})],
        "sort": [
            ([np.repeat(Z, 2, 1), values((6, 10), I32)], {"dimension": 1, "num_keys": 2} | _STABLE),
            ([values((6, 5), I32), Z], {"dimension": 0, "num_keys": 2} | _STABLE),
            ([np.array([1 + 1j, np.nan, 1 - 2j, complex(1, np.nan), -0.0], C64)],
             {"dimension": 0, "num_keys": 1} | _STABLE),
        ],
        "integer_pow": [([Z], {"y": y}) for y in (0, 2, 3, 7, -1, -3)],
    }  # fmt: skip


_STABLE = {"is_stable": True}


def one_program(prim: Primitive, xs: Sequence[Any], params: dict[str, Any]) -> CudaExecutable:
    kinds = [aval(x.shape, x.dtype) if hasattr(x, "dtype") else x for x in xs]
    return compile_jaxpr(of_one_equation(prim, kinds, params), cuda())


def host_steps(steps: Sequence[Step]) -> bool:
    return any(isinstance(s, HostStep) or has_host(s) for s in steps)


def on_host(executable: CudaExecutable) -> bool:
    return host_steps(executable.binding.schedule.steps)


def takes_complex() -> list[str]:
    """The first-order primitives that have parts, and those whose cases in complex64 are taken."""
    found = []
    for name, prim in PRIMITIVES.items():
        if name in HIGHER or prim.collective or prim.effect or name == "triton_call":
            continue
        some = any(accepted(prim, *case) for case in complex_cases(name))
        if has_parts(prim) or (some and name not in NOT_COMPLEX):
            found.append(name)
    return found


# Whose shape rules check no dtype; the CPU refuses complex operands.
NOT_COMPLEX = {"polygamma", "window_offset", "random_wrap", "reduce_precision"}
_MOST = 8  # cases of one primitive
TOLERANCE = {"linear_recurrence": 10, "pow": 4, "acosh": 4}


@pytest.mark.parametrize("name", takes_complex())
def test_primitive(name: str) -> None:
    prim = PRIMITIVES[name]
    tried = 0
    listed = [case for case in complex_cases(name) if accepted(prim, *case)]
    for xs, params in [*listed[:: -(-len(listed) // _MOST) or 1], *others().get(name, ())]:
        shown = f"{name} {[getattr(x, 'shape', x) for x in xs]} {params}"
        with np.errstate(all="ignore"):
            want = run(prim, xs, params, cpu())
        executable = one_program(prim, xs, params)
        if has_parts(prim):
            assert not on_host(executable), f"{shown} copies to the host"
        else:
            assert prim in LOWERED, f"{shown}: neither parts nor a lowering"
        got = executable(*[put(np.asarray(x)) for x in xs if hasattr(x, "dtype")])
        for g, w in zip(got, want, strict=True):
            compare(get(g), host(w), shown, TOLERANCE.get(name, 1))
        if not tried:
            for g, w in zip(run(prim, xs, params, cuda()), want, strict=True):
                compare(host(g), host(w), f"eager {shown}", TOLERANCE.get(name, 1))
        tried += 1
    assert tried, f"no complex case of {name}"
