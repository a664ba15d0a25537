"""How processes find each other: through a key-value store that one of them, or their launcher,
keeps."""

from __future__ import annotations

import datetime
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any

from genesis_fn.core.errors import DistributedError
from genesis_fn.core.sharding.world import NEWS, WorldWatch, await_keys, gave_up
from genesis_fn.distributed.clusters import Place
from genesis_fn.distributed.facts import Facts, disagreement

_ANSWER = 60.0  # seconds that whoever keeps a store has for an answer of its own
_LINGER = 5.0  # seconds that the process with the store stays for the others to read an error


def open_store(place: Place, seconds: float) -> Any:
    """The store of all processes, kept by rank 0 where no launcher does.

    Raises DistributedError where it cannot be reached, or made.
    """
    keeps = place.rank == 0 and not place.hosted
    if not keeps:
        _await_address(place, seconds)
    try:
        return connect(place, seconds, keeps)
    except RuntimeError as error:
        what = "keep the store at" if keeps else "reach the store of process 0 at"
        raise DistributedError(
            f"initialize: rank {place.rank} of {place.size} cannot {what} {place.address}: "
            f"{str(error).splitlines()[0]}\n  is another program using the port? "
            "MASTER_PORT, or coordinator_address, chooses another"
        ) from None


def connect(place: Place, seconds: float, keeps: bool = False) -> Any:
    """A connection to the store of all processes."""
    from torch.distributed import PrefixStore  # pyright: ignore[reportPrivateImportUsage]

    store = _tcp_store(place.host, place.port, seconds, keeps)
    # What processes wrote that a launcher has started anew since is not for these.
    return PrefixStore(f"genesis_fn/{place.attempt}", store)


class SharedStore:
    """The `store` of all processes, as programs ask it: where the process that keeps it has ended,
    since another one is gone, say, the error says who that is."""

    def __init__(self, store: Any, place: Place, watch: WorldWatch) -> None:
        self.store, self.place, self.watch = store, place, watch

    def __getattr__(self, name: str) -> Callable[..., Any]:
        ask = getattr(self.store, name)

        def answer(*args: Any) -> Any:
            try:
                return ask(*args)
            except RuntimeError as error:
                lost = self.watch.lost(NEWS) or f"the store does not answer: {error}"[:200]
            raise gave_up(self.place.rank, self.place.size, lost, self.watch)

        return answer


def launchers_store() -> Any:
    """A store that whoever starts processes keeps for them, on any free `port` of this machine."""
    return _tcp_store("127.0.0.1", 0, _ANSWER, keeps=True)


def _tcp_store(host: str, port: int, seconds: float, keeps: bool) -> Any:
    from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

    limit = datetime.timedelta(seconds=seconds)
    return TCPStore(host, port, None, keeps, timeout=limit, wait_for_workers=False)


def _await_address(place: Place, seconds: float) -> None:
    """Wait until somebody listens; the store's own way to wait does not see Ctrl-C."""
    end = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection((place.host, place.port), timeout=5).close()
            return
        except OSError as error:
            if time.monotonic() > end:
                raise DistributedError(
                    f"initialize: rank {place.rank} of {place.size} found nobody at "
                    f"{place.address} in {seconds:g} s: {error}\n  process 0 must run there; "
                    "initialization_timeout= waits longer"
                ) from None
        time.sleep(0.05)


def meet(store: Any, place: Place, own: Facts, seconds: float) -> list[Facts]:
    """The facts of all processes, in the order of their ranks.

    Raises DistributedError, on every rank, where some do not come, or do not fit together.
    """
    rank, size = place.rank, place.size
    said = store.compare_set("size", "", str(size)).decode()
    if said != str(size):
        refuse(store, f"rank {rank} was started as one of {size} processes, others of {said}")
    elif store.add(f"taken/{rank}", 1) > 1:
        refuse(store, f"two processes were started as rank {rank} of {size}")
    store.set(f"ranks/{rank}", own.as_text())
    missing = await_keys(store, _keys(range(size)), seconds, lambda: _raise_refused(store, place))
    _raise_refused(store, place)
    if missing:
        ranks = [int(k.partition("/")[2]) for k in missing]
        raise DistributedError(
            f"initialize: {len(ranks)} of {size} processes did not come to {place.address} within "
            f"{seconds:g} s: rank {', '.join(map(str, ranks[:8]))}{', ...' * (len(ranks) > 8)}\n"
            "  look at their messages; initialization_timeout= waits longer"
        )
    found = [Facts.of_text(text) for text in store.multi_get(_keys(range(size)))]
    reason = disagreement(found)
    if reason:
        refuse(store, reason)
        _raise_refused(store, place)
    return found


def refuse(store: Any, reason: str) -> None:
    """Have all processes that are about to meet end with this error; the first one counts."""
    store.compare_set("refused", "", reason)


def _raise_refused(store: Any, place: Place) -> None:
    if not store.check(["refused"]):
        return
    reason = store.get("refused").decode()
    linger(store, place)
    raise DistributedError(
        f"initialize: {reason}\n  (this is rank {place.rank} of {place.size}, on "
        f"{socket.gethostname()})"
    )


def linger(store: Any, place: Place) -> None:
    """Before an error here: keep the store until all processes know of it."""
    store.add("told", 1)
    if place.rank == 0 and not place.hosted:
        end = time.monotonic() + _LINGER
        while store.add("told", 0) < place.size and time.monotonic() < end:
            time.sleep(0.02)


def _keys(ranks: Sequence[int] | range) -> list[str]:
    return [f"ranks/{r}" for r in ranks]
