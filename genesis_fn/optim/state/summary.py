"""`describe`: what can be read from an optimizer state: step, learning rate, norms."""

from __future__ import annotations

import functools
from typing import Any

import genesis_fn.numpy as jnp
from genesis_fn.optim.annotations import OptState, Updates
from genesis_fn.optim.state import state_access, tree_math

# State fields that `describe` reports, and their keys in the result.
_REPORTED = {
    "learning_rate": "lr",
    "weight_decay": "weight_decay",
    "global_norm": "grad_norm",
    "scale": "scale",
    "notfinite_count": "skipped",
    "gradient_step": "gradient_step",
    "lost": "lost_steps",
}
_TABLES = ("hyperparams", "measurement", "measurements")
_COUNTERS = ("count", "step_count", "step", "gradient_step")


def describe(state: OptState, updates: Updates | None = None) -> dict[str, Any]:
    """Reads an optimizer state: {"step": ..., "lr": ..., ...}.

    Also "grad_norm" where `clip_by_global_norm` is in the chain, injected hyperparameters and the
    measurements of `snapshot` and `monitor` by name, and "update_norm" of `updates` if given.
    A key that occurs several times, as in two groups of parameters, is followed by its path:
    "lr@inner_states.head".

    Args:
        state: optimizer state.
        updates: tree of updates, whose norm is wanted; None: no norm.

    Returns:
        A dict of scalars by name; a measurement is what its function gave.

    >>> tx, g = optim.chain(optim.clip_by_global_norm(1.0), optim.adam(0.1)), jnp.array([3.0, 4.0])
    >>> updates, state = tx.update(g, tx.init(g), g)
    >>> {name: round(float(x), 4) for name, x in optim.describe(state).items()}
    {'step': 1.0, 'grad_norm': 5.0, 'lr': 0.1}
    """
    steps: list[Any] = []
    values_by_path: dict[str, dict[tuple[Any, ...], Any]] = {}
    for path, key, value in state_access.walk(state):
        if key in _TABLES and isinstance(value, dict):
            for name, x in value.items():
                _report(values_by_path, _REPORTED.get(name, name), path[:-1], x)  # pyright: ignore[reportArgumentType]
        elif getattr(value, "shape", None) == () and not _in_table(path):
            if key in _COUNTERS:
                steps.append(value)
            if key in _REPORTED:
                _report(values_by_path, _REPORTED[key], path[:-1], value)
    result: dict[str, Any] = {}
    if steps:
        result["step"] = functools.reduce(jnp.maximum, steps)
    for name, values in values_by_path.items():
        alone = len(values) == 1
        for path, x in values.items():
            result[name if alone else f"{name}@{state_access.dotted(path)}"] = x
    if updates is not None:
        result["update_norm"] = tree_math.norm(updates)
    return result


def _in_table(path: tuple[Any, ...]) -> bool:
    return len(path) > 1 and getattr(path[-2], "name", None) in _TABLES


def _report(
    values_by_path: dict[str, dict[tuple[Any, ...], Any]],
    name: str,
    path: tuple[Any, ...],
    value: Any,
) -> None:
    paths = values_by_path.setdefault(name, {})
    # An injected hyperparameter is stored by the inner transformation too: the outer one counts.
    if not any(path[: len(p)] == p for p in paths):
        paths[path] = value
