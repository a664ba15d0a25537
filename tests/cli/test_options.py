"""What holds of every command: help with defaults and examples, errors of usage, exit statuses."""

from __future__ import annotations

import argparse
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import tomllib

import pytest

import genesis_fn
from genesis_fn.cli import demo, failures, main as command_line, processes
from genesis_fn.cli.main import main, parser
from genesis_fn.core import device as devices
from genesis_fn.errors import FileError
from genesis_fn.training.settings.reading import KEYS

ROOT = pathlib.Path(__file__).parents[2]
TOP = parser()
(SUB,) = [a for a in TOP._actions if isinstance(a, argparse._SubParsersAction)]
COMMANDS = dict(SUB.choices)
# Options that mean nothing to a command.
WITHOUT = {
    "info": {"--seed", "--dtype"}, "train": {"--dtype"}, "sft": {"--dtype"},
    "resume": {"--seed", "--dtype"}, "eval": {"--seed"}, "merge": {"--seed"},
}  # fmt: skip


def shown(*argv, capsys):
    with pytest.raises(SystemExit) as raised:
        main(argv)
    return raised.value.code, capsys.readouterr()


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_every_option_with_its_default(name, capsys):
    code, said = shown(name, "--help", capsys=capsys)
    assert code == 0 and said.err == ""
    text = " ".join(said.out.split())
    ending = ["-h", "--help"], ["--version"]
    actions = [a for a in COMMANDS[name]._actions if a.option_strings not in ending]
    assert actions
    for action in actions:
        flag, *others = action.option_strings
        # Another spelling is not shown, a short one is.
        for other in others:
            alike = other.replace("_", "-") == flag.replace("_", "-")
            assert (f" {other} " in text.replace(",", " ")) != alike, other
        help_text = (action.help or "").replace("%%", "%")
        assert flag in text and " ".join(help_text.split()) in text
        (default,) = re.findall(r"\((required|default: .+)\)$", help_text)
        assert (default == "required") == action.required
        assert "None" not in default and default not in ("default: False", "default: True")
        # What the program says its default is, is its default.
        if action.default is not None and action.nargs != 0:
            assert default == f"default: {action.default}" or flag == "--prompt"
    flags = {f for a in actions for f in a.option_strings}
    assert {"--seed", "--device", "--dtype"} - flags == WITHOUT.get(name, set())


@pytest.mark.parametrize("name", ["train", "sft"])
def test_settings_are_spelled_with_hyphens_or_underscores(name):
    for key in KEYS.values():
        hyphens = key.name.replace("_", "-")
        for flag in {key.name, hyphens}:
            found = parser().parse_args([name, f"--{flag}", "7"])
            assert getattr(found, f"setting {key.name}") in ("7", ["7"])
    found = parser().parse_args([name, "--on-bad-line", "skip"])
    assert getattr(found, "setting data.on_bad_line") == "skip"


@pytest.mark.parametrize("name", [None, *COMMANDS])
def test_examples_of_the_help_are_command_lines(name, capsys):
    code, said = shown(*([name] if name else []), "--help", capsys=capsys)
    lines = said.out.partition("\nexamples:\n")[2].splitlines()
    assert any(line.startswith(f"  genesis-fn {name or ''}".rstrip()) for line in lines)
    for line in lines:
        _, _, arguments = line.rpartition("genesis-fn ")
        words = shlex.split(arguments)
        if words[-1] != "--help":
            assert parser().parse_args(words).command in COMMANDS
    assert max(map(len, said.out.splitlines())) <= 100


@pytest.mark.parametrize("name", [None, *COMMANDS])
def test_help_is_as_wide_as_the_terminal(name, capsys, monkeypatch):
    texts = []
    for columns in ("70", "200"):
        monkeypatch.setenv("COLUMNS", columns)
        _, said = shown(*([name] if name else []), "--help", capsys=capsys)
        texts.append(said.out.partition("\nexamples:\n"))
    narrow, wide = [text for text, _, _ in texts]
    assert max(map(len, narrow.splitlines())) <= 70 < max(map(len, wide.splitlines()))
    # The same words, but those of the usage, which a narrow one breaks elsewhere.
    described = [text[text.index("\n\n") :].split() for text in (narrow, wide)]
    assert described[0] == described[1] and texts[0][2] == texts[1][2]


@pytest.mark.parametrize("name", [None, *COMMANDS])
def test_version(name, capsys):
    code, said = shown(*([name] if name else []), "--version", capsys=capsys)
    assert code == 0 and said.out == f"genesis-fn {genesis_fn.__version__}\n"


