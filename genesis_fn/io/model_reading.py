"""A model's folder to parameters and config: `load_model`."""

from __future__ import annotations

import collections
import concurrent.futures
import itertools
import math
import os
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from genesis_fn.core import dtypes, tree
from genesis_fn.core.array import from_numpy
from genesis_fn.core.configuration import transfer_guard
from genesis_fn.core.configuration.settings import device_of
from genesis_fn.core.device import Device
from genesis_fn.core.errors import ArgumentError, FileError
from genesis_fn.core.files import brief
from genesis_fn.core.types.annotations import Array, DTypeLike, PyTree
from genesis_fn.io.huggingface import COMPUTED, Part, hf_name, parts
from genesis_fn.io.safetensors import Entry, Span, flat_names
from genesis_fn.io.shards import read_folder
from genesis_fn.models import QwenConfig, qwen
from genesis_fn.random import key
from genesis_fn.transforms.jitting import jit

WEIGHT_DTYPES = (dtypes.F16, dtypes.BF16, dtypes.F32, dtypes.F64)
_LAYER = re.compile(r"model\.layers\.(\d+)\.")
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")
# Arrays beside the weights that formats of quantized models have.
_QUANTIZED = re.compile(
    r".*\.(qweight|qzeros|scales|g_idx|absmax|quant_map|quant_state\..*|SCB|weight_scale(_inv)?|"
    r"input_scale|weight_packed|weight_blocks|weight_scales)"
)
# Of the arrays that a folder lacks so many are listed at most, a config may ask for any number.
_MOST_MISSING = 10_000
_CHUNK = 4 << 20  # bytes that a thread reads at once
_AHEAD = 256 << 20  # bytes that may be read before they are asked for
_THREADS = 4


def load_model(
    folder: str | os.PathLike[str],
    dtype: DTypeLike | None = None,
    device: Device | str | None = None,
) -> tuple[PyTree, QwenConfig]:
    """Read the folder of a Hugging Face model.

    The model computes what transformers computes from the folder, or loading fails. Weights are
    read array by array, straight into the memory of the parameters: the host holds none of them
    twice.

    Args:
        folder: with config.json and model.safetensors, or several files and their index.
        dtype: floating dtype of the parameters; None keeps that of the files.
        device: where the parameters go; None means the default device.

    Returns:
        (parameters, config).

    Raises:
        ArgumentError: `dtype` is not float16, bfloat16, float32 or float64.
        FileError: names the file, and a field of config.json that is not honoured, or all arrays
            that are missing, unexpected, of the wrong shape or quantized.

    >>> import tempfile
    >>> config = models.QwenConfig(64, 32, 64, 2, 4, 2, 8)
    >>> folder = os.path.join(tempfile.mkdtemp(), "tiny")
    >>> save_model(folder, models.qwen.init(random.key(0), config), config)
    >>> params, loaded = load_model(folder, dtype="bfloat16")
    >>> loaded == config, params["norm"]["weight"].dtype
    (True, dtype(bfloat16))
    """
    folder = os.fspath(folder)
    wanted = None if dtype is None else dtypes.dtype(dtype)
    if wanted is not None and wanted not in WEIGHT_DTYPES:
        raise ArgumentError(
            f"load_model: dtype is {wanted}, expected float16, bfloat16, float32 or float64"
        )
    place = device_of(device)
    config = QwenConfig.from_file(folder)
    entries = read_folder(folder)
    _check_layers(entries, config, folder)
    if config.tie_word_embeddings and "lm_head.weight" in entries:
        _check_tied(entries, folder)
    shapes = parameter_shapes(config)
    named = {hf_name(n): tuple(x.shape) for n, x in flat_names(shapes).items()}
    leaves = []
    with transfer_guard.asked_for():
        for x in _read_ahead(_sources(named, entries, folder)):
            leaves.append(_placed(x, wanted, place))
    return tree.unflatten(tree.structure(shapes), leaves), config


