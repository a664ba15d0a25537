"""The memory of a run: sizes, what is chosen to fit, and what is said where nothing does."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import subprocess
import sys

import numpy as np
import pytest

import genesis_fn
from genesis_fn import data, models
from genesis_fn.cli.language_model.exporting import export
from genesis_fn.cli.main import main
from genesis_fn.core import tree
from genesis_fn.core.device import cpu, using_device
from genesis_fn.errors import FileError, OutOfMemoryError
from genesis_fn.models import decoder
from genesis_fn.training.memory import budget, shortage
from genesis_fn.training.memory.candidates import by_cost, smaller_batches
from genesis_fn.training.memory.footprint import footprint
from genesis_fn.training.model import abstract_model, open_model
from genesis_fn.training.monitoring.amounts import read_size, size_text
from genesis_fn.training.run import prepare
from genesis_fn.training.settings.reading import read_settings
from genesis_fn.training.settings.sections import TrainingSettings

CONFIG = models.QwenConfig(
    vocab_size=320, hidden_size=32, intermediate_size=48, num_hidden_layers=3,
    num_attention_heads=2, num_key_value_heads=1, head_dim=16, max_position_embeddings=256,
)  # fmt: skip


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A folder with a tiny model and texts."""
    folder = tmp_path_factory.mktemp("base")
    tokenizer = data.train_tokenizer(["it is red blue green and " * 9], 300)
    data.save_tokenizer(tokenizer, folder / "tokenizer.json")
    end = tokenizer.token_to_id(data.END)
    params = decoder.init(genesis_fn.random.key(3), CONFIG)
    export(str(folder), params, CONFIG, models.GenerationConfig(eos_token_id=end), "")
    words = ["red", "blue", "green", "red and blue"] * 15
    rows = [json.dumps({"text": f"it is {w} and " * 5}) for w in words]
    (folder / "texts.jsonl").write_text("\n".join(rows))
    return folder


def command(base, out, *more):
    return [
        "train", "--model.path", str(base), "--data.train", str(base / "texts.jsonl"), "--batch",
        "8", "--data.length", "64", "--steps", "4", "--checkpoint.every", "2", "--out", str(out),
        "--log.plot", "false", *more,
    ]  # fmt: skip


def settings_of(base, out, **changed):
    given = {
        "model.path": str(base), "data.train": [str(base / "texts.jsonl")], "batch": 8,
        "data.length": 64, "steps": 4, "out": str(out),
    }  # fmt: skip
    return read_settings(None, {**given, **changed})


# ---- sizes ----


@pytest.mark.parametrize("text, size", [
    ("20GiB", 20 * 2**30), ("512MiB", 2**29), ("1.5 kb", 1500), ("7B", 7), (" 2 TiB ", 2**41),
    ("3GB", 3e9), ("80%", 800), ("100 %", 1000), ("0.5%", 5),
])  # fmt: skip
def test_sizes_are_read(text, size):
    assert read_size(text, 1000) == size


@pytest.mark.parametrize(
    "text", ["", "20", "GiB", "-1GiB", "0%", "101%", "0GiB", "0.1B", "1e3MiB", "1 GiB 2", "5GiBs"]
)
def test_what_is_no_size_is_refused(base, tmp_path, capsys, text):
    with pytest.raises(ValueError, match="is no size, expected such as 20GiB"):
        read_size(text, 1000)
    assert main(command(base, tmp_path / "out", f"--memory-budget={text}")) == 1
    said = capsys.readouterr().err
    wanted = f"memory_budget: {text!r} is no size" if text else "memory_budget is an empty text"
    assert wanted in said and said.count("\n") == 1


# ---- forecasts ----


