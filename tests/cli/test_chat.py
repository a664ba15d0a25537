"""`genesis-fn chat` with a model: through a pipe, at a terminal, under signals."""

from __future__ import annotations

import io
import json
import os
import pty
import select
import shutil
import signal
import subprocess
import sys
import time

import pytest

from genesis_fn.cli.main import main
from genesis_fn.data import load_tokenizer


def chat(folder, monkeypatch, lines, *options):
    monkeypatch.setattr("sys.stdin", io.StringIO(lines))
    return main(["chat", "--model", folder, "--max-new-tokens", "6", *options])


def answer_of(folder, capsys, prompt, *options):
    """What `generate` continues a rendered prompt with."""
    command = ["generate", "--model", folder, "--max-new-tokens", "6", "--prompt", prompt]
    assert main([*command, "--json", *options]) == 0
    return json.loads(capsys.readouterr().out)["text"]


def test_answers_continue_the_rendered_history(folder, monkeypatch, capsys, tmp_path):
    path = tmp_path / "chat.json"
    lines = f"hello\n\nwhat \\\nnow?\n/save {path}\n"
    assert chat(folder, monkeypatch, lines, "--system", "Be brief.") == 0
    said = capsys.readouterr()
    assert "\x1b" not in said.out + said.err and "\r" not in said.out and ">" not in said.err
    messages = json.loads(path.read_text())["messages"]
    roles = ["system", "user", "assistant", "user", "assistant"]
    assert [m["role"] for m in messages] == roles
    texts = [m["content"] for m in messages]
    assert [texts[0], texts[1], texts[3]] == ["Be brief.", "hello", "what \nnow?"]
    first = "<|system|>Be brief.\n<|user|>hello\n<|assistant|>"
    assert texts[2] == answer_of(folder, capsys, first)
    second = f"{first}{texts[2]}\n<|user|>what \nnow?\n<|assistant|>"
    assert texts[4] == answer_of(folder, capsys, second)
    lines = [t if t.endswith("\n") else t + "\n" for t in (texts[2], texts[4])]
    assert said.out == "".join(lines)
    assert said.err.splitlines()[:2] == ["[cut after 6 tokens: max_new_tokens]"] * 2


def test_a_history_that_was_extended_costs_its_new_tokens(folder, monkeypatch, capsys):
    lines = "hello\nwhat now?\n/tokens\n/retry\n/tokens\n"
    assert chat(folder, monkeypatch, lines) == 0
    out = capsys.readouterr().out
    (first, second) = [line for line in out.splitlines() if line.startswith("last answer: ")]
    cached = [int(line.split("; ")[1].split()[0]) for line in (first, second)]
    tokenizer = load_tokenizer(folder)
    assert cached[0] >= len(tokenizer.encode("<|user|>hello\n<|assistant|>").ids) - 1
    assert cached[1] > cached[0]


def test_draws_are_those_of_the_seed_and_a_retry_draws_others(
    folder, monkeypatch, capsys, tmp_path
):
    found = []
    for i, seed in enumerate("112"):
        path = tmp_path / f"{i}.jsonl"
        options = "--temperature", "2", "--seed", seed, "--transcript", str(path)
        assert chat(folder, monkeypatch, "a\n/retry\n", *options) == 0
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        assert rows[0]["event"] == "start" and rows[0]["model"] == folder
        assert [r.get("role", r.get("event")) for r in rows] == [
            "start", "user", "assistant", "retry", "user", "assistant",
        ]  # fmt: skip
        assert rows[2]["tokens"] == 6 and rows[2]["finish_reason"] == "length"
        found.append([r["content"] for r in rows if r.get("role") == "assistant"])
    assert found[0] == found[1] != found[2]
    assert found[0][0] != found[0][1]


