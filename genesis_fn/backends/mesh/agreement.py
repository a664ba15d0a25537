"""Whether all processes of a mesh run the same program: compared when one with collectives is
compiled, since processes that run different ones wait for each other for ever."""

from __future__ import annotations

import hashlib
import re
from typing import Any

from genesis_fn.core.errors import DistributedError
from genesis_fn.core.jaxpr import Jaxpr, e_jaxprs
from genesis_fn.core.sharding.mesh import Mesh, MeshAxis
from genesis_fn.core.sharding.world import arrive, await_keys, world

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")  # of an object, in its `repr`
_compared: dict[tuple[int, ...], int] = {}  # programs so far, by the processes that share them


def check_agreement(jaxpr: Jaxpr, mesh: Mesh) -> None:
    """Raise DistributedError unless every process in the mesh compiles this program now, as its
    next one with collectives."""
    if not mesh.is_multi_process or not _communicates(jaxpr):
        return
    here, ranks = world(), tuple(sorted({d.process_index for d in mesh.devices.flat}))
    number = _compared[ranks] = _compared.get(ranks, -1) + 1
    where = f"program/{','.join(map(str, ranks))}/{number}"
    text = _ADDRESS.sub("", repr(jaxpr))
    # Lines of code follow `#`: the same program may come of files in two places.
    digest = hashlib.sha256("\n".join(_plain(text)).encode()).hexdigest()
    late = arrive(where, ranks, digest)
    if late:
        raise DistributedError(
            f"rank {here.rank} of {here.size} came to the program {jaxpr.name or 'a program'}, "
            f"ranks {late} did not within {here.timeout:g} s\n"
            "  every process must run the same programs in the same order"
        )
    others = {r: here.store.get(f"{where}/{r}").decode() for r in ranks}
    if len(set(others.values())) == 1:
        return
    here.store.set(f"{where}/text/{here.rank}", text)
    other = next(r for r in ranks if others[r] != digest)
    await_keys(here.store, [f"{where}/text/{other}"], here.timeout)
    theirs = here.store.get(f"{where}/text/{other}").decode()
    message = (
        f"rank {here.rank} of {here.size} runs another program than rank {other}: "
        f"{_difference(text, theirs, here.rank, other)}\n"
        "  every process must run the same programs, on arrays of the same shapes, laid out alike"
    )
    if here.watch is not None:
        here.watch.failing(message)
    # Both have read the other's text before either ends and takes the store along.
    here.store.set(f"{where}/read/{here.rank}", "")
    await_keys(here.store, [f"{where}/read/{r}" for r in ranks], 10.0)
    raise DistributedError(message)


def _communicates(jaxpr: Jaxpr) -> bool:
    """Whether processes exchange anything in a program."""
    for e in jaxpr.eqns:
        axis: Any = e.params.get("axis_name") if e.prim.collective else None
        if type(axis) is MeshAxis and axis.size > 1 and e.ins:
            return True
        if any(map(_communicates, e_jaxprs(e))):
            return True
    return False


def _plain(text: str) -> list[str]:
    return [line.split("  # ")[0].rstrip() for line in text.splitlines()]


def _difference(text: str, theirs: str, rank: int, other: int) -> str:
    """The first line that differs, on both sides."""
    ours, others = text.splitlines(), theirs.splitlines()
    for line, plain, their, their_plain in zip(ours, _plain(text), others, _plain(theirs)):
        if plain != their_plain:
            shown = [" ".join(x.split())[:300] for x in (line, their)]
            return (
                f"the first operation that differs\n  on rank {rank}: {shown[0]}\n"
                f"  on rank {other}: {shown[1]}"
            )
    return f"{len(ours)} lines of operations, against {len(others)}"
