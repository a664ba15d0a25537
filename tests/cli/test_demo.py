"""The demo in miniature, through the command: training, interruption, resuming, errors."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import sys

import numpy as np
import pytest
import torch

import genesis_fn
import genesis_fn.io
import genesis_fn.numpy as jnp
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
    monkeypatch.setattr(
        demo,
        "CONFIG",
        qwen.QwenConfig(
            vocab_size=300,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=16,
            rope_theta=1e4,
            max_position_embeddings=256,
        ),
    )
    return tmp_path / "text"


def command(corpus, out, *more):
    return [
        "demo",
        "--data",
        str(corpus),
        "--out",
        str(out),
        "--steps",
        "6",
        "--batch",
        "2",
        "--length",
        "16",
        "--prompt",
        "def f",
        *more,
    ]


def rows(out):
    """The log without what depends on the clock."""
    lines = (out / "log.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(x).items() if k != "tokens_per_s"} for x in lines]


def test_demo_resumes_to_the_same_log(corpus, tmp_path, capsys, monkeypatch):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert main(command(corpus, whole)) == 0
    said = capsys.readouterr().out
    (numbers,) = re.findall(
        r"step 6: validation loss (.*) nats per token; unigram entropy (.*); (.*) (.*) it; .* s$",
        said,
        re.M,
    )
    loss, entropy, gain = map(float, numbers[:3])
    assert abs(loss + gain * {"below": 1, "above": -1}[numbers[3]] - entropy) < 2e-3 and gain >= 0
    assert "a sampled continuation:\n    def f" in said
    assert (whole / "loss.png").read_bytes()[:4] == b"\x89PNG"
    assert [r["step"] for r in rows(whole) if "loss" in r] == [1, 2, 3, 4, 5, 6]
    assert all(np.isfinite(r["loss"]) for r in rows(whole) if "loss" in r)

    # Ctrl-C while step 4 is prepared: the step is finished and kept.
    before = signal.getsignal(signal.SIGINT)  # ignored, where the tests run in the background

    class Interrupted(training.TokenWindows):
        def __getitem__(self, step):
            if step == 3:
                os.kill(os.getpid(), signal.SIGINT)
            return super().__getitem__(step)

    with monkeypatch.context() as patch:
        patch.setattr(training, "TokenWindows", Interrupted)
        assert main(command(corpus, parts, "--quiet")) == 130
    assert "interrupted at step 4; run the same command to go on" in capsys.readouterr().out
    assert signal.getsignal(signal.SIGINT) is before

    # The newest checkpoint is damaged and the log's last line torn: the one before goes on.
    newest = parts / "checkpoints" / "step-00000004" / "state.safetensors"
    newest.write_bytes(newest.read_bytes()[:-7] + b"damaged")
    with open(parts / "log.jsonl", "ab") as log:
        log.write(b'{"step": 4, "lo\xff')
    assert main(command(corpus, parts)) == 0
    said = capsys.readouterr().out
    assert "passed over a checkpoint" in said and "going on from step 3" in said
    final = lambda out: [r for r in rows(out) if "loss" in r]
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
    assert "other settings (seed 0, now 1)" in capsys.readouterr().err
    (corpus / "5.py").write_text("other = 1\n" * 500)
    assert main(command(corpus, whole, "--quiet")) == 1
    assert "other settings (tokens" in capsys.readouterr().err


@pytest.mark.parametrize("watched", [True, False])
def test_progress_is_a_bar_at_a_terminal_and_plain_lines_elsewhere(
    corpus, tmp_path, capsys, monkeypatch, watched
):
    monkeypatch.setattr("sys.stderr.isatty", lambda: watched)
    assert main(command(corpus, tmp_path / "out")) == 0
    said = capsys.readouterr()
    lines = [x for x in said.out.splitlines() if x.startswith("step ") and " of 6: loss" in x]
    evaluated = [] if watched else [f"step {n} of 6" for n in range(1, 7)]
    assert [x.split(":")[0] for x in lines] == evaluated
    assert ("training: 100%" in said.err) == watched
    assert ("\r" in said.out + said.err) == watched


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


@pytest.mark.parametrize("content, message", [
    (None, "no text files"), (b"\xff\xfe\x00", "empty, unreadable, or not UTF-8"),
    (b"", "empty, unreadable, or not UTF-8"), (b"a few words", "tokens are too few"),
    (b"x = 1\n" * 60, "the validation split has"),
])  # fmt: skip
def test_what_is_no_corpus_is_said_before_training(corpus, tmp_path, capsys, content, message):
    folder = tmp_path / "given"
    folder.mkdir()
    (folder / "link.txt").symlink_to(tmp_path / "nowhere")
    if content is not None:
        (folder / "a.txt").write_bytes(content)
    assert main(command(folder, tmp_path / "out", "--quiet")) == 1
    said = capsys.readouterr().err
    assert (
        message in said and said.count("\n") == 1 and not (tmp_path / "out" / "log.jsonl").exists()
    )


def test_one_file_is_corpus_enough(corpus, tmp_path, capsys):
    arguments = command(corpus / "0.py", tmp_path / "out", "--quiet", "--seconds", "0")
    assert main(arguments) == 0
    assert "step 1: validation loss" in capsys.readouterr().out
    (tmp_path / "file").write_text("in the way")
    assert main(command(corpus, tmp_path / "file" / "out")) == 1
    assert "file" in capsys.readouterr().err


def test_info(capsys):
    assert main(["info"]) == 0
    said = capsys.readouterr().out
    assert genesis_fn.__version__ in said and "cpu: cpu()" in said


def test_a_finished_run_is_a_model_that_chat_and_transformers_open(
    corpus, tmp_path, capsys, monkeypatch
):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    out = tmp_path / "out"
    assert main(command(corpus, out, "--quiet", "--seconds", "0")) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[-1] == f"chat with it: genesis-fn chat --model {out}"
    # As `make demo` calls it, where no environment is activated, and where one is.
    for path, program in ((os.defpath, ".venv/bin/genesis-fn"), (str(tmp_path), "genesis-fn")):
        (tmp_path / "genesis-fn").touch(0o755)
        with monkeypatch.context() as patch:
            patch.setattr(sys, "argv", [".venv/bin/genesis-fn"])
            patch.setenv("PATH", path)
            assert main(command(corpus, out, "--quiet", "--seconds", "0")) == 0
        said = capsys.readouterr().out.splitlines()
        assert said[-1] == f"chat with it: {program} chat --model {out}"
    assert {path.name for path in out.iterdir()} == {
        ".lock", "chat_template.jinja", "checkpoints", "config.json", "generation_config.json",
        "log.jsonl", "loss.png", "model.safetensors", "tokenizer.json", "tokenizer_config.json",
    }  # fmt: skip
    # Ours: the two messages of the second question, and the answer between them, are joined.
    monkeypatch.setattr("sys.stdin", io.StringIO("def f1(x):\ndef f2(x):\n/tokens\n"))
    path = tmp_path / "transcript.jsonl"
    options = "--max-new-tokens", "4", "--transcript", str(path)
    assert main(["chat", "--model", str(out), *options]) == 0
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    said = [{k: r[k] for k in ("role", "content")} for r in rows if "role" in r]
    assert [m["role"] for m in said] == ["user", "assistant"] * 2

    tokenizer = AutoTokenizer.from_pretrained(out)
    model = AutoModelForCausalLM.from_pretrained(out)
    text = tokenizer.apply_chat_template(said, tokenize=False, add_generation_prompt=True)
    assert text == "".join(m["content"] + "\n" for m in said)
    tokens = tokenizer(text)["input_ids"]
    out_of_ours = capsys.readouterr().out
    assert f"history: {len(tokens)} of 256 tokens" in out_of_ours
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id
    assert (model.generation_config.do_sample, model.generation_config.top_k) == (True, 50)
    params, config = genesis_fn.io.load_model(out)
    wanted = model(torch.tensor([tokens])).logits.detach().numpy()
    np.testing.assert_allclose(qwen.forward(params, jnp.array([tokens]), config), wanted, atol=2e-4)


def test_an_unfinished_run_says_so_to_chat(corpus, tmp_path, capsys, monkeypatch):
    class Interrupting(training.TokenWindows):
        def __getitem__(self, step):
            os.kill(os.getpid(), signal.SIGINT)
            return super().__getitem__(step)

    with monkeypatch.context() as patch:
        patch.setattr(training, "TokenWindows", Interrupting)
        assert main(command(corpus, tmp_path / "out", "--quiet")) == 130
    capsys.readouterr()
    assert main(["chat", "--model", str(tmp_path / "out")]) == 1
    assert capsys.readouterr().err == (
        f"genesis-fn: {tmp_path}/out: a run that has not come to its end, and has no config.json "
        "yet: run its command again\n"
    )
