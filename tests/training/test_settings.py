"""Settings of files and of command lines: types, names, ranges, and what a run records."""

from __future__ import annotations

import dataclasses
import random
import types
import typing

import pytest

from genesis_fn.errors import FileError
from genesis_fn.training.settings.reading import (
    KEYS,
    changed,
    read_settings,
    value_of,
    write_settings,
)
from genesis_fn.training.settings.sections import Data, Optim, TrainingSettings

TOML = """
steps = 12
remat = true
optim.lr = 3e-4
data.train = ["a.jsonl", "b"]
[lora]
target_modules = ["q_proj"]
alpha = 3
[model]
path = "qwen"
"""
YAML = """
steps: 12
remat: true
optim: {lr: 3e-4}
data.train: [a.jsonl, b]
lora:
  target_modules: [q_proj]
  alpha: 3
model: {path: qwen}
"""


@pytest.mark.parametrize("name, text", [("a.toml", TOML), ("a.yaml", YAML), ("a.yml", YAML)])
def test_files_say_the_same(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    found = read_settings(str(tmp_path / name), {})
    base = TrainingSettings()
    wanted = dataclasses.replace(
        base,
        steps=12,
        remat=True,
        optim=Optim(lr=3e-4),
        data=Data(train=("a.jsonl", "b")),
        lora=dataclasses.replace(base.lora, target_modules=("q_proj",), alpha=3.0),
        model=dataclasses.replace(base.model, path="qwen"),
    )
    assert found == wanted and type(found.lora.alpha) is float
    # The command line goes before the file, the file before what a command begins with.
    start = dataclasses.replace(base, steps=1, batch=2)
    given = {"steps": "20", "optim.lr": "1e-5", "remat": "false", "data.train": ["c"]}
    found = read_settings(str(tmp_path / name), given, start)
    assert (found.steps, found.batch, found.optim.lr, found.remat) == (20, 2, 1e-5, False)
    assert found.data.train == ("c",) and found.model.path == "qwen"


def test_texts_of_yaml_stay_texts(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text("out: no\nmodel: {path: 012, tokenizer: ~, template: 2020-01-01}\nseed: 1_000")
    found = read_settings(str(path), {})
    assert (found.out, found.model.path, found.model.tokenizer) == ("no", "012", None)
    assert found.model.template == "2020-01-01" and found.seed == 1000


def drawn(chance, key):
    """A value that a setting accepts."""
    kind = key.kind
    if type(None) in typing.get_args(kind):
        if chance.random() < 0.3:
            return None
        (kind,) = [a for a in typing.get_args(kind) if a is not type(None)]
    if typing.get_origin(kind) is typing.Literal:
        return chance.choice(typing.get_args(kind))
    if typing.get_origin(kind) is tuple:
        inner = typing.get_args(kind)[0]
        values = [0.5, 2.0] if inner is float else ["a b", "no", "x: y # z", "é\n\"'\\", "~", ""]
        empty = inner is str and key.name != "sample.prompts"
        return tuple(chance.sample(values[: -1 if empty else None], chance.randint(0, 2)))
    if kind is bool:
        return chance.random() < 0.5
    if kind is str:
        return chance.choice(["a", "yes", "1e3", "nil", "a: b", "# c", " é\n", "[x]", "{}", "&a"])
    if key.name in ("ema", "lora.dropout", "optim.b1", "optim.b2"):
        return chance.random()
    most = {"data.prefetch": 1024, "batch": 2**14, "data.length": 2**14}.get(key.name, 10**9)
    return chance.randint(1, most) if kind is int else chance.uniform(0, 1e-3)


def test_what_is_written_is_read_again(tmp_path):
    chance = random.Random(4)
    path = str(tmp_path / "config.yaml")
    for _ in range(40):
        given = {key.name: drawn(chance, key) for key in KEYS.values()}
        given |= {
            "accumulate": 1,
            "data.weights": (),
            "memory_budget": chance.choice([None, "80%"]),
            "parallel": chance.choice([None, "fsdp=4", "data=2, model=2"]),
        }
        settings = read_settings(None, given)
        write_settings(path, settings)
        assert read_settings(path, {}) == settings
        for key in KEYS.values():
            assert value_of(settings, key.name) == given[key.name]


def wrong(kind):
    """Texts that no setting of a type accepts."""
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        (kind,) = [a for a in typing.get_args(kind) if a is not type(None)]
    if typing.get_origin(kind) is tuple:
        kind = typing.get_args(kind)[0]
    if typing.get_origin(kind) is typing.Literal:
        return ["", "X", "1"]
    return {
        bool: ["", "maybe", "2"],
        int: ["", "x", "1.5", "nan", "1e3", "0x10"],
        float: ["", "x", "nan", "inf", "-inf", "1e400", "1e300"],
        str: [""],
    }[kind]


def test_no_setting_takes_what_it_cannot_mean():
    for key in KEYS.values():
        texts = wrong(key.kind)
        if "nan" in texts:
            texts = [*texts, "-1", "-999999999999", "9" * 31, "9" * 400]
        for text in texts:
            if (key.name, text) == ("sample.prompts", ""):
                continue
            with pytest.raises(ValueError) as found:
                read_settings(None, {key.name: text})
            said = str(found.value)
            assert key.name in said and "\n" not in said and len(said) < 200, said


@pytest.mark.parametrize("name, meant", [
    ("lr", "it is optim.lr"), ("optim.learning_rate", "it is optim.lr"),
    ("optm.lr", "it is optim.lr"), ("optim.weight_decy", "did you mean optim.weight_decay?"),
    ("per_device_train_batch_size", "it is batch"), ("stepz", "did you mean steps?"),
    ("dta", "did you mean data?"), ("gradient_checkpointing", "it is remat"),
    ("zzzzzzzz", "there is no setting zzzzzzzz$"), ("optim", "optim is a section; its settings"),
])  # fmt: skip
def test_an_unknown_name_is_refused_with_the_nearest(tmp_path, name, meant):
    with pytest.raises(ValueError, match=f"the command line: .*{meant}".replace("?", r"\?")):
        read_settings(None, {name: "1"})
    path = tmp_path / "a.yaml"
    path.write_text(f"{name}: 1\n")
    with pytest.raises(ValueError, match=f"a.yaml: .*{meant}".replace("?", r"\?")):
        read_settings(str(path), {})


@pytest.mark.parametrize("name, value, message", [
    ("optim.lr", "fast", "'fast', expected a number"), ("optim.lr", "nan", "expected a number"),
    ("optim.lr", True, "expected a number"), ("steps", "1.5", "expected an integer, or none"),
    ("steps", 2.0, "expected an integer"), ("remat", "maybe", "expected true or false"),
    ("remat", 1, "expected true or false"), ("method", "qlora", "one of full, lora, dora"),
    ("data.weights", ["a"], "a list, of each a number"), ("model.path", 3, "expected a text"),
    ("steps", 0, "steps is 0, expected 1 or more"), ("optim.lr", -1, "expected 0 or more"),
    ("optim.b1", 1, "from 0 to below 1"), ("lora.dropout", "1", "from 0 to below 1"),
    ("optim.lr", 10**400, "expected a number"), ("optim.eps", 1e31, "expected 1e\\+30 at most"),
    ("steps", 10**10, "steps is 10000000000, expected 1e\\+09 at most"),
    ("batch", 10**6, "batch is 1000000 and data.length 1024: a step has 268,435,456 tokens"),
    ("accumulate", 3, "batch is 8 and accumulate 3"), ("data.weights", [1], "1 numbers for 0"),
])  # fmt: skip
def test_values_are_checked(name, value, message):
    with pytest.raises(ValueError, match=message) as raised:
        read_settings(None, {name: value})
    assert name in str(raised.value)


@pytest.mark.parametrize("name, content, message", [
    ("a.toml", "steps = ", "not TOML"), ("a.yaml", "steps: [1", "not YAML"),
    ("a.yaml", "steps: 1\nsteps: 2\n", "line 2: steps is there twice"),
    ("a.yaml", "- 1\n", "are no settings"), ("a.yaml", "optim: {lr: 1, lr: 2}", "lr is there"),
    ("a.json", "{}", "settings are read of .toml"), ("a.toml", b"\xff", "not UTF-8"),
    ("a.yaml", "out: !!python/object:os.system x", "not YAML"),
    ("a.yaml", "a: &a [1]\nb: [" + "*a, " * 200 + "]", "more than 100 aliases"),
    ("a.yaml", "out: " + "[" * 5000, "(not YAML|nested too deeply)"),
    ("a.yaml", "# " + "x" * (1 << 20), "more than"), ("a.yaml", "? [a]\n: 1", "line 1: expected a"),
    ("a.yaml", "steps: !!int x", "not YAML"), ("a.toml", "out = " + "[" * 5000, "too deeply"),
    ("a.toml", "steps = " + "1" * 5000, "not TOML"),
    ("a.toml", "data.train = {a = 1}", "data.train is {'a': 1}, expected a list"),
])  # fmt: skip
def test_malformed_files_are_refused(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError, match=f"{name}: .*{message}") as found:
        read_settings(str(path), {})
    assert isinstance(found.value, FileError) or "expected a list" in message


def test_an_empty_file_is_the_defaults(tmp_path):
    for name in ("a.yaml", "a.toml"):
        (tmp_path / name).write_text("")
        assert read_settings(str(tmp_path / name), {}) == TrainingSettings()


def test_what_changed_are_the_fixed_settings():
    before = read_settings(None, {"steps": 3})
    after = read_settings(None, {"steps": 3, "optim.lr": 1, "log.every": 7, "out": "elsewhere"})
    assert changed(before, after) == [("optim.lr", 3e-4, 1.0)]
    assert all(key.help for key in KEYS.values())