@pytest.mark.parametrize("method", ["full", "lora"])
def test_a_forecast_is_that_of_the_run(base, tmp_path, method):
    """The abstract model, state and batch are those that the run has."""
    given = {"method": method, "ema": 0.9, "compute": "bfloat16", "accumulate": 2}
    settings = settings_of(base, tmp_path, **given)
    shapes = lambda x: [(p, a.shape, a.dtype) for p, a in tree.leaves_with_path(x)]
    real, abstract = open_model(settings), abstract_model(settings)
    assert shapes(abstract.trained) == shapes(real.trained)
    assert shapes(abstract.frozen) == shapes(real.frozen)
    prepared = prepare(settings, lambda _: None)
    batch = next(prepared.stream)
    found = footprint(settings)
    program = prepared.step.lower(prepared.state, prepared.model.frozen, batch).compile()
    assert found.temporary == program.memory_analysis()["temp_size_in_bytes"]
    count = lambda x: sum(a.size * a.dtype.itemsize for a in tree.leaves(x))
    wanted = count([prepared.state.params, prepared.model.frozen, prepared.state.opt_state])
    assert sum(found.held.values()) == wanted + count(prepared.state.ema)
    sizes = [size for _, size in found.holders]
    assert sizes == sorted(sizes, reverse=True) and len(sizes) == 5


def test_less_is_held_with_more_parts_and_with_recomputing(base, tmp_path):
    def peak(**changed):
        # Of so small a step a GPU's program recomputes what it can in any case.
        with using_device(cpu()):
            return footprint(settings_of(base, tmp_path, **changed)).peak

    for remat in (False, True):
        peaks = [peak(remat=remat, accumulate=k) for k in (1, 2, 4, 8)]
        assert peaks == sorted(peaks, reverse=True) and len(set(peaks)) == 4
    assert all(peak(remat=True, accumulate=k) < peak(accumulate=k) for k in (1, 2, 4))
    assert peak(batch=4) < peak() < peak(batch=16)


# ---- the choice ----


def wanted_order(batch, accumulate, remat):
    """(remat, accumulate) by what they cost: written out, and not as the code has it."""
    more = [accumulate * 2**i for i in range(1, 12) if batch % (accumulate * 2**i) == 0]
    plain = [(remat, accumulate)]
    recomputed = [] if remat else [(True, accumulate)]
    parts = [(remat, k) for k in more]
    both = [] if remat else [(True, k) for k in more]
    return plain + recomputed + parts + both


@pytest.mark.parametrize("batch, accumulate, remat", [
    (8, 1, False), (8, 2, True), (12, 1, False), (12, 3, False), (7, 1, False), (1, 1, True),
    (64, 4, False),
])  # fmt: skip
def test_the_first_that_fits_is_chosen(monkeypatch, batch, accumulate, remat):
    """Against every budget between the peaks of all candidates, which are drawn."""
    settings = TrainingSettings(batch=batch, accumulate=accumulate, remat=remat)
    order = wanted_order(batch, accumulate, remat)
    assert [(s.remat, s.accumulate) for s in by_cost(settings)] == order
    sizes = np.random.default_rng(batch).integers(1000, 9000, len(order)).tolist()
    peaks = dict(zip(order, sizes, strict=True))

    def drawn(s):
        size = peaks.get((s.remat, s.accumulate), 10**6) if s.batch == batch else 10**6
        return shortage.Footprint({"parameters": 0}, size, ())

    monkeypatch.setattr(budget, "footprint", drawn)
    monkeypatch.setattr(shortage, "footprint", drawn)
    for size in sorted({*sizes, *[s - 1 for s in sizes], *[s + 1 for s in sizes]}):
        asked = dataclasses.replace(settings, memory_budget=f"{size}B")
        fitting = [pair for pair in order if peaks[pair] <= size]
        said = []
        if not fitting:
            with pytest.raises(OutOfMemoryError, match="no smaller batch either"):
                budget.within_budget(asked, said.append)
            assert not said
            continue
        found = budget.within_budget(asked, said.append)
        assert (found.remat, found.accumulate) == fitting[0] and len(said) == 1
        assert dataclasses.replace(found, remat=remat, accumulate=accumulate) == asked
    assert budget.within_budget(settings, None) is settings


def test_smaller_batches_have_parts_that_divide_them():
    found = list(smaller_batches(TrainingSettings(batch=12, accumulate=4)))
    assert [(s.remat, s.batch, s.accumulate) for s in found] == [
        (False, 6, 2), (False, 3, 1), (False, 1, 1), (True, 6, 2), (True, 3, 1), (True, 1, 1),
    ]  # fmt: skip


