"""Derivatives of every collective, taken outside and inside of shard_map, against JAX's."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.sharding.both import NAMES, OURS, THEIRS, arrays, same, theirs, varying, with_names

CASES = [
    pytest.param((4, 2), "a", True, id="4x2 checked"),
    pytest.param((4, 2), "a", False, id="4x2 unchecked"),
    pytest.param((2, 2, 2), ("c", "a"), True, id="2x2x2 checked"),
]


def _largest(m, x, axes, size):
    """What `pmax` is by other means: JAX has no derivative of it."""
    if m.name == "ours":
        return m.pmax(x, axes)
    return m.np.max(m.all_gather_invariant(x, axes), axis=0)


def _least(m, x, axes, size):
    if m.name == "ours":
        return m.pmin(x, axes)
    return m.np.min(m.all_gather_invariant(x, axes), axis=0)


def _exchanged(m, x, axes, size):
    """`all_to_all` from dimension 0 to 1, by other means: JAX's derivative of it is of another
    shape."""
    if m.name == "ours":
        return m.all_to_all(x, axes, 0, 1)
    return m.np.moveaxis(m.all_to_all(x, axes, 0, 0, tiled=True), 0, 1)


# name -> (collective of (m, x, axes, size), whether its result is equal along the axes).
COLLECTIVES = {
    "psum": (lambda m, x, axes, n: m.psum(x, axes), True),
    "pmean": (lambda m, x, axes, n: m.pmean(x, axes), True),
    "pmax": (_largest, True),
    "pmin": (_least, True),
    "all_gather": (lambda m, x, axes, n: m.all_gather(x, axes, axis=1), False),
    "all_gather_tiled": (lambda m, x, axes, n: m.all_gather(x, axes, axis=1, tiled=True), False),
    "invariant": (lambda m, x, axes, n: m.all_gather_invariant(x, axes, axis=1), True),
    "invariant_tiled": (lambda m, x, axes, n: m.all_gather_invariant(x, axes, tiled=True), True),
    "all_to_all": (_exchanged, False),
    "all_to_all_tiled": (lambda m, x, axes, n: m.all_to_all(x, axes, 1, 0, tiled=True), False),
    "psum_scatter": (lambda m, x, axes, n: m.psum_scatter(x, axes), False),
    "psum_scatter_tiled": (
        lambda m, x, axes, n: m.psum_scatter(x, axes, scatter_dimension=1, tiled=True), False),
    "nothing": (lambda m, x, axes, n: x, False),
}  # fmt: skip
ALONG = {
    "ppermute": (lambda m, x, axes, n: m.ppermute(x, axes, [(0, 1), (1, n - 1)]), False),
    "axis_index": (lambda m, x, axes, n: x * (1 + m.axis_index(axes)), False),
}


def chosen(axes):
    return COLLECTIVES | (ALONG if isinstance(axes, str) else {})


def drawn(shape, axes):
    """(parameter that devices share, values that are divided, and tangents of both)."""
    size = math.prod(shape[NAMES.index(n)] for n in axes)
    rng = np.random.default_rng(len(shape))
    given = [rng.normal(size=s) for s in ((size, size), (8, size, size)) * 2]
    given[1][1] = given[1][0]  # ties
    return size, given


def weighted(m, y):
    """A scalar whose derivative differs at each element."""
    w = np.cos(np.arange(math.prod(y.shape))).reshape(y.shape)
    return m.np.sum(m.np.sin(y) * m.np.array(w, "float64"))


def all_derivatives(m, loss, w, x, tw, tx):
    """The value, the gradient, their derivatives in a direction; the latter forward alone too."""
    hessian = m.jvp(m.value_and_grad(loss, argnums=(0, 1)), (w, x), (tw, tx))
    return hessian, m.jvp(loss, (w, x), (tw, tx))


@pytest.mark.parametrize("shape, axes, checked", CASES)
def test_derivatives_outside(shape, axes, checked):
    size, given = drawn(shape, axes)
    names, found = NAMES[: len(shape)], chosen(axes)
    left = tuple([n for n in names if n not in axes])

    def program(m, *given):
        def one(f, equal):
            part = lambda w, x: f(m, m.np.tanh(x[0] * w), axes, size)[None]
            spread = m.shard_map(
                part, mesh=m.mesh(*shape), in_specs=(m.P(), m.P(names)),
                out_specs=m.P(left if equal else names), check_vma=checked,
            )  # fmt: skip
            return all_derivatives(m, lambda w, x: weighted(m, spread(w, x)), *given)

        return {k: one(*v) for k, v in found.items()}

    reference = theirs(reference_of(program, checked), *given)
    mine = program(OURS, *arrays(given))
    jitted = OURS.jit(lambda *xs: program(OURS, *xs))(*arrays(given))
    for k in found:
        same(mine[k], reference[k], 1e-11, k)
        same(jitted[k], reference[k], 1e-11, f"{k} jitted")


@pytest.mark.parametrize("shape, axes, checked", CASES)
def test_derivatives_inside(shape, axes, checked):
    size, given = drawn(shape, axes)
    names, found = NAMES[: len(shape)], chosen(axes)

    def program(m, *given):
        def one(f):
            def part(w, x, tw, tx):
                loss = lambda w, x: weighted(m, f(m, m.np.tanh(x[0] * w), axes, size))
                outs = all_derivatives(m, loss, w, x, tw, tx)
                # Everything as if it varied, one entry for each device.
                return m.tree.map(lambda y: varying(m, y, names)[None], outs)

            return m.shard_map(
                part, mesh=m.mesh(*shape), in_specs=(m.P(), m.P(names)) * 2,
                out_specs=m.P(names), check_vma=checked,
            )(*given)  # fmt: skip

        return {k: one(v[0]) for k, v in found.items()}

    reference = theirs(reference_of(program, checked), *given)
    mine = program(OURS, *arrays(given))
    for k in found:
        same(mine[k], reference[k], 1e-11, k)


def reference_of(program, checked):
    """JAX's `all_gather_invariant` is for checked programs alone: unchecked, it and `all_gather`
    are the same thing, and only the derivative of the latter counts what all devices make of it."""
    if checked:
        return program
    gather = {"all_gather_invariant": THEIRS.all_gather}
    return lambda m, *given: program(with_names(m, **gather), *given)
