"""train, sft, resume, eval and merge through the command: runs, interruptions, faults."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import genesis_fn.io
from genesis_fn import data, models
from genesis_fn.cli.main import main
from genesis_fn.models import decoder
from genesis_fn.training import step as steps
from tests.support.chat_folder import CONFIG, TEMPLATE, write_data, write_model


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A folder with a tiny model, chats, texts and questions."""
    folder = tmp_path_factory.mktemp("base")
    write_model(folder)
    write_data(folder)
    return folder


def sft(base, out, *more):
    return [
        "sft", "--model.path", str(base), "--data.train", str(base / "chats.jsonl"), "--data.valid",
        str(base / "chats.jsonl"), "--data.length", "48", "--batch", "4", "--steps", "9",
        "--optim.lr", "3e-3", "--evaluate.every", "3", "--checkpoint.every", "3", "--out", str(out),
        "--data.shuffle", "20", "--quiet", *more,
    ]  # fmt: skip


def rows(out):
    """The log without what depends on the clock."""
    lines = (out / "log.jsonl").read_text().splitlines()
    clock = ("tokens_per_s", "mfu", "memory")
    return [{k: v for k, v in json.loads(x).items() if k not in clock} for x in lines]


def newest(out):
    step = max((out / "checkpoints").glob("step-*"))
    return step.name, (step / "state.safetensors").read_bytes()


METHODS = {
    "full": ("--ema", "0.9", "--accumulate", "2", "--remat"),
    "float16": ("--compute", "float16", "--data.packing", "off"),
    "lora": ("--method", "lora", "--lora.dropout", "0.1", "--compute", "bfloat16"),
    "dora": ("--method", "dora", "--lora.r", "4", "--data.prefetch", "0"),
}


@pytest.mark.parametrize("method", METHODS)
def test_a_run_that_is_stopped_goes_on_bit_for_bit(base, tmp_path, capsys, monkeypatch, method):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    options = METHODS[method]
    assert main(sft(base, whole, *options)) == 0
    said = capsys.readouterr().out
    assert "step 9: ended by the last step" in said and "validation loss" in said
    losses = [r["loss"] for r in rows(whole) if "loss" in r]
    assert len(losses) == 9 and losses[-1] < losses[0] and np.isfinite(losses).all()

    real = steps.metrics_of
    seen = []

    def interrupting(numbers):
        seen.append(1)
        if len(seen) == 5:
            os.kill(os.getpid(), signal.SIGTERM)
        return real(numbers)

    before = signal.getsignal(signal.SIGTERM)
    with monkeypatch.context() as patch:
        patch.setattr("genesis_fn.training.loop.metrics_of", interrupting)
        assert main(sft(base, parts, *options)) == 143
    assert signal.getsignal(signal.SIGTERM) is before
    # The sixth step was on its way when the fifth was read.
    assert "interrupted at step 6; run the same command to go on" in capsys.readouterr().out
    assert newest(parts)[0] == "step-00000006"
    assert main(["resume", "--out", str(parts), "--quiet"]) == 0
    assert rows(parts) == rows(whole) and newest(parts) == newest(whole)
    # Steps are taken again, to the same bits; a log that was changed is noticed.
    capsys.readouterr()
    assert main(["resume", "--out", str(whole), "--verify", "3"]) == 0
    said = capsys.readouterr().out
    assert "3 steps behind step 6" in said and "the state of step 9" in said
    assert "every bit is the same" in said
    log = (whole / "log.jsonl").read_text()
    (whole / "log.jsonl").write_text(log.replace(repr(losses[7]), "1.5"))
    assert main(["resume", "--out", str(whole), "--verify", "3"]) == 1
    assert "step 8: loss is" in capsys.readouterr().out


