"""`genesis-fn generate`: what it writes, against the model itself, and what it refuses."""

from __future__ import annotations

import io
import json
import shutil

import numpy as np
import pytest

import genesis_fn.numpy as jnp
from genesis_fn import data, models
from genesis_fn.cli.language_model import memory
from genesis_fn.cli.main import main
from genesis_fn.io import load_model
from tests.cli.conftest import TEMPLATE

PROMPT = "def f"


def generate(folder, *options):
    return main(["generate", "--model", folder, "--max-new-tokens", "8", *options])


def rows(capsys):
    said = capsys.readouterr()
    assert said.err == ""
    return [json.loads(line) for line in said.out.splitlines()]


@pytest.fixture(scope="module")
def model(folder):
    params, config = load_model(folder)
    return data.load_tokenizer(folder), params, config


def logprobs(model, prompt, new):
    """The log-probabilities of `new` behind `prompt`, in float64, and those of the best others."""
    _, params, config = model
    logits = models.qwen.forward(params, jnp.array([prompt + new]), config)[0]
    x = np.asarray(logits, np.float64)[len(prompt) - 1 : -1]
    x -= np.log(np.exp(x - x.max(-1, keepdims=True)).sum(-1, keepdims=True)) + x.max(
        -1, keepdims=True
    )
    found = x[np.arange(len(new)), new]
    x[np.arange(len(new)), new] = -np.inf
    return found, x.max(-1)


def test_json_has_the_tokens_and_what_the_model_gave_to_them(folder, model, capsys):
    assert generate(folder, "--prompt", PROMPT, "--json") == 0
    (row,) = rows(capsys)
    assert [*row] == ["index", "text", "tokens", "logprobs", "finish_reason", "prompt_tokens"]
    tokenizer = model[0]
    prompt = tokenizer.encode(PROMPT).ids
    assert row["prompt_tokens"] == len(prompt)
    assert row["finish_reason"] == "length" and len(row["tokens"]) == 8
    found, others = logprobs(model, prompt, row["tokens"])
    np.testing.assert_allclose(row["logprobs"], found, atol=1e-4)
    assert (found > others - 1e-3).all()  # greedy, as no settings ask for draws
    assert tokenizer.decode(prompt + row["tokens"]) == PROMPT + row["text"]


def test_plain_output_is_the_text_and_a_line_end(folder, capsys):
    texts = []
    for form in ([], ["--stream"], ["--json"]):
        assert generate(folder, "--prompt", PROMPT, *form) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] == json.loads(texts[2])["text"] + "\n"
    assert generate(folder, "--prompt", PROMPT, "--logprobs") == 0
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    row = json.loads(texts[2])
    assert [int(token) for _, token, _ in lines] == row["tokens"]
    np.testing.assert_allclose([float(x) for x, _, _ in lines], row["logprobs"], atol=1e-4)
    assert "".join(json.loads(text) for _, _, text in lines) == row["text"]


def test_prompts_of_files_and_stdin(folder, tmp_path, capsys, monkeypatch):
    assert generate(folder, "--prompt", PROMPT, "--json") == 0
    wanted = rows(capsys)
    (tmp_path / "prompt.txt").write_text(PROMPT + "\n")
    assert generate(folder, "--prompt-file", str(tmp_path / "prompt.txt"), "--json") == 0
    for text in (PROMPT + "\r\n", "\ufeff" + PROMPT):
        monkeypatch.setattr("sys.stdin", io.StringIO(text))
        assert generate(folder, "--json") == 0
    for got in rows(capsys):
        np.testing.assert_allclose(got.pop("logprobs"), wanted[0]["logprobs"], atol=1e-4)
        assert got.items() <= wanted[0].items()


def test_draws_differ_and_are_those_of_the_seed(folder, capsys):
    found = []
    for seed in ("1", "1", "2"):
        options = "--temperature", "1.5", "--count", "3", "--seed", seed
        assert generate(folder, "--prompt", PROMPT, "--json", *options) == 0
        found.append([row["tokens"] for row in rows(capsys)])
    assert found[0] == found[1] != found[2]
    assert len({tuple(tokens) for tokens in found[0]}) == 3
    assert generate(folder, "--prompt", PROMPT, "--count", "2") == 1
    assert "--count 2 of the most likely continuation are all the same" in capsys.readouterr().err


