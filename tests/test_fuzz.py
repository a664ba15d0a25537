"""The fuzzer: programs that agree with JAX, and rule bugs that it must find.

`FUZZ=n` in the environment runs n programs instead of the default, of which some are slow tests,
`FUZZ_SEED=s` from seed s on, and `FUZZ_DEPTH=d` nests loops, branches and rules d deep (by default
every fourth program nests two deep, the others one).
"""

from __future__ import annotations

import os
from collections.abc import Callable

import jax
import pytest

from genesis_fn.core.primitive import PRIMITIVES, typeof
from genesis_fn.primitives import elementwise as ops
from genesis_fn.primitives.shape import rev
from genesis_fn.transforms.jitting import clear_caches
from tests.support.fuzz import LOW, Case, Reference, difference, low_difference, reference
from tests.support.fuzz_matrices import MATRICES

# Programs of static arguments trace one function again and again, on purpose.
pytestmark = pytest.mark.filterwarnings("ignore::genesis_fn.errors.RecompilationWarning")

COUNT = int(os.environ.get("FUZZ", 140))
QUICK = 60  # of the default; the others are marked slow
FIRST = int(os.environ.get("FUZZ_SEED", 0))
BLOCKS = [
    pytest.param(
        range(s, min(s + 20, FIRST + COUNT)),
        marks=[pytest.mark.slow] if "FUZZ" not in os.environ and s >= FIRST + QUICK else [],
    )
    for s in range(FIRST, FIRST + COUNT, 20)
]
expected: dict[int, Reference | None] = {}


def case_of(seed: int) -> Case:
    return Case(seed, int(os.environ.get("FUZZ_DEPTH", 2 if seed % 4 == 3 else 1)))


def known(seed: int) -> Reference | None:
    """The reference of a case, computed once."""
    if seed not in expected:
        expected[seed] = reference(case_of(seed))
    return expected[seed]


@pytest.fixture(autouse=True)
def forget():
    """Compiled programs take memory, and no test needs those of another."""
    yield
    jax.clear_caches()
    clear_caches()


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_programs_agree_with_jax(block):
    wrong, tested = [], 0
    for seed in block:
        value = known(seed)
        if value is not None:
            tested += 1
            wrong.append(difference(case_of(seed), value))
    assert not any(wrong), "\n".join(filter(None, wrong))
    assert tested > len(block) // 2, "most programs should be well-conditioned"


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_smaller_types(block):
    """One program of five in float32, bfloat16 or float16, against float64."""
    kinds = list(LOW)
    wrong = [low_difference(case_of(s), kinds[s // 5 % 3]) for s in block if s % 5 == 0]
    assert not any(wrong), "\n".join(filter(None, wrong))


@pytest.mark.parametrize("seed", [11, 20, 22, 28, 35, 46, 48, 52, 53, 75, 77])
def test_transforms_and_linear_algebra(seed):
    """Each of them once; `benchmarks/fuzz_devices.py` runs many on a GPU and the CPU."""
    case = Case(seed, more=MATRICES)
    value = reference(case)
    assert value is not None
    assert (wrong := difference(case, value)) is None, wrong


# ---- the fuzzer is itself tested ----


def wrong_tangent(prim, change: Callable) -> Callable:
    right = prim.linearize

    def rule(nonzero, *xs, **params):
        out, tangent = right(nonzero, *xs, **params)
        return out, lambda *ts: change(tangent, *ts)

    return rule


def negated(tangent, *ts):
    t = tangent(*ts)
    return None if t is None else ops.neg(t)


def without_second(tangent, *ts):
    return tangent(ts[0], None) if ts[0] is not None else tangent(*ts)


def swapped(tangent, *ts):
    return tangent(*ts[::-1])


def wrong_transpose(prim, change: Callable) -> Callable:
    right = prim.transpose
    return lambda ct, *xs, **params: change(right(ct, *xs, **params))


def halved(cts):
    return [None if c is None else ops.mul(c, 0.5) for c in cts]


def reversed_last(cts):
    return [
        None if c is None else rev(c, (typeof(c).ndim - 1,)) if typeof(c).ndim else c for c in cts
    ]


def only_first(cts):
    return [cts[0], *[None if c is None else ops.mul(c, 0.0) for c in cts[1:]]]


def wrong_batch(prim) -> Callable:
    """The examples of the first batched operand in reverse order."""
    right = prim.batch

    def rule(size, xs, dims, **params):
        xs = list(xs)
        for i, d in enumerate(dims):
            if d is not None:
                xs[i] = rev(xs[i], (d,))
                break
        return right(size, xs, dims, **params)

    return rule


BUGS = {
    "sin: sign of the derivative": ("sin", "linearize", wrong_tangent, negated),
    "tanh: sign of the derivative": ("tanh", "linearize", wrong_tangent, negated),
    "mul: second factor is forgotten": ("mul", "linearize", wrong_tangent, without_second),
    "sub: tangents in the wrong order": ("sub", "linearize", wrong_tangent, swapped),
    "max: tangents in the wrong order": ("max", "linearize", wrong_tangent, swapped),
    "div: denominator is forgotten": ("div", "linearize", wrong_tangent, without_second),
    "exp: sign of the derivative": ("exp", "linearize", wrong_tangent, negated),
    "reduce_sum: half the cotangent": ("reduce_sum", "transpose", wrong_transpose, halved),
    "broadcast_in_dim: half the cotangent": (
        "broadcast_in_dim", "transpose", wrong_transpose, halved
    ),
    "transpose: mirrored cotangent": ("transpose", "transpose", wrong_transpose, reversed_last),
    "reshape: mirrored cotangent": ("reshape", "transpose", wrong_transpose, reversed_last),
    "dot_general: mirrored cotangent": ("dot_general", "transpose", wrong_transpose, reversed_last),
    "concatenate: later pieces get nothing": (
        "concatenate", "transpose", wrong_transpose, only_first
    ),
    "cumsum: mirrored cotangent": ("cumsum", "transpose", wrong_transpose, reversed_last),
    "pad: the padding value gets nothing": ("pad", "transpose", wrong_transpose, only_first),
    "mul: examples mixed up": ("mul", "batch", wrong_batch, None),
    "dot_general: examples mixed up": ("dot_general", "batch", wrong_batch, None),
    "scan: examples mixed up": ("scan", "batch", wrong_batch, None),
}  # fmt: skip


def found_by_the_fuzzer(programs: int) -> bool:
    for seed in range(programs):
        value = known(seed)
        if value is None:
            continue
        try:
            if difference(case_of(seed), value, thorough=False):
                return True
        except (TypeError, ValueError):  # a wrong shape shows by itself
            return True
    return False


def test_seeded_bugs_are_found(monkeypatch):
    missed = []
    for bug, (name, field, wrap, change) in BUGS.items():
        prim = PRIMITIVES[name]
        with monkeypatch.context() as patch:
            patch.setattr(prim, field, wrap(prim, change) if change else wrap(prim))
            clear_caches()
            if not found_by_the_fuzzer(60):
                missed.append(bug)
    clear_caches()
    assert len(BUGS) == 18 and len(missed) <= 2, missed
    assert not found_by_the_fuzzer(20), "and nothing is found where nothing is wrong"