def test_steps_that_are_not_taken_stay_in_the_log_of_a_run_that_goes_on(
    base, tmp_path, capsys, monkeypatch
):
    from genesis_fn.training import program

    real = program.make_loss

    def steep(*args, **options):
        loss = real(*args, **options)
        return lambda *given: loss(*given) * 256.0  # whose gradients overflow at the first scales

    monkeypatch.setattr(program, "make_loss", steep)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    options = "--compute", "float16", "--log.every", "3", "--optim.clip", "0"
    assert main(sft(base, whole, *options)) == 0
    skipped = [r for r in rows(whole) if r.get("skipped")]
    assert len(skipped) > 2 and all(r["grad_norm"] is None for r in skipped)
    taken = []

    def failing(numbers):
        taken.append(1)
        if len(taken) == 5:
            raise OSError("the machine is gone")
        return steps.metrics_of(numbers)

    with monkeypatch.context() as patch:
        patch.setattr("genesis_fn.training.loop.metrics_of", failing)
        assert main(sft(base, parts, *options)) == 1
    assert newest(parts)[0] == "step-00000003"
    assert main(["resume", "--out", str(parts), "--quiet"]) == 0
    assert rows(parts) == rows(whole) and newest(parts) == newest(whole)
    assert main(["resume", "--out", str(whole), "--verify", "3"]) == 0


def test_a_run_without_a_checkpoint_before_its_end_is_verified_from_its_beginning(
    base, tmp_path, capsys
):
    out = tmp_path / "out"
    more = "--steps", "5", "--checkpoint.every", "0", "--evaluate.every", "0", "--log.every", "4"
    assert main(sft(base, out, *more, "--method", "lora", "--lora.dropout", "0.1")) == 0
    capsys.readouterr()
    assert main(["resume", "--out", str(out), "--verify", "20"]) == 0
    said = capsys.readouterr().out
    assert "5 steps behind step 0 were taken again, and compared with 2 rows" in said
    assert "and the state of step 5" in said
    assert main(["resume", "--out", str(out), "--verify", "3"]) == 1
    said = capsys.readouterr().err
    assert "steps 1 to 3 are not in log.jsonl (log.every is 4)" in said and said.count("\n") == 1
    (out / "log.jsonl").unlink()
    assert main(["resume", "--out", str(out), "--verify", "3"]) == 1
    assert "log.jsonl has no step" in capsys.readouterr().err


def test_what_was_trained_opens_elsewhere(base, tmp_path, capsys):
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    out = tmp_path / "full"
    assert main(sft(base, out)) == 0
    params, config = genesis_fn.io.load_model(out / "model")
    tokens = np.arange(3, 30, dtype=np.int32)[None]
    theirs = AutoModelForCausalLM.from_pretrained(out / "model")
    wanted = theirs(torch.tensor(tokens)).logits.detach().numpy()
    np.testing.assert_allclose(decoder.forward(params, tokens, config), wanted, atol=1e-4)
    ask = ["--chat", "--prompt", "what is red?", "--max-new-tokens", "4"]
    assert main(["generate", "--model", str(out / "model"), *ask]) == 0
    # Adapters are PEFT's, and merged they are a model that computes the same.
    out = tmp_path / "lora"
    assert main(sft(base, out, "--method", "lora")) == 0
    peft = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), out / "adapter")
    wanted = peft(torch.tensor(tokens)).logits.detach().numpy()
    merged = str(tmp_path / "merged")
    command = ["merge", "--model", str(base), "--adapter", str(out / "adapter"), "--out", merged]
    assert main(command) == 0
    params, config = genesis_fn.io.load_model(merged)
    np.testing.assert_allclose(decoder.forward(params, tokens, config), wanted, atol=1e-4)
    capsys.readouterr()
    found = []
    for model in (["--model", merged], ["--model", str(base), "--adapter", str(out / "adapter")]):
        data_of = ["--data", str(base / "chats.jsonl"), "--choices", str(base / "questions.jsonl")]
        assert main(["eval", *model, *data_of, "--length", "48", "--json"]) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert found[0] == pytest.approx(found[1], rel=1e-5) and found[0]["questions"] == 5
    last = [r["validation_loss"] for r in rows(out) if "validation_loss" in r][-1]
    assert found[0]["loss"] == pytest.approx(last, rel=1e-4)


