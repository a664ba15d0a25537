"""Random keys on a GPU: the programs that are compiled see their words only, and agree with the
CPU's."""

from __future__ import annotations

import numpy as np
import pytest

import genesis_fn as gf
import genesis_fn.numpy as jnp
from genesis_fn import lax, random
from genesis_fn.core.device import Device, using_device

PROGRAMS = {
    "jit": lambda ks, k: gf.jit(lambda k, x: x * random.normal(k, (5,)))(k, 2.0),
    "scan": lambda ks, k: lax.scan(
        lambda c, x: (random.split(c)[0], (random.fold_in(x, 3), random.uniform(x))), k, ks
    ),
    "vmap": lambda ks, k: gf.jit(gf.vmap(lambda a, i: (a, random.uniform(a[i], (3,)))))(
        ks.reshape(3, 2), jnp.array([1, 0, 1])
    ),
    "branches": lambda ks, k: gf.jit(
        lambda ks, p: lax.cond(p, lambda ks: ks[::-1], lambda ks: ks.at[1].set(k), ks)
    )(ks, False),
    "structure": lambda ks, k: (
        ks[::2], ks[jnp.array([4, 1])], jnp.stack([k, ks[5]]), jnp.where(ks == ks[2], k, ks),
        jnp.concatenate([ks, k[None]]), ks.at[0].set(k),
    ),
    "derivative": lambda ks, k: gf.jit(
        gf.grad(gf.checkpoint(lambda x, k: jnp.sin(x) * random.normal(k)))
    )(1.5, k),
}  # fmt: skip


def numbers(x: object) -> np.ndarray:
    return np.asarray(random.key_data(x) if isinstance(x, random.Key) else x)


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_with_keys_agree_with_the_cpu(name: str) -> None:
    impl = ("philox", "threefry2x32")[list(PROGRAMS).index(name) % 2]

    def run(place: Device) -> list:
        with using_device(place):
            ks, k = random.split(random.key(1, impl=impl), 6), random.key(2, impl=impl)
            assert ks.device is place
            return gf.tree.leaves(PROGRAMS[name](ks, k))

    for x, y in zip(run(gf.cuda(0)), run(gf.cpu()), strict=True):
        assert x.dtype == y.dtype and x.device.kind == "cuda"
        np.testing.assert_allclose(numbers(x), numbers(y), rtol=1e-6, atol=1e-6)


def test_keys_move_between_devices() -> None:
    keys = gf.device_put(random.split(random.key(0), 3), gf.cpu())
    there = gf.device_put(keys, gf.cuda(0))
    assert there.device.kind == "cuda" and there.dtype is keys.dtype
    assert repr(there) == repr(keys) == repr(gf.device_put(there, gf.cpu()))
