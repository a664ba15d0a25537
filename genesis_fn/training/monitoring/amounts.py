"""Bytes and seconds as people write and read them."""

from __future__ import annotations

import re
from typing import Any

_UNITS = {"B": 1} | {
    f"{prefix}{end}": base**n
    for n, prefix in enumerate("KMGT", 1)
    for end, base in (("B", 1000), ("iB", 1024))
}
_BY_NAME = {name.lower(): size for name, size in _UNITS.items()}
_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,15})?)\s*([a-z]{1,3}|%)", re.IGNORECASE)


def read_size(text: str, whole: float) -> float:
    """The bytes of a text.

    Args:
        text: a number and a unit, or a share: "20GiB", "512 MB", "80%".
        whole: bytes that a share is of.

    Raises ValueError for any other text.

    >>> from genesis_fn.training.monitoring.amounts import read_size
    >>> read_size("2KiB", 100), read_size("80%", 100)
    (2048.0, 80.0)
    """
    match = _SIZE.fullmatch(text.strip())
    if match is not None:
        number, unit = float(match[1]), match[2].lower()
        if unit == "%" and 0 < number <= 100:
            return number / 100 * whole
        if number * _BY_NAME.get(unit, 0) >= 1:
            return number * _BY_NAME[unit]
    raise ValueError(f"{text!r} is no size, expected such as 20GiB, 512MiB or 80%")


def size_text(size: float) -> str:
    """Bytes for people: 1.50 GiB."""
    value: Any = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            break
        value /= 1024
    return f"{value:,.0f} {unit}" if unit == "B" else f"{value:,.2f} {unit}"


def duration_text(seconds: float) -> str:
    """Seconds for people: 2 h 5 min."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [(days, "d"), (hours, "h"), (minutes, "min"), (rest, "s")]
    shown = [f"{n} {unit}" for n, unit in parts if n][:2]
    return " ".join(shown) or "less than a second"
