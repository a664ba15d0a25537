"""scipy.integrate: integrals of sampled functions."""

from __future__ import annotations

import genesis_fn.numpy as np
from genesis_fn.core.types.annotations import Array, ArrayLike


def trapezoid(
    y: ArrayLike, x: ArrayLike | None = None, dx: ArrayLike = 1.0, axis: int = -1
) -> Array:
    """The integral of samples by the trapezoidal rule.

        sum_i (x_{i+1} - x_i) (y_i + y_{i+1}) / 2

    Args:
        y: samples of the function.
        x: where they were taken: of one dimension, or as `y`; at equal distances without it.
        dx: the distance of samples, without `x`.
        axis: the axis to integrate along.

    Returns:
        The integral, without `axis`.

    >>> from genesis_fn.scipy.integrate import trapezoid
    >>> trapezoid(jnp.array([1.0, 2.0, 4.0]), dx=0.5)
    Array(2.25, dtype=float32)
    """
    return np.trapezoid(y, x, dx, axis)