def test_settings_of_sampling_are_honoured(folder, model, capsys):
    """One kept token leaves nothing to draw, by whichever option."""
    assert generate(folder, "--prompt", PROMPT, "--json") == 0
    (greedy,) = rows(capsys)
    prompt = model[0].encode(PROMPT).ids
    found, others = logprobs(model, prompt, greedy["tokens"])
    assert (found - others).min() > 1e-3
    for options in (["--top-k", "1"], ["--top-p", "1e-9"], ["--min-p", "1"]):
        options = [*options, "--temperature", "9"]
        assert generate(folder, "--prompt", PROMPT, "--json", *options) == 0
        assert rows(capsys)[0]["tokens"] == greedy["tokens"], options
    assert generate(folder, "--prompt", PROMPT, "--json", "--repetition-penalty", "1e6") == 0
    (row,) = rows(capsys)
    assert len({*row["tokens"]}) == 8 and not {*row["tokens"]} & {*prompt}


def test_generation_config_gives_what_options_do_not(folder, tmp_path, capsys):
    shutil.copytree(folder, tmp_path / "model")
    path = tmp_path / "model" / "generation_config.json"
    assert generate(folder, "--prompt", PROMPT, "--json") == 0
    (plain,) = rows(capsys)
    end, drawn = plain["tokens"][2], {"do_sample": True, "temperature": 2.0}
    path.write_text(json.dumps({"max_new_tokens": 5, "eos_token_id": end}))
    command = ["generate", "--model", str(tmp_path / "model"), "--prompt", PROMPT, "--json"]
    assert main(command) == 0
    (row,) = rows(capsys)
    assert row["tokens"] == plain["tokens"][: plain["tokens"].index(end) + 1]
    assert row["finish_reason"] == "stop" and plain["text"].startswith(row["text"])
    path.write_text(json.dumps({"max_new_tokens": 5, **drawn}))
    assert main([*command, "--count", "2"]) == 0
    several = rows(capsys)
    assert [len(row["tokens"]) for row in several] == [5, 5]
    assert several[0]["tokens"] != several[1]["tokens"]
    assert main([*command, "--temperature", "0", "--max-new-tokens", "8"]) == 0
    assert rows(capsys)[0]["tokens"] == plain["tokens"]
    path.write_text('{"temperature": "hot"}')
    assert main(command) == 1
    assert "generation_config.json: " in capsys.readouterr().err


def with_settings(folder, tmp_path, **fields):
    """A command with the model and these settings in its generation_config.json."""
    shutil.copytree(folder, tmp_path / "model", dirs_exist_ok=True)
    (tmp_path / "model" / "generation_config.json").write_text(json.dumps(fields))
    return ["generate", "--model", str(tmp_path / "model"), "--prompt", PROMPT, "--json"]


@pytest.mark.parametrize("beams", ["1", "2"])
def test_lengths_of_the_settings(folder, model, tmp_path, capsys, beams):
    size = len(model[0].encode(PROMPT).ids)
    search = ["--num-beams", beams]
    assert main([*with_settings(folder, tmp_path, max_length=size + 3), *search]) == 0
    assert len(rows(capsys)[0]["tokens"]) == 3
    command = with_settings(folder, tmp_path, max_length=size)
    assert main([*command, *search]) == 1
    assert f"tokens, and max_length is {size} with it" in capsys.readouterr().err
    assert main([*command, *search, "--max-new-tokens", "2"]) == 0
    assert len(rows(capsys)[0]["tokens"]) == 2
    command = with_settings(folder, tmp_path, max_new_tokens=0)
    assert main([*command, *search]) == 1
    said = capsys.readouterr()
    assert "generation_config.json's max_new_tokens is 0" in said.err and said.out == ""
    assert main([*command, *search, "--max-new-tokens", "2"]) == 0
    assert len(rows(capsys)[0]["tokens"]) == 2


def test_a_beam_search_does_not_draw(folder, tmp_path, capsys):
    beams = "--prompt", PROMPT, "--num-beams", "2"
    for options in (["--temperature", "0.9"], ["--top-k", "3"], ["--top-p", "0.5"],
                    ["--min-p", "0.1"], ["--temperature", "0", "--top-k", "3"]):  # fmt: skip
        assert generate(folder, *beams, *options) == 1
        said = capsys.readouterr()
        assert f"which {options[-2]} ask" in said.err and said.err.count("\n") == 1
        assert not said.out
    assert generate(folder, *beams, "--temperature", "0", "--json") == 0
    (searched,) = rows(capsys)
    settings = {"num_beams": 2, "do_sample": True, "temperature": 2.0, "max_new_tokens": 8}
    end = json.loads(open(f"{folder}/generation_config.json").read())["eos_token_id"]
    command = with_settings(folder, tmp_path, eos_token_id=end, **settings)
    assert main(command) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["tokens"] == searched["tokens"]
    assert said.err == "[do_sample of the model's settings is left out: beams draw no tokens]\n"
    assert main([*command, "--temperature", "0"]) == 0
    assert rows(capsys)[0]["tokens"] == searched["tokens"]
    assert main([*command, "--top-k", "3"]) == 1


