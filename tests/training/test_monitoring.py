"""What a run writes and shows: the log and its copies, pictures, MFU, memory, the progress."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import re
import sys

import numpy as np
import pytest

import genesis_fn as gf
from genesis_fn import models, random
from genesis_fn.cli.main import main
from genesis_fn.compiler.target import TARGETS
from genesis_fn.models import decoder
from genesis_fn.training.monitoring import meter as meters
from genesis_fn.training.monitoring.amounts import duration_text, size_text
from genesis_fn.training.monitoring.board import ScalarBoard
from genesis_fn.training.monitoring.log import Log
from genesis_fn.training.monitoring.meter import Meter, peak_of, training_flops
from genesis_fn.training.monitoring.plots import plot, plot_curves
from genesis_fn.training.monitoring.progress import Progress
from genesis_fn.training.monitoring.table import MetricsTable
from genesis_fn.training.run import _log
from genesis_fn.training.settings.sections import Logging, TrainingSettings

CONFIG = models.QwenConfig(
    vocab_size=40, hidden_size=16, intermediate_size=24, num_hidden_layers=2,
    num_attention_heads=2, num_key_value_heads=1, head_dim=8, max_position_embeddings=64,
)  # fmt: skip


def drawn(seed, steps, first=1):
    """Rows as a run logs them: of steps, and of an evaluation every third step."""
    rng = np.random.default_rng(seed)
    for step in range(first, first + steps):
        loss, lr, norm, rate = (
            float(x) for x in rng.lognormal(size=4) * 10.0 ** rng.integers(-9, 9)
        )
        row = {"step": step, "loss": loss, "lr": lr, "grad_norm": norm, "tokens_per_s": rate}
        yield {**row, "tokens": int(rng.integers(1 << 40)), "memory": int(rng.integers(1 << 40))}
        if step % 3 == 0:
            yield {"step": step, "validation_loss": float(rng.lognormal())}


def merged(rows):
    """{step: its numbers}, without those of events."""
    found = {}
    for row in rows:
        if "event" not in row:
            found.setdefault(row["step"], {}).update(row)
    return found


def table_of(path):
    """{step: its numbers}, as a spreadsheet reads them."""
    rows = list(csv.DictReader(io.StringIO(path.read_text())))
    assert all(None not in r and None not in r.values() for r in rows)  # as long as the header
    return {int(r["step"]): {k: v for k, v in r.items() if v} for r in rows}


def as_text(rows):
    return {step: {k: repr(v) for k, v in row.items() if v is not None}
            for step, row in rows.items()}  # fmt: skip


def opened(out, start=0, **logging):
    settings = TrainingSettings(out=str(out), log=Logging(**logging))
    return _log(settings, start)


def written(log, rows):
    for row in rows:
        log.write(**row)


@pytest.mark.parametrize("seed", range(3))
def test_the_table_has_the_numbers_of_the_log(tmp_path, seed):
    log = opened(tmp_path)
    for row in drawn(seed, 10):
        log.write(**row)
        # At once: nothing is held back.
        assert table_of(tmp_path / "metrics.csv") == as_text(merged(log.rows))
    log.write(step=10, event="samples", texts=["a,b\n"])
    log.write(step=11, loss=float("nan"), skipped=True, **{"grad_norm/a,b": 0.1})
    log.close()
    rows = [json.loads(x) for x in (tmp_path / "log.jsonl").read_text().splitlines()]
    found = table_of(tmp_path / "metrics.csv")
    assert found == as_text(merged(rows))
    assert found[11] == {"step": "11", "skipped": "True", "grad_norm/a,b": "0.1"}
    assert (tmp_path / "metrics.csv").read_text().startswith("step,loss,lr,grad_norm,")


def test_a_table_that_goes_on_forgets_later_steps(tmp_path):
    log = opened(tmp_path)
    written(log, drawn(0, 10))
    log.close()
    log = opened(tmp_path, 6)
    kept = merged(drawn(0, 6))
    assert table_of(tmp_path / "metrics.csv") == as_text(kept) and 6 in kept
    written(log, drawn(1, 4, first=7))
    log.close()
    wanted = {**kept, **merged(drawn(1, 4, first=7))}
    assert table_of(tmp_path / "metrics.csv") == as_text(wanted)
    opened(tmp_path).close()  # begun anew
    assert (tmp_path / "metrics.csv").read_text() == "step\n"
    (tmp_path / "without").mkdir()
    opened(tmp_path / "without", csv=False).close()
    assert not (tmp_path / "without" / "metrics.csv").exists()


def test_a_table_names_the_file_that_cannot_be_written(tmp_path):
    (tmp_path / "metrics.csv").mkdir()
    with pytest.raises(OSError, match="metrics.csv"):
        MetricsTable(str(tmp_path / "metrics.csv"))


# ---- TensorBoard ----


def scalars_of(folder):
    """{curve: [(step, value)]}, as TensorBoard reads them."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    curves = {t: [(e.step, e.value) for e in events.Scalars(t)] for t in events.Tags()["scalars"]}
    return {tag: curve for tag, curve in curves.items() if curve}


