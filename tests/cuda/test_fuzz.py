"""Random programs of tests/support/fuzz.py on the CUDA backend, fused and one operation at a time,
against the CPU.

`FUZZ=n` in the environment runs n programs instead of the default, `FUZZ_SEED=s` from seed s on.
"""

from __future__ import annotations

import os

import numpy as np
import programs
import pytest

from genesis_fn.core.configuration.settings import default_device
from tests.support.fuzz import Case
from tests.support.fuzz_matrices import MATRICES
from tests.transforms.both import OURS

COUNT = int(os.environ.get("FUZZ", 12))
FIRST = int(os.environ.get("FUZZ_SEED", 0))
DEPTH = int(os.environ.get("FUZZ_DEPTH", 1))
# Programs of static arguments trace one function again and again, on purpose.
pytestmark = pytest.mark.filterwarnings("ignore::genesis_fn.errors.RecompilationWarning")


def of_complex_numbers(count: int) -> list[int]:
    """The first seeds behind those whose programs compute with complex numbers."""
    found, seed = [], FIRST + COUNT
    while len(found) < count:
        found += [seed] if "complex(" in repr(Case(seed, DEPTH)) else []
        seed += 1
    return found


@pytest.mark.parametrize("seed", [*range(FIRST, FIRST + COUNT), *of_complex_numbers(COUNT // 3)])
def test_fused_is_unfused_is_cpu(seed):
    agree(Case(seed, DEPTH))


@pytest.mark.parametrize("seed", [48, 75])
def test_transforms_and_linear_algebra(seed):
    """Under `vmap`, `grad` and `jit`; fused, and one at a time."""
    agree(Case(seed, more=MATRICES))


def agree(case):
    f = case.function(OURS)
    jaxpr, inputs = programs.traced(f, *case.inputs)
    (want,) = programs.on_cpu(jaxpr, inputs)
    (moved,) = programs.on_cpu(jaxpr, [_nudged(x) for x in inputs])
    if not abs(moved - want) <= 1e-9 * max(1.0, abs(want)):
        pytest.skip("ill-conditioned")
    (fused,) = programs.compile_jaxpr(jaxpr, programs.PLACE)(*map(programs.put, inputs))
    np.testing.assert_allclose(programs.get(fused), want, rtol=1e-7, atol=1e-8, err_msg=f"{case}")
    with default_device(programs.PLACE):
        eager = f(*map(programs.put, case.inputs))
    np.testing.assert_allclose(programs.get(eager), want, rtol=1e-7, atol=1e-8, err_msg=f"{case}")


def _nudged(x: np.ndarray) -> np.ndarray:
    """Floats one unit in the last place up, others as they are."""
    return np.nextafter(x, np.inf) if x.dtype.kind == "f" else x
