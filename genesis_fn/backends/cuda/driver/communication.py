"""What processes exchange: descriptions that a program contains, and a driver carries out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

from genesis_fn.kernels.language.element_types import ITEMSIZE

Reduction: TypeAlias = Literal["sum", "maximum", "minimum"]
REDUCED = frozenset(("i8", "u8", "i32", "u32", "i64", "u64", "fp32", "fp64"))
"""The dtypes that are reduced, by their names in plans."""


@dataclass(frozen=True, slots=True)
class AllReduce:
    """Everyone gets the reduction of everyone's `count` elements."""

    name: ClassVar[str] = "an all-reduce"
    count: int
    dtype: str
    reduction: Reduction


@dataclass(frozen=True, slots=True)
class ReduceScatter:
    """Everyone gets its `count` elements of the reduction, in the order of the group."""

    name: ClassVar[str] = "a reduce-scatter"
    count: int
    dtype: str
    reduction: Reduction


@dataclass(frozen=True, slots=True)
class AllGather:
    """Everyone gets the `bytes` of everyone, in the order of the group."""

    name: ClassVar[str] = "an all-gather"
    bytes: int


@dataclass(frozen=True, slots=True)
class AllToAll:
    """Everyone sends piece i of its operand, `bytes` long, to member i, and gets such pieces in the
    order of the group."""

    name: ClassVar[str] = "an all-to-all"
    bytes: int


@dataclass(frozen=True, slots=True)
class Permute:
    """This process sends its `bytes` to member `receiver`, and gets those of member `sender`; None:
    nobody's."""

    name: ClassVar[str] = "an exchange of messages"
    bytes: int
    receiver: int | None
    sender: int | None


Communication: TypeAlias = AllReduce | ReduceScatter | AllGather | AllToAll | Permute


def is_messages(communication: Communication) -> bool:
    """Whether it is made of messages between two members each."""
    return isinstance(communication, (AllToAll, Permute))


def memory_of(communication: Communication, size: int) -> tuple[int, int]:
    """The bytes of the operand and of the result, in a group of `size`."""
    match communication:
        case AllReduce(count, dtype):
            return count * ITEMSIZE[dtype], count * ITEMSIZE[dtype]
        case ReduceScatter(count, dtype):
            return size * count * ITEMSIZE[dtype], count * ITEMSIZE[dtype]
        case AllGather(amount):
            return amount, size * amount
        case AllToAll(amount):
            return size * amount, size * amount
        case Permute(amount):
            return amount, amount
