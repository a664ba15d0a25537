"""The memory pool, on a driver that needs no GPU: nothing here touches the memory itself."""

from __future__ import annotations

import gc
import multiprocessing
import os
import random
import threading
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    precondition,
    rule,
)

from genesis_fn.backends.cuda.driver.errors import ForkedProcessError, OutOfMemory
from genesis_fn.backends.cuda.driver.interpret import InterpretDriver
from genesis_fn.backends.cuda.memory.address_space import AddressSpace
from genesis_fn.backends.cuda.memory.pool import Pool
from genesis_fn.backends.cuda.memory.report import memory_snapshot, memory_stats, memory_summary

MIB = 1 << 20


def small_device(total: int = 512 * MIB) -> InterpretDriver:
    return InterpretDriver(0, total_memory=total)


def shared_device(total: int = 512 * MIB) -> InterpretDriver:
    """One whose memory other processes may map."""
    driver = small_device(total)
    driver.info = replace(driver.info, shared=True)
    return driver


def check(pool: Pool) -> None:
    """Every byte of mapped memory is in exactly one part, and every part is mapped."""
    parts = memory_snapshot(pool)
    for one, two in zip(parts, parts[1:], strict=False):
        assert one["address"] + one["size"] <= two["address"], (one, two)
    assert sum(part["size"] for part in parts) == pool.mapped
    assert sum(p["size"] for p in parts if p["state"] == "live") == pool.in_use
    assert pool.mapped <= pool.limit
    for part in parts:
        pool.driver._check(part["address"], part["size"])
    for space in (pool.small_space, pool.large_space):
        intervals = space.intervals()
        assert space.free == sum(size for _, size in intervals)
        assert space.largest_free == max((size for _, size in intervals), default=0)
        begins = {start for start, _ in space.pieces()} if pool.driver.info.shared else set()
        for (start, size), (after, _) in zip(intervals, intervals[1:], strict=False):
            assert start + size < after or after in begins, "free neighbours are joined"
    if pool.driver.info.shared:
        pieces = [p for s in (pool.small_space, pool.large_space) for p in s.pieces()]
        for part in parts:
            start, size = max(p for p in pieces if p[0] <= part["address"])
            assert part["address"] + part["size"] <= start + size, "it reaches into the next piece"


class PoolMachine(RuleBasedStateMachine):
    """Random allocations and frees against what a pool must guarantee."""

    blocks = Bundle("blocks")
    device = staticmethod(small_device)

    def __init__(self) -> None:
        super().__init__()
        self.driver = self.device(256 * MIB)
        self.pool = Pool(self.driver, slack=16 * MIB)
        self.live: set[int] = set()

    @rule(
        target=blocks,
        size=st.one_of(st.integers(0, 5000), st.integers(0, 2 * MIB), st.integers(MIB, 100 * MIB)),
    )
    def alloc(self, size):
        try:
            block = self.pool.alloc(size, "a line")
        except OutOfMemory as error:
            self.pool.reclaim()
            held = error.in_use + self.pool.rounded(size)
            # Small blocks cannot use what large ones hold in partly used pieces, and conversely.
            assert held > self.driver.info.total_memory // 2 or size > error.largest_free
            return [None]
        assert block.bytes == size and block.address % 512 == 0
        assert block.address not in self.live
        self.live.add(block.address)
        return [block]

    @rule(holder=consumes(blocks))
    def free(self, holder):
        if holder[0] is not None:
            self.live.discard(holder[0].address)
            holder[0] = None

    @rule()
    def empty_cache(self):
        self.pool.empty_cache()
        stats = memory_stats(self.pool)
        assert stats["mapped"] <= self.driver.info.total_memory

    @invariant()
    def sound(self):
        check(self.pool)
        assert self.pool.peak >= self.pool.in_use
        assert len(self.pool.live) == len(self.live)

    def teardown(self):
        self.live.clear()


class SharedPoolMachine(PoolMachine):
    """The same, of memory that other processes map: sometimes they do."""

    device = staticmethod(shared_device)

    def __init__(self) -> None:
        super().__init__()
        self.given: set[tuple[int, int]] = set()

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def give(self, data):
        address = data.draw(st.sampled_from(sorted(self.live)))
        self.driver._give(address, 1)
        pieces = [*self.pool.small_space.pieces(), *self.pool.large_space.pieces()]
        self.given.add(max(p for p in pieces if p[0] <= address))

    @invariant()
    def what_was_given_stays(self):
        pieces = [*self.pool.small_space.pieces(), *self.pool.large_space.pieces()]
        assert self.given <= set(pieces)