def test_a_temperature_of_0_draws_nothing_whatever_else_is_given(folder, capsys):
    for options in ([], ["--top-k", "50", "--top-p", "1"]):
        options = [*options, "--temperature", "0", "--seed", "4"]
        assert generate(folder, "--prompt", PROMPT, "--json", *options) == 0
    greedy, given = rows(capsys)
    assert given["tokens"] == greedy["tokens"]


def test_count_of_the_settings(folder, tmp_path, capsys):
    drawn = {"do_sample": True, "num_return_sequences": 3, "max_new_tokens": 2}
    command = with_settings(folder, tmp_path, **drawn)
    for options, count in (([], 3), (["--count", "1"], 1), (["--count", "2"], 2)):
        assert main([*command, *options]) == 0
        assert len(rows(capsys)) == count
    assert main([*command, "--temperature", "0"]) == 1
    said = capsys.readouterr().err
    assert "num_return_sequences 3 of generation_config.json of the most likely" in said
    command = with_settings(folder, tmp_path, num_beams=3, num_return_sequences=3, max_new_tokens=2)
    assert main(command) == 0
    assert len(rows(capsys)) == 3
    assert main([*command, "--num-beams", "2"]) == 1
    assert "num_return_sequences 3 of generation_config.json is more" in capsys.readouterr().err


def test_a_cache_that_memory_has_no_room_for(folder, capsys, monkeypatch):
    cases = [(["--capacity", "999999999"], "--capacity 999999999: a cache for 999,999,999 tokens"),
             (["--num-beams", "999999999"], "--num-beams 999999999: a cache for ")]  # fmt: skip
    for options, message in cases:
        assert generate(folder, "--prompt", PROMPT, *options) == 1
        said = capsys.readouterr()
        assert message in said.err and said.err.count("\n") == 1 and not said.out
    # Of 96 positions: keys and values of 16 float32 in each of 2 layers, and the length.
    needed = 96 * 2 * 2 * 16 * 4 + 4
    options = "--prompt", PROMPT, "--dtype", "float32", "--capacity", "96"
    for there, status in ((needed - 1, 1), (needed, 0)):
        monkeypatch.setattr(memory, "available", lambda there=there: there)
        assert generate(folder, *options) == status
        assert (f"takes {needed:,} bytes" in capsys.readouterr().err) == bool(status)


def test_stop_strings_end_the_text_before_them(folder, capsys):
    drawn = "--max-new-tokens", "40", "--temperature", "1.5"
    assert generate(folder, "--prompt", PROMPT, "--json", *drawn) == 0
    (plain,) = rows(capsys)
    text = plain["text"]
    stop = next(
        text[i : i + 2] for i in range(4, len(text)) if text[i : i + 2] not in text[: i + 1]
    )
    cut = plain["text"][: plain["text"].index(stop)]
    for form in (["--json"], ["--stream"]):
        options = "--stop", "never", "--stop", stop
        assert generate(folder, "--prompt", PROMPT, *form, *drawn, *options) == 0
        said = capsys.readouterr().out
        if form == ["--json"]:
            row = json.loads(said)
            assert row["text"] == cut and row["finish_reason"] == "stop"
            assert row["tokens"] == plain["tokens"][: len(row["tokens"])]
        else:
            assert said == cut + "\n"


def test_beams(folder, model, capsys):
    """The score is the mean of the log-probabilities, and better than that of the greedy text."""
    assert generate(folder, "--prompt", PROMPT, "--json", "--num-beams", "4", "--count", "3") == 0
    found = rows(capsys)
    prompt = model[0].encode(PROMPT).ids
    assert [row["index"] for row in found] == [0, 1, 2]
    for row in found:
        logp, _ = logprobs(model, prompt, row["tokens"])
        np.testing.assert_allclose(row["score"], logp.mean(), atol=1e-4)
    assert found[0]["score"] >= found[1]["score"] >= found[2]["score"]
    assert generate(folder, "--prompt", PROMPT, "--json") == 0
    (greedy,) = rows(capsys)
    assert found[0]["score"] >= np.mean(greedy["logprobs"]) - 1e-4
    for options in (["--stream"], ["--logprobs"], ["--count", "5"]):
        assert generate(folder, "--prompt", PROMPT, "--num-beams", "4", *options) == 1
        assert capsys.readouterr().err.count("\n") == 1


