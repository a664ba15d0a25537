"""Arrays out of files: into a device's memory, or into the host's ahead of their use."""

from __future__ import annotations

import collections
import concurrent.futures
import os
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np

from genesis_fn.core import dtypes
from genesis_fn.core.array import ArrayImpl, from_bytes
from genesis_fn.core.aval import aval
from genesis_fn.core.device import Device
from genesis_fn.core.errors import FileError
from genesis_fn.io.safetensors import FileSpan

# A thread reads into memory that no page of is there yet, which costs as much as the copy: two on
# two cores read 1.3 times as fast as one, and several keep a disk busy.
_THREADS = 4
_CHUNK = 4 << 20  # bytes that a thread reads at once
_AHEAD = 256 << 20  # bytes that may be read before they are asked for


class ArraySource(NamedTuple):
    """An array as the bytes of files that follow each other in it."""

    dtype: dtypes.DType
    shape: tuple[int, ...]
    spans: list[FileSpan]


def read_onto(sources: Iterable[ArraySource], device: Device) -> list[ArrayImpl]:
    """The arrays on a device, read in pieces by several threads. Raises FileError for a file cut
    short."""
    return from_bytes([(aval(s.shape, s.dtype), _reader(s.spans)) for s in sources], device)


def _reader(spans: list[FileSpan]) -> Callable[[memoryview, int], None]:
    """What fills memory with the bytes of `spans`, from any of them on."""

    def read(memory: memoryview, start: int) -> None:
        done = before = 0
        for span in spans:
            at = start + done - before
            if at < span.size and done < len(memory):
                n = min(len(memory) - done, span.size - at)
                _fill(memory[done : done + n], FileSpan(span.file, span.start + at, n))
                done += n
            before += span.size

    return read


def read_ahead(sources: Iterable[ArraySource]) -> Iterator[np.ndarray]:
    """The arrays in order, each in memory of its own. Raises FileError for a file cut short."""
    waiting: collections.deque[tuple[np.ndarray, list[concurrent.futures.Future[None]]]]
    waiting, held = collections.deque(), 0
    pool = concurrent.futures.ThreadPoolExecutor(_THREADS, "weights")
    try:
        for source in sources:
            x = np.empty(source.shape, source.dtype)
            while waiting and held + x.nbytes > _AHEAD:
                held -= waiting[0][0].nbytes
                yield _finished(*waiting.popleft())
            waiting.append((x, [pool.submit(_read, *job) for job in _jobs(x, source.spans)]))
            held += x.nbytes
        while waiting:
            yield _finished(*waiting.popleft())
    finally:
        pool.shutdown(cancel_futures=True)


def _finished(x: np.ndarray, reads: list[concurrent.futures.Future[None]]) -> np.ndarray:
    for read in reads:
        read.result()
    return x


def _jobs(
    x: np.ndarray, spans: list[FileSpan]
) -> Iterator[tuple[list[memoryview], list[FileSpan]]]:
    """(memory, bytes of files) for a thread each: long spans cut, short ones together."""
    memory = x.reshape(-1).view(np.uint8).data
    into: list[memoryview] = []
    pieces: list[FileSpan] = []
    at = begun = 0
    for file, start, size in spans:
        for offset in range(0, size, _CHUNK):
            n = min(_CHUNK, size - offset)
            into.append(memory[at : at + n])
            pieces.append(FileSpan(file, start + offset, n))
            at += n
            if at - begun >= _CHUNK:
                yield into, pieces
                into, pieces, begun = [], [], at
    if pieces:
        yield into, pieces


def _read(into: list[memoryview], spans: list[FileSpan]) -> None:
    for memory, span in zip(into, spans):
        _fill(memory, span)


def _fill(memory: memoryview, span: FileSpan) -> None:
    """Fill memory with the bytes of a file. Not by a memory map: a file that is cut short while it
    is read would end the process."""
    with span.file.open() as f:
        done = 0
        while done < len(memory):
            n = os.preadv(f.fileno(), [memory[done:]], span.start + done)
            if n == 0:
                raise FileError(f"{span.file.path}: cut short while it was read")
            done += n


def same_bytes(a: FileSpan, b: FileSpan) -> bool:
    """Whether files hold the same bytes in two places of one size."""
    x, y = bytearray(min(_CHUNK, a.size)), bytearray(min(_CHUNK, a.size))
    for at in range(0, a.size, _CHUNK):
        n = min(_CHUNK, a.size - at)
        _fill(memoryview(x)[:n], FileSpan(a.file, a.start + at, n))
        _fill(memoryview(y)[:n], FileSpan(b.file, b.start + at, n))
        if memoryview(x)[:n] != memoryview(y)[:n]:
            return False
    return True
