"""Communicators: made once, in the same order everywhere, from NCCL's bindings or stand-ins."""

from __future__ import annotations

import enum
import os
import sys
import threading
import types
from collections.abc import Iterator
from typing import Any

import pytest

from genesis_fn.backends.cuda.driver import nccl
from genesis_fn.backends.cuda.driver.communication import (
    AllGather,
    AllReduce,
    AllToAll,
    Permute,
    ReduceScatter,
)
from genesis_fn.core.errors import BackendError, DistributedError
from genesis_fn.core.sharding.world import World, enter_world, world


class Store(dict[str, Any]):
    """A store in which everybody else has been already."""

    def __init__(self, size: int, late: tuple[int, ...] = ()) -> None:
        super().__init__()
        self.size, self.late = size, late

    def set(self, key: str, value: str) -> None:
        self[key] = value.encode()

    def get(self, key: str) -> bytes:
        return dict.get(self, key, b"00" * 128)

    def check(self, keys: list[str]) -> bool:
        last = [k.rsplit("/", 1)[-1] for k in keys]
        return not any(k in map(str, self.late) for k in last)


class DataType(enum.IntEnum):
    Uint8, Int32, Float32 = 1, 2, 7


class RedOp(enum.IntEnum):
    Sum, Max = 0, 2


class Result(enum.IntEnum):
    Success, RemoteError, InProgress = 0, 6, 7


class Bindings(types.ModuleType):
    """Notes what is called."""

    DataType, RedOp, Result = DataType, RedOp, Result

    class NCCLError(Exception):
        pass

    def __init__(self) -> None:
        super().__init__("nccl.bindings.nccl")
        self.calls: list[Any] = []
        self.async_error = 0

    def get_version(self) -> int:
        return 22809

    def get_unique_id(self) -> bytes:
        return bytes(range(128))

    def comm_init_rank_scalable(self, *args: Any) -> str:
        self.calls.append(("init", *args[:3]))
        return "world"

    def comm_split(self, handle: str, color: int, key: int, config: int) -> str:
        self.calls.append(("split", handle, color, key))
        return f"part {len(self.calls)}"

    def comm_get_async_error(self, handle: str) -> int:
        return self.async_error

    def get_error_string(self, code: int) -> str:
        return f"code {code}"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args: self.calls.append((name, *args))


@pytest.fixture
def bindings(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bindings]:
    """Stand-ins for NCCL, and a world of four in which this is process 2."""
    found = Bindings()
    package = types.ModuleType("nccl.bindings")
    package.nccl = found  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "nccl", types.ModuleType("nccl"))
    monkeypatch.setitem(sys.modules, "nccl.bindings", package)
    monkeypatch.setattr(nccl, "_made", {})
    monkeypatch.setenv("NCCL_ALGO", "")
    monkeypatch.delenv("NCCL_ALGO")
    nccl._library.cache_clear()
    enter_world(World(2, 4, 2, 5.0, Store(4)))
    yield found
    enter_world(World())
    nccl._library.cache_clear()


def test_parts_are_split_from_the_world_and_shared(bindings):
    rows = ((0, 1), (2, 3))
    part = nccl.communicator(rows, False)
    assert bindings.calls == [("init", 4, 2, 1), ("split", "world", 1, 0)]
    assert part.size == 2
    assert nccl.communicator(rows, False) is part is nccl.communicator(rows[::-1], False)
    assert nccl.communicator(((0, 1, 2, 3),), False).handle == "world"
    nccl.communicator(((0, 2), (1, 3)), False)
    assert bindings.calls[2:] == [("split", "world", 0, 1)]


def test_another_order_of_everybody_is_a_part(bindings):
    nccl.communicator(((3, 2, 1, 0),), False)
    assert bindings.calls == [("init", 4, 2, 1), ("split", "world", 0, 1)]


def test_groups_without_some_processes_meet_by_themselves(bindings):
    nccl.communicator(((1, 2),), False)
    assert bindings.calls == [("init", 2, 1, 1)]


def test_the_first_process_leaves_the_identifier(bindings):
    enter_world(World(0, 2, 0, 5.0, Store(2)))
    nccl.communicator(((0, 1),), False)
    assert world().store["nccl/identifier/collectives/0,1"] == bytes(range(128)).hex().encode()


def test_sums_are_rings_unless_told_otherwise(bindings, monkeypatch):
    nccl.communicator(((0, 1, 2, 3),), False)
    assert os.environ["NCCL_ALGO"] == "allreduce:ring;reducescatter:ring"
    nccl._library.cache_clear()
    monkeypatch.setenv("NCCL_ALGO", "Tree")
    nccl._library()
    assert os.environ["NCCL_ALGO"] == "Tree"


def test_who_is_late_is_named(bindings):
    enter_world(World(2, 4, 2, 0.01, Store(4, late=(1, 3))))
    late = r"first collective of ranks \[0, 1, 2, 3\]: ranks \[1, 3\] did not come"
    with pytest.raises(DistributedError, match=late):
        nccl.communicator(((0, 1, 2, 3),), False)


