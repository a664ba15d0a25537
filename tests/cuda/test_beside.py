"""Arrays that are made like others are made where those are, whatever the default device is."""

from __future__ import annotations

import numpy as np
import pytest

import genesis_fn as gf
import genesis_fn.numpy as jnp
from genesis_fn import optim
from genesis_fn.core.device import cpu, cuda, using_device

PLACES = {"cpu under cuda": (cpu, cuda), "cuda under cpu": (cuda, cpu)}


@pytest.fixture(params=PLACES)
def places(request):
    here, default = [f() for f in PLACES[request.param]]
    with using_device(default):
        yield here, default


LIKE = {
    "zeros_like": jnp.zeros_like,
    "ones_like": jnp.ones_like,
    "empty_like": jnp.empty_like,
    "full_like": lambda x: jnp.full_like(x, 3),
}


@pytest.mark.parametrize("name", LIKE)
def test_like_functions_follow_their_argument(places, name):
    here, default = places
    x = gf.device_put(np.arange(3.0), here)
    y = LIKE[name](x)
    assert y.device is here and (x + y).device is here
    assert LIKE[name](np.arange(3.0)).device is default
    other = {"zeros_like": jnp.zeros_like, "ones_like": jnp.ones_like}.get(name)
    if other is not None:
        assert other(x, device=default).device is default
    seen = []
    gf.jvp(lambda v: seen.append(LIKE[name](v)) or v, (x,), (x,))
    assert seen[0].device is here


TRANSFORMATIONS = {
    "adamw": lambda: optim.adamw(1e-3),
    "sgd": lambda: optim.sgd(optim.linear_schedule(1.0, 0.1, 10), momentum=0.9),
    "adafactor": lambda: optim.adafactor(1e-3),
    "clipped": lambda: optim.chain(optim.clip_by_global_norm(1.0), optim.lion(1e-3)),
    "finite": lambda: optim.apply_if_finite(optim.adam(1e-3), 3),
}


@pytest.mark.parametrize("name", TRANSFORMATIONS)
def test_optimizer_states_follow_the_parameters(places, name):
    here, _ = places
    params = {"w": gf.device_put(np.ones((4, 3), np.float32), here)}
    grads = {"w": gf.device_put(np.full((4, 3), 0.5, np.float32), here)}
    tx = TRANSFORMATIONS[name]()
    state = tx.init(params)
    arrays = [x for x in gf.tree.leaves(state) if hasattr(x, "device")]
    assert arrays and {x.device for x in arrays} == {here}
    updates, state = tx.update(grads, state, params)
    params = optim.apply_updates(params, updates)
    assert {x.device for x in gf.tree.leaves((params, state)) if hasattr(x, "device")} == {here}
    jitted = gf.jit(tx.update)(grads, state, params)
    assert {x.device for x in gf.tree.leaves(jitted)} == {here}