def test_stop_strings_and_settings_reach_the_answers(folder, monkeypatch, capsys):
    assert chat(folder, monkeypatch, "a\n") == 0
    plain = capsys.readouterr().out
    stop = next(c for c in plain if c != plain[0] and c.isprintable())
    wanted = plain[: plain.index(stop)]
    assert chat(folder, monkeypatch, "a\n", "--stop", stop) == 0
    assert capsys.readouterr() == (wanted + "\n", "")
    assert chat(folder, monkeypatch, f"/set stop {json.dumps(stop)}\na\n") == 0
    assert capsys.readouterr().out.endswith(f"['{stop}']\n{wanted}\n")
    assert chat(folder, monkeypatch, "/set max_new_tokens 1\na\n") == 0
    said = capsys.readouterr()
    assert said.err == "[cut after 1 token: max_new_tokens]\n"
    assert plain.startswith(said.out.splitlines()[1])


def test_the_oldest_turns_are_dropped(folder, monkeypatch, capsys):
    lines = "word\n" * 8 + "/history\n/tokens\n"
    assert chat(folder, monkeypatch, lines, "--capacity", "80", "--system", "Be brief.") == 0
    said = capsys.readouterr()
    assert "[dropped the oldest turn: the cache holds 80 tokens]" in said.err
    assert "system: Be brief." in said.out and "user (dropped): word" in said.out
    assert said.out.count("user: word") + said.out.count("user (dropped): word") == 8
    (used,) = [line for line in said.out.splitlines() if line.startswith("history: ")]
    assert int(used.split()[1]) <= 80


def test_errors_in_a_pipe_end_with_1(folder, monkeypatch, capsys, tmp_path):
    cases = [
        ("x" * 999 + "\n", [], "tokens, and there is room for"),
        ("/load /no/such/file\n", [], "/no/such/file: No such file or directory"),
        ("a\\\n", [], "the input ends behind a backslash"),
        ("a\n", ["--template", str(tmp_path / "none")], "none: No such file"),
        ("a\n", ["--transcript", str(tmp_path / "no" / "file")], "file: No such file"),
    ]
    for lines, options, message in cases:
        assert chat(folder, monkeypatch, lines, *options) == 1
        said = capsys.readouterr()
        assert message in said.err and said.err.count("\n") == 1 and said.out == "", message


def test_a_missing_template_is_one_clear_error(folder, monkeypatch, capsys, tmp_path):
    shutil.copytree(folder, tmp_path / "model")
    (tmp_path / "model" / "chat_template.jinja").unlink()
    assert chat(str(tmp_path / "model"), monkeypatch, "a\n") == 1
    said = capsys.readouterr()
    assert "model: there is no chat template" in said.err and "--template FILE" in said.err
    assert said.err.count("\n") == 1 and said.out == ""
    (tmp_path / "mine.jinja").write_text("{% for m in messages %}{{ m['content'] }}{% endfor %}")
    options = "--template", str(tmp_path / "mine.jinja")
    assert chat(str(tmp_path / "model"), monkeypatch, "def f\n", *options) == 0
    out = capsys.readouterr().out
    assert out.removesuffix("\n") == answer_of(folder, capsys, "def f").removesuffix("\n")


