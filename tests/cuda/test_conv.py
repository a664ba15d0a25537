"""Convolutions of every kind and their gradients, against the CPU's."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest
from programs import compare

import genesis_fn as g
from genesis_fn import lax
from genesis_fn.core import dtypes
from tests.kernels.planned import plans_of
from tests.kernels.run import TARGET

CASES = [
    # spatial, kernel, channels in/out, groups, strides, padding, lhs and rhs dilation
    ((9,), (3,), 4, 6, 1, (1,), ((1, 1),), (1,), (1,)),
    ((9,), (4,), 4, 6, 2, (2,), ((2, 0),), (1,), (2,)),
    ((7, 8), (3, 3), 5, 7, 1, (1, 1), ((1, 1), (1, 1)), (1, 1), (1, 1)),
    ((7, 8), (3, 2), 6, 4, 2, (2, 3), ((1, 2), (0, 1)), (1, 1), (2, 1)),
    ((5, 4), (3, 3), 3, 2, 1, (1, 2), ((2, 2), (1, 3)), (2, 3), (1, 1)),
    ((6, 6), (1, 1), 8, 8, 8, (1, 1), ((0, 0), (0, 0)), (1, 1), (1, 1)),
    ((6, 7), (3, 3), 2, 3, 1, (1, 1), ((-1, 0), (1, -1)), (1, 1), (1, 1)),
    ((4, 5, 6), (2, 3, 2), 2, 3, 1, (1, 2, 1), ((1, 0), (1, 1), (0, 1)), (1, 1, 1), (1, 1, 2)),
]


def convolution(strides: tuple[int, ...], padding: tuple, **options) -> Callable:
    return lambda x, w: lax.conv_general_dilated(
        x, w, strides, padding, precision="highest", **options
    )


def with_gradients(f: Callable) -> Callable:
    """The result and, for a cotangent that differs everywhere, both gradients."""

    def run(x, w):
        y, pull = g.vjp(f, x, w)
        return y, *pull((y * 0.5 + 1).astype(y.dtype))

    return run


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_convolution_and_both_gradients(case):
    spatial, kernel, c, o, groups, strides, padding, lhs_dilation, rhs_dilation = case
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, c, *spatial), np.float32)
    w = rng.standard_normal((o, c // groups, *kernel), np.float32)
    f = convolution(
        strides,
        padding,
        lhs_dilation=lhs_dilation,
        rhs_dilation=rhs_dilation,
        feature_group_count=groups,
    )
    compare(with_gradients(f), x, w, tolerance=1e-4)


TOLERANCE = {np.float32: 1e-5, ml_dtypes.bfloat16: 2e-2, np.float16: 3e-3, np.float64: 1e-12}


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_types_and_channels_last(dtype):
    rng = np.random.default_rng(0)
    # Every sum is of small integers over 16, which all of these types add without rounding.
    x = (rng.integers(-4, 5, (2, 6, 5, 4)) / 4).astype(dtype)
    w = (rng.integers(-4, 5, (3, 3, 4, 5)) / 4).astype(dtype)
    layouts = ("NHWC", "HWIO", "NHWC")
    f = convolution((1, 1), ((1, 1), (1, 1)), dimension_numbers=layouts)
    compare(with_gradients(f), x, w, tolerance=TOLERANCE[dtype])


@pytest.mark.parametrize(
    "layouts", [("NCHW", "OIHW", "NCHW"), ("NHWC", "OHWI", "NHWC")], ids=lambda x: x[0]
)
def test_long_sums_are_split(layouts):
    shapes = {"NCHW": (8, 3, 12, 12), "OIHW": (4, 3, 3, 3)}
    shapes |= {"NHWC": (8, 12, 12, 3), "OHWI": (4, 3, 3, 3)}
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(shapes[name], np.float32) for name in layouts[:2])
    f = convolution((1, 1), ((0, 0), (0, 0)), dimension_numbers=layouts)

    def kernel_gradient(x, w):
        return g.grad(lambda w: f(x, w).sum())(w)

    kinds = [(x.shape, dtypes.F32), (w.shape, dtypes.F32)]
    *_, plan = plans_of("conv_general_dilated", kernel_gradient, kinds, TARGET)
    assert len(plan.steps) == 3
    compare(kernel_gradient, x, w, tolerance=1e-4)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_float64_sums_of_narrower_operands(dtype):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 40, 6)).astype(dtype)
    w = rng.standard_normal((3, 40, 3)).astype(dtype)
    f = convolution((1,), ((1, 1),), preferred_element_type=np.float64)
    compare(f, x, w, tolerance=1e-13)
