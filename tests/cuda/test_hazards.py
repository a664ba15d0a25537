"""Which steps of a program wait for which: the edges against all pairs that touch one memory."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from genesis_fn.backends.cuda import hazards
from genesis_fn.backends.cuda.hazards import Touched, predecessors, union

ranges = st.tuples(st.integers(0, 30), st.integers(0, 8)).map(lambda r: (r[0], r[0] + r[1]))
steps = st.builds(
    Touched, st.lists(ranges, max_size=3).map(tuple), st.lists(ranges, max_size=2).map(tuple)
)


def touched_bytes(ranges) -> set[int]:
    return {b for start, stop in ranges for b in range(start, stop)}


def must_wait(first: Touched, second: Touched) -> bool:
    """Whether two steps may not change places, byte by byte."""
    read, written = touched_bytes(second.reads), touched_bytes(second.writes)
    before = touched_bytes(first.writes)
    return bool(before & (read | written) or touched_bytes(first.reads) & written)


def closure(edges: list[tuple[int, ...]]) -> np.ndarray:
    """reach[n, p]: whether step n comes after step p."""
    reach = np.zeros((len(edges), len(edges)), bool)
    for n, before in enumerate(edges):
        for p in before:
            reach[n] |= reach[p]
            reach[n, p] = True
    return reach


def width(reach: np.ndarray) -> int:
    """The most steps that may run at once: steps less a maximum matching of the order (Dilworth's
    theorem)."""
    match: dict[int, int] = {}

    def augment(n: int, seen: set[int]) -> bool:
        for p in np.flatnonzero(reach[n]):
            if p not in seen:
                seen.add(p)
                if p not in match or augment(match[p], seen):
                    match[p] = n
                    return True
        return False

    return len(reach) - sum(augment(n, set()) for n in range(len(reach)))


@settings(max_examples=300, deadline=None)
@given(st.lists(steps, max_size=24), st.integers(1, 5))
def test_edges_order_what_touches_the_same_memory_and_are_few(program, lanes):
    edges = predecessors(program, lanes)
    assert all(p < n for n, before in enumerate(edges) for p in before)
    reach = closure(edges)
    for n, second in enumerate(program):
        for p, first in enumerate(program[:n]):
            assert reach[n, p] or not must_wait(first, second), (p, n)
    assert width(reach) <= lanes
    for n, before in enumerate(edges):
        for p in before:
            others = [q for q in before if q != p]
            assert not any(reach[q, p] for q in others), f"edge {p} -> {n} follows from others"


def test_one_lane_is_a_chain():
    program = [Touched((), ((10 * i, 10 * i + 10),)) for i in range(5)]
    assert predecessors(program, 1) == [(), (0,), (1,), (2,), (3,)]
    with pytest.raises(ValueError, match="at least one lane"):
        predecessors(program, 0)


def test_independent_branches_overlap_and_join():
    """Two products of one gradient, then a step that needs both."""
    mib = 1 << 20
    gradient, left, right = [(i * 64 * mib, (i + 1) * 64 * mib) for i in range(3)]
    program = [
        Touched((), (gradient,)),
        Touched((gradient,), (left,)),
        Touched((gradient,), (right,)),
        Touched((left, right), ()),
    ]
    assert predecessors(program, 2) == [(), (0,), (0,), (2, 1)]


def test_memory_that_is_used_again_waits_for_its_readers():
    a, b, c = (0, 1 << 26), (1 << 26, 2 << 26), (2 << 26, 3 << 26)
    program = [Touched((), (a,)), Touched((a,), (b,)), Touched((a,), (c,)), Touched((), (a,))]
    assert set(predecessors(program, 4)[3]) == {1, 2}


def test_a_step_stays_in_the_lane_that_it_continues():
    """Two chains side by side: no edge between them."""
    program = [Touched((), ((8 * (i % 2), 8 * (i % 2) + 4),)) for i in range(8)]
    assert predecessors(program, 2) == [(), ()] + [(i,) for i in range(6)]


def test_union_is_all_of_it():
    got = union([Touched(((0, 4),), ((4, 8),)), Touched(((2, 6), (9, 9)), ((8, 9),))])
    assert touched_bytes(got.reads) == set(range(6))
    assert touched_bytes(got.writes) == set(range(4, 9))


def test_long_programs_take_little_work(monkeypatch):
    """The search looks at a bounded number of ranges for each step of a program that reuses its
    arena."""
    count, looked = 20_000, 0
    within = hazards._History._within

    def counted(self, r):
        nonlocal looked
        found = within(self, r)
        looked += len(found)
        return found

    monkeypatch.setattr(hazards._History, "_within", counted)
    size = 1 << 20
    slot = lambda i: (i % 64 * size, (i % 64 + 1) * size)
    program = [Touched((slot(i), slot(7 * i + 3)), (slot(i + 1),)) for i in range(count)]
    predecessors(program, 4)
    assert looked <= 4 * count