# ---- runs ----


def rows(out):
    lines = (out / "log.jsonl").read_text().splitlines()
    clock = ("tokens_per_s", "mfu", "memory")  # of the process, not of the run
    return [{k: v for k, v in json.loads(x).items() if k not in clock} for x in lines]


def newest(out):
    step = max((out / "checkpoints").glob("step-*"))
    return step.name, (step / "state.safetensors").read_bytes()


def test_a_run_of_a_budget_is_the_run_of_its_choice(base, tmp_path, capsys, monkeypatch):
    """It is the same, bit for bit, as with the settings given, and after an interruption."""
    settings = settings_of(base, tmp_path)
    peak = lambda **changed: footprint(dataclasses.replace(settings, **changed)).peak
    size = peak(remat=True, accumulate=8)
    assert size < min(peak(remat=True, accumulate=4), peak(accumulate=8))
    asked = f"--memory-budget={size}B"
    parts, whole, given = (tmp_path / name for name in ("parts", "whole", "given"))
    assert main(command(base, whole, asked)) == 0
    assert "with remat true and accumulate 8" in capsys.readouterr().out
    chosen = read_settings(str(whole / "config.yaml"), {})
    assert (chosen.remat, chosen.accumulate, chosen.memory_budget) == (True, 8, f"{size}B")
    assert main(command(base, given, "--remat", "--accumulate", "8", "--quiet")) == 0
    assert rows(given) == rows(whole) and newest(given) == newest(whole)

    from genesis_fn.training import loop

    real, seen = loop.metrics_of, []

    def failing(numbers):
        seen.append(1)
        if len(seen) == 4:
            raise OSError("the machine is gone")
        return real(numbers)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "metrics_of", failing)
        assert main(command(base, parts, asked, "--quiet")) == 1
    assert newest(parts)[0] == "step-00000002"
    # The choice is the run's: a budget of other bytes, where it goes on, chooses nothing else.
    monkeypatch.setattr(budget, "available", lambda: math.inf)
    capsys.readouterr()
    assert main(["resume", "--out", str(parts)]) == 0
    assert "a step takes" not in capsys.readouterr().out
    assert rows(parts) == rows(whole) and newest(parts) == newest(whole)
    assert main(command(base, parts, asked, "--quiet")) == 0  # the same command is the same run
    assert main(["resume", "--out", str(whole), "--verify", "2"]) == 0


def test_a_budget_that_nothing_fits_is_one_message(base, tmp_path, capsys):
    out = tmp_path / "out"
    assert main(command(base, out, "--memory-budget", "100KiB")) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "and there are 100.00 KiB" in said
    for text in ("out of memory: a step of 8 rows takes", "parameters ", "optimizer ",
                 "gradients and activations", "the largest: ", "embed_tokens.weight 40.00 KiB",
                 "no smaller batch either"):  # fmt: skip
        assert text in said, text


def no_memory(kind):
    """What the library raises where there is no memory."""
    if kind == "cuda":
        return shortage.OutOfMemory(
            device=0, requested=1 << 30, in_use=2 << 20, cached=0, largest_free=0, mapped=1 << 20,
            limit=1 << 40, free_on_device=1 << 20,
        )  # fmt: skip
    if kind == "torch":
        text = "DefaultCPUAllocator: can't allocate memory: you tried to allocate 99 bytes."
        return RuntimeError(f"[enforce fail at alloc_cpu.cpp:117] err == 0. {text}")
    return MemoryError("Unable to allocate 9. TiB for an array")


# Each kind of error and each place once; all pairs are slow.
QUICK = {("state", "torch"), ("first step", "cuda"), ("later step", "numpy")}


