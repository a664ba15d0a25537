"""What a compiled program offers to whoever calls it: the protocol that every backend's executables
implement."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from genesis_fn.core.array import ArrayImpl
    from genesis_fn.core.aval import Signature
    from genesis_fn.core.train_state import Memory


class Carry(Protocol):
    """A way to run a program whose state (some neighbouring inputs, which come back as neighbouring
    results in the same memory) is one value. `sigs` are the signatures of the state's leaves."""

    sigs: Sequence[Signature]

    @abc.abstractmethod
    def run(self, state: Memory | list[ArrayImpl], others: list[Any]) -> tuple[Memory, list[Any]]:
        """(the state's memory, storages of the other results), given the state, as the last run
        returned it or as arrays, and the storages of the other inputs."""
        ...


class Executable(Protocol):
    """A compiled program. Backends derive from this class: members with a body below are what holds
    for programs that do nothing special.

    Storage is a backend's own (`Array.data`). Generated calls go from storages to storages by `run`
    and make the results' arrays by `sigs`; everybody else calls the executable with arrays.
    """

    __slots__ = ()

    sigs: Sequence[Signature]
    """The signatures of the results, none of them weak."""

    overwritten: Sequence[int] = ()
    """The inputs for which `run` must be given `own(x)`, since it writes over them."""

    unused_donations: Sequence[tuple[int, str]] = ()
    """Donated inputs whose memory no result can take, and why."""

    @abc.abstractmethod
    def __call__(self, *args: ArrayImpl) -> list[ArrayImpl]:
        """The results as arrays. Raises what `explained` makes of an error."""
        ...

    @abc.abstractmethod
    def run(self, storages: list[Any]) -> list[Any]:
        """The storages of the results, given those of the inputs. The memory of a donated input is
        taken only where its Array and the list alone refer to it."""
        ...

    def own(self, x: ArrayImpl) -> Any:
        """The storage of `x`, or a copy of it if anybody else can see that memory."""
        return x.data

    def explained(self, error: Exception) -> Exception:
        """An error that `run` raised, with the user's line of the equation that it comes from."""
        return error

    def carry(self, first_in: int, first_out: int, count: int) -> Carry | None:
        """How to run with the inputs from `first_in` on as one value, which comes back as the
        results from `first_out` on; None where they are not updated in place, or others are."""
        return None

    def measure(
        self, args: Sequence[ArrayImpl], repeats: int
    ) -> tuple[list[ArrayImpl], Any] | None:
        """(the results, what each kernel took); None where the device cannot tell."""
        return None

    @abc.abstractmethod
    def as_text(self) -> str:
        """The program as it was compiled."""
        ...

    @abc.abstractmethod
    def memory_analysis(self) -> dict[str, int]:
        """Bytes of arguments, results, temporaries, and the peak of them all."""
        ...
