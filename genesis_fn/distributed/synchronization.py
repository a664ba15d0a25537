"""Values that processes give each other, by JAX's names in `multihost_utils`.

Leaves travel as their bytes, so that every dtype does, and random keys do as their words. Processes
compare the structure, shapes and dtypes of their trees first: a difference is an error that names
the leaf, on every process.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from typing import Any

import numpy as np

from genesis_fn.backends.cpu.process_groups import ProcessGroup, group
from genesis_fn.core import tree
from genesis_fn.core.array import Array, ArrayImpl, from_numpy, keys_over, stored
from genesis_fn.core.aval import aval
from genesis_fn.core.diagnostics.source_info import where
from genesis_fn.core.errors import DistributedError, TreeError
from genesis_fn.core.sharding.world import await_keys, world
from genesis_fn.core.types.annotations import PyTree
from genesis_fn.core.types.extended import is_key

_barriers = itertools.count()


def barrier(name: str = "") -> None:
    """Wait until every process is here.

    Args:
        name: which place of the program this is: processes at places of different names are an
            error, instead of taking one for the other.

    Raises:
        DistributedError: a process did not come within the world's `timeout`, or is at another
            barrier.

    >>> gf.distributed.barrier("checkpoint written")
    """
    here = world()
    if here.size == 1:
        return
    n = next(_barriers)
    at = f"barrier/{n}"
    here.store.set(f"{at}/{here.rank}", name)
    here.store.add(f"{at}/of {name}", 1)
    if here.store.add(f"{at}/count", 1) == here.size:  # the last one
        same = here.store.add(f"{at}/of {name}", 0) == here.size
        here.store.set(f"{at}/all", "same" if same else "differ")
    keys = [f"{at}/{r}" for r in range(here.size)]
    if await_keys(here.store, [f"{at}/all"], here.timeout):
        late = [r for r, k in enumerate(keys) if not here.store.check([k])]
        message = (
            f"barrier {name!r}: rank {late[0] if late else '?'} of {here.size} did not come within "
            f"{here.timeout:g} s\n  at {where().describe()}\n  distributed.initialize(timeout=...) "
            "waits longer"
        )
        if here.watch is not None:
            here.watch.failing(message)
        raise DistributedError(message)
    if here.store.get(f"{at}/all") != b"same":
        names = [name.decode() for name in here.store.multi_get(keys)]
        other = next(r for r, text in enumerate(names) if text != names[here.rank])
        raise DistributedError(
            f"barrier: rank {here.rank} is at {name!r}, rank {other} at {names[other]!r}\n"
            f"  at {where().describe()}\n  every process must come to the same barriers, in order"
        )


def sync_global_devices(name: str) -> None:
    """`barrier(name)`, by JAX's name.

    Args:
        name: which place of the program this is.

    Raises:
        DistributedError: a process did not come in time, or is at another barrier.

    >>> gf.distributed.sync_global_devices("checkpoint written")
    """
    barrier(name)


def broadcast_one_to_all(in_tree: PyTree, is_source: bool | None = None) -> PyTree:
    """Give every process the values of one.

    Args:
        in_tree: pytree of arrays, of the same structure, shapes and dtypes on every process; values
            count on the source alone.
        is_source: whether this process is the one whose values all get; None for process 0.

    Returns:
        The source's values: arrays where `in_tree` has arrays, on their devices, else ndarrays.

    Raises:
        TreeError: a process has another structure, shape or dtype.
        DistributedError: not exactly one process is the source, or one is gone or late.

    >>> gf.distributed.broadcast_one_to_all({"seed": np.uint32(7)})
    {'seed': array(7, dtype=uint32)}
    """
    here, what = world(), "broadcast_one_to_all"
    given = here.rank == 0 if is_source is None else bool(is_source)
    leaves, treedef = tree.flatten(in_tree)
    values = [_host(x) for x in leaves]
    flags = _agree(in_tree, values, what, given)
    if sum(flags) != 1:
        sources = [r for r, flag in enumerate(flags) if flag]
        raise DistributedError(
            f"{what}: one process is the source, here ranks {sources} are\n"
            f"  at {where().describe()}"
        )
    data = _joined(values)
    if here.size > 1:
        _everyone().broadcast(data, flags.index(True), what)
    return tree.unflatten(
        treedef, [_like(v, x) for v, x in zip(_parted(data, values), leaves, strict=True)]
    )


def process_allgather(in_tree: PyTree, tiled: bool = False) -> PyTree:
    """Give every process the values of all.

    Args:
        in_tree: pytree of arrays, of the same structure, shapes and dtypes on every process.
        tiled: whether to concatenate along the first dimension instead of stacking along a new one.

    Returns:
        The values, in the order of the processes: arrays where `in_tree` has arrays, on their
        devices, else ndarrays.

    Raises:
        TreeError: a process has another structure, shape or dtype; a scalar is to be concatenated.
        DistributedError: a process is gone or late.

    >>> gf.distributed.process_allgather(np.arange(3.0))
    array([[0., 1., 2.]])
    """
    what = "process_allgather"
    leaves, treedef = tree.flatten(in_tree)
    values = [_host(x) for x in leaves]
    for path, x in zip(tree.paths(in_tree) if tiled else (), leaves):
        if not np.ndim(x):
            raise TreeError(
                f"{what}: {path or 'the value'} is a scalar, which tiled=True cannot concatenate; "
                "leave tiled out, to stack"
            )
    _agree(in_tree, values, what, False)
    data = _joined(values)
    rows = _everyone().gathered(data, what)
    ranks = [_parted(row, values) for row in rows]
    join = np.concatenate if tiled else np.stack
    out = [_like(join(parts), x) for parts, x in zip(zip(*ranks), leaves, strict=True)]
    return tree.unflatten(treedef, out)


def assert_equal(in_tree: PyTree, fail_message: str = "") -> None:
    """Check that every process has the same values, bit for bit.

    Args:
        in_tree: pytree of arrays.
        fail_message: the first line of the error.

    Raises:
        AssertionError: a process has others; the message names it, and the leaf. Every process
            raises it.
        TreeError: a process has another structure, shape or dtype.
        DistributedError: a process is gone or late.

    >>> gf.distributed.assert_equal({"step": np.int32(3)}, "steps differ")
    """
    values = [_host(x) for x in tree.leaves(in_tree)]
    digests = [hashlib.sha256(_bytes(v).data).hexdigest() for v in values]
    everyone = _agree(in_tree, values, "assert_equal", digests)
    for rank, theirs in enumerate(everyone):
        for path, mine, other in zip(_paths(in_tree), everyone[0], theirs):
            if mine != other:
                first = fail_message or "assert_equal: processes have different values"
                raise AssertionError(
                    f"{first}\n  {path} of rank {rank} differs from rank 0's\n"
                    f"  at {where().describe()}"
                )


def _everyone() -> ProcessGroup:
    return group(tuple(range(world().size)))


# ---- trees as bytes ----


def _paths(in_tree: PyTree) -> list[str]:
    return [path or "the value" for path in tree.paths(in_tree)]


def _host(x: Any) -> np.ndarray:
    """A leaf's values on the host; keys as their words."""
    if isinstance(x, Array):
        return np.asarray(stored(x) if type(x) is ArrayImpl else x)
    return np.asarray(x)


