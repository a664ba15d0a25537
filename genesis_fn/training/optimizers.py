"""The optimizer and the learning rate that settings ask for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from genesis_fn import optim
from genesis_fn.core import tree
from genesis_fn.core.types.annotations import PyTree
from genesis_fn.training.settings.sections import Optim

_Optimizer = optim.GradientTransformationExtraArgs


def make_schedule(settings: Optim, steps: int) -> optim.Schedule:
    """The learning rate of each step: a line up to `lr`, then its way down to `final_lr` of it.

    Args:
        settings: the section `optim`.
        steps: steps of the whole run.

    Returns:
        A function of the step.
    """
    up = warmup_steps(settings.warmup, steps)
    down = max(steps - up, 1)
    last = settings.lr * settings.final_lr
    after = {
        "cosine": lambda: optim.cosine_decay_schedule(settings.lr, down, settings.final_lr),
        "linear": lambda: optim.linear_schedule(settings.lr, last, down),
        "constant": lambda: optim.constant_schedule(settings.lr),
    }[settings.schedule]()
    if not up:
        return after
    # The first step is no step at rate 0.
    rising = optim.linear_schedule(settings.lr / up, settings.lr, up - 1)
    return optim.join_schedules([rising, after], [up])


def warmup_steps(warmup: float, steps: int) -> int:
    """The steps of the way up: a number, or below 1 a share of all steps."""
    return round(warmup * steps) if warmup < 1 else min(int(warmup), steps)


def make_optimizer(settings: Optim, schedule: optim.Schedule) -> _Optimizer:
    """Clipping by the global norm, and the optimizer of that name.

    Matrices decay, vectors do not. Parameters of 16 bits are updated by way of a float32 copy in
    the optimizer's state: updates are smaller than what they can be rounded to.

    Args:
        settings: the section `optim`.
        schedule: the learning rate of each step.
    """
    inner = _OPTIMIZERS[settings.name](settings, schedule)
    parts = [optim.clip_by_global_norm(settings.clip)] if settings.clip else []
    return optim.with_master(optim.chain(*parts, inner))


def _adamw(s: Optim, schedule: optim.Schedule) -> _Optimizer:
    return optim.adamw(schedule, s.b1, s.b2, s.eps, weight_decay=s.weight_decay, mask=_matrices)


def _adam(s: Optim, schedule: optim.Schedule) -> _Optimizer:
    return optim.adam(schedule, b1=s.b1, b2=s.b2, eps=s.eps)


def _sgd(s: Optim, schedule: optim.Schedule) -> _Optimizer:
    decay = optim.add_decayed_weights(s.weight_decay, mask=_matrices)
    return optim.chain(decay, optim.sgd(schedule, momentum=s.b1 or None))


def _lion(s: Optim, schedule: optim.Schedule) -> _Optimizer:
    return optim.lion(schedule, s.b1, s.b2, weight_decay=s.weight_decay, mask=_matrices)


def _adafactor(s: Optim, schedule: optim.Schedule) -> _Optimizer:
    # Its decay is not multiplied by the learning rate, as that of the others is.
    decay: Callable[[Any], Any] = lambda step: s.weight_decay * schedule(step)
    return optim.adafactor(
        schedule,
        multiply_by_parameter_scale=False,
        weight_decay_rate=decay if s.weight_decay else None,
        weight_decay_mask=_matrices,
    )


def _muon(s: Optim, schedule: optim.Schedule) -> _Optimizer:
    return optim.muon(
        schedule,
        beta=s.b2,
        weight_decay=s.weight_decay,
        adam_b1=s.b1,
        adam_b2=s.b2,
        adam_weight_decay=s.weight_decay,
        muon_weight_dimension_numbers=_hidden_matrices,
        # Updates as large as those of AdamW, so that one learning rate serves both.
        consistent_rms=0.2,
    )


_OPTIMIZERS: dict[str, Callable[[Optim, optim.Schedule], _Optimizer]] = {
    "adamw": _adamw,
    "adam": _adam,
    "sgd": _sgd,
    "lion": _lion,
    "adafactor": _adafactor,
    "muon": _muon,
}


def _matrices(params: PyTree) -> PyTree:
    return tree.map(lambda x: x.ndim > 1, params)


def _hidden_matrices(params: PyTree) -> PyTree:
    """Which axes of a weight [..., out, in] Muon multiplies; none of tables of tokens, which rows
    are looked up in, and of vectors."""

    def of(path: Any, x: Any) -> Any:
        name = tree.keystr(path, simple=True, separator=".")
        if x.ndim < 2 or name.startswith(("embed_tokens", "lm_head")):
            return None
        return optim.MuonDimensionNumbers(reduction_axis=x.ndim - 1, output_axis=x.ndim - 2)

    return tree.map_with_path(of, params)
