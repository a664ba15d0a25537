"""Rotations against SciPy's, in double precision."""

from __future__ import annotations

import itertools
import math

import jax
import jax.scipy.spatial.transform as theirs
import numpy as np
import pytest
import scipy.spatial.transform as peer

import genesis_fn as gf
import genesis_fn.numpy as jnp
from genesis_fn import random
from genesis_fn.scipy.spatial.transform import Rotation, Slerp

QUATS = np.random.default_rng(0).normal(size=(7, 4))
SEQUENCES = ["".join(s) for s in itertools.product("xyz", repeat=3) if s[0] != s[1] != s[2]]


def wide(x) -> gf.Array:
    return jnp.asarray(x, "float64")


def same(found, want) -> None:
    np.testing.assert_allclose(np.asarray(found), want, atol=1e-9)


@pytest.fixture
def turns() -> tuple[Rotation, peer.Rotation]:
    return Rotation.from_quat(wide(QUATS)), peer.Rotation.from_quat(QUATS)


@pytest.mark.parametrize("name", ["as_matrix", "as_mrp", "as_rotvec", "as_quat", "magnitude"])
def test_forms(name: str, turns) -> None:
    a, b = turns
    same(getattr(a, name)(), getattr(b, name)())
    same(getattr(a[2], name)(), getattr(b[2], name)())


def test_operations(turns) -> None:
    a, b = turns
    v = np.array([1.0, 2.0, 3.0])
    same(a.as_rotvec(degrees=True), b.as_rotvec(degrees=True))
    same(a.as_quat(True, True), b.as_quat(canonical=True, scalar_first=True))
    same((a.inv() * a[3]).as_matrix(), (b.inv() * b[3]).as_matrix())
    same(a.apply(wide(v)), b.apply(v))
    same(a.apply(wide(QUATS[:, :3]), inverse=True), b.apply(QUATS[:, :3], inverse=True))
    same(a.mean().as_matrix(), b.mean().as_matrix())
    same(a.mean(np.arange(7)).as_matrix(), b.mean(np.arange(7)).as_matrix())
    same(Rotation.concatenate([a[:2], a[4:]]).as_matrix()[2], b[4].as_matrix())
    assert len(a) == 7 and not a.single and a[0].single


def test_from_matrices() -> None:
    angles = [[180, 0, 0], [0, 180, 0], [0, 0, 180], [0, 0, 0], [10, 20, 170], [1, 179, 3]]
    matrices = peer.Rotation.from_euler("xyz", angles, degrees=True).as_matrix()
    same(Rotation.from_matrix(wide(matrices)).as_matrix(), matrices)


@pytest.mark.parametrize("v", [[0, 0, 0], [1e-5, 0, 0], [0.1, 0.2, 0.3], [3.0, 0, 0.5]], ids=str)
def test_from_vectors(v) -> None:
    same(Rotation.from_rotvec(wide(v)).as_matrix(), peer.Rotation.from_rotvec(v).as_matrix())
    same(Rotation.from_mrp(wide(v)).as_matrix(), peer.Rotation.from_mrp(v).as_matrix())
    # There and back again is the identity, and so are its derivatives, at no rotation as well.
    back = lambda v: Rotation.from_rotvec(v).as_rotvec()
    if np.linalg.norm(v) < math.pi:
        same(gf.jacrev(back)(wide(v)), np.eye(3))
        same(gf.jacfwd(back)(wide(v)), np.eye(3))


@pytest.mark.parametrize("seq", [*SEQUENCES, *map(str.upper, SEQUENCES)])
def test_euler_angles(seq: str, turns) -> None:
    a, b = turns
    same(a.as_euler(seq), b.as_euler(seq))
    same(a.as_euler(seq, degrees=True), b.as_euler(seq, degrees=True))
    angles = np.random.default_rng(1).normal(size=(4, 3))
    want = peer.Rotation.from_euler(seq, angles).as_matrix()
    same(Rotation.from_euler(seq, wide(angles)).as_matrix(), want)