def test_texts_epochs_and_mixtures(base, tmp_path, capsys):
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"text": ["it is blue " * 9] * 20}), tmp_path / "a.parquet")
    (tmp_path / "notes.txt").write_text("what is green?\n" * 50)
    out = tmp_path / "out"
    command = [
        "train", "--model.path", str(base), "--data.train", str(base / "texts.jsonl"),
        str(tmp_path / "a.parquet"), str(tmp_path / "notes.txt"), "--data.weights", "3", "1", "1",
        "--epochs", "2", "--data.length", "32", "--batch", "8", "--out", str(out), "--optim.name",
        "lion", "--optim.lr", "1e-3", "--sample.every", "5", "--sample.prompts", "it is",
    ]  # fmt: skip
    assert main(command) == 0
    said = capsys.readouterr().out
    (count,) = re.findall(r"(\d+) steps of 8 rows make 2 epochs", said)
    assert f"step {count}: ended by the last step" in said and "step 5: it is" in said
    assert int(count) == [r["step"] for r in rows(out) if "loss" in r][-1] > 5
    assert (out / "loss.png").read_bytes()[:4] == b"\x89PNG"
    assert main(command) == 0  # a finished run is reported again
    assert f"step {count}: ended by" in capsys.readouterr().out
    assert main(["eval", "--model", str(out / "model"), "--data", str(tmp_path / "notes.txt")]) == 0
    assert "perplexity" in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["chats", "texts"])
def test_samples_are_asked_for_as_the_data_are(base, tmp_path, capsys, monkeypatch, kind):
    from transformers import PreTrainedTokenizerFast

    from genesis_fn.training.monitoring import sampling

    asked = []

    def generating(params, tokens, config, **options):
        asked.append(tokens[0].tolist())
        return models.generate(params, tokens, config, **options)

    monkeypatch.setattr(sampling, "generate", generating)
    out = tmp_path / "out"
    more = "--steps", "2", "--sample.every", "2", "--sample.prompts", "what is red?", "what?"
    more += ("--data.train", str(base / f"{kind}.jsonl"))
    assert main(sft(base, out, *more)) == 0
    theirs = PreTrainedTokenizerFast(tokenizer_file=str(base / "tokenizer.json"))
    for prompt, tokens in zip(("what is red?", "what?"), asked, strict=True):
        if kind == "chats":
            said = [{"role": "user", "content": prompt}]
            prompt = theirs.apply_chat_template(
                said, chat_template=TEMPLATE, add_generation_prompt=True, tokenize=False
            )
        assert tokens == theirs.encode(prompt, add_special_tokens=False)
    (row,) = [r for r in rows(out) if r.get("event") == "samples"]
    assert len(row["texts"]) == 2


def test_a_dry_run_says_what_a_run_takes_and_does_nothing(base, tmp_path, capsys):
    out = tmp_path / "out"
    assert main(sft(base, out, "--ema", "0.5", "--dry-run")) == 0
    said = capsys.readouterr().out
    params = CONFIG.size * 4
    for text in (
        "tokens int32[4, 48]", f"parameters {params / 1024:.2f} KiB", "9 of 192 tokens",
        f"average of the parameters {params / 1024:.2f} KiB", "memory at the peak", "tokens/s",
        "parameters: embed_tokens.weight 40.00 KiB",
    ):  # fmt: skip
        assert text in " ".join(said.split()), text
    assert not out.exists()


def test_a_run_stops_early_and_skips_spikes(base, tmp_path, capsys):
    out = tmp_path / "out"
    more = "--evaluate.patience", "2", "--evaluate.min_delta", "5", "--evaluate.every", "1"
    assert main(sft(base, out, *more)) == 0
    assert "ended by 2 evaluations without a better loss" in capsys.readouterr().out
    assert [r["step"] for r in rows(out) if "loss" in r] == [1, 2, 3]


