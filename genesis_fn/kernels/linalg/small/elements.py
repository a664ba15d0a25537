"""Arithmetic of elements in lanes: tuples of one part, or of the real and the imaginary one."""

from __future__ import annotations

import triton
import triton.language as tl

from genesis_fn.kernels.linalg.small.rows import at_lane


@triton.jit
def is_zero(x, COMPLEX: tl.constexpr):
    """Whether all parts are."""
    if COMPLEX:
        return (x[0] == 0) & (x[1] == 0)
    else:
        return x[0] == 0


@triton.jit
def reciprocal(x, COMPLEX: tl.constexpr):
    """The parts of 1 / x."""
    if COMPLEX:
        # Scaled, so that squares neither overflow nor vanish.
        scale = 1.0 / (tl.abs(x[0]) + tl.abs(x[1]))
        a, b = x[0] * scale, x[1] * scale
        inverse = scale / (a * a + b * b)
        return (a * inverse, -b * inverse)
    else:
        return (1.0 / x[0],)


@triton.jit
def product(x, y, COMPLEX: tl.constexpr):
    """The parts of x * y."""
    if COMPLEX:
        return (x[0] * y[0] - x[1] * y[1], x[0] * y[1] + x[1] * y[0])
    else:
        return (x[0] * y[0],)


@triton.jit
def add_product(x, y, z, COMPLEX: tl.constexpr):
    """The parts of x + y * z, each fused."""
    if COMPLEX:
        return (
            tl.fma(y[0], z[0], tl.fma(-y[1], z[1], x[0])),
            tl.fma(y[0], z[1], tl.fma(y[1], z[0], x[1])),
        )
    else:
        return (tl.fma(y[0], z[0], x[0]),)


@triton.jit
def element_at(element, lane, COMPLEX: tl.constexpr):
    """The parts of a lane's element."""
    if COMPLEX:
        return (at_lane(element[0], lane), at_lane(element[1], lane))
    else:
        return (at_lane(element[0], lane),)


@triton.jit
def where_parts(condition, x, y, COMPLEX: tl.constexpr):
    """The parts of x where `condition`, else of y."""
    if COMPLEX:
        return (tl.where(condition, x[0], y[0]), tl.where(condition, x[1], y[1]))
    else:
        return (tl.where(condition, x[0], y[0]),)


@triton.jit
def kept(condition, x, COMPLEX: tl.constexpr):
    """The parts of x where `condition`, else zeros."""
    if COMPLEX:
        return (tl.where(condition, x[0], 0.0), tl.where(condition, x[1], 0.0))
    else:
        return (tl.where(condition, x[0], 0.0),)


@triton.jit
def negative(x, COMPLEX: tl.constexpr):
    """The parts of -x."""
    if COMPLEX:
        return (-x[0], -x[1])
    else:
        return (-x[0],)


@triton.jit
def add_products(entries, factor, lane, RIGHT: tl.constexpr, COMPLEX: tl.constexpr):
    """entries[j] + factor * (entries[j] of `lane`), of RIGHT numbers in each lane."""
    PARTS: tl.constexpr = 2 if COMPLEX else 1
    sums = ()
    for j in tl.static_range(RIGHT // PARTS):
        entry = entries[j * PARTS : (j + 1) * PARTS]
        sums = sums + add_product(entry, factor, element_at(entry, lane, COMPLEX), COMPLEX)
    return sums


@triton.jit
def conjugated(vectors):
    """Vectors of complex elements, real and imaginary parts in turn, with the latter negated."""
    turned = ()
    for j in tl.static_range(len(vectors) // 2):
        turned = turned + (vectors[2 * j], -vectors[2 * j + 1])
    return turned


@triton.jit
def conjugate(x, COMPLEX: tl.constexpr):
    """The parts of conj(x)."""
    return conjugated(x) if COMPLEX else x
