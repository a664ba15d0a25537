"""What processes exchange: descriptions that a program contains, and a driver carries out.

`enqueue` puts one on a stream, given a communicator and the addresses of the operand and the result
in this process's memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    from genesis_fn.backends.cuda.driver.driver import Driver

Reduction: TypeAlias = Literal["sum", "maximum", "minimum"]
REDUCED = frozenset(("i8", "u8", "i32", "u32", "i64", "u64", "fp32", "fp64"))
"""The dtypes that are reduced, by their names in plans."""


@dataclass(frozen=True, slots=True)
class AllReduce:
    """Everyone gets the reduction of everyone's `count` elements."""

    count: int
    dtype: str
    reduction: Reduction

    def enqueue(
        self, driver: Driver, communicator: Any, source: int, destination: int, stream: Any
    ) -> None:
        """Put it on a stream."""
        driver.all_reduce(
            communicator, source, destination, self.count, self.dtype, self.reduction, stream
        )


@dataclass(frozen=True, slots=True)
class ReduceScatter:
    """Everyone gets its `count` elements of the reduction, in the order of the group."""

    count: int
    dtype: str
    reduction: Reduction

    def enqueue(
        self, driver: Driver, communicator: Any, source: int, destination: int, stream: Any
    ) -> None:
        """Put it on a stream."""
        driver.reduce_scatter(
            communicator, source, destination, self.count, self.dtype, self.reduction, stream
        )


@dataclass(frozen=True, slots=True)
class AllGather:
    """Everyone gets the `bytes` of everyone, in the order of the group."""

    bytes: int

    def enqueue(
        self, driver: Driver, communicator: Any, source: int, destination: int, stream: Any
    ) -> None:
        """Put it on a stream."""
        driver.all_gather(communicator, source, destination, self.bytes, stream)


@dataclass(frozen=True, slots=True)
class AllToAll:
    """Everyone sends piece i of its operand, `bytes` long, to member i, and gets such pieces in the
    order of the group."""

    bytes: int

    def enqueue(
        self, driver: Driver, communicator: Any, source: int, destination: int, stream: Any
    ) -> None:
        """Put it on a stream."""
        driver.all_to_all(communicator, source, destination, self.bytes, stream)


@dataclass(frozen=True, slots=True)
class Permute:
    """This process sends its `bytes` to member `receiver`, and gets those of member `sender`; None:
    nobody's."""

    bytes: int
    receiver: int | None
    sender: int | None

    def enqueue(
        self, driver: Driver, communicator: Any, source: int, destination: int, stream: Any
    ) -> None:
        """Put it on a stream."""
        to = None if self.receiver is None else (self.receiver, source)
        by = None if self.sender is None else (self.sender, destination)
        driver.send_receive(communicator, to, by, self.bytes, stream)


Communication: TypeAlias = AllReduce | ReduceScatter | AllGather | AllToAll | Permute
