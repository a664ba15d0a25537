"""One step of training: gradients of a batch in parts, an optimizer's update, and what guards it.

The step is one program without a branch: an update that must not be applied, since the loss or a
gradient is not finite, since float16 overflowed or the loss spiked, is left out by selects. The
state that it returns is whole in any case.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

import genesis_fn.numpy as jnp
import genesis_fn.random as random
from genesis_fn import lax, optim
from genesis_fn.amp import DynamicLossScale, NoOpLossScale, select_tree
from genesis_fn.core import tree
from genesis_fn.core.errors import ArgumentError
from genesis_fn.core.sharding.layout import NamedSharding
from genesis_fn.core.train_state import TrainState
from genesis_fn.core.types.annotations import Array, Key, PyTree
from genesis_fn.parallel import laid_out
from genesis_fn.transforms.autodiff.derivatives import value_and_grad
from genesis_fn.transforms.jitting import jit
from genesis_fn.transforms.sharding.constraint import with_sharding_constraint

Batch = dict[str, Any]  # tokens, labels and perhaps segment_ids: int32 [B, T]
IGNORED = -100  # the label of a token that does not count
_LEAST_STEPS = 20  # that a mean and a deviation are taken of before a step can be a spike


class SummedLoss(Protocol):
    """A loss: (trained, frozen, batch, key) -> the sum over the labels that count, in nats."""

    def __call__(self, trained: PyTree, frozen: PyTree, batch: Batch, key: Key | None) -> Array: ...


@dataclasses.dataclass(frozen=True)
class StepGuard:
    """Which updates are left out.

    Args:
        spikes: whether a step whose loss is a spike is left out; it is reported anyway.
        deviations: standard deviations above the mean of earlier losses that make a spike; inf
            calls nothing one.
        window: steps over which the mean and the deviation run.
    """

    spikes: bool = False
    deviations: float = math.inf
    window: int = 100


@dataclasses.dataclass(frozen=True)
class StepRecipe:
    """What a step does beside loss and optimizer.

    Args:
        parts: parts in which the gradient of a batch is computed, one after another; the result is
            that of the whole batch.
        loss_scaling: whether the loss is scaled, as float16 needs.
        ema: decay of the average of the parameters that the state keeps; 0 keeps none.
        seed: of the random keys that the loss is given; None gives none.
        guard: which updates are left out.
    """

    parts: int = 1
    loss_scaling: bool = False
    ema: float = 0.0
    seed: int | None = None
    guard: StepGuard = StepGuard()


@dataclasses.dataclass(frozen=True)
class StepLayout:
    """How a step on a mesh is laid out, by pytrees of NamedShardings.

    Args:
        state: of the state before and behind it.
        trained: of the parameters that are trained, and of their gradients.
        parts: of a batch as [parts, rows, ...].
        whole: of what every device has.
    """

    state: PyTree
    trained: PyTree
    parts: NamedSharding
    whole: NamedSharding


@dataclasses.dataclass(frozen=True)
class StepMetrics:
    """What a step came to, on the host.

    Args:
        loss: mean over the labels that count, in nats per token.
        grad_norm: global norm of the gradient, before it is clipped.
        learning_rate: of the update.
        tokens: labels that count.
        loss_scale: that the loss was multiplied by.
        finite: whether loss and gradients are.
        spike: whether the loss lies far above that of earlier steps.
        applied: whether the parameters were updated.
        halted: whether nothing of the state changes from this step on.
        squares: float32 [leaves], the squared norm of each leaf's gradient.
    """

    loss: float
    grad_norm: float
    learning_rate: float
    tokens: int
    loss_scale: float
    finite: bool
    spike: bool
    applied: bool
    halted: bool
    squares: np.ndarray


def init_state(trained: PyTree, optimizer: Any, recipe: StepRecipe) -> TrainState:
    """The state before the first step.

    Args:
        trained: parameters that are trained, or adapters.
        optimizer: gradient transformation.
        recipe: what a step does.

    Returns:
        A TrainState with `params`, `opt_state`, `step` and `health`; with `loss_scale` and `ema`
        where the recipe asks for them.
    """
    parts: dict[str, Any] = {
        "params": trained,
        "opt_state": optimizer.init(trained),
        "step": jnp.asarray(0, jnp.int32),
        "health": {
            "halted": jnp.asarray(False),
            "mean": jnp.asarray(0.0),
            "variance": jnp.asarray(0.0),
            "seen": jnp.asarray(0, jnp.int32),
        },
    }
    if recipe.loss_scaling:
        parts["loss_scale"] = DynamicLossScale()
    if recipe.ema:
        # Of the parameters' values and not of their memory, which a step reuses.
        parts["ema"] = tree.map(lambda x: jnp.array(x, jnp.float32, copy=True), trained)
    return TrainState(**parts)


def make_step(
    loss: SummedLoss,
    optimizer: Any,
    schedule: Callable[[Array], Any],
    recipe: StepRecipe,
    layout: StepLayout | None = None,
) -> Callable[[TrainState, PyTree, Batch], tuple[TrainState, tuple[Array, Array]]]:
    """The jitted function (state, frozen, batch) -> (state, numbers).

    The state is donated. `metrics_of` reads the numbers.

    Args:
        loss: sum over the labels that count.
        optimizer: gradient transformation, of the gradient of the mean loss.
        schedule: the learning rate of a step, for the metrics.
        recipe: what the step does.
        layout: over which mesh; None: on one device.
    """
    if layout is not None:
        loss = laid_out(loss, layout.trained)

    def step(
        state: TrainState, frozen: PyTree, batch: Batch
    ) -> tuple[TrainState, tuple[Array, Array]]:
        scale: Any = state.loss_scale if recipe.loss_scaling else NoOpLossScale()
        key = None
        if recipe.seed is not None:
            key = random.fold_in(random.key(recipe.seed), state.step)
        count = jnp.maximum(jnp.sum(batch["labels"] != IGNORED), 1)

        def mean(trained: PyTree, part: Batch, key: Key | None) -> tuple[Array, Array]:
            value = loss(trained, frozen, part, key) / count
            return scale.scale(value), value

        value, grads = _gradients(mean, state.params, batch, key, recipe.parts, layout)
        grads = scale.unscale(grads)
        squares = jnp.stack([_square(g) for g in tree.leaves(grads)])
        norm = jnp.sqrt(jnp.sum(squares))
        finite = jnp.isfinite(value) & jnp.isfinite(norm)
        # Steps behind one that halted may be under way: they leave the state as it is.
        before_halt = ~state.health["halted"]
        health, spike = _watched(state.health, value, finite & before_halt, recipe.guard)
        hopeless = ~finite
        if recipe.loss_scaling:  # overflows are part of the way, until the scale cannot shrink
            hopeless = hopeless & (scale.loss_scale <= scale.min_loss_scale)
        health["halted"] = health["halted"] | hopeless
        halted = health["halted"]
        applied = finite & ~halted
        if recipe.guard.spikes:
            applied = applied & ~spike

        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        trained = optim.apply_updates(state.params, updates)
        parts = {"params": trained, "opt_state": opt_state}
        if recipe.ema:
            wide = tree.map(lambda x: jnp.astype(x, jnp.float32), trained)
            parts["ema"] = optim.incremental_update(wide, state.ema, 1 - recipe.ema)
        before = {name: getattr(state, name) for name in parts}
        parts = select_tree(applied, parts, before)
        if recipe.loss_scaling:
            parts["loss_scale"] = select_tree(before_halt, scale.adjust(finite), scale)
        went_on = jnp.astype(~halted, jnp.int32)
        numbers = [
            value, norm, schedule(state.step), count, scale.loss_scale, finite, spike, applied,
            halted,
        ]  # fmt: skip
        row = jnp.stack([jnp.astype(jnp.asarray(x), jnp.float32) for x in numbers])
        # In the order of `init_state`: a state of another layout is another program.
        parts |= {"step": state.step + went_on, "health": health}
        ordered = {name: parts[name] for name in state.as_dict()}
        after, seen = TrainState(**ordered), (row, squares)
        if layout is None:
            return after, seen
        return with_sharding_constraint((after, seen), (layout.state, layout.whole))

    return jit(step, donate_argnames=("state",))


def metrics_of(numbers: tuple[Array, Array]) -> StepMetrics:
    """The numbers of a step, as it returned them. Waits until it has run."""
    row, squares = [np.asarray(x) for x in numbers]
    loss, norm, rate, tokens, scale, *flags = [x.item() for x in row]
    finite, spike, applied, halted = map(bool, flags)
    return StepMetrics(
        loss, norm, rate, int(tokens), scale, finite, spike, applied, halted, squares
    )


def _gradients(
    mean: Callable[[PyTree, Batch, Key | None], tuple[Array, Array]],
    trained: PyTree,
    batch: Batch,
    key: Key | None,
    parts: int,
    layout: StepLayout | None,
) -> tuple[Array, PyTree]:
    """The loss of a batch and its gradient, summed over parts in float32 at least."""
    differentiated = value_and_grad(mean, has_aux=True)
    if parts == 1:
        (_, value), grads = differentiated(trained, batch, key)
        return value, grads
    rows = batch["tokens"].shape[0]
    if rows % parts:
        raise ArgumentError(
            f"a batch of {rows} rows cannot be computed in {parts} equal parts: choose parts that "
            "divide it"
        )
    split = tree.map(lambda x: jnp.reshape(x, (parts, rows // parts, *x.shape[1:])), batch)
    wide = lambda x: jnp.promote_types(x.dtype, jnp.float32)
    zeros = tree.map(lambda x: jnp.zeros(x.shape, wide(x)), trained)
    if layout is not None:
        # Each part is divided among all devices, and sums of gradients stay in their parts.
        split = with_sharding_constraint(split, layout.parts)
        zeros = with_sharding_constraint(zeros, layout.trained)

    def add(total: tuple[Array, PyTree], part: tuple[Array, Batch]) -> tuple[Any, None]:
        i, rows_of_part = part
        own = None if key is None else random.fold_in(key, i)
        (_, value), grads = differentiated(trained, rows_of_part, own)
        sums = tree.map(lambda t, g: t + jnp.astype(g, t.dtype), total[1], grads)
        return (total[0] + value, sums), None

    start = jnp.asarray(0.0), zeros
    (value, grads), _ = lax.scan(add, start, (jnp.arange(parts), split))
    return value, tree.map(lambda g, x: jnp.astype(g, x.dtype), grads, trained)


def _square(x: Array) -> Array:
    wide = jnp.astype(x, jnp.float32)
    return jnp.sum(wide * wide)


def _watched(
    health: dict[str, Array], loss: Array, finite: Array, guard: StepGuard
) -> tuple[dict[str, Array], Array]:
    """The running mean and variance of the loss with a step's, and whether it is a spike.

    A spike counts as the largest loss that is none, so that the mean follows a loss that stays.
    """
    mean, variance, seen = health["mean"], health["variance"], health["seen"]
    loss = jnp.astype(loss, jnp.float32)
    deviation = jnp.sqrt(jnp.maximum(variance, 1e-12))
    bound = mean + guard.deviations * deviation
    known = seen >= _LEAST_STEPS
    spike = finite & known & (loss > bound)
    value = jnp.where(known, jnp.minimum(loss, bound), loss)
    # The plain mean of the first steps, then one of the last `window`.
    share = 1 / jnp.minimum(jnp.astype(seen + 1, jnp.float32), float(guard.window))
    delta = value - mean
    updated = {
        "mean": mean + share * delta,
        "variance": (1 - share) * (variance + share * delta * delta),
        "seen": seen + 1,
    }
    earlier = {name: health[name] for name in updated}
    return {**health, **select_tree(finite, updated, earlier)}, spike


# ---- what the numbers say of leaves ----


def leaf_names(trained: PyTree) -> list[str]:
    """The dotted path of each leaf, in the order of `StepMetrics.squares`."""
    paths = [path for path, _ in tree.leaves_with_path(trained)]
    return [tree.keystr(path, simple=True, separator=".") for path in paths]


def norms_by_group(names: Sequence[str], squares: np.ndarray) -> dict[str, float]:
    """The norm of the gradient of each group of leaves: `self_attn`, `mlp`, `norms`, ... ."""
    sums: dict[str, float] = {}
    for name, square in zip(names, squares.tolist(), strict=True):
        group = _group(name)
        sums[group] = sums.get(group, 0.0) + square
    return {group: math.sqrt(total) for group, total in sums.items()}


def _group(name: str) -> str:
    """The group of a leaf: the first part of its path that is no list or index of one."""
    parts = [p for p in name.split(".") if not p.isdigit() and p != "layers"]
    if any("norm" in p for p in parts[:-1]):
        return "norms"
    return parts[0]


def not_finite(names: Sequence[str], metrics: StepMetrics) -> str:
    """What of a step is not finite, and the first leaf whose gradient is not."""
    bad = [n for n, square in zip(names, metrics.squares.tolist()) if not math.isfinite(square)]
    text = f"the loss is {metrics.loss}"
    if not bad:
        return text if not math.isfinite(metrics.loss) else f"{text}, the gradient's norm overflows"
    return (
        f"{text}, and the gradient of {bad[0]} is the first that is not finite, of {len(bad)} "
        f"among {len(names)}"
    )
