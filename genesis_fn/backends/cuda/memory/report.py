"""Reports about a pool: statistics, a summary, and a snapshot of its memory."""

from __future__ import annotations

from typing import Any

from genesis_fn.backends.cuda.driver.errors import size_text
from genesis_fn.backends.cuda.memory.pool import SMALL, Pool, slab_bytes


def memory_stats(pool: Pool) -> dict[str, int | float]:
    """The pool's counters; sizes in bytes.

    `in_use` counts what blocks take, `requested` what was asked for. `cached` is mapped and not in
    use. `hits` were served from a free list of their size, `misses` were not, `retries` needed the
    pressure path. `fragmentation` is the share of cached bytes outside the largest free run.
    """
    pool.reclaim()
    with pool.lock:
        cached = pool.mapped - pool.in_use
        largest = _largest_run(pool)
        return {
            "in_use": pool.in_use,
            "peak": pool.peak,
            "requested": sum(size for size, _, _ in pool.live.values()),
            "mapped": pool.mapped,
            "peak_mapped": pool.peak_mapped,
            "cached": cached,
            "largest_free": largest,
            "fragmentation": 1 - largest / cached if cached else 0.0,
            "limit": pool.limit,
            "live_blocks": len(pool.live),
            "allocations": pool.hits + pool.misses,
            "hits": pool.hits,
            "misses": pool.misses,
            "retries": pool.retries,
            "driver_calls": pool.driver_calls,
        }


def memory_snapshot(pool: Pool) -> list[dict[str, Any]]:
    """Every part of the mapped memory, in address order: {address, size, state, requested, site}.

    `state` is "live", "cached" (in a free list of its size), "free" (part of a joined run) or
    "spare" (the end of a slab, too short for one more block).
    """
    pool.reclaim()
    with pool.lock:
        parts = [
            _part(address, rounded, "live", size, site)
            for address, (size, rounded, site) in pool.live.items()
        ]
        for rounded, blocks in pool.free_lists.items():
            parts += [_part(address, rounded, "cached") for address in blocks]
        for slab, rounded in pool.slabs.items():
            used = slab_bytes(rounded) // rounded * rounded
            if used < slab_bytes(rounded):
                parts.append(_part(slab + used, slab_bytes(rounded) - used, "spare"))
        for space in (pool.small_space, pool.large_space):
            parts += [_part(start, size, "free") for start, size in space.intervals()]
    return sorted(parts, key=lambda part: part["address"])


def memory_summary(pool: Pool) -> str:
    """The statistics as a table for people, with the largest holders."""
    stats = memory_stats(pool)
    counts = {"live_blocks", "allocations", "hits", "misses", "retries", "driver_calls"}
    info = pool.driver.info
    lines = [f"memory of cuda:{info.index} ({info.name}, {size_text(info.total_memory)})"]
    for name, value in stats.items():
        if name == "fragmentation":
            shown = f"{value:.1%}"
        else:
            shown = f"{value:,}" if name in counts else size_text(int(value))
        lines.append(f"  {name.replace('_', ' '):<16} {shown:>14}")
    holders = pool.largest_sites(10)
    if holders:
        lines.append("largest holders")
        lines += [f"  {size_text(size):>12} in {n:>6} from {site}" for size, n, site in holders]
    return "\n".join(lines)


def _part(
    address: int, size: int, state: str, requested: int = 0, site: Any = None
) -> dict[str, Any]:
    return {
        "address": address,
        "size": size,
        "state": state,
        "requested": requested,
        "site": None if site is None else str(site),
    }


def _largest_run(pool: Pool) -> int:
    """The longest run of addresses that would be free if all cached blocks were joined."""
    free = pool.large_space.intervals()
    for rounded, blocks in pool.free_lists.items():
        if rounded > SMALL:
            free += [(address, rounded) for address in blocks]
    longest = end = run = 0
    for start, size in sorted(free):
        run = run + size if start == end and not pool.large_space.parts(start) else size
        end = start + size
        longest = max(longest, run)
    return max(longest, pool.small_space.largest_free)
