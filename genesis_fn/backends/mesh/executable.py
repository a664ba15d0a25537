"""A program on a mesh: that of this process's part, whose results are parts of whole arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from genesis_fn.core.array import ArrayImpl
from genesis_fn.core.aval import Signature, sig
from genesis_fn.core.backend.executable import Carry, Executable
from genesis_fn.core.sharding.mesh import Mesh


class MeshExecutable(Executable):
    """`local` computes this process's parts; `sigs` say what they are parts of."""

    __slots__ = ("local", "mesh", "sigs", "overwritten", "unused_donations")

    def __init__(self, local: Executable, mesh: Mesh, sigs: Sequence[Signature]) -> None:
        self.local, self.mesh, self.sigs = local, mesh, sigs
        self.overwritten, self.unused_donations = local.overwritten, local.unused_donations

    def __call__(self, *args: ArrayImpl) -> list[ArrayImpl]:
        try:
            outs = self.local.run([x.data for x in args])
        except Exception as error:
            raise self.explained(error) from None
        return [ArrayImpl(y, s) for y, s in zip(outs, self.sigs, strict=True)]

    def run(self, storages: list[Any]) -> list[Any]:
        return self.local.run(storages)

    def own(self, x: ArrayImpl) -> Any:
        return self.local.own(x)

    def explained(self, error: Exception) -> Exception:
        return self.local.explained(error)

    def carry(self, first_in: int, first_out: int, count: int) -> Carry | None:
        return self.local.carry(first_in, first_out, count)

    def measure(
        self, args: Sequence[ArrayImpl], repeats: int
    ) -> tuple[list[ArrayImpl], Any] | None:
        parts = [ArrayImpl(x.data, sig(x.aval, self.mesh.device)) for x in args]
        found = self.local.measure(parts, repeats)
        if found is None:
            return None
        outs, profile = found
        return [ArrayImpl(y.data, s) for y, s in zip(outs, self.sigs, strict=True)], profile

    def as_text(self) -> str:
        return self.local.as_text()

    def memory_analysis(self) -> dict[str, int]:
        """Of this process's device."""
        return self.local.memory_analysis()
