"""A range of device addresses, partly backed by physical memory, from which best fit allocates.

Adjacent free intervals coalesce. Physical memory is mapped in pieces (CUDA's virtual memory
management) where a request needs it. A piece that is wholly free can be unmapped again, so that
scattered free memory can back one contiguous run of addresses.

A piece is what another process can map, a part of one at a time. Where others do, no request
reaches from one piece into the next (`whole`), at the price of some ends of pieces.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator

from genesis_fn.backends.cuda.driver.driver import Driver, MemoryHandle
from genesis_fn.backends.cuda.driver.errors import DeviceMemoryExhausted

_LARGEST_PIECE = 1 << 30


class AddressSpace:
    """`span` bytes of addresses of which `mapped` have memory behind them.

    `whole`: what `take` gives lies in one piece. Not thread-safe: the pool serialises its calls.
    Sizes given to `take` are multiples of 256.
    """

    def __init__(self, driver: Driver, span: int, piece: int, whole: bool = False) -> None:
        unit = driver.info.granularity
        self._driver = driver
        self._unit = unit
        self._piece = _round_up(piece, unit)
        self._whole = whole
        self.span = _round_up(span, unit)
        self.base = driver.reserve(self.span)
        self.mapped = 0
        self.driver_calls = 1
        self._pieces: dict[int, tuple[int, MemoryHandle]] = {}
        self._piece_starts: list[int] = []
        # A free interval is in all three: by start, by end, and in order of (size, start).
        self._size_at: dict[int, int] = {}
        self._start_of: dict[int, int] = {}
        self._by_size: list[tuple[int, int]] = []

    @property
    def largest_free(self) -> int:
        """The size of the largest free interval."""
        return self._by_size[-1][0] if self._by_size else 0

    @property
    def free(self) -> int:
        """The bytes in all free intervals."""
        return sum(self._size_at.values())

    def intervals(self) -> list[tuple[int, int]]:
        """The free intervals as (start, size), in address order."""
        return sorted(self._size_at.items())

    def pieces(self) -> list[tuple[int, int]]:
        """The mapped pieces as (start, size), in address order."""
        return [(start, self._pieces[start][0]) for start in self._piece_starts]

    def parts(self, address: int) -> bool:
        """Whether what lies on both sides of an address must stay apart."""
        return self._whole and address in self._pieces

    def take(self, size: int) -> int | None:
        """The start of `size` bytes of the smallest free interval that holds them, or None."""
        # Best fit, of equal sizes the lowest address.
        index = bisect_left(self._by_size, (size, 0))
        if index == len(self._by_size):
            return None
        found, start = self._by_size.pop(index)
        del self._size_at[start]
        if found == size:
            del self._start_of[start + size]
        else:
            rest = start + size
            self._size_at[rest] = found - size
            self._start_of[start + found] = rest
            insort(self._by_size, (found - size, rest))
        return start

    def give(self, start: int, size: int) -> None:
        """Frees an interval, and coalesces it with free neighbours."""
        end = start + size
        after = self._size_at.get(end)
        if after is not None and not self.parts(end):
            self._remove(end, after)
            end += after
        before = self._start_of.get(start)
        if before is not None and not self.parts(start):
            self._remove(before, start - before)
            start = before
        self._insert(start, end - start)

    def grow(self, size: int, spare: int) -> bool:
        """Maps memory until a free interval of `size` bytes exists; False if addresses ran out.

        The window that needs least new memory is chosen. At most `spare` bytes are mapped; where
        they allow, more than needed, for the next requests. Raises `DeviceMemoryExhausted` where
        the device has no more; what was mapped by then stays free.
        """
        chosen = self._cheapest(size)
        if chosen is None:
            return False
        start, end, cost = chosen
        if cost > spare:
            return False
        for gap_start, gap_end in list(self._gaps()):
            low, high = max(gap_start, start), min(gap_end, end)
            if low >= high:
                continue
            low -= (low - self.base) % self._unit
            high = low + _round_up(high - low, self._unit)
            ahead = high
            if gap_end == self.base + self.span:
                # The end of the mapped range grows ahead, by a 16th of what is mapped, so that few
                # requests call the driver; in whole pieces, so that blocks of round sizes free
                # whole pieces again.
                step = _round_up(max(high - low, min(self.mapped // 16, 1 << 28)), self._piece)
                if step <= spare and low + step <= gap_end:
                    ahead = low + step
            try:
                self._map(low, ahead)
            except DeviceMemoryExhausted:
                # Not enough for growing ahead: map what the request itself needs.
                reached = self._reach(low)
                if reached < high:
                    self._map(reached, high)
            spare -= high - low
        return True

    def unmap_free(self) -> int:
        """Unmaps every piece that is wholly free, and returns their bytes.

        Nothing queued on the device may still use them. Those that other processes have mapped
        stay.
        """
        freed = 0
        for start, size in self.intervals():
            end = start + size
            pieces = [p for p in self._pieces_within(start, end) if not self._driver.given(p)]
            if not pieces:
                continue
            self._remove(start, size)
            high = pieces[0]
            for piece in pieces:
                length, handle = self._pieces.pop(piece)
                self._driver.unmap(piece, length)
                self._driver.destroy(handle)
                self.driver_calls += 2
                freed += length
                high = piece + length
            if start < pieces[0]:
                self._insert(start, pieces[0] - start)
            if high < end:
                self._insert(high, end - high)
        self._piece_starts = sorted(self._pieces)
        self.mapped -= freed
        return freed

    def close(self) -> None:
        """Unmaps everything and gives the addresses back."""
        for piece, (length, handle) in self._pieces.items():
            self._driver.unmap(piece, length)
            self._driver.destroy(handle)
        for held in (self._pieces, self._piece_starts, self._size_at, self._start_of):
            held.clear()
        self._by_size.clear()
        self.mapped = 0
        self._driver.release(self.base, self.span)

    def _map(self, start: int, end: int) -> None:
        size = end - start
        if not self._whole:
            # Large requests get large pieces (an eighth of them): each costs two driver calls.
            size = max(self._piece, min(_round_up(size // 8, self._unit), _LARGEST_PIECE))
        while start < end:
            length = min(size, end - start)
            handle = self._driver.create(length)
            self._driver.map(start, length, handle)
            self.driver_calls += 2
            self._pieces[start] = (length, handle)
            insort(self._piece_starts, start)
            self.mapped += length
            self.give(start, length)
            start += length

    def _reach(self, start: int) -> int:
        """The end of the pieces that follow each other from `start`."""
        while start in self._pieces:
            start += self._pieces[start][0]
        return start

    def _gaps(self) -> Iterator[tuple[int, int]]:
        at = self.base
        for start in self._piece_starts:
            if start > at:
                yield at, start
            at = start + self._pieces[start][0]
        if at < self.base + self.span:
            yield at, self.base + self.span

    def _cheapest(self, size: int) -> tuple[int, int, int] | None:
        """(start, end, unmapped bytes inside) of the cheapest window of `size` unused bytes."""
        best: tuple[int, int, int] | None = None
        gaps = list(self._gaps())
        # A whole request gets a piece of its own, and nothing of those that are there.
        for low, high in gaps if self._whole else self._unused_runs(gaps):
            if high - low < size:
                continue
            # Candidates: unmapped bytes are fewest where a window touches an end of its run or of a
            # gap.
            inside = [g for g in gaps if low <= g[0] and g[1] <= high]
            starts = {low, high - size}
            for gap in inside:
                starts.update((gap[0], gap[1], gap[0] - size, gap[1] - size))
            for start in starts:
                if start < low or start + size > high:
                    continue
                end = start + size
                cost = 0
                for gap_start, gap_end in inside:
                    a, b = max(gap_start, start), min(gap_end, end)
                    if a < b:
                        a -= (a - self.base) % self._unit
                        cost += _round_up(b - a, self._unit)
                if best is None or (cost, start) < (best[2], best[0]):
                    best = (start, end, cost)
        return best

    def _unused_runs(self, gaps: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
        spans = sorted([*gaps, *((start, start + n) for start, n in self._size_at.items())])
        low, high = spans[0] if spans else (0, 0)
        for start, end in spans[1:]:
            if start == high:
                high = end
            else:
                yield low, high
                low, high = start, end
        if spans:
            yield low, high

    def _pieces_within(self, start: int, end: int) -> list[int]:
        first = bisect_left(self._piece_starts, start)
        last = bisect_right(self._piece_starts, end)
        return [p for p in self._piece_starts[first:last] if p + self._pieces[p][0] <= end]

    def _insert(self, start: int, size: int) -> None:
        self._size_at[start] = size
        self._start_of[start + size] = start
        insort(self._by_size, (size, start))

    def _remove(self, start: int, size: int) -> None:
        del self._size_at[start]
        del self._start_of[start + size]
        del self._by_size[bisect_left(self._by_size, (size, start))]


def _round_up(size: int, unit: int) -> int:
    return -(-size // unit) * unit