def load_qwen(
    folder: str | os.PathLike[str], dtype: DTypeLike | None = None
) -> tuple[PyTree, QwenConfig]:
    """`load_model` by an earlier name.

    Args:
        folder: as there.
        dtype: as there.

    Returns:
        (parameters, config).

    Raises:
        ArgumentError, FileError: as there.

    >>> import tempfile
    >>> config = models.QwenConfig(64, 32, 64, 2, 4, 2, 8)
    >>> folder = os.path.join(tempfile.mkdtemp(), "tiny")
    >>> save_model(folder, models.qwen.init(random.key(0), config), config)
    >>> params, loaded = load_qwen(folder)
    >>> loaded == config
    True
    """
    return load_model(folder, dtype)


def parameter_shapes(config: QwenConfig) -> PyTree:
    """The parameters of a config, as shapes."""
    return jit(lambda: qwen.init(key(0), config)).eval_shape()


def _placed(x: np.ndarray, dtype: dtypes.DType | None, device: Device | None) -> Array:
    """An Array over the memory of `x`, or cast to `dtype` on the device."""
    array = from_numpy(x, device, copy=False)
    return array if dtype is None or array.dtype == dtype else array.astype(dtype)


# ---- what the folder holds ----


def _check_layers(entries: dict[str, Entry], config: QwenConfig, folder: str) -> None:
    """Before the shapes are computed, which takes a time for each layer."""
    layers = {m.group(1) for m in map(_LAYER.match, entries) if m}
    if len(layers) != config.num_hidden_layers:
        raise FileError(
            f"{folder}: config.json has num_hidden_layers {config.num_hidden_layers}, the arrays "
            f"are of {len(layers)} layers"
        )


def _check_tied(entries: dict[str, Entry], folder: str) -> None:
    """Remove the output layer's weight from `entries`. Raises FileError if it is one of its own."""
    head, table = entries.pop("lm_head.weight"), entries.get("model.embed_tokens.weight")
    if table is None or (
        (head.shape, head.dtype) == (table.shape, table.dtype) and _same(head.span, table.span)
    ):
        return
    raise FileError(
        f"{folder}: config.json has tie_word_embeddings true, but lm_head.weight is another array "
        "than model.embed_tokens.weight: set it to false, or remove lm_head.weight"
    )


def _same(a: Span, b: Span) -> bool:
    x, y = bytearray(_CHUNK), bytearray(_CHUNK)
    for at in range(0, a.size, _CHUNK):
        n = min(_CHUNK, a.size - at)
        _read_into(memoryview(x)[:n], a, at)
        _read_into(memoryview(y)[:n], b, at)
        if x[:n] != y[:n]:
            return False
    return True


class _Source(NamedTuple):
    """A parameter as the bytes of files that follow each other in it."""

    dtype: dtypes.DType
    shape: tuple[int, ...]
    spans: list[Span]


def _sources(
    named: dict[str, tuple[int, ...]], entries: dict[str, Entry], folder: str
) -> list[_Source]:
    """Where each parameter lies. Raises one FileError for all that does not fit."""
    sources: list[_Source] = []
    missing: list[str] = []
    shapes: dict[str, str] = {}
    kinds: dict[str, str] = {}
    used: set[str] = set()
    for name, shape in named.items():
        spans: list[Span] = []
        found: set[dtypes.DType] = set()
        for part in parts(name, shape, entries):
            entry = entries.get(part.name)
            if entry is None:
                missing.append(part.name)
                if len(missing) == _MOST_MISSING:
                    break
                continue
            used.add(part.name)
            found.add(entry.dtype)
            if entry.shape != part.shape:
                shapes[part.name] = (
                    f"has shape {brief(list(entry.shape))}, the config asks for {list(part.shape)}"
                )
            elif entry.dtype not in WEIGHT_DTYPES:
                kinds[part.name] = f"is of dtype {entry.dtype}"
            else:
                spans += _spans(part, entry)
        if len(missing) == _MOST_MISSING:
            break
        if len(found) > 1 and all(d in WEIGHT_DTYPES for d in found):
            kinds[name] = f"has experts of dtypes {' and '.join(sorted(map(str, found)))}"
        elif len(found) == 1:
            sources.append(_Source(found.pop(), shape, spans))
    unexpected = [n for n in entries if n not in used and not COMPUTED.fullmatch(n)]
    if missing or unexpected or shapes or kinds:
        raise FileError(_report(folder, missing, unexpected, shapes, kinds))
    return sources


