"""`genesis_fn.cuda`: devices by every name, figures, streams and events."""

from __future__ import annotations

import gc

import numpy as np
import programs
import pytest

import genesis_fn as gf
from genesis_fn.core.errors import BackendError


def test_a_gpu_has_a_name_and_figures() -> None:
    assert gf.cuda.is_available() and gf.cuda.device_count() >= 1
    for device in (None, 0, "cuda", "gpu:0", gf.cuda(0)):
        assert gf.cuda.get_device_name(device) == gf.cuda.get_device_name()
    major, _ = gf.cuda.get_device_capability()
    assert major >= 8
    free, total = gf.cuda.mem_get_info()
    assert 0 <= free <= total
    for device in ("cpu", gf.cpu()):
        with pytest.raises(BackendError, match="not a GPU"):
            gf.cuda.get_device_name(device)


def test_figures_follow_an_array() -> None:
    gf.cuda.synchronize()
    gc.collect()  # what tests before have left
    gf.cuda.reset_peak()
    before = gf.cuda.memory_allocated()
    x = programs.put(np.ones(1 << 18, np.float32))
    held = gf.cuda.memory_allocated() - before
    assert held >= 1 << 20
    assert gf.cuda.max_memory_allocated() >= before + held
    assert gf.cuda.memory_reserved() >= gf.cuda.memory_allocated()
    assert gf.cuda.memory_stats()["in_use"] == gf.cuda.memory_allocated()
    assert "in use" in gf.cuda.memory_summary().replace("_", " ")
    used = [part for part in gf.cuda.memory_snapshot() if part["state"] not in ("free", "cached")]
    assert sum(part["size"] for part in used) >= held
    del x
    gf.cuda.synchronize()
    assert gf.cuda.memory_allocated() == before
    assert gf.cuda.empty_cache() >= 0 and gf.cuda.memory_reserved() >= before


def test_events_order_and_time_the_stream() -> None:
    stream = gf.cuda.current_stream()
    assert stream.__cuda_stream__ == (0, stream.handle)
    start = stream.record_event(timing=True)
    programs.put(np.ones(1000, np.float32))
    end = gf.cuda.Event()
    end.record()
    stream.wait_event(end)
    stream.synchronize()
    end.synchronize()
    assert start.query() and end.query()
    assert start.elapsed_time(end) >= 0
