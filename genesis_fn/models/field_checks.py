"""Checks of single fields of a config: each raises ValueError with the field and its value."""

from __future__ import annotations

import numbers
import sys
from collections.abc import Callable
from typing import Any

from genesis_fn.extend import brief

LARGEST_SIZE = 2**31 - 1
MOST_LAYERS = 10_000
MOST_EXPERTS = 10_000

Check = Callable[[str, Any], None]


def positive_int(name: str, value: Any) -> None:
    """An integer from 1 to `LARGEST_SIZE`."""
    integer(name, value, 1, LARGEST_SIZE)


def count(name: str, value: Any) -> None:
    """An integer from 0 to `LARGEST_SIZE`."""
    integer(name, value, 0, LARGEST_SIZE)


def layer_count(name: str, value: Any) -> None:
    """An integer from 1 to `MOST_LAYERS`."""
    integer(name, value, 1, MOST_LAYERS)


def expert_count(name: str, value: Any) -> None:
    """An integer from 0 to `MOST_EXPERTS`."""
    integer(name, value, 0, MOST_EXPERTS)


def integer(name: str, value: Any, least: int, most: int) -> None:
    """An integer from `least` to `most`; True and 1.0 are none."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise ValueError(f"{name} is {brief(value)}, expected an integer")
    if not least <= int(value) <= most:
        raise ValueError(f"{name} is {brief(value)}, expected {least} to {most}")


def number(name: str, value: Any) -> None:
    """A finite number that is not negative."""
    if not _is_real(value) or not 0 <= value <= sys.float_info.max:
        raise ValueError(f"{name} is {brief(value)}, expected a finite number, not negative")


def number_within(least: float, most: float) -> Check:
    """The check of a number from `least` to `most`."""

    def check(name: str, value: Any) -> None:
        if not _is_real(value) or not least <= value <= most:
            raise ValueError(
                f"{name} is {brief(value)}, expected a number from {least:g} to {most:g}"
            )

    return check


def base(name: str, value: Any) -> None:
    """A finite number above 1, of which frequencies are powers."""
    if not _is_real(value) or not 1 < value <= sys.float_info.max:
        raise ValueError(f"{name} is {brief(value)}, expected a number above 1")


def boolean(name: str, value: Any) -> None:
    """True or False; 0 and 1 are neither."""
    if not isinstance(value, bool):
        raise ValueError(f"{name} is {brief(value)}, expected true or false")


def string(name: str, value: Any) -> None:
    """Text."""
    if not isinstance(value, str):
        raise ValueError(f"{name} is {brief(value)}, expected a string")


def optional(check: Check) -> Check:
    """The check of a value that may be None as well."""
    return lambda name, value: None if value is None else check(name, value)


def one_of(name: str, value: Any, values: tuple[str, ...]) -> None:
    """One of several texts."""
    string(name, value)
    if value not in values:
        raise ValueError(f"{name} is {brief(value)}, expected one of {', '.join(values)}")


def _is_real(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
