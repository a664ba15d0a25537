"""What does not fit between arrays and a config, in a few lines whatever the number of arrays."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterable

from genesis_fn.core.files import brief

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")
# Arrays beside the weights that formats of quantized models have.
_QUANTIZED = re.compile(
    r".*\.(qweight|qzeros|scales|g_idx|absmax|quant_map|quant_state\..*|SCB|weight_scale(_inv)?|"
    r"input_scale|weight_packed|(gate_up|down)_proj_(blocks|scales))"
)
MOST = 10_000  # names that are missing; a config may ask for any number


@dataclasses.dataclass
class Mismatches:
    """Names of arrays, and what is wrong with their shapes and dtypes. `lines` say what is wrong
    with no single one of them."""

    lines: list[str] = dataclasses.field(default_factory=list)
    missing: list[str] = dataclasses.field(default_factory=list)
    unexpected: list[str] = dataclasses.field(default_factory=list)
    shapes: dict[str, str] = dataclasses.field(default_factory=dict)
    dtypes: dict[str, str] = dataclasses.field(default_factory=dict)

    def __bool__(self) -> bool:
        return any(vars(self).values())

    @property
    def full(self) -> bool:
        """Whether so many are missing that none further are looked for."""
        return len(self.missing) >= MOST

    def report(self) -> str:
        """`lines`, and one for each kind, with a few names."""
        lines = [*self.lines]
        if self.missing:
            lines.append(f"missing {grouped(self.missing)}{' or more' if self.full else ''}")
        if self.unexpected and not self.full:
            lines.append(f"unexpected {grouped(self.unexpected)}")
        for found in (self.shapes, self.dtypes):
            if found:
                shown = [f"{_short(n)} {what}" for n, what in itertools.islice(found.items(), 2)]
                rest = f"; and {len(found) - 2:,} more" if len(found) > 2 else ""
                lines.append("; ".join(shown) + rest)
        if self.dtypes or any(map(_QUANTIZED.fullmatch, self.unexpected)):
            lines[-1] += (
                "; weights of a quantized model are not read, load the model that it was made from"
            )
        return "\n  ".join(lines)


def grouped(names: Iterable[str], most: int = 3) -> str:
    """The first names; those that differ in numbers count as one."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(_NUMBER.sub("*", name), []).append(name)
    shown = [
        _short(of[0]) if len(of) == 1 else f"{_short(pattern)} ({len(of):,} arrays)"
        for pattern, of in itertools.islice(groups.items(), most)
    ]
    rest = sum(len(of) for of in itertools.islice(groups.values(), most, None))
    return ", ".join(shown) + (f" and {rest:,} more" if rest else "")


def _short(name: str) -> str:
    return brief(name)[1:-1]
