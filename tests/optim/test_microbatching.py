"""Microbatches against optax's, their memory, derivatives, dtypes and errors."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import optax
import pytest
from optax import microbatching as peer

import genesis_fn as gf
import genesis_fn.numpy as jnp
from genesis_fn import optim
from genesis_fn.errors import ArgumentError
from genesis_fn.optim import microbatching
from tests.public.agree import close


def _data(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def _maximum(module: Any, np_: Any) -> Any:
    return module.Accumulator(
        lambda x: np_.full(x.shape, -np_.inf, x.dtype),
        lambda carry, x, i: np_.maximum(carry, x),
        lambda carry: carry,
        lambda xs: np_.max(xs, axis=0),
    )


def _both(kinds: Any) -> tuple[Any, Any]:
    """A tree of names of accumulators, of either library."""
    mine = lambda k: (
        _maximum(microbatching, jnp) if k == "MAX" else microbatching.AccumulationType[k]
    )
    theirs = lambda k: _maximum(peer, jax.numpy) if k == "MAX" else peer.AccumulationType[k]
    return gf.tree.map(mine, kinds), jax.tree.map(theirs, kinds)


def _function(np_: Any) -> Any:
    return lambda w, x, y=1.0: {
        "rows": np_.sin(x) * w,
        "sums": (np_.sum(x * w), np_.mean(x, axis=0)),
        "none": None,
        "y": np_.max(x * y),
    }


@pytest.mark.parametrize("kinds", [
    "SUM", "MEAN", "RUNNING_MEAN", "CONCAT",
    {"rows": "CONCAT", "sums": ("SUM", "MEAN"), "none": "SUM", "y": "MAX"},
    {"rows": "MAX", "sums": "RUNNING_MEAN", "none": "MEAN", "y": "CONCAT"},
], ids=str)  # fmt: skip
@pytest.mark.parametrize("real", [None, 2])
def test_microbatch_is_that_of_optax(kinds: Any, real: int | None) -> None:
    w, x = _data(5), _data(12, 5, seed=1)
    mine, theirs = _both(kinds)
    f = optim.microbatch(_function(jnp), 1, 3, mine, num_real_microbatches=real)
    want = peer.microbatch(_function(jax.numpy), 1, 3, theirs, num_real_microbatches=real)(
        w, jax.numpy.asarray(x)
    )
    close(f(w, x), want, 2e-6, "microbatch")
    close(gf.jit(f)(w, x), want, 2e-6, "jit")
    count = jnp.array(4 if real is None else real)
    traced = gf.jit(lambda n, w, x: optim.microbatch(
        _function(jnp), 1, 3, mine, num_real_microbatches=n)(w, x))  # fmt: skip
    close(traced(count, w, x), want, 2e-6, "a traced number")
    batched = gf.vmap(f, (None, 0))(w, jnp.stack([x, 2 * x]))
    close(gf.tree.map(lambda y: y[0], batched), want, 2e-6, "vmap")


def test_axes_and_names_are_those_of_optax() -> None:
    x, y, z = _data(5, 12), _data(12, 5, seed=1), _data(12, seed=2)

    def of(np_: Any) -> Any:
        return lambda a, b, *, c: np_.sum(a.T * b["b"] * c["c"][:, None], axis=0)

    arguments = {"argnums": (0, 1), "microbatch_size": 4, "argnames": "c", "in_axes": (1, 0, 0)}
    got = optim.microbatch(of(jnp), **arguments)(x, {"b": y}, c={"c": z})
    theirs = lambda t: jax.tree.map(jax.numpy.asarray, t)
    want = peer.microbatch(of(jax.numpy), **arguments)(*theirs((x, {"b": y})), c=theirs({"c": z}))
    close(got, want, 2e-6, "microbatch")
    last = optim.microbatch(lambda a: jnp.sum(a, axis=1), 0, 4, in_axes=-1)(x)
    close(last, x.sum(1), 2e-6, "the last axis")
    assert optim.microbatch(of, 0, None) is of


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_reshape_batch_axis_is_that_of_optax(axis: int) -> None:
    x = _data(6, 12, 4)
    got = microbatching.reshape_batch_axis({"x": x}, 2, axis)
    want = peer.reshape_batch_axis({"x": jax.numpy.asarray(x)}, 2, axis)
    np.testing.assert_array_equal(np.asarray(got["x"]), np.asarray(want["x"]))
    last = microbatching.reshape_batch_axis(x, 2, axis - 3)
    np.testing.assert_array_equal(np.asarray(last), np.asarray(want["x"]))


@pytest.mark.parametrize("size", [None, 1, 3, 12])
def test_micro_vmap_is_that_of_optax(size: int | None) -> None:
    x, w, k = _data(12, 5), _data(5, seed=1), _data(12, seed=2)

    def of(np_: Any) -> Any:
        return lambda x, w, *, k: (np_.sin(x) * k, {"sum": x @ w, "mean": np_.exp(x)})

    mine, theirs = _both(("CONCAT", {"sum": "SUM", "mean": "MEAN"}))
    f = microbatching.micro_vmap(of(jnp), (0, None), microbatch_size=size, accumulator=mine)
    g = peer.micro_vmap(of(jax.numpy), (0, None), microbatch_size=size, accumulator=theirs)
    want = g(jax.numpy.asarray(x), w, k=jax.numpy.asarray(k))
    close(f(x, w, k=k), want, 3e-6, "micro_vmap")
    close(gf.jit(f)(x, w, k=k), want, 3e-6, "jit")
    plain = microbatching.micro_vmap(lambda x, y: x * y, microbatch_size=size)(x, x)
    np.testing.assert_allclose(np.asarray(plain), x * x, rtol=1e-6)


def _loss(np_: Any) -> Any:
    def of(params: Any, x: Any, y: Any) -> Any:
        error = np_.tanh(x @ params["w"]) + params["b"] - y
        return 0.5 * np_.mean(error**2), {"error": error}

    return of


@pytest.mark.parametrize("size", [None, 2, 8])
@pytest.mark.parametrize("keep", [True, False])
def test_micro_grad_is_that_of_optax(size: int | None, keep: bool) -> None:
    params = {"w": _data(5), "b": _data(seed=1)}
    x, y = _data(8, 5, seed=2), _data(8, seed=3)
    squares = lambda grads: (grads, optim.tree.mul(grads, grads))
    theirs = lambda grads: (grads, jax.tree.map(lambda g: g * g, grads))
    arguments = {"has_aux": True, "batch_argnums": (1, 2), "keep_batch_dim": keep,
                 "microbatch_size": size}  # fmt: skip
    f = microbatching.micro_grad(
        _loss(jnp), accumulator=(microbatching.AccumulationType.MEAN,) * 2,
        transform_fn=squares, metrics_fn=optim.global_norm, **arguments,
    )  # fmt: skip
    want = peer.micro_grad(
        _loss(jax.numpy), accumulator=(peer.AccumulationType.MEAN,) * 2, transform_fn=theirs,
        metrics_fn=optax.global_norm, **arguments,
    )(*jax.tree.map(jax.numpy.asarray, (params, x, y)))  # fmt: skip
    got = f(params, x, y)
    close(got, want, 5e-6, "micro_grad")
    close(gf.jit(f)(params, x, y), want, 5e-6, "jit")
    assert got[1]._fields == want[1]._fields
    # The mean of the gradients is the gradient of the mean.
    whole = gf.grad(lambda p: _loss(jnp)(p, jnp.asarray(x), jnp.asarray(y))[0])(params)
    close(got[0][0], gf.tree.leaves(whole), 5e-6, "the gradient")


def test_derivatives_are_those_of_the_whole_batch() -> None:
    w, x = _data(4, 3), _data(12, 4, seed=1)
    of = lambda w, x: jnp.sum(jnp.tanh(x @ w) ** 2, axis=0)
    some = optim.microbatch(of, 1, 3)
    for f in (some, gf.checkpoint(some)):
        got = gf.jit(gf.grad(lambda w, x: jnp.sum(jnp.sin(f(w, x))), (0, 1)))(w, x)
        want = gf.grad(lambda w, x: jnp.sum(jnp.sin(of(w, x))), (0, 1))(jnp.asarray(w), x)
        close(got, gf.tree.leaves(want), 1e-5, "reverse")
    _, tangent = gf.jvp(lambda w: some(w, x), (jnp.asarray(w),), (jnp.ones((4, 3)),))
    _, wanted = gf.jvp(lambda w: of(w, jnp.asarray(x)), (jnp.asarray(w),), (jnp.ones((4, 3)),))
    close(tangent, [wanted], 1e-5, "forward")


def _temporary(f: Any, *args: Any) -> int:
    return gf.jit(f).lower(*args).memory_analysis()["temp_size_in_bytes"]


def test_memory_is_that_of_one_microbatch() -> None:
    w, x = jnp.asarray(_data(8, 1024)), jnp.asarray(_data(256, 8, seed=1))
    gradient = gf.grad(lambda w, x: jnp.sum(jnp.tanh(x @ w) ** 2))
    hidden = 256 * 1024 * 4  # of the whole batch
    whole, one = _temporary(gradient, w, x), _temporary(gradient, w, x[:8])
    some = _temporary(optim.microbatch(gradient, 1, 8), w, x)
    assert whole >= hidden
    # What one microbatch needs, a carry and a next one of the parameters' size, and a copy of the
    # batch at most.
    assert some <= one + 2 * w.nbytes + x.nbytes < hidden
    # Gradients of single examples: 256 times the parameters, or 4 times.
    each = lambda size: microbatching.micro_grad(
        lambda w, x: jnp.sum(jnp.tanh(x @ w) ** 2), microbatch_size=size)  # fmt: skip
    assert _temporary(each(None), w, x) >= 256 * w.nbytes
    assert _temporary(each(4), w, x) <= 16 * w.nbytes


def test_sums_of_narrow_floats_are_wide() -> None:
    x = jnp.full((4096,), 0.1, "bfloat16")
    for kind, want in (("SUM", 409.6), ("MEAN", 0.1), ("RUNNING_MEAN", 0.1)):
        of = lambda x: jnp.mean(x)
        got = optim.microbatch(of, 0, 1, microbatching.AccumulationType[kind])(x)
        assert got.dtype == jnp.bfloat16
        assert float(got) == pytest.approx(want, rel=1e-2), kind
    whole = optim.microbatch(lambda x: x, 0, 1, microbatching.AccumulationType.CONCAT)(x)
    assert whole.dtype == jnp.bfloat16 and whole.shape == x.shape


def test_sums_of_integers_and_other_dtypes() -> None:
    i = jnp.arange(6)
    assert optim.microbatch(lambda x: jnp.sum(x), 0, 2)(i).dtype == i.dtype
    x = jnp.asarray(_data(6), dtype="float64")
    assert optim.microbatch(lambda x: jnp.sum(x), 0, 2)(x).dtype == jnp.float64
    z = jnp.asarray(_data(6) + 1j)
    total = optim.microbatch(lambda x: jnp.mean(x), 0, 2, microbatching.AccumulationType.MEAN)(z)
    np.testing.assert_allclose(complex(total), complex(np.asarray(z).mean()), rtol=1e-6)


def test_errors() -> None:
    kinds, of = microbatching.AccumulationType, lambda x: jnp.sum(x)
    x = jnp.arange(6)
    for call, match in [
        (lambda: optim.microbatch(of, 0, 4)(x), "a batch of 6 is no whole number of microbatches"),
        (lambda: optim.microbatch(of, 0, 0), "microbatch_size must be a positive integer, got 0"),
        (lambda: optim.microbatch(of, 0, 2.0), "microbatch_size must be a positive integer"),
        (lambda: optim.microbatch(of, (), 2), "0 in_axes for 0 arguments"),
        (lambda: optim.microbatch(of, 0, 2, in_axes=(0, 1)), "2 in_axes for 1 arguments"),
        (lambda: optim.microbatch(of, 0, 2, in_axes=1)(x), "axis 1 of an array of shape"),
        (lambda: optim.microbatch(of, 0, 2)({}), "have batches of no arrays"),
        (lambda: optim.microbatch(lambda a, b: a, (0, 1), 2)(x, x[:4]), r"batches of \\[4, 6\\]"),
        (lambda: optim.microbatch(of, 0, 2, num_real_microbatches=4)(x), "is 4, of 3 microbatches"),
        (lambda: optim.microbatch(of, 0, 2, "sum")(x), "an AccumulationType or a tree of them"),
        (lambda: microbatching.micro_vmap(of, out_axes=1), "out_axes is 0, got 1"),
        (lambda: microbatching.reshape_batch_axis(x, 4), "a batch of 6"),
        (lambda: microbatching.reshape_batch_axis(x, True * 0), "positive integer"),
    ]:
        with pytest.raises(ValueError, match=match):
            call()
    for kind in (kinds.MEAN, kinds.RUNNING_MEAN):
        with pytest.raises(TypeError, match=f"{kind.name} of microbatches takes floating results"):
            optim.microbatch(of, 0, 2, kind)(x)


def test_an_argument_with_a_batch_that_a_call_lacks_is_named() -> None:
    add = lambda x, y: (x + y).sum()
    x = jnp.ones((4, 2))
    options: dict[str, Any] = {"microbatch_size": 2, "accumulator": "sum"}
    with pytest.raises(ArgumentError, match="no argument at position 1, which has a batch"):
        microbatching.microbatch(add, (0, 1), **options)(x, y=x)
    with pytest.raises(ArgumentError, match="no argument at y=, which has a batch"):
        microbatching.microbatch(add, 0, argnames="y", **options)(x, x)
