"""Arrays that are made like others are made where those are, whatever the default device is."""

from __future__ import annotations

import numpy as np
import pytest

import genesis_fn as gf
import genesis_fn.numpy as jnp
from genesis_fn import lax, optim
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
    "rounded": lambda: optim.sgd(1e-3, stochastic_round=True),
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


def tripled_on_a_gpu(x):
    return lax.platform_dependent(x, cpu=lambda x: x * 2, cuda=lambda x: x * 3)


RUNS = {
    "eager": lambda f: f,
    "jit": gf.jit,
    "vmap": gf.vmap,
    "gradient": lambda f: gf.grad(lambda x: jnp.sum(f(x))),
    "gradient of a program": lambda f: gf.grad(lambda x: jnp.sum(gf.jit(f)(x))),
    "branch": lambda f: lambda x: lax.cond(True, f, lambda x: x, x),
}


@pytest.mark.parametrize("name", RUNS)
def test_the_platform_is_the_one_of_the_arguments(places, name):
    here, _ = places
    got = RUNS[name](tripled_on_a_gpu)(gf.device_put(np.ones(2, np.float32), here))
    assert got.device is here
    np.testing.assert_array_equal(got, np.full(2, 2.0 if here.kind == "cpu" else 3.0))


def test_without_arrays_the_platform_is_the_default_one(places):
    _, default = places
    assert float(tripled_on_a_gpu(1.0)) == (2.0 if default.kind == "cpu" else 3.0)


CONTROL = {
    "cond": lambda f, x: lax.cond(True, f, lambda x: x, x),
    "switch": lambda f, x: lax.switch(1, [f, f], x),
    "while_loop": lambda f, x: lax.while_loop(
        lambda c: c[0] < 1, lambda c: (c[0] + 1, f(c[1])), (0, x)
    )[1],
    "fori_loop": lambda f, x: lax.fori_loop(0, 1, lambda i, v: f(v), x),
    "scan": lambda f, x: lax.scan(lambda c, v: (c + 1.0, f(v)), 0.0, x[None])[1][0],
}


@pytest.mark.parametrize("name", CONTROL)
def test_what_control_flow_makes_is_where_its_operands_are(places, name):
    here, _ = places
    x = gf.device_put(np.ones(2, np.float32), here)
    y = CONTROL[name](lambda v: v + jnp.ones(2), x)
    assert y.device is here
    np.testing.assert_array_equal(y, np.full(2, 2.0))


DERIVATIVES = {
    "grad": lambda x: gf.grad(lambda x: jnp.sum(x * x))(x),
    "grad of a program": lambda x: gf.grad(lambda x: jnp.sum(gf.jit(lambda x: x * x)(x)))(x),
    "grad of a sum": lambda x: gf.grad(jnp.sum)(x) * x,
    "jacrev": lambda x: gf.jacrev(lambda x: x * x)(x) @ x,
    "jacfwd": lambda x: gf.jacfwd(lambda x: x * x)(x) @ x,
    "hessian": lambda x: gf.hessian(lambda x: jnp.sum(x**3))(x) @ x,
}


@pytest.mark.parametrize("name", DERIVATIVES)
def test_derivatives_are_where_the_arguments_are(places, name):
    here, _ = places
    x = np.array([1.0, 2.0], np.float32)
    want = {"grad": 2 * x, "grad of a program": 2 * x, "grad of a sum": x, "hessian": 6 * x * x}
    want = want.get(name, 2 * x * x)
    got = DERIVATIVES[name](gf.device_put(x, here))
    assert got.device is here
    np.testing.assert_allclose(got, want, rtol=1e-6)