def test_a_prompt_may_be_a_message(folder, model, tmp_path, capsys):
    text = "<|system|>Be brief.\n<|user|>def f\n<|assistant|>"
    assert generate(folder, "--prompt", text, "--json") == 0
    options = "--chat", "--prompt", "def f", "--system", "Be brief.", "--json"
    assert generate(folder, *options) == 0
    plain, chat = rows(capsys)
    assert chat["tokens"] == plain["tokens"] and chat["prompt_tokens"] == plain["prompt_tokens"]
    (tmp_path / "other.jinja").write_text("{{ messages[0]['content'] }}")
    options = "--chat", "--prompt", PROMPT, "--template", str(tmp_path / "other.jinja"), "--json"
    assert generate(folder, *options) == 0
    assert generate(folder, "--prompt", PROMPT, "--json") == 0
    given, plain = rows(capsys)
    assert given["tokens"] == plain["tokens"]
    assert TEMPLATE.strip() == (open(f"{folder}/chat_template.jinja").read()).strip()


def without(name):
    def change(folder):
        (folder / name).unlink()

    return change


def with_text(name, text):
    return lambda folder: (folder / name).write_text(text)


@pytest.mark.parametrize("change, message", [
    (without("config.json"), "model: no model, config.json is missing"),
    (without("tokenizer.json"), "model/tokenizer.json: "),
    (without("model.safetensors"), "model.safetensors"),
    (with_text("tokenizer.json", "{}"), "tokenizer.json is not a tokenizer"),
    (with_text("config.json", "{}"), "config.json"),
    (with_text("generation_config.json", "[1"), "generation_config.json is not JSON"),
    (with_text("model.safetensors", "short"), "model.safetensors"),
])  # fmt: skip
def test_what_a_folder_lacks_is_named(folder, tmp_path, capsys, change, message):
    shutil.copytree(folder, tmp_path / "model")
    change(tmp_path / "model")
    assert generate(str(tmp_path / "model"), "--prompt", PROMPT) == 1
    said = capsys.readouterr()
    assert message in said.err and said.err.count("\n") == 1 and said.out == ""


def test_other_failures_are_one_line_on_stderr(folder, tmp_path, capsys, monkeypatch):
    (tmp_path / "bytes").write_bytes(b"\xff")
    (tmp_path / "checkpoints").mkdir()
    cases = [
        (["--model", str(tmp_path / "none")], "none: not there"),
        (["--model", f"{folder}/config.json"], "config.json: a file; --model takes a folder"),
        (["--model", str(tmp_path)], "a run that has not come to its end"),
        (["--prompt-file", str(tmp_path / "none")], "none: No such file"),
        (["--prompt-file", str(tmp_path / "bytes")], "bytes: not UTF-8"),
        (["--prompt-file", str(tmp_path)], "not a plain file"),
        (["--prompt", ""], "the prompt is empty"),
        (["--prompt", "x" * 99, "--capacity", "20"], "tokens, and prompt and answer may have 20"),
        (["--prompt", "x", "--device", "cuda:99"], "cuda"),
    ]
    for options, message in cases:
        prompt = [] if any(o.startswith("--prompt") for o in options) else ["--prompt", PROMPT]
        status = main(["generate", "--model", folder, *prompt, *options])
        said = capsys.readouterr()
        assert status == 1 and message in said.err, (options, said.err)
        assert said.err.startswith("genesis-fn: ") and said.err.count("\n") == 1 and not said.out
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\xff"), encoding="utf-8"))
    assert main(["generate", "--model", folder]) == 1
    assert capsys.readouterr().err == "genesis-fn: stdin is not UTF-8\n"


def test_the_cache_ends_the_text(folder, capsys):
    options = "--capacity", "12", "--max-new-tokens", "100", "--json"
    assert main(["generate", "--model", folder, "--prompt", PROMPT, *options]) == 0
    (row,) = rows(capsys)
    assert row["prompt_tokens"] + len(row["tokens"]) == 12 and row["finish_reason"] == "length"


def test_dtype_is_that_of_the_parameters(folder, capsys):
    for dtype in ("float64", "bfloat16"):
        assert generate(folder, "--prompt", PROMPT, "--dtype", dtype, "--json") == 0
    exact, rough = rows(capsys)
    assert exact["logprobs"] != rough["logprobs"]
    np.testing.assert_allclose(exact["logprobs"][0], rough["logprobs"][0], atol=0.2)
