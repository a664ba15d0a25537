"""scipy.spatial.transform: rotations in three dimensions, and interpolation between them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as onp

import genesis_fn.numpy as np
from genesis_fn import random
from genesis_fn.core import errors
from genesis_fn.core.array import ArrayImpl
from genesis_fn.core.diagnostics.source_info import where
from genesis_fn.core.types.annotations import Array, ArrayLike, DTypeLike, Key
from genesis_fn.lax.promotion import inexact_value
from genesis_fn.scipy.spatial import quaternions


def _vectors(x: ArrayLike | Sequence[Any], n: int, name: str) -> Array:
    found = inexact_value(np.asarray(x), name)
    if found.ndim == 0 or found.shape[-1] != n:
        raise errors.ShapeError(
            f"{name} takes vectors of {n} along the last axis, got {found.aval}\n"
            f"  at {where().describe()}"
        )
    return found


def _axes(seq: str, name: str, count: int | None = None) -> tuple[list[int], bool]:
    """(the axes as numbers, whether they turn with the body)."""
    if not re.fullmatch("[xyz]{1,3}|[XYZ]{1,3}", seq) or count not in (None, len(seq)):
        many = "three" if count else "one to three"
        raise errors.ArgumentError(
            f"{name}: seq is {many} of 'xyz' (about fixed axes) or of 'XYZ' (about those of the "
            f"body), got {seq!r}\n  at {where().describe()}"
        )
    if any(a == b for a, b in zip(seq, seq[1:])):
        raise errors.ArgumentError(
            f"{name}: seq {seq!r} has an axis twice in a row\n  at {where().describe()}"
        )
    return ["xyz".index(c) for c in seq.lower()], seq.isupper()


class Rotation(NamedTuple):
    """A rotation in three dimensions, or an array of them: unit quaternions (x, y, z, w).

    Make one by `from_quat`, `from_matrix`, `from_rotvec`, `from_mrp` or `from_euler`. `p * q` is
    the rotation q, and then p. It is a pytree of `quat` [..., 4].

    >>> from genesis_fn.scipy.spatial.transform import Rotation
    >>> turn = Rotation.from_euler("z", 90, degrees=True)
    >>> turn.apply(jnp.array([1.0, 0.0, 0.0])).round(3)
    Array([0., 1., 0.], dtype=float32)
    """

    quat: Array

    @classmethod
    def concatenate(cls, rotations: Sequence[Rotation]) -> Rotation:
        """Arrays of rotations one after another."""
        return cls(np.concatenate([r.quat for r in rotations]))

    @classmethod
    def from_euler(
        cls, seq: str, angles: ArrayLike | Sequence[Any], degrees: bool = False
    ) -> Rotation:
        """The rotation by `angles` [..., n] about the n axes of `seq`, "xyz" about fixed ones and
        "XYZ" about those of the body. With one axis, a vector of angles is as many rotations."""
        axes, intrinsic = _axes(seq, "Rotation.from_euler")
        found = np.atleast_1d(inexact_value(np.asarray(angles)))
        if len(axes) == 1 and found.ndim == 1 and found.shape[0] != 1:
            found = found[:, None]
        found = _vectors(found, len(axes), "Rotation.from_euler")
        return cls(quaternions.of_angles(axes, np.deg2rad(found) if degrees else found, intrinsic))

    @classmethod
    def from_matrix(cls, matrix: ArrayLike | Sequence[Any]) -> Rotation:
        """The rotations of orthogonal matrices, [..., 3, 3], of determinant 1."""
        found = _vectors(matrix, 3, "Rotation.from_matrix")
        if found.ndim < 2 or found.shape[-2] != 3:
            raise errors.ShapeError(
                f"Rotation.from_matrix takes matrices [..., 3, 3], got {found.aval}\n"
                f"  at {where().describe()}"
            )
        return cls(quaternions.of_matrix(found))

    @classmethod
    def from_mrp(cls, mrp: ArrayLike | Sequence[Any]) -> Rotation:
        """The rotations of modified Rodrigues parameters, [..., 3]: axes as long as the tangent of
        a quarter of the angle."""
        return cls(quaternions.of_parameters(_vectors(mrp, 3, "Rotation.from_mrp")))

    @classmethod
    def from_quat(cls, quat: ArrayLike | Sequence[Any]) -> Rotation:
        """The rotations of quaternions (x, y, z, w), [..., 4], of any length but 0."""
        return cls(quaternions.normalized(_vectors(quat, 4, "Rotation.from_quat")))

    @classmethod
    def from_rotvec(cls, rotvec: ArrayLike | Sequence[Any], degrees: bool = False) -> Rotation:
        """The rotations of vectors, [..., 3]: axes as long as the angle."""
        found = _vectors(rotvec, 3, "Rotation.from_rotvec")
        return cls(quaternions.of_vector(np.deg2rad(found) if degrees else found))

    @classmethod
    def identity(cls, num: int | None = None, dtype: DTypeLike = float) -> Rotation:
        """The rotation that moves nothing, or `num` of it."""
        one = np.asarray([0.0, 0.0, 0.0, 1.0], dtype)
        return cls(one if num is None else np.tile(one, (num, 1)))

    @classmethod
    def random(cls, random_key: Key, num: int | None = None) -> Rotation:
        """A rotation, or `num` of them, of which all are equally likely: the directions of normal
        vectors in four dimensions (Muller, 1959)."""
        shape = (4,) if num is None else (num, 4)
        return cls(quaternions.normalized(random.normal(random_key, shape)))

    def __getitem__(self, indexer: Any) -> Rotation:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The rotations at positions of an array of them."""
        if self.single:
            raise TypeError("a single rotation has no positions")
        return Rotation(self.quat[indexer])

    def __len__(self) -> int:
        """How many rotations there are."""
        if self.single:
            raise TypeError("a single rotation has no length")
        return self.quat.shape[0]

    def __mul__(self, other: Rotation) -> Rotation:  # pyright: ignore[reportIncompatibleMethodOverride]
        """`other`, and then this."""
        return Rotation.from_quat(quaternions.product(self.quat, other.quat))

    def apply(self, vectors: ArrayLike | Sequence[Any], inverse: bool = False) -> Array:
        """Vectors [..., 3], turned, or turned back; rotations and vectors are broadcast."""
        found = _vectors(vectors, 3, "Rotation.apply")
        matrix = self.as_matrix()
        if inverse:
            matrix = np.swapaxes(matrix, -1, -2)
        return np.matmul(matrix, found[..., None], precision="highest")[..., 0]

    def as_euler(self, seq: str, degrees: bool = False) -> Array:
        """Angles [..., 3] about the three axes of `seq`, as `from_euler` takes them, from -pi to
        pi; where the first and the third axis coincide, the third angle is 0."""
        axes, intrinsic = _axes(seq, "Rotation.as_euler", 3)
        angles = quaternions.angles_of(self.quat, axes, intrinsic)
        return np.rad2deg(angles) if degrees else angles

    def as_matrix(self) -> Array:
        """Rotation matrices, [..., 3, 3]."""
        return quaternions.matrix_of(self.quat)

    def as_mrp(self) -> Array:
        """Modified Rodrigues parameters, [..., 3], of length 1 at most."""
        return quaternions.parameters_of(self.quat)

    def as_rotvec(self, degrees: bool = False) -> Array:
        """Rotation vectors, [..., 3]: axes as long as the angle, which is at most pi."""
        found = quaternions.vector_of(self.quat)
        return np.rad2deg(found) if degrees else found

    def as_quat(self, canonical: bool = False, scalar_first: bool = False) -> Array:
        """Quaternions (x, y, z, w), or (w, x, y, z): with `canonical`, of the two of a rotation the
        one with positive w."""
        quat = quaternions.canonical(self.quat) if canonical else self.quat
        return np.roll(quat, 1, axis=-1) if scalar_first else quat

    def inv(self) -> Rotation:
        """The rotation back."""
        return Rotation(quaternions.inverse(self.quat))

    def magnitude(self) -> Array:
        """Angles, from 0 to pi."""
        x = self.quat
        return 2 * np.arctan2(np.linalg.norm(x[..., :3], axis=-1), np.abs(x[..., 3]))

    def mean(self, weights: ArrayLike | Sequence[Any] | None = None) -> Rotation:
        """The rotation that is nearest to all, by the squared distances of matrices: the main axis
        of the quaternions.

        Source: Markley, Cheng, Crassidis and Oshman (2007), "Averaging quaternions".
        """
        if self.quat.ndim != 2:
            raise errors.ShapeError(
                f"Rotation.mean takes a vector of rotations, got quat {self.quat.aval}\n"
                f"  at {where().describe()}"
            )
        n = self.quat.shape[0]
        w = np.ones(n, self.quat.dtype) if weights is None else np.asarray(weights, self.quat.dtype)
        if w.shape != (n,):
            raise errors.ShapeError(
                f"Rotation.mean: weights {w.aval} of {n} rotations\n  at {where().describe()}"
            )
        moments = np.matmul((w[:, None] * self.quat).T, self.quat, precision="highest")
        return Rotation(np.linalg.eigh(moments)[1][:, -1])

    @property
    def single(self) -> bool:
        """Whether this is one rotation, no array of them."""
        return self.quat.ndim == 1