@pytest.mark.filterwarnings("ignore:Gimbal lock")
@pytest.mark.parametrize("seq", ["xyz", "ZYX", "zxz", "YXY"])
@pytest.mark.parametrize("middle", [0.0, math.pi / 2, -math.pi / 2, math.pi])
def test_where_two_axes_coincide(middle: float, seq: str) -> None:
    turn = peer.Rotation.from_euler(seq, [0.3, middle, 0.2])
    angles = Rotation.from_quat(wide(turn.as_quat())).as_euler(seq)
    same(Rotation.from_euler(seq, angles).as_matrix(), turn.as_matrix())
    with jax.enable_x64(True):
        same(angles, theirs.Rotation.from_quat(jax.numpy.asarray(turn.as_quat())).as_euler(seq))


def test_shorter_sequences() -> None:
    assert Rotation.from_euler("z", 90, degrees=True).quat.shape == (4,)
    assert Rotation.from_euler("z", [90, 45, 0], degrees=True).quat.shape == (3, 4)
    found = Rotation.from_euler("zx", wide([0.2, 0.5])).as_matrix()
    same(found, peer.Rotation.from_euler("zx", [0.2, 0.5]).as_matrix())


def test_identity_and_random() -> None:
    same(Rotation.identity(2).as_matrix(), np.stack([np.eye(3)] * 2))
    some = Rotation.random(random.key(3), 4000)
    same(jnp.linalg.norm(some.quat, axis=-1).round(5), np.ones(4000))
    # No direction is preferred.
    assert np.abs(np.asarray(some.as_matrix().mean(0))).max() < 0.05
    assert Rotation.random(random.key(0)).single


def test_slerp(turns) -> None:
    a, b = turns
    times, at = np.array([0.0, 1, 3, 4, 5, 7, 9]), np.linspace(0, 9, 11)
    f, g = Slerp.init(wide(times), a), peer.Slerp(times, b)
    same(f(wide(at)).as_matrix(), g(at).as_matrix())
    same(f(0.3).as_matrix(), g(0.3).as_matrix())
    assert f(0.3).single
    # The last turn goes on.
    same((f(9.0).inv() * f(9.5)).magnitude(), (f(8.0).inv() * f(8.5)).magnitude())


def test_transforms_take_rotations(turns) -> None:
    a, _ = turns
    same(gf.jit(lambda r: r * r)(a).as_matrix(), (a * a).as_matrix())
    same(gf.vmap(lambda r: r.inv().quat)(a), a.inv().quat)
    slerp = Slerp.init(wide(np.arange(7.0)), a)
    same(gf.jit(lambda s, t: s(t))(slerp, 0.5).quat, slerp(0.5).quat)


ONE = Rotation.identity()


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: Rotation.from_euler("xw", jnp.ones(2)), "seq is one to three"),
        (lambda: Rotation.from_euler("xX", jnp.ones(2)), "seq is one to three"),
        (lambda: Rotation.from_euler("xx", jnp.ones(2)), "twice in a row"),
        (lambda: Rotation.from_euler("xyz", jnp.ones(2)), "vectors of 3"),
        (lambda: ONE.as_euler("xy"), "seq is three"),
        (lambda: Rotation.from_quat(jnp.ones(3)), "vectors of 4"),
        (lambda: Rotation.from_matrix(jnp.ones((2, 3))), "matrices"),
        (lambda: ONE.apply(jnp.ones(2)), "vectors of 3"),
        (lambda: ONE.mean(), "vector of rotations"),
        (lambda: Rotation.identity(2).mean(jnp.ones(3)), "weights"),
        (lambda: Slerp.init(jnp.ones(1), jnp.ones(4)), "takes a Rotation"),
        (lambda: Slerp.init(jnp.ones(1), ONE), "two rotations at least"),
        (lambda: Slerp.init(jnp.ones(3), Rotation.identity(2)), "of 2 rotations"),
        (lambda: Slerp.init(jnp.ones(2), Rotation.identity(2)), "do not increase"),
        (lambda: Slerp.init(jnp.arange(2.0), Rotation.identity(2))(jnp.ones((1, 1))), "a time"),
    ],
)
def test_refusals(call, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call()


def test_a_single_rotation_is_no_sequence() -> None:
    with pytest.raises(TypeError, match="no positions"):
        ONE[0]
    with pytest.raises(TypeError, match="no length"):
        len(ONE)