def as_curves(rows):
    curves = {}
    for step, row in sorted(merged(rows).items()):
        for name, value in row.items():
            if name != "step":
                curves.setdefault(name, []).append((step, float(np.float32(value))))
    return curves


def test_tensorboard_reads_the_numbers_of_the_log(tmp_path):
    pytest.importorskip("tensorboard")
    log = opened(tmp_path, tensorboard=True)
    rows = list(drawn(0, 10))
    written(log, rows)
    log.write(step=10, event="spike", loss=1.0)
    log.write(step=11, loss=float("inf"))
    assert scalars_of(tmp_path / "tensorboard") == as_curves(rows)  # before it is closed
    log.close()
    # Gone on with from step 6: no curve turns back.
    log = opened(tmp_path, 6, tensorboard=True)
    written(log, drawn(1, 3, first=7))
    log.close()
    wanted = as_curves([*drawn(0, 6), *drawn(1, 3, first=7)])
    assert scalars_of(tmp_path / "tensorboard") == wanted
    # Begun anew, in a folder with old files.
    log = opened(tmp_path, tensorboard=True)
    written(log, drawn(2, 2))
    log.close()
    assert scalars_of(tmp_path / "tensorboard") == as_curves(drawn(2, 2))


def test_tensorboard_that_comes_later_has_the_whole_run(tmp_path):
    pytest.importorskip("tensorboard")
    log = opened(tmp_path)
    written(log, drawn(0, 8))
    log.close()
    log = opened(tmp_path, 5, tensorboard=True)
    log.close()
    assert scalars_of(tmp_path / "tensorboard") == as_curves(drawn(0, 5))


def test_a_package_that_is_absent_is_named_before_training(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(ModuleNotFoundError, match="pip install tensorboard"):
        ScalarBoard(str(tmp_path))
    out = tmp_path / "run"
    command = ["train", "--model.path", "nowhere", "--data.train", "nowhere", "--steps", "1",
               "--out", str(out), "--log.tensorboard"]  # fmt: skip
    assert main(command) == 1
    said = capsys.readouterr().err
    assert "pip install tensorboard" in said and "nowhere" not in said and said.count("\n") == 1
    assert not (out / "log.jsonl").exists()


# ---- the use of the device ----


def products(config, length, frozen=False):
    """The operations of a token's training, by a walk over the weights and all pairs of places."""
    shapes = gf.tree.leaves_with_path(decoder.init(random.key(0), config))
    count = 0
    for path, x in shapes:
        name = gf.tree.keystr(path, simple=True, separator=".")
        if x.ndim < 2 or ("embed" in name and not config.tie_word_embeddings):
            continue
        size = x.size
        if x.ndim == 3:  # experts, of which a token visits some
            size = size * config.num_experts_per_tok // config.num_experts
        count += size
    pairs = 0
    for window in config.windows:
        for query in range(length):
            pairs += sum(1 for key in range(query + 1) if window is None or query - key < window)
    forward = 2 * 2 * pairs * config.num_attention_heads * config.head_dim / length
    return 3 * forward + (2 + 2 * (not frozen) + 2) * count


@pytest.mark.parametrize("length", [1, 7, 33])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tie_word_embeddings": False, "num_key_value_heads": 2},
        {"sliding_window": 5, "layer_types": ("sliding_attention", "full_attention")},
    ],
)
def test_flops_are_those_of_the_products(changes, length):
    config = dataclasses.replace(CONFIG, **changes)
    assert training_flops(config, length) == pytest.approx(products(config, length), rel=1e-12)
    adapted = products(config, length, frozen=True) + 6 * 100
    assert training_flops(config, length, adapters=100) == pytest.approx(adapted, rel=1e-12)


def test_experts_count_as_far_as_a_token_visits_them():
    config = dataclasses.replace(
        CONFIG, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=8
    )
    more = dataclasses.replace(config, num_experts=6)
    # A layer's choice among two more experts: 16 weights each.
    assert training_flops(more, 9) - training_flops(config, 9) == 6 * 2 * 2 * 16
    third = dataclasses.replace(config, num_experts_per_tok=3)
    assert training_flops(third, 9) - training_flops(config, 9) == 6 * 2 * 3 * 16 * 8


def test_mfu_is_the_share_of_the_peak():
    meter = Meter(gf.devices("cpu")[0], 6e9, 700e12)
    assert meter.mfu(35_000) == pytest.approx(0.3)
    assert Meter(gf.devices("cpu")[0], 6e9, None).mfu(35_000) is None