TestPool = PoolMachine.TestCase
TestSharedPool = SharedPoolMachine.TestCase
TestPool.settings = TestSharedPool.settings = settings(
    max_examples=40, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_windows_that_need_least_new_memory(data):
    """`_cheapest` agrees with trying every start."""
    driver = InterpretDriver(0, total_memory=4 * MIB, granularity=4096)
    space = AddressSpace(driver, span=32 * 4096, piece=4096)
    space.grow(32 * 4096, 1 << 40)
    held = [space.take(4096) for _ in range(32)]
    for index in data.draw(st.lists(st.integers(0, 31), unique=True), label="unmapped"):
        space.give(held[index], 4096)
        held[index] = None
    space.unmap_free()
    quarters = [h for h in held if h is not None]
    for start in quarters:
        if data.draw(st.booleans()):
            first = data.draw(st.sampled_from([256, 1024, 4096]))
            space.give(start, first)
    size = 256 * data.draw(st.integers(1, 200), label="size")
    state = ["gap"] * 32 * 16
    for start, length in space.pieces():
        for unit in range((start - space.base) // 256, (start - space.base + length) // 256):
            state[unit] = "used"
    for start, length in space.intervals():
        for unit in range((start - space.base) // 256, (start - space.base + length) // 256):
            state[unit] = "free"
    costs = []
    for unit in range(len(state) - size // 256 + 1):
        window = state[unit : unit + size // 256]
        if "used" not in window:
            pages = {(unit + i) // 16 for i, s in enumerate(window) if s == "gap"}
            costs.append(4096 * len(pages))
    found = space._cheapest(size)
    assert (found is None) == (not costs)
    if found is not None:
        assert found[2] == min(costs)
        before = space.mapped
        assert space.grow(size, 1 << 40)
        assert space.take(size) is not None
        assert space.mapped - before >= found[2]


def test_reuse_of_the_same_size():
    pool = Pool(small_device())
    address = pool.alloc(1000).address
    for size in (1000, 513, 1024):
        block = pool.alloc(size)
        assert block.address == address, size
        del block
    stats = memory_stats(pool)
    assert (stats["hits"], stats["misses"]) == (3, 1)
    assert stats["in_use"] == 0 and stats["peak"] == 1024
    calls = pool.driver_calls
    for _ in range(100):
        pool.alloc(1000)
    assert pool.driver_calls == calls


@pytest.mark.parametrize("size", [0, 1, 511, 512, 513, 1 << 20, (1 << 20) + 1, 33 * MIB])
def test_rounding(size):
    pool = Pool(small_device())
    taken = pool.rounded(size)
    block = pool.alloc(size)
    assert pool.in_use == taken >= max(size, 512)
    assert taken <= max(512, 1.25 * size, size + 65536)
    assert block.bytes == size
    check(pool)


def test_negative_size():
    with pytest.raises(ValueError, match="-1 bytes"):
        Pool(small_device()).alloc(-1)


def test_growing_sizes_reuse_one_place():
    """N, N+1, N+2, ... does not leave a trail of cached blocks behind."""
    pool = Pool(small_device(), slack=0)
    for i in range(1, 65):
        block = pool.alloc(i * MIB + 1)
        del block
    assert pool.peak_mapped <= 100 * MIB
    check(pool)


def test_joins_neighbours_of_all_orders():
    for order in ([0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]):
        pool = Pool(small_device(), slack=0)
        blocks = [pool.alloc(8 * MIB) for _ in range(3)]
        start = blocks[0].address
        for i in order:
            blocks[i] = None
        assert pool.alloc(24 * MIB).address == start


def test_scattered_memory_moves_to_where_it_is_contiguous():
    """Half the device is free in pieces; one block of nearly that half still fits."""
    driver = small_device(512 * MIB)
    pool = Pool(driver)
    blocks = [pool.alloc(32 * MIB) for _ in range(16)]
    assert memory_stats(pool)["mapped"] == 512 * MIB
    kept = blocks[::2]
    blocks = None
    before = memory_stats(pool)
    assert before["largest_free"] == 32 * MIB and before["fragmentation"] == 1 - 32 / 256
    big = pool.alloc(256 * MIB)
    driver._check(big.address, 256 * MIB)
    check(pool)
    stats = memory_stats(pool)
    assert stats["retries"] == 1 and stats["in_use"] == 512 * MIB
    assert len({b.address for b in kept}) == 8


def test_scattered_memory_that_others_have_mapped_stays():
    """Of pieces that are free, those that nobody else has mapped serve one block."""
    driver = shared_device(512 * MIB)
    pool = Pool(driver)
    blocks = [pool.alloc(32 * MIB) for _ in range(16)]
    driver._give(blocks[2].address, 32 * MIB)
    kept, blocks = blocks[1::2], None
    with pytest.raises(OutOfMemory):
        pool.alloc(256 * MIB)
    assert pool.alloc(224 * MIB).bytes == 224 * MIB
    assert pool.mapped == 512 * MIB and len(kept) == 8
    check(pool)


def test_out_of_memory_says_what_is_held_and_recovers():
    pool = Pool(small_device(512 * MIB))
    held = [pool.alloc(100 * MIB, "model.py:10 (init)") for _ in range(3)]
    held.append(pool.alloc(152 * MIB, "train.py:7 (step)"))
    with pytest.raises(OutOfMemory) as caught:
        pool.alloc(200 * MIB, "train.py:8")
    error = caught.value
    assert error.requested == 200 * MIB and error.in_use == 452 * MIB
    assert error.mapped <= error.limit == 512 * MIB
    assert error.largest_free <= error.cached == error.mapped - error.in_use
    assert error.sites == (
        (300 * MIB, 3, "model.py:10 (init)"),
        (152 * MIB, 1, "train.py:7 (step)"),
    )
    assert "200.00 MiB requested" in str(error) and "model.py:10" in str(error)
    assert len(str(error).splitlines()) <= 6
    check(pool)
    assert pool.alloc(50 * MIB).bytes == 50 * MIB
    held.pop()
    assert pool.alloc(200 * MIB).bytes == 200 * MIB
    check(pool)


def test_memory_fraction():
    pool = Pool(small_device(512 * MIB))
    pool.set_memory_fraction(0.25)
    block = pool.alloc(100 * MIB)
    with pytest.raises(OutOfMemory):
        pool.alloc(100 * MIB)
    assert pool.mapped <= 128 * MIB
    pool.set_memory_fraction(1.0)
    assert pool.alloc(100 * MIB) is not block
    for fraction in (0, -1, 1.5):
        with pytest.raises(ValueError, match="fraction"):
            pool.set_memory_fraction(fraction)


def test_another_process_holding_the_device():
    """The device is short although the limit is not: what fits is found without the margin."""
    driver = small_device(512 * MIB)
    other = driver.create(470 * MIB)
    pool = Pool(driver)
    block = pool.alloc(20 * MIB)
    tiny = pool.alloc(10)
    with pytest.raises(OutOfMemory) as caught:
        pool.alloc(40 * MIB)
    assert caught.value.free_on_device < 40 * MIB
    driver.destroy(other)
    assert pool.alloc(40 * MIB).bytes == 40 * MIB
    assert (block.bytes, tiny.bytes) == (20 * MIB, 10)
    check(pool)


def test_cycles_are_collected_before_giving_up():
    pool = Pool(small_device(512 * MIB))
    gc.disable()
    try:
        cycle = [pool.alloc(400 * MIB)]
        cycle.append(cycle)
        del cycle
        assert pool.alloc(300 * MIB).bytes == 300 * MIB
    finally:
        gc.enable()


class SlowEvents(InterpretDriver):
    """Events complete when the test says so."""

    def __init__(self) -> None:
        super().__init__(0, total_memory=512 * MIB)
        self.complete: set[int] = set()
        self.destroyed = 0

    def done(self, event):
        return id(event) in self.complete

    def wait_host(self, event):
        self.complete.add(id(event))

    def destroy_event(self, event):
        self.destroyed += 1


def test_blocks_used_by_another_stream_wait_for_it():
    driver = SlowEvents()
    pool = Pool(driver)
    event = driver.new_event()
    block = pool.alloc(4 * MIB)
    address = block.address
    block.hold_until(event)
    del block
    other = pool.alloc(4 * MIB)
    assert other.address != address
    assert pool.in_use == 8 * MIB, "a held block is in use"
    driver.complete.add(id(event))
    del other
    pool.reclaim()
    assert pool.in_use == 0 and driver.destroyed == 1
    waiting = pool.alloc(400 * MIB)
    waiting.hold_until(driver.new_event())
    del waiting
    assert pool.alloc(300 * MIB).bytes == 300 * MIB, "pressure waits for events"
    check(pool)


def test_empty_cache_returns_memory():
    driver = small_device()
    pool = Pool(driver)
    kept = pool.alloc(1000)
    for size in (5, 5000, MIB, 50 * MIB):
        pool.alloc(size)
    mapped = pool.mapped
    assert pool.empty_cache() >= 50 * MIB
    assert driver.memory_info()[0] == 512 * MIB - pool.mapped > 512 * MIB - mapped
    del kept
    pool.empty_cache()
    assert pool.mapped == 0 and driver.memory_info()[0] == 512 * MIB


def test_closing_returns_everything():
    driver = small_device()
    pool = Pool(driver)
    block = pool.alloc(5 * MIB)
    with pytest.raises(RuntimeError, match="1 blocks"):
        pool.close()
    del block
    pool.close()
    assert driver.memory_info()[0] == 512 * MIB and not driver._ranges


def test_blocks_of_round_sizes_free_whole_pieces():
    """All but every second 32 MiB are given back, however the pool grew."""
    driver = small_device(2048 * MIB)
    pool = Pool(driver)
    blocks = [pool.alloc(32 * MIB) for _ in range(60)]
    del blocks[1::2]
    pool.empty_cache()
    assert pool.mapped == pool.in_use == 30 * 32 * MIB


def test_statistics_and_summary():
    pool = Pool(small_device())
    block = pool.alloc(3 * MIB, "here")
    dropped = pool.alloc(5 * MIB)
    del dropped
    stats = memory_stats(pool)
    assert stats["in_use"] == stats["requested"] == 3 * MIB and stats["peak"] == 8 * MIB
    assert stats["cached"] == stats["mapped"] - 3 * MIB
    assert stats["live_blocks"] == 1 and stats["allocations"] == 2
    assert stats["fragmentation"] == 0.0, "cached neighbours count as one run"
    pool.reset_peak()
    assert memory_stats(pool)["peak"] == 3 * MIB
    text = memory_summary(pool)
    assert "in use" in text and "3.00 MiB" in text and "here" in text
    states = [part["state"] for part in memory_snapshot(pool)]
    assert states.count("live") == 1 and states.count("cached") == 1
    assert block.device == 0 and "3145728 bytes" in repr(block)


def test_threads_allocate_free_and_hand_over():
    pool = Pool(small_device(), slack=8 * MIB)
    errors, handed = [], []
    lock = threading.Lock()

    def work(seed: int) -> None:
        choose = random.Random(seed)
        held = []
        try:
            for _ in range(400):
                size = choose.choice([10, 700, 5000, 100_000, 3 * MIB, 5 * MIB])
                held.append(pool.alloc(size, seed))
                if choose.random() < 0.6:
                    held.pop(choose.randrange(len(held)))
                if len(held) > 8:
                    with lock:
                        handed.append(held.pop())
                        if len(handed) > 10:
                            handed.pop(0)  # freed in another thread than its own
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors
    check(pool)
    handed.clear()
    stats = memory_stats(pool)
    assert stats["in_use"] == 0 and stats["live_blocks"] == 0
    assert stats["allocations"] == 1600
    pool.empty_cache()
    assert pool.mapped == 0


def test_destructors_may_allocate():
    pool = Pool(small_device())

    class Holder:
        def __init__(self) -> None:
            self.block = pool.alloc(2 * MIB)
            self.cycle = self

        def __del__(self) -> None:
            pool.alloc(3 * MIB)

    previous = gc.get_threshold()
    gc.set_threshold(2, 2, 2)
    try:
        for _ in range(200):
            Holder()
    finally:
        gc.set_threshold(*previous)
    gc.collect()
    check(pool)
    assert memory_stats(pool)["in_use"] == 0


def _in_child(pool: Pool, result) -> None:
    try:
        pool.alloc(10)
    except ForkedProcessError as error:
        result.put(str(error))
    os._exit(0)


def test_a_forked_child_is_told():
    pool = Pool(small_device())
    kept = pool.alloc(10)
    context = multiprocessing.get_context("fork")
    result = context.SimpleQueue()
    child = context.Process(target=_in_child, args=(pool, result))
    child.start()
    child.join(20)
    assert "spawn" in result.get()
    assert pool.alloc(10).address != kept.address
