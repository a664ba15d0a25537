"""Transformations of some of the parameters: masks, labels, freezing.

A mask says of every parameter whether a transformation applies to it. It is

* a predicate `lambda path, leaf: "bias" in path`; the path is dotted, as in "layers.0.bias",
* a function of the parameters that returns a tree of bools, or
* a tree of bools, the parameters' structure or a prefix of it. A boolean scalar array whose value
  is known will do for a bool.

Labels (`partition`) take the same three forms.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from genesis_fn import PyTree, tree
from genesis_fn.errors import ArgumentError, TreeError
from genesis_fn.extend import ArrayImpl, Tracer
from genesis_fn.optim import base
from genesis_fn.optim.annotations import Mask, OptState, Params, Updates
from genesis_fn.optim.state.state_access import ParamsPlaceholder
from genesis_fn.optim.tree_map_updates import BOOL, is_none


class MaskedNode(NamedTuple):
    """Replaces a masked-out subtree; a node without leaves, so it has no state."""


class MaskedState(NamedTuple):
    """The state of a masked transformation."""

    inner_state: OptState


class PartitionState(NamedTuple):
    """The states of a partition's transformations, by label."""

    inner_states: Mapping[Any, Any]


MultiTransformState = PartitionState


def dotted_path(path: tuple[Any, ...]) -> str:
    """Returns a leaf's path as its keys joined by dots: "layers.0.attention.weight"."""
    return ".".join(
        str(getattr(e, "field", None) or getattr(e, "name", None) or getattr(e, "entry", e))
        for e in path
    )


def per_parameter(spec: PyTree | Callable[..., PyTree], params: Params) -> PyTree:
    """Returns the tree that a mask or label specification gives for these parameters."""
    if not callable(spec):
        return spec
    if _takes_path(spec):
        return tree.map_with_path(
            lambda path, leaf: spec(dotted_path(path), leaf), params, is_leaf=is_none
        )
    return spec(params)


def _takes_path(spec: Callable[..., Any]) -> bool:
    """Whether a callable needs two positional arguments: (path, leaf)."""
    try:
        parameters = inspect.signature(spec).parameters.values()
    except (TypeError, ValueError):
        return False
    needed = [
        p
        for p in parameters
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty
    ]
    return len(needed) == 2


def _mask_of(spec: Mask, params: Params) -> PyTree:
    return tree.map_with_path(_as_bool, per_parameter(spec, params))


def _as_bool(path: tuple[Any, ...], m: Any) -> bool:
    if isinstance(m, (np.bool_, np.ndarray, ArrayImpl)) and m.shape == () and m.dtype == BOOL:
        return bool(m)
    if not isinstance(m, bool):
        known = " whose value is known" if isinstance(m, Tracer) else ""
        raise ArgumentError(
            f"a mask holds bools{known}, got {m!r:.60} of type {type(m).__name__} at "
            f"{tree.keystr(path) or 'the top'}\n"
            "  a mask says where, before the program runs: decide by path, shape or dtype"
        )
    return m


def _apply_mask(mask: PyTree, values: PyTree) -> PyTree:
    """Returns `values` with MaskedNode() in place of every subtree that is masked out."""
    try:
        return tree.map(lambda m, v: v if m else MaskedNode(), mask, values, is_leaf=is_none)
    except TreeError as error:
        raise TreeError(f"the mask is not a prefix of the tree that it masks: {error}") from None


def masked(
    inner: base.GradientTransformation,
    mask: Mask | None,
    *,
    mask_compatible_extra_args: bool = False,
) -> base.GradientTransformationExtraArgs:
    """Applies `inner` where `mask` is true; other updates pass unchanged and have no state.

    Args:
        inner: transformation.
        mask: tree of bools, or a function that gives it, of the parameters or of (path, leaf);
            None: all false.
        mask_compatible_extra_args: whether extra arguments of `update` that have the structure of
            the updates are masked too.

    Returns:
        The transformation, whose states are MaskedState(inner_state).

    Raises:
        ArgumentError: `init` or `update` is called where the mask holds other values than bools.
        TreeError: `init` or `update` is called where the mask is not a prefix of the tree.

    >>> tx = optim.masked(optim.sgd(0.1), lambda path, leaf: "bias" not in path)
    >>> g = {"weight": jnp.ones(1), "bias": jnp.ones(1)}
    >>> tx.update(g, tx.init(g), g)[0]
    {'weight': Array([-0.1], dtype=float32), 'bias': Array([1.], dtype=float32)}
    """
    inner = base.with_extra_args_support(inner)

    def init(params: Params) -> MaskedState:
        if isinstance(params, ParamsPlaceholder):
            return MaskedState(inner.init(params))
        return MaskedState(inner.init(_apply_mask(_mask_of(mask, params), params)))

    def update(
        updates: Updates, state: MaskedState, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, MaskedState]:
        chosen = _mask_of(mask, updates if params is None else params)
        if mask_compatible_extra_args:
            whole = tree.structure(updates)
            extra = {
                k: _apply_mask(chosen, v) if tree.structure(v) == whole else v
                for k, v in extra.items()
            }
        kept_params = None if params is None else _apply_mask(chosen, params)
        new, inner_state = inner.update(
            _apply_mask(chosen, updates), state.inner_state, kept_params, **extra
        )
        merged = tree.map(lambda m, n, old: n if m else old, chosen, new, updates, is_leaf=is_none)
        return merged, MaskedState(inner_state)

    return base.GradientTransformationExtraArgs(init, update, state=MaskedState)


