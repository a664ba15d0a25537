"""Updates of a sum that its kernel computes, instead of reading them: generated lines in a kernel.

A sum of rows that are gathered and multiplied, as over the edges of a graph, would write and read
them again, which takes longer than the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from genesis_fn.kernels.language.source import kernel_from_source


@dataclass(frozen=True, slots=True)
class ComputedUpdates:
    """Lines that compute elements of updates, and the (name, element type) of their pointers.

    The lines set `value` at numbers `i` [n, 1] of updates and columns `j` [1, m], where `inside`
    [n, m], and 0 where not `wanted` [n, 1]. Every public name of `kernels.language` may be used.
    `carried` is the element type of one more input, of 32-bit integers for each update, which are
    all that is needed of its number: a list that is sorted holds them instead, and `i` is one.
    """

    lines: tuple[str, ...]
    inputs: tuple[tuple[str, str], ...]
    carried: str = ""


def kernel_of(
    body: Any, pointers: Sequence[str], constants: Sequence[str], updates: ComputedUpdates
) -> Any:
    """The kernel that calls the device function `body` with `pointers`, of which "updates" become
    those of the lines, then `constants` and the function that computes updates."""
    inputs = ", ".join([name for name, _ in updates.inputs])
    # Of updates that read nothing (a count adds ones) the operands are another pointer, unread:
    # there is no empty tuple in a kernel's text.
    operands = inputs or next(p for p in pointers if p != "updates")
    given = ", ".join([f"({operands},)" if p == "updates" else p for p in pointers])
    taken = ", ".join(
        [inputs if p == "updates" else p for p in pointers if inputs or p != "updates"]
    )
    name, module = body.fn.__name__, body.fn.__module__
    lines = [
        f"from {module} import {name}",
        "",
        "",
        "def update(i, j, wanted, operands, COLUMNS: tl.constexpr):",
        *([f"    ({inputs},) = operands"] if inputs else []),
        "    inside = wanted & (j < COLUMNS)",
        *[f"    {line}" for line in updates.lines],
        "    return tl.broadcast_to(value, inside.shape)",
        "",
        "",
        f"def {name}_computed({taken}, {', '.join([f'{c}: tl.constexpr' for c in constants])}):",
        f"    {name}({given}, {', '.join(constants)}, update)",
    ]
    return kernel_from_source("\n".join(lines) + "\n")