@pytest.mark.parametrize("argv, message", [
    ([], "the following arguments are required: COMMAND"), (["nonsense"], "invalid choice"),
    (["chat"], "the following arguments are required: --model"),
    (["generate", "--model", "m", "--top-p", "0"], "argument --top-p: 0 is not above 0"),
    (["generate", "--model", "m", "--top-p", "1.5"], "argument --top-p: 1.5 is no number of 0 to"),
    (["generate", "--model", "m", "--min-p", "nan"], "argument --min-p: nan is no number of 0"),
    (["generate", "--model", "m", "--temperature", "inf"], "inf is no number of 0 or more"),
    (["generate", "--model", "m", "--top-k", "-1"], "argument --top-k: -1 does not lie in 0 to"),
    (["generate", "--model", "m", "--count", "0"], "argument --count: 0 does not lie in 1 to"),
    (["generate", "--model", "m", "--stop", ""], "argument --stop: an empty text"),
    (["generate", "--model", "m", "--prompt", "\udcff"], "argument --prompt: '\\udcff' is not"),
    (["generate", "--model", "m", "--prompt", "a", "--prompt-file", "b"], "not allowed with"),
    (["generate", "--model", "m", "--json", "--stream"], "not allowed with argument --json"),
    (["generate", "--model", "m", "--prompt", "a", "--system", "b"], "--system: needs --chat"),
    (["generate", "--model", "m", "--prompt", "a", "--template", "b"], "--template: needs --chat"),
    (["chat", "--model", "m", "--repetition-penalty", "0"], "0 is not above 0"),
    (["chat", "--model", "m", "--device", "tpu"], "'tpu' is none of cpu, cuda, cuda:1"),
    (["chat", "--model", "m", "--dtype", "int8"], "argument --dtype: invalid choice: 'int8'"),
    (["chat", "--mod", "m"], "--model"), (["info", "--device", "cpu:1"], "'cpu:1' is none of"),
    (["demo", "--steps", "1e3"], "argument --steps: '1e3' is no integer"),
    (["demo", "--seconds", "-1"], "argument --seconds: -1 is no number of seconds"),
    (["eval", "--model", "", "--data", "a"], "argument --model: an empty text is no path"),
    (["eval", "--model", "m", "--adapter", ""], "argument --adapter: an empty text is no path"),
    (["resume", "--out", ""], "argument --out: an empty text is no path"),
    (["resume", "--out", "a", "--steps", "9"], "of a run are those of its config.yaml"),
    (["demo", "--seed", "-1"], "argument --seed: -1 does not lie in 0 to"),
])  # fmt: skip
def test_errors_of_usage_end_with_2(argv, message, capsys):
    code, said = shown(*argv, capsys=capsys)
    assert code == 2 and message in said.err and said.out == ""


def of_torchrun(rank, local_rank):
    told = {"RANK": rank, "LOCAL_RANK": local_rank, "WORLD_SIZE": 4}
    return {"MASTER_ADDR": "nowhere", "MASTER_PORT": "1"} | {k: str(v) for k, v in told.items()}


def of_slurm(rank, local_rank):
    told = {"SLURM_PROCID": rank, "SLURM_LOCALID": local_rank, "SLURM_NTASKS": 4}
    return {"SLURM_STEP_NODELIST": "node[1-2]"} | {k: str(v) for k, v in told.items()}


@pytest.mark.parametrize("launcher", [of_torchrun, of_slurm])
@pytest.mark.parametrize("argv, status", [
    (["train", "--no-such-option"], 2), (["train", "--steps"], 2), (["nonsense"], 2), ([], 2),
    (["train", "--device", "tpu"], 2), (["sft", "--config", ""], 2), (["demo", "--steps", "x"], 2),
    (["generate", "--model", "m", "--prompt", "a", "--system", "b"], 2), (["resume"], 2),
    (["eval", "--model", "m"], 2),
    (["train", "--device", "cuda:1"], 1), (["train", "--device", "cuda"], 1),
    (["info", "--device", "cuda:77"], 1),
    (["--help"], 0), (["train", "--help"], 0), (["--version"], 0), (["resume", "--version"], 0),
])  # fmt: skip
def test_one_of_several_processes_says_what_is_refused(launcher, argv, status, capsys, monkeypatch):
    """Of two machines with two processes each: what is not there on one may be on the other."""
    waited, speakers = [], []
    monkeypatch.setattr(processes.time, "sleep", waited.append)
    monkeypatch.setattr(devices.backend("cuda"), "device_count", lambda: 0)
    for name in ("RANK", "WORLD_SIZE", "SLURM_STEP_ID", "SLURM_STEP_NODELIST"):
        monkeypatch.delenv(name, raising=False)
    for rank in range(4):
        with monkeypatch.context() as told:
            for name, value in launcher(rank, rank % 2).items():
                told.setenv(name, value)
            try:
                ended = main(argv)
            except SystemExit as end:
                ended = end.code
        assert ended == status
        said = capsys.readouterr()
        if said.out or said.err:
            speakers.append(rank)
    no_gpu = argv[-1:] in (["cuda"], ["cuda:77"])
    assert speakers == ([0, 2] if no_gpu else [0])
    # Who ends first has the launcher end the others, too: not before they have spoken.
    quiet = 4 - len(speakers) if status else 0
    assert waited == [processes._PATIENCE] * quiet