def test_a_loss_that_is_not_finite_ends_the_run_and_saves_it(base, tmp_path, capsys, monkeypatch):
    from genesis_fn.training import program, run

    real = program.make_loss

    def spoiled(*args, **options):
        loss = real(*args, **options)
        return lambda trained, frozen, batch, key: (
            loss(trained, frozen, batch, key) / (batch["tokens"][0, 0] != 7)
        )

    out = tmp_path / "out"
    assert main(sft(base, out, "--steps", "4")) == 0
    monkeypatch.setattr(program, "make_loss", spoiled)
    real_batches = run.datasets.training_batches

    class Marked(data.Mapped):
        """The fourth batch begins with token 7."""

        count = 0

        def next_item(self):
            item = super().next_item()
            self.count += 1
            tokens = item.value["tokens"].copy()
            tokens[0, 0] = 7 if self.count == 4 else 8
            return item._replace(value={**item.value, "tokens": tokens})

    monkeypatch.setattr(
        run.datasets, "training_batches", lambda *a: Marked(real_batches(*a), lambda batch: batch)
    )
    out = tmp_path / "bad"
    capsys.readouterr()
    assert main(sft(base, out)) == 1
    said = capsys.readouterr().err
    assert "step 4: the loss is inf, and the gradient of " in said and said.count("\n") == 1
    assert "defect" not in said
    assert "is the first that is not finite" in said and newest(out)[0] == "step-00000003"
    assert rows(out)[-1] == {"step": 4, "event": "not finite", "loss": None}


# ---- faults ----


@pytest.mark.parametrize("change, message", [
    (["--model.path", "nowhere"], "nowhere"), (["--data.train", "nowhere.jsonl"], "nowhere.jsonl"),
    (["--optim.lr", "fast"], "optim.lr is 'fast', expected a number"),
    (["--config", "nowhere.toml"], "nowhere.toml"), (["--model.config", "x"], "both are given"),
    (["--model.config", "none", "--model.path", "none"], "neither is given"),
    (["--lora.target_modules", "q", "--method", "lora"], "name no linear layer"),
    (["--accumulate", "3"], "batch is 4 and accumulate 3"),
])  # fmt: skip
def test_wrong_settings_are_one_line(base, tmp_path, capsys, change, message):
    out = tmp_path / "out"
    assert main(sft(base, out, *change)) == 1
    said = capsys.readouterr().err
    assert message in said and said.count("\n") == 1 and ".py" not in said
    assert not (out / "config.yaml").exists()


