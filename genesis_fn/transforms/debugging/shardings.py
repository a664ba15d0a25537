"""How arrays are laid out over devices, looked at and drawn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from genesis_fn.core import tree
from genesis_fn.core.convert import as_array
from genesis_fn.core.sharding.layout import Sharding
from genesis_fn.core.types.annotations import ArrayLike, PyTree


def inspect_array_sharding(value: PyTree, *, callback: Callable[[Sharding], Any]) -> None:
    """Call a function with how each array of a pytree is laid out over devices.

    It is called at once: with what is known of arrays and of values under `grad` and `vmap`. A
    program that `jit` traces has one text for all devices, and is compiled for the layouts of its
    arguments later: look at its arguments and results outside.

    Args:
        value: pytree of arrays.
        callback: function of a Sharding.

    Raises:
        AttributeError: a value is being traced by `jit`.

    >>> gf.debug.inspect_array_sharding(jnp.ones(2, device=gf.cpu()), callback=print)
    SingleDeviceSharding(device=cpu())
    """
    for x in tree.leaves(value):
        callback(as_array(x).sharding)


def visualize_sharding(shape: Sequence[int], sharding: Sharding) -> None:
    """Draw which devices hold which parts of an array of one or two dimensions.

    Args:
        shape: the array's shape.
        sharding: how it is laid out.

    Raises:
        ValueError: the shape has no dimension, or more than two.

    >>> gf.debug.visualize_sharding((4, 2), gf.sharding.SingleDeviceSharding(gf.cpu()))
    [0:4, 0:2]  cpu()
    """
    if len(shape) not in (1, 2):
        raise ValueError(
            f"visualize_sharding draws arrays of one or two dimensions, got shape {tuple(shape)}"
        )
    parts: dict[str, list[str]] = {}
    for device, index in sharding.devices_indices_map(shape).items():
        bounds = [s.indices(n) for s, n in zip(index, shape, strict=True)]
        part = ", ".join(f"{start}:{stop}" for start, stop, _ in bounds)
        parts.setdefault(f"[{part}]", []).append(str(device))
    width = max(map(len, parts))
    for part, holders in parts.items():
        print(f"{part:<{width}}  {', '.join(sorted(holders))}")


def visualize_array_sharding(arr: ArrayLike) -> None:
    """Draw which devices hold which parts of an array of one or two dimensions.

    Args:
        arr: array; not one that `jit` traces, of which this is not known.

    Raises:
        ValueError: the array has no dimension, or more than two.
        AttributeError: it is being traced by `jit`.

    >>> gf.debug.visualize_array_sharding(jnp.ones(3, device=gf.cpu()))
    [0:3]  cpu()
    """
    x = as_array(arr)
    visualize_sharding(x.shape, x.sharding)
