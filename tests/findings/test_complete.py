"""Every numbered defect has a test, so that none comes back unseen."""

from __future__ import annotations

import re
from pathlib import Path

NUMBERS = {
    "s": range(0, 1),  # array methods under transforms
    "a": range(1, 20),  # silently wrong numbers
    "b": range(20, 37),  # crashes and refusals in plain use
    "c": range(1, 7),  # what a new user meets
    "m": range(1, 15),  # error messages
    "r": range(1, 24),  # reliability
}


# Arguments that are not there yet are listed in tests/signatures.toml.
LATER = {("b", 35)}


def test_every_number_has_a_test() -> None:
    text = "".join(p.read_text("utf-8") for p in Path(__file__).parent.glob("test_*.py"))
    named = {(letter, int(n)) for letter, n in re.findall(r"def test_([a-z])(\d\d)_\w+", text)}
    wanted = {(letter, n) for letter, numbers in NUMBERS.items() for n in numbers} - LATER
    assert not sorted(wanted - named)