def test_what_is_enqueued(bindings):
    group = nccl.communicator(((0, 1), (2, 3)), False)
    bindings.calls.clear()
    nccl.exchange(group, AllReduce(3, "fp32", "sum"), 10, 20, 7)
    nccl.exchange(group, ReduceScatter(3, "i32", "maximum"), 10, 20, 7)
    nccl.exchange(group, AllGather(12), 10, 20, 7)
    nccl.exchange(group, AllToAll(8), 100, 200, 7)
    nccl.exchange(group, Permute(8, 1, None), 100, 200, 7)
    nccl.exchange(group, Permute(8, None, 0), 100, 200, 7)
    nccl.exchange(group, Permute(8, None, None), 100, 200, 7)
    c = group.handle
    assert bindings.calls == [
        ("all_reduce", 10, 20, 3, 7, 0, c, 7),
        ("reduce_scatter", 10, 20, 3, 2, 2, c, 7),
        ("all_gather", 10, 20, 12, 1, c, 7),
        ("group_start",),
        ("send", 100, 8, 1, 0, c, 7),
        ("send", 108, 8, 1, 1, c, 7),
        ("recv", 200, 8, 1, 0, c, 7),
        ("recv", 208, 8, 1, 1, c, 7),
        ("group_end",),
        ("group_start",),
        ("send", 100, 8, 1, 1, c, 7),
        ("group_end",),
        ("group_start",),
        ("recv", 200, 8, 1, 0, c, 7),
        ("group_end",),
    ]


def test_messages_have_communicators_and_memory_of_their_own(bindings):
    """NCCL 2.28 forgets to tell the GPU where the memory is that messages registered first."""
    rows, everyone = ((0, 1), (2, 3)), ((0, 1, 2, 3),)
    for groups in (rows, everyone):
        sums, messages = nccl.communicator(groups, False), nccl.communicator(groups, True)
        assert sums is not messages is nccl.communicator(groups, True)
        nccl.register(messages, 4096, 512)
        nccl.register(sums, 4096, 512)
    assert [c for c in bindings.calls if c[0] != "comm_register"] == [
        ("init", 4, 2, 1),
        ("split", "world", 1, 0),
        ("split", "world", 1, 0),
        ("init", 4, 2, 1),
    ]
    assert sum(c[0] == "comm_register" for c in bindings.calls) == 4
    met = [key.rpartition("/")[0] for key in world().store if key.endswith("/2")]
    assert len(met) == len({*met}) == 4  # nobody takes one meeting for the other


def test_memory_is_registered_once_a_group_and_by_nobody_else(bindings, monkeypatch):
    monkeypatch.setenv("NCCL_GRAPH_REGISTER", "")
    monkeypatch.delenv("NCCL_GRAPH_REGISTER")
    group, other = (
        nccl.communicator(((0, 1), (2, 3)), False),
        nccl.communicator(((0, 1, 2, 3),), False),
    )
    assert os.environ["NCCL_GRAPH_REGISTER"] == "0"
    bindings.calls.clear()
    for _ in range(2):
        nccl.register(group, 4096, 512)
    assert nccl.registered(4096) and not nccl.registered(8192)
    nccl.register(other, 4096, 512)
    nccl.register(group, 8192, 64)
    assert bindings.calls == [
        ("comm_register", group.handle, 4096, 512),
        ("comm_register", "world", 4096, 512),
        ("comm_register", group.handle, 8192, 64),
    ]


def test_memory_that_was_not_registered_is_tried_again(bindings):
    group = nccl.communicator(((0, 1, 2, 3),), False)

    def fails(*args: Any) -> None:
        raise bindings.NCCLError("unhandled system error")

    bindings.comm_register = fails
    for _ in range(2):
        with pytest.raises(DistributedError, match="registering memory failed"):
            nccl.register(group, 4096, 512)


def test_errors_name_what_was_done(bindings):
    group = nccl.communicator(((0, 1, 2, 3),), False)

    def fails(*args: Any) -> None:
        raise bindings.NCCLError("unhandled system error")

    bindings.all_gather = fails
    with pytest.raises(DistributedError, match=r"an all-gather failed: unhandled(.|\n)*NCCL_DEBUG"):
        nccl.exchange(group, AllGather(1), 0, 0, 0)


def test_failures_are_found_from_any_thread(bindings):
    assert nccl.failed() is None
    nccl.communicator(((0, 1), (2, 3)), False)
    assert nccl.failed() is None
    bindings.async_error = Result.InProgress
    assert nccl.failed() is None
    bindings.async_error = Result.RemoteError
    found: list[str | None] = []
    watch = threading.Thread(target=lambda: found.append(nccl.failed()))
    watch.start()
    watch.join()
    assert found == ["NCCL: code 6"]


def test_without_the_bindings_the_error_says_what_to_install(bindings, monkeypatch):
    monkeypatch.setitem(sys.modules, "nccl.bindings", None)
    nccl._library.cache_clear()
    with pytest.raises(BackendError, match=r"pip install genesis-fn\[distributed\]"):
        nccl.communicator(((0, 1, 2, 3),), False)
