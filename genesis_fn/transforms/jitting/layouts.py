"""How `jit` lays arguments and results out over a mesh: `in_shardings` and `out_shardings`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from genesis_fn.core import errors, tree
from genesis_fn.core.array import ArrayImpl
from genesis_fn.core.convert import as_array
from genesis_fn.core.diagnostics.source_info import where
from genesis_fn.core.primitive import SCALARS, Tracer
from genesis_fn.core.sharding.layout import NamedSharding, Sharding, as_sharding
from genesis_fn.transforms.jitting.argspec import ArgSpec
from genesis_fn.transforms.sharding.constraint import with_sharding_constraint
from genesis_fn.transforms.staging.device_placement import device_put
from genesis_fn.transforms.staging.shape_dtype_struct import ShapeDtypeStruct, abstract_of


def laid_out(
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    shardings: Any,
    spec: ArgSpec,
    described: bool = False,
) -> tuple[Any, ...]:
    """The arguments as `in_shardings` lays them out; `described`, as ShapeDtypeStructs."""
    if kwargs:
        raise TypeError(
            f"{spec.name} has in_shardings, so that its arguments are given by position; got "
            f"{', '.join(kwargs)} by name\n  at {where().describe()}"
        )
    dynamic = [i for i in range(len(args)) if not {i, i - len(args)} & spec.static]
    values = tuple([args[i] for i in dynamic])
    given = _prefix(shardings, values, f"{spec.name}: in_shardings")
    leaves, treedef = tree.flatten(values)
    names = tree.paths(values)
    place = _described if described else _placed
    placed = [
        place(x, s, f"argument{name} of {spec.name}")
        for x, s, name in zip(leaves, given, names, strict=True)
    ]
    result = list(args)
    for i, value in zip(dynamic, tree.unflatten(treedef, placed)):
        result[i] = value
    return tuple(result)


def _prefix(shardings: Any, values: Any, what: str) -> list[Any]:
    """The sharding of each leaf; None for one that stays as it is."""
    filled = tree.map(lambda s: ... if s is None else s, shardings, is_leaf=lambda s: s is None)
    try:
        found = tree.broadcast_prefix(filled, values)
    except errors.TreeError as error:
        raise errors.TreeError(f"{what}: {error}") from None
    return [None if s is ... else as_sharding(s, what) for s in found]


def _placed(x: Any, sharding: Any, what: str) -> Any:
    if sharding is None:
        return x
    if type(x) is ArrayImpl and x.device.kind == "mesh":
        _check_alike(x, x.sharding, sharding, what)
        return x
    return device_put(x, sharding)


def _described(x: Any, sharding: Any, what: str) -> Any:
    x = abstract_of(x)
    if sharding is None or isinstance(x, Tracer):
        return x
    known = x.sharding if isinstance(x, (ArrayImpl, ShapeDtypeStruct)) else None
    if known is not None and not (type(x) is ArrayImpl and x.device.kind != "mesh"):
        _check_alike(x, known, sharding, what)
        return x
    x = as_array(x) if type(x) in SCALARS else x
    return ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding, weak_type=x.weak)


def _check_alike(x: Any, known: Sharding, sharding: Any, what: str) -> None:
    if not isinstance(sharding, Sharding) or not known.is_equivalent_to(sharding, x.ndim):
        raise errors.ShardingError(
            f"{what}, {x.aval}, is laid out as {known}, but in_shardings says {sharding}\n"
            f"  at {where().describe()}\n  move it: device_put(x, sharding)"
        )


def results_laid_out(outs: Sequence[Any], out_tree: tree.PyTreeDef, shardings: Any) -> list[Any]:
    """The results as `out_shardings` lays them out."""
    wanted = _prefix(shardings, tree.unflatten(out_tree, outs), "out_shardings")
    return [
        with_sharding_constraint(x, s) if type(s) is NamedSharding else x
        for x, s in zip(outs, wanted, strict=True)
    ]