@pytest.mark.parametrize(
    "where, kind",
    [
        pytest.param(w, k, marks=[] if (w, k) in QUICK else [pytest.mark.slow])
        for w in ("state", "first step", "later step")
        for k in ("cuda", "torch", "numpy")
    ],
)
def test_out_of_memory_is_one_message(base, tmp_path, capsys, monkeypatch, kind, where):
    from genesis_fn.training import loop, program

    target, name = (program, "init_state") if where == "state" else (loop, "metrics_of")
    real, seen = getattr(target, name), []

    def failing(*args):
        seen.append(1)
        if len(seen) == (3 if where == "later step" else 1):
            raise no_memory(kind)
        return real(*args)

    monkeypatch.setattr(target, name, failing)
    monkeypatch.setattr(shortage, "available", lambda: 2 << 20)
    assert main(command(base, tmp_path / "out", "--ema", "0.9", "--quiet")) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "Traceback" not in said
    for text in ("out of memory: a step of 8 rows", "average of the parameters", "optimizer: ",
                 "and there are 2.00 MiB", "what fits: --"):  # fmt: skip
        assert text in said, text
    assert str(no_memory(kind)).partition("\n")[0] in said
    # A folder with a checkpoint keeps the settings that its run began with.
    assert ("by another --out" in said) == (where == "later step")
    # What is proposed is what fits, by an enumeration.
    settings = settings_of(base, tmp_path, ema=0.9)
    limit = min(2 << 20, footprint(settings).peak - 1)
    for changed, text in (
        ([{"remat": True}], "--remat true ("),
        ([{"accumulate": k} for k in (2, 4, 8)], "--accumulate {accumulate} ("),
        ([{"batch": b} for b in (4, 2, 1)], "--batch {batch} ("),
    ):
        several = [dataclasses.replace(settings, **c) for c in changed]
        fitting = [s for s in several if footprint(s).peak <= limit]
        for s in several:
            shown = text.format(**vars(s)) + size_text(footprint(s).peak)
            alone = f" {shown}" in said.replace("--remat true --", "--remat true|--")
            assert alone == (s in fitting[:1]), shown


def test_other_errors_are_left_alone(base, tmp_path):
    for error in (ValueError("x"), RuntimeError("x"), FileError("x"), OSError(2, "x")):

        def failing():
            raise error

        with pytest.raises(type(error)) as found:
            shortage.telling_what_fits(settings_of(base, tmp_path), failing)
        assert found.value is error
    assert shortage.is_out_of_memory(OSError(12, "Cannot allocate memory"))


def test_memory_that_is_too_little_to_plan_is_said(base, tmp_path, monkeypatch):
    def failing(*_):
        raise MemoryError("no room")

    monkeypatch.setattr(shortage, "footprint", failing)
    with pytest.raises(shortage.RunOutOfMemory, match="^out of memory: no room$"):
        shortage.telling_what_fits(settings_of(base, tmp_path), failing)


def test_steps_that_are_taken_again_may_run_out_of_memory_too(base, tmp_path, capsys, monkeypatch):
    from genesis_fn.training import verify

    out = tmp_path / "out"
    assert main(command(base, out, "--quiet")) == 0

    def failing(numbers):
        raise no_memory("torch")

    monkeypatch.setattr(verify, "metrics_of", failing)
    assert main(["resume", "--out", str(out), "--verify", "2"]) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "out of memory: a step of 8 rows" in said


STARVED = """
import resource, sys
from genesis_fn.cli.main import main

assert main(sys.argv[2:]) == 0  # which loads and compiles what a run needs
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (96 << 20), resource.RLIM_INFINITY))
more = ["--batch", "8192", "--steps", "6", "--out", sys.argv[1], "--data.prefetch", "0"]
sys.exit(main([*sys.argv[2:], *more]))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_a_process_without_memory_says_what_fits_and_keeps_its_checkpoints(base, tmp_path):
    small, large = tmp_path / "small", tmp_path / "large"
    argv = [sys.executable, "-c", STARVED, str(large), *command(base, small, "--quiet")]
    environment = {**os.environ, "GENESIS_DEVICE": "cpu"}  # the memory that is limited
    found = subprocess.run(argv, capture_output=True, text=True, env=environment)
    assert found.returncode == 1, found.stderr[-2000:]
    (said,) = [line for line in found.stderr.splitlines() if "out of memory" in line]
    for text in ("a step of 8192 rows takes", "the largest: ", "what fits: --"):
        assert text in said, text
    with using_device(cpu()):
        assert main(["resume", "--out", str(small), "--verify", "2"]) == 0