def contents(folder):
    """The bytes of every file of a folder."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != ".lock"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


BAD = {
    "nothing": ("", "there is no record that can be used"),
    "blank lines": ("\n\n", "there is no record that can be used"),
    "no JSON": ('{"messages"\n', "line 1 is not JSON"),
    "no object": ("[1, 2]\n", "line 1 is not a JSON object"),
    "another record": ('{"a": "b"}\n', "line 1: a record has one of messages"),
    "no text": ('{"text": 3}\n', "line 1: text is 3, expected a text"),
    "an empty text": ('{"text": ""}\n', "no token is learned|no record of the data can be used"),
    "an answer behind the row": (
        '{"prompt": "' + "what " * 99 + '", "completion": "it"}\n',
        "no token is learned|no record of the data can be used",
    ),
}


@pytest.mark.parametrize("which", ["train", "valid", "epochs", "eval"])
@pytest.mark.parametrize("kind", BAD)
def test_data_that_make_no_batch_are_one_line_and_nothing_is_written(
    base, tmp_path, capsys, which, kind
):
    content, message = BAD[kind]
    bad, out = tmp_path / "bad.jsonl", tmp_path / "out"
    bad.write_text(content)
    # A run that has no checkpoint is begun again, and keeps its files until another one trains.
    out.mkdir()
    for name in ("config.yaml", "log.jsonl", "metrics.csv"):
        (out / name).write_text(f"# {name}\n")
    before = contents(out)
    argv = sft(base, out, "--data.valid" if which == "valid" else "--data.train", str(bad))
    if which == "epochs":
        argv += ["--steps", "none", "--epochs", "1"]
    if which == "eval":
        argv = ["eval", "--model", str(base), "--data", str(bad), "--length", "48"]
    assert main(argv) == 1
    said = capsys.readouterr().err
    assert re.search(message, said) and said.count("\n") == 1 and str(bad) in said
    assert "defect" not in said and contents(out) == before


@pytest.mark.parametrize("what", ["valid", "template", "text", "out", "length", "model", "file"])
def test_a_command_that_cannot_run_leaves_its_folder_alone(base, tmp_path, capsys, what):
    out = tmp_path / "out"
    assert main(sft(base, out, "--steps", "3")) == 0
    model = str(out / "model")
    template = tmp_path / "bad.jinja"
    template.write_text("{% for")
    other = tmp_path / "other"  # which the command begins
    wrong, argv, message = {
        "valid": (other, ["--data.valid", "nowhere.jsonl"], "nowhere.jsonl: there is no such data"),
        "template": (other, ["--model.template", str(template)], "bad.jinja: line 1: the chat"),
        "text": (other, ["--data.text_field", "a", "--data.train", str(base / "texts.jsonl")],
                 "this one has text"),
        "length": (other, ["--data.length", "512"], "data.length is 512, and the model reads 256"),
        "out": (out / "config.yaml", [], "where a file is, expected a folder"),
        "model": (out, ["--model.path", model], "the run would write its own model over"),
        "file": (other, ["--model.path", str(base / "config.json")], "there is no such folder"),
    }[what]  # fmt: skip
    before = contents(out)
    capsys.readouterr()
    assert main(sft(base, wrong, *argv)) == 1
    said = capsys.readouterr().err
    assert message in said and said.count("\n") == 1 and "defect" not in said
    assert contents(out) == before and not contents(other)


def test_an_unknown_option_names_the_nearest(base, tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(sft(base, tmp_path / "out", "--optim.lrr", "3"))
    assert "unrecognized arguments: --optim.lrr 3; did you mean --optim.lr?" in (
        capsys.readouterr().err
    )


def test_a_bad_line_stops_or_is_skipped(base, tmp_path, capsys):
    lines = (base / "chats.jsonl").read_text().splitlines()
    bad = tmp_path / "bad.jsonl"
    bad.write_text("\n".join([*lines[:3], '{"messages": [', '{"messages": []}', *lines[3:]]))
    train = ["--data.train", str(bad), "--data.shuffle", "0"]
    assert main(sft(base, tmp_path / "a", *train)) == 1
    assert f"{bad}: line 4 is not JSON" in capsys.readouterr().err
    other = ["--data.train", str(base / "questions.jsonl"), "--data.shuffle", "0"]
    assert main(sft(base, tmp_path / "c", *other)) == 1
    said = capsys.readouterr().err
    assert "questions.jsonl: line 1: a record has one of messages" in said and ".py" not in said
    assert main(sft(base, tmp_path / "d", "--data.length", "2")) == 1
    assert "in rows of 2 (data.length) no token is learned" in capsys.readouterr().err
    assert main(sft(base, tmp_path / "b", *train, "--data.on_bad_line", "skip")) == 0
    said = capsys.readouterr().out
    assert f"skipped: {bad}: line 4 is not JSON" in said and f"skipped: {bad}: line 5: " in said


def copied(base, tmp_path, **files):
    """A copy of the model with other files; None removes one."""
    folder = tmp_path / "model"
    folder.mkdir()
    for path in base.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    for name, content in files.items():
        path = folder / name.replace("__", ".")
        path.unlink()
        if content is not None:
            path.write_text(content)
    return folder


@pytest.mark.parametrize("name, content, message", [
    ("chat_template__jinja", "{% for", "chat_template.jinja"),
    ("chat_template__jinja", None, "there is no chat template"),
    ("tokenizer__json", "{}", "tokenizer.json is not a tokenizer"),
    ("config__json", '{"model_type": "gpt2"}', "config.json"),
    ("model__safetensors", "x" * 100, "model.safetensors"),
])  # fmt: skip
def test_malformed_models_are_one_line(base, tmp_path, capsys, name, content, message):
    folder = copied(base, tmp_path, **{name: content})
    assert main(sft(base, tmp_path / "out", "--model.path", str(folder))) == 1
    said = capsys.readouterr().err
    assert message in said and said.count("\n") == 1


def test_weights_of_another_shape(base, tmp_path, capsys):
    text = (base / "config.json").read_text().replace('"hidden_size": 32', '"hidden_size": 48')
    folder = copied(base, tmp_path, config__json=text)
    assert main(sft(base, tmp_path / "out", "--model.path", str(folder))) == 1
    said = capsys.readouterr().err
    assert "the weights do not fit config.json" in said and said.count("\n") == 1


def test_a_run_keeps_its_settings_and_its_data(base, tmp_path, capsys):
    chats = tmp_path / "chats.jsonl"
    chats.write_bytes((base / "chats.jsonl").read_bytes())
    out = tmp_path / "out"
    command = sft(base, out, "--data.train", str(chats))
    assert main([*command, "--evaluate.patience", "1", "--evaluate.min_delta", "9"]) == 0
    assert newest(out)[0] == "step-00000006"
    assert main([*command, "--optim.lr", "1"]) == 1
    said = capsys.readouterr().err
    assert "other settings (optim.lr 0.003, now 1.0)" in said and said.count("\n") == 1
    chats.write_text(chats.read_text().replace("red", "RED"))
    assert main(command) == 1
    assert f"{chats}: the file has changed since the run was saved" in capsys.readouterr().err
    chats.write_bytes((base / "chats.jsonl").read_bytes())
    assert main(command) == 0  # what does not change the numbers may: nobody waits any more
    assert [r["step"] for r in rows(out) if "loss" in r] == [*range(1, 10)]


def command_line(*argv):
    return [sys.executable, "-m", "genesis_fn", *argv]


def test_two_runs_cannot_share_a_folder(base, tmp_path, capsys):
    out = tmp_path / "out"
    argv = sft(base, out, "--steps", "100000", "--evaluate.every", "0")
    first = subprocess.Popen(command_line(*argv), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        wait_for(lambda: (out / "log.jsonl").exists() and rows(out))
        assert main(argv) == 1 and "is in use by another run" in capsys.readouterr().err
        first.send_signal(signal.SIGINT)
        said, _ = first.communicate(timeout=60)
        assert first.returncode == 130 and b"interrupted at step" in said
    finally:
        first.kill()
        first.communicate()


def wait_for(condition):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_killed_runs_go_on_to_the_same_bits(base, tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    more = "--steps", "60", "--checkpoint.every", "2", "--evaluate.every", "0"
    assert main(sft(base, whole, *more)) == 0
    chance = random.Random(1)
    argv = command_line(*sft(base, parts, *more))
    for _ in range(4):
        process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        known = len(list((parts / "checkpoints").glob("step-*"))) and newest_name(parts)
        wait_for(lambda: process.poll() is not None or newest_name(parts) != known)
        time.sleep(chance.uniform(0, 0.05))
        process.kill()
        process.wait()
    assert main(sft(base, parts, *more)) == 0
    assert newest(parts) == newest(whole) and rows(parts) == rows(whole)


def newest_name(out):
    """The newest checkpoint's name, while a run writes them."""
    return max((p.name for p in (out / "checkpoints").glob("step-*")), default=0)


def test_a_full_disk_ends_the_run_and_leaves_what_was_saved(base, tmp_path, capsys, monkeypatch):
    import errno

    from genesis_fn.io import checkpoint

    out, count = tmp_path / "out", []
    real = checkpoint.save_file

    def full(arrays, path, *rest):
        count.append(1)
        if len(count) == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        return real(arrays, path, *rest)

    monkeypatch.setattr(checkpoint, "save_file", full)
    assert main(sft(base, out)) == 1
    said = capsys.readouterr().err
    assert "No space left on device" in said and "state.safetensors" in said
    monkeypatch.undo()
    assert newest(out)[0] == "step-00000003"
    assert main(sft(base, out)) == 0 and newest(out)[0] == "step-00000009"