class Slerp(NamedTuple):
    """Rotations between rotations at given times, at a constant speed from each to the next.

    Make one by `Slerp.init(times, rotations)`. Before the first and after the last time, the first
    and the last turn go on.

    Source: Shoemake (1985), "Animating rotation with quaternion curves".

    >>> from genesis_fn.scipy.spatial.transform import Rotation, Slerp
    >>> turns = Rotation.from_euler("z", jnp.array([0.0, 90.0]), degrees=True)
    >>> Slerp.init(jnp.array([0.0, 1.0]), turns)(0.5).as_euler("xyz", degrees=True).round(2)
    Array([0., 0., 45.], dtype=float32)
    """

    times: Array
    timedelta: Array
    rotations: Rotation
    rotvecs: Array

    @classmethod
    def init(cls, times: ArrayLike | Sequence[Any], rotations: Rotation) -> Slerp:
        """From n increasing times and n rotations, of which there are two at least."""
        if not isinstance(rotations, Rotation):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise errors.ArgumentError(
                f"Slerp.init takes a Rotation, got {type(rotations).__name__}\n"
                f"  at {where().describe()}"
            )
        quat = rotations.quat
        if quat.ndim != 2 or quat.shape[0] < 2:
            raise errors.ShapeError(
                f"Slerp.init takes two rotations at least, got quat {quat.aval}\n"
                f"  at {where().describe()}"
            )
        times = np.asarray(times, quat.dtype)
        if times.shape != quat.shape[:1]:
            raise errors.ShapeError(
                f"Slerp.init: times {times.aval} of {quat.shape[0]} rotations\n"
                f"  at {where().describe()}"
            )
        # Traced times cannot be looked at.
        known = onp.asarray(times) if type(times) is ArrayImpl else onp.arange(2)
        if not (known[1:] > known[:-1]).all():
            raise errors.ArgumentError(
                f"Slerp.init: the times do not increase\n  at {where().describe()}"
            )
        before, after = Rotation(quat[:-1]), Rotation(quat[1:])
        return cls(times, np.diff(times), before, (before.inv() * after).as_rotvec())

    def __call__(self, times: ArrayLike | Sequence[Any]) -> Rotation:
        """The rotations at a time, or at a vector of times."""
        at = np.asarray(times, self.times.dtype)
        if at.ndim > 1:
            raise errors.ShapeError(
                f"Slerp takes a time or a vector of times, got {at.aval}\n  at {where().describe()}"
            )
        last = self.timedelta.shape[0] - 1
        piece = np.clip(np.searchsorted(self.times, at) - 1, 0, last)
        part = (at - self.times[piece]) / self.timedelta[piece]
        turn = Rotation.from_rotvec(self.rotvecs[piece] * part[..., None])
        return Rotation(self.rotations.quat[piece]) * turn
