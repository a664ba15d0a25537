"""Unit quaternions (x, y, z, w), along the last axis of an array, and what stands for them."""

from __future__ import annotations

import math

import genesis_fn.numpy as np
from genesis_fn.core.types.annotations import Array

# Below it, angles have series instead of quotients: their squares' cubes are nothing.
SMALL = 1e-3


def dot(a: Array, b: Array) -> Array:
    """Inner products along the last axis, which they keep."""
    return np.sum(a * b, -1, keepdims=True)


def normalized(q: Array) -> Array:
    """q / |q|."""
    return q / np.sqrt(dot(q, q))


def product(p: Array, q: Array) -> Array:
    """The rotation q, and then p."""
    (a, s), (b, t) = (p[..., :3], p[..., 3:]), (q[..., :3], q[..., 3:])
    return np.concatenate([s * b + t * a + np.cross(a, b), s * t - dot(a, b)], -1)


def inverse(q: Array) -> Array:
    """The conjugate."""
    return np.concatenate([-q[..., :3], q[..., 3:]], -1)


def canonical(q: Array) -> Array:
    """Of the two quaternions of a rotation the one whose last entry is positive; or, where that
    and those before are 0, whose first other one is."""
    x, y, z, w = [q[..., i : i + 1] for i in range(4)]
    first = np.where(w != 0, w, np.where(x != 0, x, np.where(y != 0, y, z)))
    return np.where(first < 0, -q, q)


def matrix_of(q: Array) -> Array:
    """Rotation matrices, [..., 3, 3]."""
    x, y, z, w = [q[..., i] for i in range(4)]
    rows = [
        [x * x - y * y - z * z + w * w, 2 * (x * y - z * w), 2 * (x * z + y * w)],
        [2 * (x * y + z * w), y * y - x * x - z * z + w * w, 2 * (y * z - x * w)],
        [2 * (x * z - y * w), 2 * (y * z + x * w), z * z - x * x - y * y + w * w],
    ]
    return np.stack([np.stack(row, -1) for row in rows], -2)


def of_matrix(m: Array) -> Array:
    """Quaternions of rotation matrices, by the largest of their entries.

    Source: Markley (2008), "Unit quaternion from rotation matrix".
    """
    trace = m[..., 0, 0] + m[..., 1, 1] + m[..., 2, 2]
    choices = [np.stack([
        m[..., 2, 1] - m[..., 1, 2], m[..., 0, 2] - m[..., 2, 0], m[..., 1, 0] - m[..., 0, 1],
        1 + trace,
    ], -1)]  # fmt: skip
    for i in range(3):
        j, k = (i + 1) % 3, (i + 2) % 3
        entries = {
            i: 1 - trace + 2 * m[..., i, i],
            j: m[..., j, i] + m[..., i, j],
            k: m[..., k, i] + m[..., i, k],
            3: m[..., k, j] - m[..., j, k],
        }
        choices.append(np.stack([entries[n] for n in range(4)], -1))
    sizes = np.stack([trace, m[..., 0, 0], m[..., 1, 1], m[..., 2, 2]], -1)
    largest = np.argmax(sizes, -1)[..., None]
    found = choices[0]
    for n in (1, 2, 3):
        found = np.where(largest == n, choices[n], found)
    return normalized(found)


def vector_of(q: Array) -> Array:
    """Rotation vectors: the axis, as long as the angle, which is at most pi."""
    q = np.where(q[..., 3:] < 0, -q, q)
    sine2 = dot(q[..., :3], q[..., :3])  # of half the angle
    near = sine2 < (SMALL / 2) ** 2
    sine = np.sqrt(np.where(near, 1.0, sine2))
    scale = 2 * np.arctan2(sine, np.where(near, 1.0, q[..., 3:])) / sine
    series = 2 + sine2 / 3 + 3 * sine2 * sine2 / 20
    return np.where(near, series, scale) * q[..., :3]


def of_vector(v: Array) -> Array:
    """Quaternions of rotation vectors."""
    angle2 = dot(v, v)
    near = angle2 < SMALL**2
    angle = np.sqrt(np.where(near, 1.0, angle2))
    sine = np.where(near, 0.5 - angle2 / 48 + angle2 * angle2 / 3840, np.sin(angle / 2) / angle)
    cosine = np.where(near, 1 - angle2 / 8 + angle2 * angle2 / 384, np.cos(angle / 2))
    return np.concatenate([sine * v, cosine], -1)


def parameters_of(q: Array) -> Array:
    """Modified Rodrigues parameters: the axis, as long as the tangent of a quarter of the angle."""
    q = np.where(q[..., 3:] < 0, -q, q)
    return q[..., :3] / (1 + q[..., 3:])


def of_parameters(p: Array) -> Array:
    """Quaternions of modified Rodrigues parameters."""
    squared = dot(p, p)
    return np.concatenate([2 * p, 1 - squared], -1) / (1 + squared)


def of_angles(axes: list[int], angles: Array, intrinsic: bool) -> Array:
    """Rotations by `angles` [..., n] about coordinate axes, one after another."""
    total: Array | None = None
    for n, axis in enumerate(axes):
        half = angles[..., n] / 2
        none = np.zeros_like(half)
        entries = [np.sin(half) if i == axis else none for i in range(3)]
        q = np.stack([*entries, np.cos(half)], -1)
        if total is None:
            total = q
        else:
            total = product(total, q) if intrinsic else product(q, total)
    assert total is not None
    return total


def angles_of(q: Array, axes: list[int], intrinsic: bool) -> Array:
    """Three angles about coordinate axes, [..., 3]; where only the sum or the difference of the
    first and the third matters, the third is 0.

    Source: Bernardes and Viollet (2022), "Quaternion to Euler angles conversion: a direct, general
    and computationally efficient method".
    """
    i, j, k = axes[::-1] if intrinsic else axes
    symmetric = i == k
    if symmetric:
        k = 3 - i - j
    sign = (i - j) * (j - k) * (k - i) // 2
    qi, qj, qk, w = q[..., i], q[..., j], q[..., k] * sign, q[..., 3]
    if symmetric:
        a, b, c, d = w, qi, qj, qk
    else:
        a, b, c, d = w - qj, qi + qk, qj + w, qk - qi
    second = 2 * np.arctan2(np.hypot(c, d), np.hypot(a, b))
    half_sum, half_difference = np.arctan2(b, a), np.arctan2(d, c)
    none, half_turn = np.abs(second) <= 1e-7, np.abs(second - math.pi) <= 1e-7
    lost = none | half_turn
    outer = half_sum - half_difference, half_sum + half_difference
    first, third = outer[::-1] if intrinsic else outer
    flipped = 2 * half_difference * (1 if intrinsic else -1)
    first = np.where(none, 2 * half_sum, np.where(half_turn, flipped, first))
    third = np.where(lost, 0.0, third)
    if not symmetric:
        second = second - math.pi / 2
        if intrinsic:
            first = first * sign
        else:
            third = third * sign
    angles = np.stack([first, second, third], -1)
    return (angles + math.pi) % (2 * math.pi) - math.pi