def test_a_peak_is_known_of_listed_gpus_alone(monkeypatch):
    gpu = dataclasses.make_dataclass("Gpu", ["platform"])("cuda")
    assert peak_of(gf.devices("cpu")[0], "float32") is None
    for name, wanted in (("NVIDIA H200", "H200"), ("NVIDIA H100 PCIe", "H100 PCIe")):
        monkeypatch.setattr(meters.cuda, "get_device_name", lambda _, name=name: name)
        assert peak_of(gpu, "bfloat16") == peak_of(gpu, "float16") == TARGETS[wanted].operations
        assert peak_of(gpu, "float32") == TARGETS[wanted].operations / 2
    monkeypatch.setattr(meters.cuda, "get_device_name", lambda _: "interpreter")
    assert peak_of(gpu, "bfloat16") is None


def test_memory_is_that_of_the_process_or_of_the_pool(monkeypatch):
    before = Meter(gf.devices("cpu")[0], 1.0, None).memory()
    held = np.ones(max(before, 1 << 26) // 8)  # as much again
    after = Meter(gf.devices("cpu")[0], 1.0, None).memory()
    assert 1 << 24 < before < after < before + 2 * held.nbytes + (1 << 28)
    gpu = dataclasses.make_dataclass("Gpu", ["platform"])("cuda")
    monkeypatch.setattr(meters.cuda, "max_memory_allocated", lambda device: 77)
    assert Meter(gpu, 1.0, None).memory() == 77


# ---- what is shown ----


def test_lines_say_what_is_known(capsys):
    progress = Progress(10, 2, quiet=False)
    progress.advanced(1.5, 1234.0)
    progress.evaluated(3, 1.5, 1.25, 1234.0)
    line = capsys.readouterr().out
    start = "step 3 of 10: loss 1.500, validation loss 1.250, 1,234 tokens/s"
    assert line.startswith(start) and "MFU" not in line and "memory" not in line
    progress.began -= 60  # a minute a step
    progress.advanced(1.5, 1234.0, 0.4321, 3 << 29)
    progress.evaluated(3, 1.5, 1.25, 1234.0)
    assert capsys.readouterr().out == f"{start}, MFU 43.2%, memory 1.50 GiB, 7 min left\n"
    progress.evaluated(10, 1.5, 1.25, 1234.0)
    assert "left" not in capsys.readouterr().out
    progress.close()


def test_the_bar_says_the_same(monkeypatch):
    class Screen(io.StringIO):
        def isatty(self):
            return True

    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    progress = Progress(10, 0, quiet=False)
    progress.bar.ncols, progress.bar.dynamic_ncols = 200, None
    progress.advanced(1.5, 1234.0, 0.5, 1 << 30)
    progress.bar.refresh()
    progress.close()
    said = screen.getvalue()
    assert "loss=1.500, tok_s=1,234, MFU=50.0%, memory=1.00 GiB" in said
    assert re.search(r"1/10 \[\d\d:\d\d<\d\d:\d\d", said)  # how long it takes


def test_amounts():
    assert [size_text(n) for n in (5, 1536, 5 << 40)] == ["5 B", "1.50 KiB", "5,120.00 GiB"]
    assert [duration_text(s) for s in (0.2, 61, 90_000)] == [
        "less than a second", "1 min 1 s", "1 d 1 h",
    ]  # fmt: skip


def test_pictures_are_drawn_of_any_log(tmp_path):
    from matplotlib.image import imread

    rows = [*drawn(0, 9), {"step": 10, "loss": None, "event": "not finite"}]
    for number, found in enumerate((rows, [], rows[:1])):
        plot(found, str(tmp_path / f"{number}.png"))
        plot_curves(found, str(tmp_path / f"curves{number}.png"))
        assert imread(tmp_path / f"{number}.png").shape == (480, 840, 4)
        assert imread(tmp_path / f"curves{number}.png").shape == (840, 1440, 4)


def test_a_log_hands_its_rows_to_copies(tmp_path):
    class Copy:
        def __init__(self):
            self.rows, self.closed = [], False

        def write(self, row):
            self.rows.append(row)

        def close(self):
            self.closed = True

    log, copy = Log(str(tmp_path / "log.jsonl")), Copy()
    log.copies.append(copy)
    log.write(step=1, loss=float("inf"))
    log.close()
    assert copy.rows == [{"step": 1, "loss": None}] == log.rows and copy.closed


def test_a_log_that_goes_on_keeps_every_row_up_to_its_step(tmp_path):
    path = str(tmp_path / "log.jsonl")
    log = Log(path)
    log.write(step=1, loss=float("nan"), grad_norm=float("inf"), skipped=True)
    log.write(step=2, event="samples", texts=["it is red \u00e9" * 9000] * 2)
    log.write(step=2, validation_loss=float("nan"), perplexity=float("nan"))
    wanted = [*log.rows]
    log.write(step=3, loss=1.0)
    log.close()
    again = Log(path, 2)
    again.close()
    assert again.rows == wanted == Log.read(path) and len(wanted) == 3
