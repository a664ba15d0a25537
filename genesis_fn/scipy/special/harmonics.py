"""Spherical harmonics."""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy

import genesis_fn.numpy as np
from genesis_fn import lax
from genesis_fn.core import dtypes, errors
from genesis_fn.core.convert import as_array
from genesis_fn.core.diagnostics.source_info import where
from genesis_fn.core.primitive import Tracer
from genesis_fn.core.types.annotations import Array, ArrayLike
from genesis_fn.scipy.special.operands import reals_together


def sph_harm_y(
    n: ArrayLike,
    m: ArrayLike,
    theta: ArrayLike,
    phi: ArrayLike,
    diff_n: None = None,
    n_max: int | None = None,
) -> Array:
    """The spherical harmonics Y_n^m(theta, phi), orthonormal on the sphere, with Condon and
    Shortley's phase.

    By the recurrence of the normalized associated Legendre functions in the degree (Abramowitz and
    Stegun 8.5.3; Numerical Recipes 6.7).

    Args:
        n: degrees >= 0, integers.
        m: orders, integers; the harmonic is 0 where |m| > n.
        theta: polar angles in [0, pi].
        phi: azimuths.
        diff_n: derivatives are taken by `grad`: only None.
        n_max: the largest degree, of which the cost depends: needed where `n` is traced; larger
            degrees are taken as this one.

    Returns:
        Complex numbers in the shape that the arguments broadcast to.

    Raises:
        ValueError: for a `diff_n`.
        DTypeError: where `n` or `m` are no integers.
        ConcretizationTypeError: where `n` is traced and there is no `n_max`.

    >>> round(float(sph_harm_y(1, 0, 0.0, 0.0).real), 4)
    0.4886
    """
    if diff_n is not None:
        raise ValueError("sph_harm_y: diff_n is not supported; take derivatives by genesis_fn.grad")
    n, m = as_array(n), as_array(m)
    for name, x in (("n", n), ("m", m)):
        if not dtypes.is_integer(x.dtype):
            raise errors.DTypeError(
                f"sph_harm_y takes integers for {name}, got {x.aval}\n  at {where().describe()}"
            )
    if n_max is None:
        if isinstance(n, Tracer):
            raise errors.ConcretizationTypeError(
                f"sph_harm_y of the traced degrees {n.aval}: how long it runs depends on them\n"
                f"  at {where().describe()}\n  give n_max="
            )
        n_max = int(numpy.asarray(n).max(initial=0))
    top = operator.index(n_max)
    theta, phi = reals_together("sph_harm_y", theta, phi)
    n, m = np.minimum(n, top).astype("int32"), m.astype("int32")
    n, m, theta, phi = np.broadcast_arrays(n, m, theta, phi)
    order = np.abs(m)
    # SciPy's for angles outside of [0, pi], too: (1 - cos^2)^(|m| / 2) has no sign.
    legendre = _legendre(n, order, np.cos(theta), np.abs(np.sin(theta)), top)
    odd = (m < 0) & (order % 2 == 1)
    legendre = np.where(order > n, 0.0, np.where(odd, -legendre, legendre))
    angle = m.astype(phi.dtype) * phi
    return lax.complex(legendre * np.cos(angle), legendre * np.sin(angle))


def _legendre(n: Array, m: Array, cosine: Array, sine: Array, top: int) -> Array:
    """N P_n^m(cos(theta)) for 0 <= m <= n <= top, where N makes the harmonics orthonormal."""
    order = m.astype(cosine.dtype)

    def step(i: Any, state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        first, before, value = state
        k = i + 1
        degree = np.asarray(k, cosine.dtype)
        # P_k^k from P_(k-1)^(k-1), up to k = m; from there on the degree rises alone.
        diagonal = first * sine * -np.sqrt((2 * degree + 1) / (2 * degree))
        above = (k > m) & (k <= n)
        gap = np.where(above, degree * degree - order * order, 1.0)
        last = np.where(above, (degree - 1) ** 2 - order * order, 0.0)
        forward = np.sqrt((4 * degree * degree - 1) / gap)
        back = np.sqrt((2 * degree + 1) * last / (np.maximum(2 * degree - 3, 1.0) * gap))
        following = forward * cosine * value - back * before
        first = np.where(k <= m, diagonal, first)
        before, value = np.where(above, value, before), np.where(above, following, value)
        return first, np.where(k <= m, 0.0, before), np.where(k <= m, diagonal, value)

    start = np.full_like(cosine, math.sqrt(0.25 / math.pi))
    _, _, value = lax.fori_loop(0, top, step, (start, np.zeros_like(cosine), start))
    return value
