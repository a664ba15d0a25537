"""Products of few terms: written out, they fuse, and are what products are."""

from __future__ import annotations

import jax
import numpy as np
import programs
import pytest

import genesis_fn.numpy as gnp
from genesis_fn import lax
from genesis_fn.core.dtypes import BF16

pytestmark = pytest.mark.interpreted
rng = np.random.default_rng(5)
CASES = [
    ((5, 2), (2, 7), (((1,), (0,)), ((), ()))),
    ((2, 5), (7, 2), (((0,), (1,)), ((), ()))),
    ((3, 5, 4), (3, 4, 3), (((2,), (1,)), ((0,), (0,)))),
    ((3, 1, 2, 5), (2, 1, 3), (((2,), (0,)), ((1,), (1,)))),
    ((2, 2, 5), (2, 2, 6), (((0, 1), (0, 1)), ((), ()))),
    ((70, 1), (1, 66), (((1,), (0,)), ((), ()))),
    ((1,), (1,), (((0,), (0,)), ((), ()))),
    ((0, 2), (2, 3), (((1,), (0,)), ((), ()))),
    ((4, 0), (0, 3), (((1,), (0,)), ((), ()))),
]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8", "int32"])
@pytest.mark.parametrize(("left", "right", "numbers"), CASES)
def test_products_of_few_terms(left, right, numbers, dtype):
    kind = BF16 if dtype == "bfloat16" else np.dtype(dtype)
    x, y = [(8 * rng.standard_normal(shape)).astype(kind) for shape in (left, right)]
    jaxpr, given = programs.traced(lambda x, y: lax.dot_general(x, y, numbers), x, y)
    (got,) = programs.compile_jaxpr(jaxpr, programs.PLACE)(*map(programs.put, given))
    got = programs.get(got)
    want = np.asarray(jax.lax.dot_general(x, y, numbers, precision="highest"))
    assert (got.shape, got.dtype) == (want.shape, want.dtype)
    ulp = {"float16": 2**-10, "bfloat16": 2**-7}.get(dtype, 2**-21)
    np.testing.assert_allclose(
        got.astype(np.float64), want.astype(np.float64), rtol=ulp, atol=64 * ulp
    )


def launches(f, *args) -> tuple[list[np.ndarray], int]:
    """(the results, how many kernels computed them)."""
    jaxpr, given = programs.traced(f, *args)
    made = programs.compile_jaxpr(jaxpr, programs.PLACE)
    steps = [s for child in made.schedule.steps for s in child.steps]
    return [programs.get(v) for v in made(*map(programs.put, given))], len(steps)


def test_what_reads_them_is_the_same_kernel():
    x, w, b = [rng.standard_normal(s).astype(np.float32) for s in ((50, 2), (2, 24), (24,))]
    (got,), count = launches(lambda x, w, b: gnp.tanh(x @ w + b), x, w, b)
    assert count == 1
    np.testing.assert_allclose(got, np.tanh(x.astype(float) @ w + b), rtol=1e-5, atol=1e-6)


def test_values_that_are_not_finite_reach_their_rows_and_columns_only():
    x, w = [rng.standard_normal(s).astype(np.float32) for s in ((6, 3), (3, 9))]
    x[0, 1], x[2, 2], w[0, 8] = np.nan, np.inf, -np.inf
    (got,), _ = launches(lambda x, w: x @ w, x, w)
    np.testing.assert_allclose(got, x.astype(float) @ w, rtol=1e-5, atol=1e-6)