@pytest.mark.parametrize("error, status, said", [
    (FileError("a.json is\n  damaged"), 1, "genesis-fn: a.json is; damaged\n"),
    (FileNotFoundError(2, "No such file", "a"), 1, "genesis-fn: a: No such file\n"),
    (OSError(28, "No space left"), 1, "genesis-fn: No space left\n"),
    (MemoryError(), 1, "genesis-fn: MemoryError\n"),
    (ModuleNotFoundError("No module", name="jinja2.sandbox"), 1,
        "genesis-fn: the command needs the package jinja2: pip install jinja2\n"),
    (KeyboardInterrupt(), 130, ""), (BrokenPipeError(), 141, ""),
])  # fmt: skip
def test_failures_are_one_line_and_a_status(error, status, said, capsys, monkeypatch):
    def fail(arguments):
        raise error

    monkeypatch.setattr(command_line, "parser", lambda: _parser(fail))
    assert main([]) == status
    assert capsys.readouterr().err == said


def _parser(run):
    found = argparse.ArgumentParser()
    found.set_defaults(run=run, device=None)
    return found


@pytest.mark.parametrize("error", [TypeError("a\nb"), KeyError("a"), RecursionError(), ImportError(
    "no such name", name="genesis_fn.io")])  # fmt: skip
def test_a_defect_is_one_line_and_a_traceback_for_who_wants_it(error, monkeypatch, capsys):
    def fail(arguments):
        raise error

    monkeypatch.setattr(command_line, "parser", lambda: _parser(fail))
    assert main([]) == 1
    said = capsys.readouterr().err
    assert said.startswith("genesis-fn: ") and said.count("\n") == 1
    for line in str(error).splitlines():
        assert line in said
    if not isinstance(error, ImportError):
        assert type(error).__name__ in said and "GENESIS_TRACEBACK=full" in said
    monkeypatch.setattr(failures, "_SHOWN", True)
    with pytest.raises(type(error)):
        main([])


def test_device_is_where_a_command_computes(capsys, monkeypatch):
    monkeypatch.setenv("GENESIS_DEVICE", "nowhere")
    assert main(["info", "--device", "cpu"]) == 0
    assert "default device: cpu()" in capsys.readouterr().out
    assert main(["info", "--device", "cuda:77"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("genesis-fn: there is no cuda(77): this machine has ")
    assert said.count("\n") == 1


def test_the_demo_says_its_defaults():
    found = parser().parse_args(["demo"])
    assert (found.out, found.steps, found.batch, found.length) == ("runs/demo", 500, 12, 128)
    assert (found.seconds, found.seed, found.dtype) == (420, 0, "auto")
    assert parser().parse_args(["demo", "--seconds", "inf"]).seconds == float("inf")
    assert demo.CONFIG.vocab_size == demo.VOCABULARY


def started(*argv, **settings):
    """A process of `genesis-fn`, as `python -m genesis_fn`."""
    return subprocess.Popen(
        [sys.executable, "-m", "genesis_fn", *argv], stderr=subprocess.PIPE, **settings
    )


def test_nobody_reads_the_output_any_more():
    """Behind `| head` a command ends quietly."""
    process = started("info", stdout=subprocess.PIPE)
    process.stdout.close()
    assert (process.stderr.read(), process.wait(60)) == (b"", 141)


@pytest.mark.parametrize("argv", [["info"], ["chat", "--help"]])
def test_a_full_disk_is_one_line(argv):
    environment = {n: v for n, v in os.environ.items() if n != "PYTHONUNBUFFERED"}
    with open("/dev/full", "w") as full:
        process = started(*argv, stdout=full, env=environment)
    said = process.stderr.read()
    assert (said, process.wait(60)) == (b"genesis-fn: No space left on device\n", 1)


def test_the_command_that_is_installed_is_the_same():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    module, _, function = settings["project"]["scripts"]["genesis-fn"].partition(":")
    assert module in settings["tool"]["setuptools"]["py-modules"]
    code = f"import sys; from {module} import {function}; sys.exit({function}())"
    said = subprocess.run(
        [sys.executable, "-c", code, "info", "--help"], capture_output=True, cwd=ROOT
    )
    process = started("info", "--help", stdout=subprocess.PIPE)
    assert said.returncode == 0 and said.stdout == process.stdout.read()
    assert process.wait(60) == 0 and said.stderr == process.stderr.read() == b""


# Ctrl-C when numpy is imported, which is early.
EARLY = """
import os, signal, sys

class Finder:
    def find_spec(name, path=None, target=None):
        if name == "numpy":
            os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, {handler})
sys.meta_path.insert(0, Finder)
from genesis_fn_command import main
sys.exit(main())
"""


@pytest.mark.parametrize("handler, status", [
    ("signal.default_int_handler", -signal.SIGINT), ("signal.SIG_IGN", 0),
])  # fmt: skip
def test_ctrl_c_while_the_library_is_imported_is_quiet(handler, status):
    code = [sys.executable, "-c", EARLY.format(handler=handler), "--version"]
    found = subprocess.run(code, capture_output=True, cwd=ROOT)
    assert (found.returncode, found.stderr) == (status, b"")
