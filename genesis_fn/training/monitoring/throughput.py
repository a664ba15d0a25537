"""How fast a run is."""

from __future__ import annotations

import collections
import time

_WINDOW = 20  # steps that a rate is taken of


class Throughput:
    """Tokens per second over the last steps, without the first, which compiles the program."""

    def __init__(self) -> None:
        self._ends: collections.deque[tuple[float, int]] = collections.deque(maxlen=_WINDOW + 1)
        self._began = time.perf_counter()
        self._tokens = 0
        self._away = 0.0

    def advanced(self, tokens: int) -> float:
        """A step of so many tokens has ended. Returns tokens per second."""
        self._tokens += tokens
        self._ends.append((time.perf_counter() - self._away, self._tokens))
        return self.rate()

    def paused(self, seconds: float) -> None:
        """So many seconds went by that were no step's: an evaluation's, say."""
        self._away += seconds

    def rate(self) -> float:
        """Tokens per second."""
        first = self._ends[0] if len(self._ends) > 1 else (self._began, 0)
        last = self._ends[-1] if self._ends else (time.perf_counter(), 0)
        return (last[1] - first[1]) / max(last[0] - first[0], 1e-9)
