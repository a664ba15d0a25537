"""The demo in miniature, through the command: training, interruption, resuming, errors."""

from __future__ import annotations

import json

import numpy as np
import pytest

import genesis_fn
from genesis_fn.cli import demo, training
from genesis_fn.cli.main import main
from genesis_fn.models import qwen

TEXT = "".join(f"def f{i}(x):\n    return x + {i % 7}\n\n" for i in range(400))


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    """A folder of text, and a model of a size for it."""
    for i in range(6):
        (tmp_path / "text").mkdir(exist_ok=True)
        (tmp_path / "text" / f"{i}.py").write_text(TEXT)
    monkeypatch.setattr(demo, "VOCABULARY", 300)
    monkeypatch.setattr(demo, "CONFIG", qwen.QwenConfig(
        vocab_size=300, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, head_dim=16, rope_theta=1e4,
        max_position_embeddings=256,
    ))  # fmt: skip
    return tmp_path / "text"


def command(corpus, out, *more):
    return ["demo", "--data", str(corpus), "--out", str(out), "--steps", "6", "--batch", "2",
            "--length", "16", "--prompt", "def f", *more]  # fmt: skip


def rows(out):
    """The log without what depends on the clock."""
    lines = (out / "log.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(x).items() if k != "tokens_per_s"} for x in lines]


def test_demo_resumes_to_the_same_log(corpus, tmp_path, capsys, monkeypatch):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert main(command(corpus, whole)) == 0
    said = capsys.readouterr().out
    assert "step 6: validation loss" in said and "unigram entropy" in said
    assert "a sampled continuation:\n    def f" in said
    assert (whole / "loss.png").read_bytes()[:4] == b"\x89PNG"
    assert [r["step"] for r in rows(whole) if "loss" in r] == [1, 2, 3, 4, 5, 6]
    assert all(np.isfinite(r["loss"]) for r in rows(whole) if "loss" in r)

    # Interrupted in the middle of step 4, and started again.
    class Interrupted(training.Log):
        def write(self, **row):
            super().write(**row)
            if row["step"] == 4 and "loss" in row:
                raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(training, "Log", Interrupted)
        assert main(command(corpus, parts, "--quiet")) == 130
    assert "run the same command to go on" in capsys.readouterr().out
    assert main(command(corpus, parts)) == 0
    assert "going on from step 4" in capsys.readouterr().out
    final = lambda out: [r for r in rows(out) if "loss" in r]  # noqa: E731
    assert final(parts) == final(whole)
    assert rows(parts)[-1] == rows(whole)[-1]
    arrays = [
        (out / "checkpoints" / "step-00000006" / "state.safetensors").read_bytes()
        for out in (whole, parts)
    ]
    assert arrays[0] == arrays[1]

    # A finished run is reported again, and other settings are refused.
    assert main(command(corpus, whole, "--quiet")) == 0
    assert "step 6: validation loss" in capsys.readouterr().out
    assert main(command(corpus, whole, "--quiet", "--seed", "1")) == 1
    assert "other settings" in capsys.readouterr().err


def test_a_run_may_end_by_the_clock(corpus, tmp_path, capsys):
    assert main(command(corpus, tmp_path / "out", "--quiet", "--seconds", "0")) == 0
    assert "step 1: validation loss" in capsys.readouterr().out
    assert main(command(corpus, tmp_path / "out", "--quiet")) == 0
    assert [r["step"] for r in rows(tmp_path / "out") if "loss" in r] == [1, 2, 3, 4, 5, 6]


def test_errors_are_one_line(tmp_path, capsys):
    assert main(["demo", "--data", str(tmp_path / "nowhere"), "--out", str(tmp_path / "o")]) == 1
    said = capsys.readouterr().err
    assert said.startswith("genesis-fn: there is no folder") and said.count("\n") == 1
    with pytest.raises(SystemExit):
        main(["nonsense"])


def test_info(capsys):
    assert main(["info"]) == 0
    said = capsys.readouterr().out
    assert genesis_fn.__version__ in said and "cpu" in said.splitlines()[-1]
