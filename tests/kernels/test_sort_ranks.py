"""The PTX that ranks digits, run by a small model of one warp, against a count by NumPy."""

from __future__ import annotations

import re

import numpy as np
import pytest

from genesis_fn.kernels.sort import radix_sort

LANES = np.arange(32)


class Warp:
    """Thirty-two lanes in step: registers are vectors of their values, memory is by address."""

    def __init__(self, inputs: dict[str, np.ndarray]) -> None:
        self.values: dict[str, np.ndarray] = dict(inputs)
        self.memory = np.full(4096, 0xDEADBEEF, np.int64)

    def read(self, operand: str) -> np.ndarray:
        if operand == "%laneid":
            return LANES
        if operand == "%lanemask_lt":
            return (1 << LANES) - 1
        if operand == "digits":
            return np.full(32, 1024)
        if operand in self.values:
            return self.values[operand]
        return np.full(32, int(operand, 0))

    def address(self, operand: str) -> np.ndarray:
        name, _, offset = operand.strip("[]").partition(" + ")
        return (self.read(name) + int(offset or 0)) // 4

    def run(self, text: str) -> None:
        for line in re.findall(r"[^;{}\n]+", text):
            guard, statement = re.match(r"\s*(?:@(!?\w+)\s+)?(\S.*)", line).groups()
            if statement.startswith("."):
                continue
            name, _, rest = statement.partition(" ")
            operands = [x.strip() for x in rest.split(",")]
            active = np.full(32, True)
            if guard:
                active = self.values[guard.strip("!")] ^ guard.startswith("!")
            self.step(name, operands, active)

    def step(self, name: str, operands: list[str], active: np.ndarray) -> None:
        if name == "bar.warp.sync":
            return
        if name == "st.shared.u32":
            at = self.address(operands[0])[active]
            assert len(set(at)) == len(at), "two lanes store to one address"
            self.memory[at] = self.read(operands[1])[active]
            return
        if name == "ld.shared.u32":
            value = self.memory[self.address(operands[1])]
        else:
            a, *more = [self.read(x) for x in operands[1:]]
            value = {
                "mov.u32": lambda: a,
                "add.u32": lambda: a + more[0],
                "mad.lo.u32": lambda: a * more[0] + more[1],
                "and.b32": lambda: a & more[0],
                "not.b32": lambda: ~a & 0xFFFFFFFF,
                "popc.b32": lambda: np.array([int(x).bit_count() for x in a]),
                "setp.ne.u32": lambda: a != more[0],
                "setp.eq.u32": lambda: a == more[0],
                "vote.sync.ballot.b32": lambda: np.full(32, int((a.astype(int) << LANES).sum())),
            }[name]()
        held = self.values.get(operands[0], np.zeros_like(value))
        self.values[operands[0]] = np.where(active, value, held)


@pytest.mark.parametrize("rows", [16, 32])
@pytest.mark.parametrize(("bits", "spread"), [(5, 32), (6, 7), (7, 128), (8, 1), (8, 3), (8, 256)])
def test_ranks_count_the_equal_digits_before(bits, spread, rows):
    largest = (1 << bits) - 1
    digits = np.random.default_rng(spread).integers(0, spread, (rows, 32)) * (largest // spread)
    digits[0, 0] = largest
    warp = Warp({f"${rows + i}": digits[i] for i in range(rows)})
    warp.run(getattr(radix_sort, f"RANKS_{rows}_{bits}").value)
    row = digits.ravel()
    want = [(row[:i] == row[i]).sum() for i in range(row.size)]
    got = np.stack([warp.values[f"${i}"] for i in range(rows)])
    np.testing.assert_array_equal(got.ravel(), want)


@pytest.mark.parametrize("rows", [16, 32])
def test_places_are_side_by_side(rows):
    warp = Warp({})
    warp.run(getattr(radix_sort, f"PLACES_{rows}").value)
    got = np.stack([warp.values[f"${i}"] for i in range(rows)])
    np.testing.assert_array_equal(got, np.arange(32 * rows).reshape(rows, 32))
