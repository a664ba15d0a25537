"""Optimizers as triples of functions, as `jax.example_libraries.optimizers` has them:
`init(params) -> state`, `update(step, grads, state) -> state` and `get_params(state)`.

numpyro is built on these. `genesis_fn.optim`, or optax, composes what they do. Here an optimizer is
a rule for one array: what is kept of it first, its next state, and the array of a state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import genesis_fn.numpy as jnp
from genesis_fn import PyTree, tree
from genesis_fn.tree_util import register_pytree_node

Schedule = Callable[[Any], Any]  # of the step
Kept = tuple[Any, ...]  # of one array, itself first


class OptimizerState:
    """What is kept of each array, in the order of the leaves of the parameters."""

    def __init__(self, kept: Sequence[Kept], treedef: Any) -> None:
        self.kept, self.treedef = tuple(kept), treedef


register_pytree_node(
    OptimizerState, lambda s: ((s.kept,), s.treedef), lambda d, kept: OptimizerState(*kept, d)
)


class Optimizer(NamedTuple):
    """The three functions of an optimizer."""

    init_fn: Callable[[PyTree], OptimizerState]
    update_fn: Callable[[Any, PyTree, OptimizerState], OptimizerState]
    params_fn: Callable[[OptimizerState], PyTree]


def _of_arrays(init: Callable[[Any], Kept], update: Callable[[Any, Any, Kept], Kept]) -> Optimizer:
    """The optimizer that applies a rule to each array of a tree."""

    def init_tree(params: PyTree) -> OptimizerState:
        leaves, treedef = tree.flatten(params)
        return OptimizerState([init(jnp.asarray(x)) for x in leaves], treedef)

    def update_tree(step: Any, grads: PyTree, state: OptimizerState) -> OptimizerState:
        leaves, treedef = tree.flatten(grads)
        if treedef != state.treedef:
            raise TypeError(f"gradients are a {treedef}, the parameters a {state.treedef}")
        kept = [update(step, g, k) for g, k in zip(leaves, state.kept)]
        return OptimizerState(kept, treedef)

    def params(state: OptimizerState) -> PyTree:
        return tree.unflatten(state.treedef, [k[0] for k in state.kept])

    return Optimizer(init_tree, update_tree, params)


# ---- schedules ----


def constant(step_size: Any) -> Schedule:
    """The same at every step."""
    return lambda step: step_size


def make_schedule(scalar_or_schedule: Any) -> Schedule:
    """A schedule of a number, or the schedule that is given."""
    return scalar_or_schedule if callable(scalar_or_schedule) else constant(scalar_or_schedule)


def exponential_decay(step_size: Any, decay_steps: Any, decay_rate: Any) -> Schedule:
    """step_size decay_rate^(step / decay_steps)."""
    return lambda step: step_size * decay_rate ** (step / decay_steps)


def inverse_time_decay(
    step_size: Any, decay_steps: Any, decay_rate: Any, staircase: bool = False
) -> Schedule:
    """step_size / (1 + decay_rate step / decay_steps), by whole quotients if `staircase`."""

    def schedule(step: Any) -> Any:
        passed = jnp.floor(step / decay_steps) if staircase else step / decay_steps
        return step_size / (1 + decay_rate * passed)

    return schedule


def polynomial_decay(
    step_size: Any, decay_steps: Any, final_step_size: Any, power: Any = 1.0
) -> Schedule:
    """From step_size to final_step_size in `decay_steps` steps, then constant."""

    def schedule(step: Any) -> Any:
        left = 1 - jnp.minimum(step, decay_steps) / decay_steps
        return (step_size - final_step_size) * left**power + final_step_size

    return schedule


def piecewise_constant(boundaries: Any, values: Any) -> Schedule:
    """values[i] behind i of the boundaries."""
    edges, levels = jnp.asarray(boundaries), jnp.asarray(values)
    if levels.shape != (edges.size + 1,) or edges.ndim != 1:
        raise ValueError(
            f"piecewise_constant: one value more than boundaries, got {levels.shape} values and "
            f"{edges.shape} boundaries"
        )
    return lambda step: levels[jnp.sum(step > edges)]


# ---- optimizers ----


def sgd(step_size: Any) -> Optimizer:
    """x - step_size g."""
    rate = make_schedule(step_size)
    return _of_arrays(lambda x: (x,), lambda i, g, kept: (kept[0] - rate(i) * g,))


def momentum(step_size: Any, mass: Any) -> Optimizer:
    """v = mass v + g, x - step_size v (Polyak, 1964)."""
    rate = make_schedule(step_size)

    def update(i: Any, g: Any, kept: Kept) -> Kept:
        x, v = kept
        v = mass * v + g
        return x - rate(i) * v, v

    return _of_arrays(lambda x: (x, jnp.zeros_like(x)), update)


def nesterov(step_size: Any, mass: Any) -> Optimizer:
    """v = mass v + g, x - step_size (mass v + g) (Nesterov, 1983)."""
    rate = make_schedule(step_size)

    def update(i: Any, g: Any, kept: Kept) -> Kept:
        x, v = kept
        v = mass * v + g
        return x - rate(i) * (mass * v + g), v

    return _of_arrays(lambda x: (x, jnp.zeros_like(x)), update)


def adagrad(step_size: Any, momentum: Any = 0.9) -> Optimizer:
    """Steps by the root of the sum of squared gradients (Duchi et al., 2011), with momentum."""
    rate = make_schedule(step_size)

    def update(i: Any, g: Any, kept: Kept) -> Kept:
        x, squares, m = kept
        squares = squares + jnp.square(g)
        known = squares > 0
        scale = jnp.where(known, 1 / jnp.sqrt(jnp.where(known, squares, 1.0)), 0.0)
        m = (1.0 - momentum) * (g * scale) + momentum * m
        return x - rate(i) * m, squares, m

    return _of_arrays(lambda x: (x, jnp.zeros_like(x), jnp.zeros_like(x)), update)


def rmsprop(step_size: Any, gamma: Any = 0.9, eps: Any = 1e-8) -> Optimizer:
    """Steps by the root of the mean of squared gradients (Tieleman and Hinton, 2012)."""
    rate = make_schedule(step_size)

    def update(i: Any, g: Any, kept: Kept) -> Kept:
        x, mean = kept
        mean = mean * gamma + jnp.square(g) * (1.0 - gamma)
        return x - rate(i) * g / jnp.sqrt(mean + eps), mean

    return _of_arrays(lambda x: (x, jnp.zeros_like(x)), update)


def rmsprop_momentum(
    step_size: Any, gamma: Any = 0.9, eps: Any = 1e-8, momentum: Any = 0.9
) -> Optimizer:
    """`rmsprop` with momentum."""
    rate = make_schedule(step_size)

    def update(i: Any, g: Any, kept: Kept) -> Kept:
        x, mean, m = kept
        mean = mean * gamma + jnp.square(g) * (1.0 - gamma)
        m = momentum * m + rate(i) * g / jnp.sqrt(mean + eps)
        return x - m, mean, m

    return _of_arrays(lambda x: (x, jnp.zeros_like(x), jnp.zeros_like(x)), update)


def adam(step_size: Any, b1: Any = 0.9, b2: Any = 0.999, eps: Any = 1e-8) -> Optimizer:
    """Adam (Kingma and Ba, 2015)."""
    rate = make_schedule(step_size)

    def update(i: Any, g: Any, kept: Kept) -> Kept:
        x, m, v = kept
        m = (1 - b1) * g + b1 * m
        v = (1 - b2) * jnp.square(g) + b2 * v
        unbiased_m = m / (1 - jnp.asarray(b1, m.dtype) ** (i + 1))
        unbiased_v = v / (1 - jnp.asarray(b2, m.dtype) ** (i + 1))
        return x - rate(i) * unbiased_m / (jnp.sqrt(unbiased_v) + eps), m, v

    return _of_arrays(lambda x: (x, jnp.zeros_like(x), jnp.zeros_like(x)), update)


def adamax(step_size: Any, b1: Any = 0.9, b2: Any = 0.999, eps: Any = 1e-8) -> Optimizer:
    """Adam by the largest gradient instead of the mean square (Kingma and Ba, 2015)."""
    rate = make_schedule(step_size)

    def update(i: Any, g: Any, kept: Kept) -> Kept:
        x, m, v = kept
        m = (1 - b1) * g + b1 * m
        v = jnp.maximum(b2 * v, jnp.abs(g))
        return x - (rate(i) / (1 - jnp.asarray(b1, m.dtype) ** (i + 1))) * m / (v + eps), m, v

    return _of_arrays(lambda x: (x, jnp.zeros_like(x), jnp.zeros_like(x)), update)


def sm3(step_size: Any, momentum: Any = 0.9) -> Optimizer:
    """Sums of squared gradients along each axis instead of each number (Anil et al., 2019)."""
    rate = make_schedule(step_size)

    def along(size: int, axis: int, ndim: int) -> tuple[int, ...]:
        return tuple(size if a == axis else 1 for a in range(ndim))

    def init(x: Any) -> Kept:
        return x, jnp.zeros_like(x), [jnp.zeros(n, x.dtype) for n in x.shape or (1,)]

    def update(i: Any, g: Any, kept: Kept) -> Kept:
        x, m, sums = kept
        ndim = max(x.ndim, 1)
        wide = [s.reshape(along(s.shape[0], axis, ndim)) for axis, s in enumerate(sums)]
        least = wide[0]
        for s in wide[1:]:
            least = jnp.minimum(least, s)
        total = least.reshape(()) + jnp.square(g) if x.ndim == 0 else least + jnp.square(g)
        known = total > 0
        scale = jnp.where(known, 1 / jnp.sqrt(jnp.where(known, total, 1.0)), 0.0)
        m = (1.0 - momentum) * (g * scale) + momentum * m
        spread = total.reshape(1) if x.ndim == 0 else total
        new = [spread.max(axis=tuple(b for b in range(ndim) if b != a)) for a in range(ndim)]
        return x - rate(i) * m, m, new

    return _of_arrays(init, update)


# ---- gradients ----


def l2_norm(tree_: PyTree) -> Any:
    """The Euclidean norm of all numbers of a tree."""
    return jnp.sqrt(sum(jnp.vdot(x, x) for x in tree.leaves(tree_)))


def clip_grads(grad_tree: PyTree, max_norm: Any) -> PyTree:
    """Gradients, scaled so that their norm is `max_norm` at most."""
    norm = l2_norm(grad_tree)
    return tree.map(lambda g: jnp.where(norm < max_norm, g, g * (max_norm / norm)), grad_tree)