def partition(
    transforms: Mapping[Any, base.GradientTransformation],
    param_labels: PyTree | Callable[..., PyTree],
    *,
    mask_compatible_extra_args: bool = False,
) -> base.GradientTransformationExtraArgs:
    """Updates each parameter by the transformation that its label names.

    Args:
        transforms: {label: transformation}.
        param_labels: tree of labels, or a function that gives it, of the parameters or of
            (path, leaf).
        mask_compatible_extra_args: as of `masked`.

    Returns:
        The transformation, whose states are PartitionState(inner_states), a dict by label.

    Raises:
        ArgumentError: `init` or `update` is called where a label has no transformation; the message
            names the parameter.

    >>> tx = optim.partition(
    ...     {"slow": optim.sgd(0.01), "fast": optim.sgd(0.1)},
    ...     lambda path, leaf: "fast" if "head" in path else "slow",
    ... )
    >>> g = {"body": jnp.ones(1), "head": jnp.ones(1)}
    >>> tx.update(g, tx.init(g), g)[0]
    {'body': Array([-0.01], dtype=float32), 'head': Array([-0.1], dtype=float32)}
    """
    txs = {k: base.with_extra_args_support(v) for k, v in transforms.items()}

    def groups(params: Params) -> dict[Any, base.GradientTransformationExtraArgs]:
        labels = per_parameter(param_labels, params)
        for path, label in tree.leaves_with_path(labels):
            if label not in txs:
                raise ArgumentError(
                    f"the parameter {tree.keystr(path) or 'tree'} is labelled {label!r}, for which "
                    f"there is no transformation; there are {list(txs)}"
                )

        def group(name: Any) -> PyTree:
            return tree.map(lambda x: x is not None and x == name, labels, is_leaf=is_none)

        return {
            name: masked(tx, group(name), mask_compatible_extra_args=mask_compatible_extra_args)
            for name, tx in txs.items()
        }

    def init(params: Params) -> PartitionState:
        if isinstance(params, ParamsPlaceholder):
            return PartitionState({k: MaskedState(tx.init(params)) for k, tx in txs.items()})
        return PartitionState({k: tx.init(params) for k, tx in groups(params).items()})

    def update(
        updates: Updates, state: PartitionState, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, PartitionState]:
        new = {}
        for name, tx in groups(updates if params is None else params).items():
            updates, new[name] = tx.update(updates, state.inner_states[name], params, **extra)
        return updates, PartitionState(new)

    return base.GradientTransformationExtraArgs(init, update, state=PartitionState)


multi_transform = partition


def freeze(mask: Mask | None) -> base.GradientTransformationExtraArgs:
    """Replaces updates by zeros where `mask` is true; others pass unchanged.

    Args:
        mask: tree of bools, or a function that gives it, of the parameters or of (path, leaf);
            None: all false.

    Returns:
        The transformation, whose states are MaskedState(inner_state).

    >>> tx = optim.freeze(lambda path, leaf: "body" in path)
    >>> g = {"body": jnp.ones(1), "head": jnp.ones(1)}
    >>> tx.update(g, tx.init(g), g)[0]
    {'body': Array([0.], dtype=float32), 'head': Array([1.], dtype=float32)}
    """
    return masked(base.set_to_zero(), mask)


def selective_transform(
    optimizer: base.GradientTransformation, *, freeze_mask: Mask
) -> base.GradientTransformationExtraArgs:
    """Applies `optimizer` where `freeze_mask` is false; updates are zero where it is true.

    Args:
        optimizer: transformation.
        freeze_mask: tree of bools, or a function that gives it, of the parameters or of
            (path, leaf).

    Returns:
        The transformation, whose states are PartitionState(inner_states), a dict of "train" and
        "freeze".

    >>> tx = optim.selective_transform(optim.sgd(0.1), freeze_mask={"body": True, "head": False})
    >>> g = {"body": jnp.ones(1), "head": jnp.ones(1)}
    >>> tx.update(g, tx.init(g), g)[0]
    {'body': Array([0.], dtype=float32), 'head': Array([-0.1], dtype=float32)}
    """

    def labels(params: Params) -> PyTree:
        mask = _mask_of(freeze_mask, params)
        return tree.map(lambda m: "freeze" if m else "train", mask)

    return partition({"train": optimizer, "freeze": base.set_to_zero()}, labels)
