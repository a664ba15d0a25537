"""Entries of functions of arrays that come with the names of JAX's core."""

from __future__ import annotations

from tests.public.agree import E, Entry, Operand

X = Operand((3, 4), "fiubc")
CORE_LAX: dict[str, list[Entry]] = {
    "broadcast_like": [E(Operand((4,), "f"), Operand((2, 3, 4), "i"), same=False), E(X, X)]
}
