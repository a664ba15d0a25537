"""Bytes and seconds as people read them."""

from __future__ import annotations

from typing import Any


def size_text(size: int) -> str:
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
