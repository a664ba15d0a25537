"""Groups of processes that exchange bytes through gloo.

A group is made when its processes first meet in it, by them alone. An exchange that fails, as a
process is gone or late, raises one DistributedError, which says which group and collective it was.
"""

from __future__ import annotations

import atexit
import ctypes
import datetime
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from genesis_fn.core.errors import DistributedError
from genesis_fn.core.sharding.world import NEWS, arrive, world

if TYPE_CHECKING:
    from torch.distributed import Work

# A wait is taken in slices, between which Python sees Ctrl-C.
_SLICE = datetime.timedelta(seconds=0.5)


class ProcessGroup:
    """Processes that meet, by their ranks in the world, and the place of this one among them.

    Bytes are tensors of uint8, row-major. `what` names the collective in errors.
    """

    __slots__ = ("ranks", "size", "position", "_gloo", "_broken")

    def __init__(self, ranks: tuple[int, ...]) -> None:
        self.ranks, self.size = ranks, len(ranks)
        self.position = ranks.index(world().rank)
        self._gloo: Any = None
        self._broken = False

    def all_gather(self, x: torch.Tensor, what: str) -> torch.Tensor:
        """The bytes of all processes: [n] to [size, n]."""
        if self.size == 1:
            return x.reshape(1, -1)
        out = torch.empty((self.size, x.numel()), dtype=torch.uint8)
        if x.numel():
            self._run(what, lambda gloo: gloo.allgather([list(out)], [x.reshape(-1)]))
        return out

    def all_to_all(self, x: torch.Tensor, what: str) -> torch.Tensor:
        """Row i of every process: [size, n] to [size, n]."""
        if self.size == 1:
            return x
        out = torch.empty_like(x)
        if x.numel():
            self._run(what, lambda gloo: gloo.alltoall_base(out, x, [], []))
        return out

    def send(
        self, x: torch.Tensor, to: int | None, source: int | None, what: str
    ) -> torch.Tensor | None:
        """The bytes [n] of the process at position `source`, while its own go to position `to`."""
        if self.size == 1:
            return None if source is None else x
        counts = lambda at: [x.numel() if i == at else 0 for i in range(self.size)]
        given = x.reshape(-1) if to is not None else x.new_empty(0)
        out = torch.empty(x.numel() if source is not None else 0, dtype=torch.uint8)
        if x.numel():
            self._run(what, lambda gloo: gloo.alltoall_base(out, given, counts(source), counts(to)))
        return None if source is None else out

    def gathered(self, x: np.ndarray, what: str) -> np.ndarray:
        """`all_gather` of bytes on the host: [n] to [size, n]."""
        return self.all_gather(torch.from_numpy(x), what).numpy()

    def broadcast(self, x: np.ndarray, source: int, what: str) -> None:
        """Write the bytes [n] of the process at position `source` over those of the others."""
        if self.size > 1 and x.size:
            self._run(what, lambda gloo: gloo.broadcast(torch.from_numpy(x), source))

    def close(self) -> None:
        """Give the connections back."""
        # The end of a group waits for what is under way in it: one that is broken never ends.
        if self._broken and self._gloo is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._gloo))
        self._gloo = None

    def _run(self, what: str, begin: Callable[[Any], Work]) -> None:
        watch = world().watch
        if watch is not None:
            watch.collectives += 1
        whole = False
        try:
            if self._gloo is None:
                self._gloo = self._connected(what)
            _finish(begin(self._gloo))
            whole = True
        except RuntimeError as error:
            if isinstance(error, DistributedError):
                raise
            raise self._failure(what, str(error)) from None
        finally:
            self._broken |= not whole

    def _connected(self, what: str) -> Any:
        from torch.distributed import PrefixStore, ProcessGroupGloo  # pyright: ignore[reportPrivateImportUsage]

        here, where = world(), "gloo/" + "-".join(map(str, self.ranks))
        late = arrive(where, self.ranks)
        if late:
            said = f"{_named(late)} did not come to it within {here.timeout:g} s"
            raise self._failure(what, said, known=True)
        limit = datetime.timedelta(seconds=here.timeout)
        store = PrefixStore(where, getattr(here.store, "store", here.store))
        return ProcessGroupGloo(store, self.position, self.size, limit)

    def _failure(self, what: str, said: str, known: bool = False) -> DistributedError:
        here = world()
        lost = behind = ""
        late = "imed out" in said  # gloo says it with and without a capital
        if here.watch is not None and not known:
            lost = here.watch.lost(0.0 if late else NEWS)
            behind = here.watch.behind() if late and not lost else ""
        if lost or known:
            reason = lost or said
        elif late:
            reason = f"{behind or 'a process'} did not come to it within {here.timeout:g} s"
        else:
            reason = "a process of them ended" if "closed by peer" in said else said.split(". ")[0]
        if late or known:
            advice = (
                "every process must run the same program; one that is slower for a reason needs "
                "distributed.initialize(timeout=...)"
            )
        else:
            advice = "look at its last messages" if lost else "look at the first error among theirs"
        message = (
            f"{what}: rank {here.rank} of {here.size} gave up on the {_named(self.ranks)}: {reason}"
            f"\n  {advice}"
        )
        if here.watch is not None:
            here.watch.failing(message)
        return DistributedError(message)


def _named(ranks: Sequence[int]) -> str:
    """ "rank 3", or "ranks 0, 1 and 3"; of many, the first ones and their number."""
    texts = [str(r) for r in ranks]
    if len(texts) == 1:
        return f"rank {texts[0]}"
    if len(texts) > 8:
        return f"{len(texts)} ranks {', '.join(texts[:6])}, ..., {texts[-1]}"
    return f"ranks {', '.join(texts[:-1])} and {texts[-1]}"


def _finish(work: Work) -> None:
    """Wait for an exchange; RuntimeError where it failed."""
    while True:
        try:
            work.wait(_SLICE)
            return
        except RuntimeError:
            # The slice is over, or the exchange is: one that ended in between says so now.
            if work.is_completed():
                work.wait()
                return


_groups: dict[tuple[int, ...], ProcessGroup] = {}


def group(ranks: tuple[int, ...]) -> ProcessGroup:
    """The group of the processes with these ranks, this one among them."""
    found = _groups.get(ranks)
    if found is None:
        found = _groups[ranks] = ProcessGroup(ranks)
    return found


def close_groups() -> None:
    """End all groups, as the world that they are of ends."""
    for each in _groups.values():
        each.close()
    _groups.clear()


atexit.register(close_groups)  # gloo's threads must end before Python does