def _spans(part: Part, entry: Entry) -> list[Span]:
    """The bytes of a part, in its order."""
    if part.shares == 1:
        return [entry.span]
    file, start, size = entry.span
    blocks = math.prod(part.shape[:-2]) * part.shares
    step = size // blocks
    return [Span(file, start + i * step, step) for i in range(part.which, blocks, part.shares)]


# ---- what does not fit ----


def _report(
    folder: str,
    missing: list[str],
    unexpected: list[str],
    shapes: dict[str, str],
    kinds: dict[str, str],
) -> str:
    lines = []
    if missing:
        more = " or more" if len(missing) == _MOST_MISSING else ""
        lines.append(f"missing {_grouped(missing, 3)}{more}")
    if unexpected and len(missing) < _MOST_MISSING:
        lines.append(f"unexpected {_grouped(unexpected, 3)}")
    for found in (shapes, kinds):
        if found:
            first = [f"{_short(n)} {what}" for n, what in itertools.islice(found.items(), 2)]
            rest = f" and {len(found) - 2:,} more like it" if len(found) > 2 else ""
            lines.append("; ".join(first) + rest)
    quantized = next((n for n in unexpected if _QUANTIZED.fullmatch(n)), None)
    if kinds or quantized:
        lines[-1] += (
            "; weights of a quantized model are not read: take the folder of the model that it was "
            "made from"
        )
    return f"{folder}: " + "\n  ".join(["the weights do not fit config.json", *lines])


def _grouped(names: Iterable[str], most: int) -> str:
    """Names with their numbers left out, each with how many there are; a few of them."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(_NUMBER.sub("*", name), []).append(name)
    shown = [
        _short(of[0]) if len(of) == 1 else f"{_short(pattern)} ({len(of):,} arrays)"
        for pattern, of in itertools.islice(groups.items(), most)
    ]
    rest = sum(len(of) for of in itertools.islice(groups.values(), most, None))
    return ", ".join(shown) + (f" and {rest:,} more" if rest else "")


def _short(name: str) -> str:
    return brief(name)[1:-1]


# ---- the bytes ----


def _read_ahead(sources: list[_Source]) -> Iterator[np.ndarray]:
    """The arrays in order, each in memory of its own, while threads read the next ones."""
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


def _jobs(x: np.ndarray, spans: list[Span]) -> Iterator[tuple[list[memoryview], list[Span]]]:
    """(memory, bytes of files) in pieces of some size for threads: cut, or several together."""
    memory = memoryview(x.reshape(-1).view(np.uint8))
    at = 0
    into: list[memoryview] = []
    pieces: list[Span] = []
    held = 0
    for file, start, size in spans:
        for offset in range(0, size, _CHUNK):
            n = min(_CHUNK, size - offset)
            into.append(memory[at : at + n])
            pieces.append(Span(file, start + offset, n))
            at, held = at + n, held + n
            if held >= _CHUNK:
                yield into, pieces
                into, pieces, held = [], [], 0
    if pieces:
        yield into, pieces


def _read(into: list[memoryview], spans: list[Span]) -> None:
    for memory, span in zip(into, spans):
        _read_into(memory, span)


def _read_into(memory: memoryview, span: Span, offset: int = 0) -> None:
    """Fill memory with the bytes of a file from `offset` of the span."""
    with span.file.open() as f:
        done = 0
        while done < len(memory):
            n = os.preadv(f.fileno(), [memory[done:]], span.start + offset + done)
            if n == 0:
                raise FileError(f"{span.file.path}: cut short while it was read")
            done += n