def _like(value: np.ndarray, x: Any) -> Any:
    """Values as the leaf `x` was: an array on its device, or an ndarray."""
    if type(x) is not ArrayImpl:
        return value
    y = from_numpy(value, x.device)
    return keys_over(y, aval(value.shape[:-1], x.dtype)) if is_key(x.dtype) else y


def _bytes(value: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(value).reshape(-1).view(np.uint8)


def _joined(values: list[np.ndarray]) -> np.ndarray:
    """The bytes of all values one after the other, in new memory."""
    return np.concatenate([np.empty(0, np.uint8), *map(_bytes, values)])


def _parted(data: np.ndarray, values: list[np.ndarray]) -> list[np.ndarray]:
    """Arrays of the shapes and dtypes of `values`, from their bytes one after the other."""
    found, at = [], 0
    for v in values:
        part = data[at : at + v.nbytes].copy()
        found.append(part.view(v.dtype).reshape(v.shape))
        at += v.nbytes
    return found


def _agree(in_tree: PyTree, values: list[np.ndarray], what: str, note: Any) -> list[Any]:
    """What every process notes, after a check that their trees are alike."""
    here = world()
    if here.size == 1:
        return [note]
    own = [[p, str(v.dtype), v.shape] for p, v in zip(_paths(in_tree), values, strict=True)]
    said = json.dumps({"leaves": own, "note": note}).encode()
    everyone = [json.loads(text) for text in exchanged(said, what)]
    first = everyone[0]["leaves"]
    for rank, other in enumerate(everyone):
        for mine, theirs in itertools.zip_longest(first, other["leaves"]):
            if mine != theirs:
                raise TreeError(
                    f"{what}: rank 0 has {_leaf(mine)}, rank {rank} has {_leaf(theirs)}\n"
                    f"  at {where().describe()}\n  every process gives a tree of the same "
                    "structure, shapes and dtypes"
                )
    return [each["note"] for each in everyone]


def _leaf(leaf: Any) -> str:
    return "no leaf there" if leaf is None else f"{leaf[0]}: {leaf[1]}{leaf[2]}"


def exchanged(text: bytes, what: str) -> list[bytes]:
    """The texts of all processes, which may be of different lengths."""
    mine = np.frombuffer(text, np.uint8)
    length = np.array([mine.size], np.int64).view(np.uint8)
    lengths = _everyone().gathered(length, what).view(np.int64).reshape(-1).tolist()
    padded = np.pad(mine, (0, max(lengths) - mine.size))
    rows = _everyone().gathered(padded, what)
    return [row[:n].tobytes() for row, n in zip(rows, lengths, strict=True)]