def test_a_template_may_refuse_a_system_prompt(folder, monkeypatch, capsys, tmp_path):
    (tmp_path / "strict.jinja").write_text(
        "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
        "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    )
    options = "--template", str(tmp_path / "strict.jinja")
    assert chat(folder, monkeypatch, "a\n", *options, "--system", "x") == 1
    said = capsys.readouterr()
    assert "no system role" in said.err and said.err.count("\n") == 1 and said.out == ""
    assert chat(folder, monkeypatch, "a\n", *options) == 0


@pytest.mark.parametrize(
    ("shown", "template"),
    [
        (False, "{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}"),
        (False, "Be brief. {{ messages[-1].content }}"),
        # One that has the same system prompt of its own, and one that writes it otherwise.
        (True, "{% if messages[1] is not defined %}Be kind. {% endif %}"
               "{% for m in messages %}{{ m.content }} {% endfor %}"),
        (True, "<{{ messages[0].content|trim }}>{{ messages[-1].content }}"),
    ],
)  # fmt: skip
def test_a_system_prompt_that_the_model_would_not_see_is_refused(
    folder, monkeypatch, capsys, tmp_path, shown, template
):
    (tmp_path / "mine.jinja").write_text(template)
    saved = {"messages": [{"role": "system", "content": "Be kind. "}]}
    (tmp_path / "saved.json").write_text(json.dumps(saved))
    mine = "--template", str(tmp_path / "mine.jinja")
    generate = "generate", "--model", folder, "--max-new-tokens", "2", "--chat", "--prompt", "a"
    given = *mine, "--system", "Be kind. "
    for run in (
        lambda: chat(folder, monkeypatch, "a\n", *given),
        lambda: chat(folder, monkeypatch, "/system Be kind.\na\n", *mine),
        lambda: chat(folder, monkeypatch, f"/load {tmp_path / 'saved.json'}\na\n", *mine),
        lambda: main([*generate, *given]),
    ):
        status, said = run(), capsys.readouterr()
        assert status == (0 if shown else 1), said.err
        if not shown:
            assert "leaves the system prompt out" in said.err and said.err.count("\n") == 1
            assert said.out == ""


def test_beams_of_the_settings_are_left_out_aloud(folder, monkeypatch, capsys, tmp_path):
    shutil.copytree(folder, tmp_path / "model")
    path = tmp_path / "model" / "generation_config.json"
    path.write_text(json.dumps({"num_beams": 4, "num_return_sequences": 2}))
    assert chat(str(tmp_path / "model"), monkeypatch, "a\n") == 0
    assert "[num_beams 4 of the model's settings is left out]" in capsys.readouterr().err
    path.write_text(json.dumps({"do_sample": True, "num_return_sequences": 2}))
    assert chat(str(tmp_path / "model"), monkeypatch, "a\n", "--temperature", "0") == 0
    said = capsys.readouterr().err
    assert "[num_return_sequences 2 of the model's settings is left out]" in said


def test_lengths_of_the_settings(folder, monkeypatch, capsys, tmp_path):
    shutil.copytree(folder, tmp_path / "model")
    path = tmp_path / "model" / "generation_config.json"
    size = len(load_tokenizer(folder).encode("<|user|>a\n<|assistant|>").ids)
    command = ["chat", "--model", str(tmp_path / "model")]
    path.write_text(json.dumps({"max_length": size + 8}))
    monkeypatch.setattr("sys.stdin", io.StringIO("a\n"))
    assert main(command) == 0
    assert capsys.readouterr().err == "[cut after 8 tokens: max_length]\n"
    path.write_text(json.dumps({"max_new_tokens": 0}))
    assert main(command) == 1
    said = capsys.readouterr()
    assert "generation_config.json's max_new_tokens is 0" in said.err and said.out == ""


def test_half_a_character_of_a_template_is_one_clear_error(folder, monkeypatch, capsys, tmp_path):
    shutil.copytree(folder, tmp_path / "model")
    (tmp_path / "model" / "chat_template.jinja").unlink()
    path = tmp_path / "model" / "tokenizer_config.json"
    for template in ("{{ messages[0].content }}\ud800", "{{ messages[0].content ~ '\\ud800' }}"):
        path.write_text(json.dumps({"chat_template": template}))
        assert chat(str(tmp_path / "model"), monkeypatch, "a\n") == 1
        said = capsys.readouterr()
        assert "tokenizer_config.json: " in said.err and said.err.count("\n") == 1, said.err


# ---- a process of its own ----

COMMAND = [sys.executable, "-m", "genesis_fn", "chat"]


class Terminal:
    """A command at a pseudo terminal."""

    def __init__(self, *argv, **environment):
        self.said, self.at = "", 0
        self.pid, self.handle = pty.fork()
        if self.pid == 0:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            os.environ.update({"TERM": "xterm", "NO_COLOR": "", "INPUTRC": "/dev/null"})
            os.environ.update(environment)
            os.execv(argv[0], argv)

    def read(self, seconds=0.1):
        """Whether there was more."""
        if not select.select([self.handle], [], [], seconds)[0]:
            return True
        try:
            data = os.read(self.handle, 1 << 16)
        except OSError:  # the other end is closed
            return False
        self.said += data.decode(errors="replace")
        return bool(data)

    def wait_for(self, text):
        """What is said up to `text`."""
        end = time.monotonic() + 60
        while text not in self.said[self.at :]:
            assert self.read() and time.monotonic() < end, self.said[self.at :]
        before, self.at = self.at, self.said.index(text, self.at) + len(text)
        return self.said[before : self.at]

    def type(self, text):
        """Type, when whatever was said last is followed by nothing for a moment."""
        time.sleep(0.3)
        os.write(self.handle, text.encode())

    def status(self):
        """The exit status."""
        while self.read():
            pass
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


@pytest.mark.cpu
def test_a_chat_at_a_terminal(folder, tmp_path):
    path = tmp_path / "chats.jsonl"
    options = "--temperature", "2", "--max-new-tokens", "200", "--transcript", str(path)
    terminal = Terminal(*COMMAND, "--model", folder, *options)
    greeting = terminal.wait_for("> ")
    assert "parameters, room for 256 tokens; /help lists the commands]" in greeting
    terminal.type("/he\t\n")  # completed
    assert "/retry" in terminal.wait_for("ends the chat.")
    terminal.type("/set max_new_tokens 4\n")
    terminal.wait_for("max_new_tokens       4")
    terminal.type('"""\nseveral\nlines\n"""\n')
    terminal.wait_for("[cut after 4 tokens: max_new_tokens]")
    terminal.type("/nonsense\n")
    assert "\x1b[31merror: there is no command" in terminal.wait_for("/nonsense:")
    terminal.wait_for("> ")
    terminal.type("half a mess\x03")
    terminal.wait_for("[Ctrl-C again, Ctrl-D or /exit ends the chat]")
    terminal.type("another half")
    terminal.wait_for("another half")
    terminal.type("\x03")
    terminal.wait_for("[Ctrl-C again, Ctrl-D or /exit ends the chat]")
    terminal.type("\x04")
    assert terminal.status() == 0
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [r["content"] for r in rows if r.get("role") == "user"] == ["several\nlines"]


@pytest.mark.cpu
def test_ctrl_c_at_a_terminal_stops_the_answer_then_the_chat(folder, tmp_path):
    path = tmp_path / "chat.json"
    options = "--temperature", "2", "--max-new-tokens", "4000", "--capacity", "4096"
    slow = str(tmp_path / "slow.py")
    with open(slow, "w") as f:
        f.write(SLOW)
    terminal = Terminal(sys.executable, slow, "chat", "--model", folder, *options, NO_COLOR="1")
    terminal.wait_for("> ")
    terminal.type("tell me\n")
    terminal.wait_for("tell me\r\n")
    while len(terminal.said) - terminal.at < 20:  # an answer is under way
        assert terminal.read()
    terminal.type("\x03")
    terminal.wait_for("[stopped: Ctrl-C again, Ctrl-D or /exit ends the chat]")
    terminal.type(f"/save {path}\n")
    terminal.wait_for("[saved 1 turn to")
    terminal.wait_for("> ")
    terminal.type("\x03")
    terminal.wait_for("[Ctrl-C again")
    terminal.wait_for("> ")
    terminal.type("\x03")
    assert terminal.status() == 0
    assert "\x1b[3" not in terminal.said and "\x1b[1m" not in terminal.said
    answer = json.loads(path.read_text())["messages"][1]
    assert answer["finish_reason"] == "interrupted" and answer["content"]


# A model of this size would answer before anybody could stop it.
SLOW = """
import sys, time
from genesis_fn import models
from genesis_fn.cli.main import main

push = models.TextStream.push

def slow(self, token):
    time.sleep(0.02)
    return push(self, token)

models.TextStream.push = slow
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_end_a_chat_through_a_pipe(folder, tmp_path, number):
    path = tmp_path / "chats.jsonl"
    options = "--max-new-tokens", "4000", "--capacity", "4096", "--transcript", str(path)
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW, "chat", "--model", folder, *options],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        restore_signals=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    process.stdin.write(b"hello\nmore\n")
    process.stdin.close()
    assert process.stdout.read(1)  # an answer is under way
    process.send_signal(number)
    rest, said = process.stdout.read(), process.stderr.read()
    assert process.wait(60) == 128 + number and said == b"" and rest
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [r.get("role") for r in rows] == [None, "user", "assistant"]
    assert rows[2]["finish_reason"] == "interrupted" and rows[2]["content"]
