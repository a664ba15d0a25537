"""A chat without a model: history, commands, files, where messages come from, signals."""

from __future__ import annotations

import io
import json
import os
import signal
import stat

import pytest

from genesis_fn.cli import failures
from genesis_fn.cli.dialogue import conversation as files
from genesis_fn.cli.dialogue.chat import Chat
from genesis_fn.cli.dialogue.commands import COMMANDS
from genesis_fn.cli.dialogue.conversation import Conversation, Turn
from genesis_fn.cli.dialogue.loop import converse
from genesis_fn.cli.dialogue.reading import Lines, TakenBack, read_message
from genesis_fn.cli.dialogue.screen import Screen, visible
from genesis_fn.cli.dialogue.transcript import Transcript
from genesis_fn.errors import FileError
from genesis_fn.models import GenerationConfig
from genesis_fn.training.interrupt import Interrupted


class Echo:
    """An answer: the words of the question, one by one, in capitals."""

    def __init__(self, words, longest, before):
        self.words, self.longest, self.before = words, longest, before
        self.text, self.finish, self.tokens = "", "interrupted", []
        self.reused, self.first, self.seconds = 2, 0.5, 2.0

    def __iter__(self):
        for word in self.words[: self.longest]:
            self.before(word)
            piece = word.upper() + " "
            self.text += piece
            self.tokens.append(len(word))
            yield piece
        self.finish = "stop" if len(self.words) <= self.longest else "length"


class Parrot:
    """What answers with an `Echo`. A word is a token; `before` is called with each. A prompt that
    `begins` the answer ends in its role."""

    def __init__(self, capacity=40, before=lambda word: None, begins=False):
        self.capacity, self.before, self.begins = capacity, before, begins
        self.prompts, self.renewed = [], 0

    def encode(self, messages, *, answer=True):
        if any(m["content"] == "refused" for m in messages):
            raise ValueError("the template refuses it")
        words = [word for m in messages for word in [m["role"], *m["content"].split()]]
        return words + ["assistant"] * (answer and self.begins)

    def check_system(self, system):
        self.encode([{"role": "system", "content": system}])

    def answer(self, prompt, generation):
        self.prompts.append(prompt)
        at = len(prompt) - prompt[::-1].index("user")
        words = prompt[at:-1] if self.begins else prompt[at:]
        return Echo(words, generation.new_tokens(len(prompt)), self.before)

    def renew(self):
        self.renewed += 1


class Typed:
    """A terminal: lines are given, and exceptions raised."""

    interactive = True

    def __init__(self, *lines):
        self.lines, self.prompts = list(lines), []

    def read(self, prompt):
        self.prompts.append(prompt)
        line = self.lines.pop(0) if self.lines else None
        if isinstance(line, BaseException):
            raise line
        return line


def chat_of(speaker=None, conversation=None, longest=8, transcript=None):
    conversation = conversation or Conversation()
    generation = GenerationConfig(max_new_tokens=longest)
    return Chat(speaker or Parrot(), Screen(), conversation, generation, transcript)


def say(capsys, *lines, chat=None):
    """(the chat after these lines were typed, stdout, stderr)."""
    chat = chat or chat_of()
    converse(chat, Typed(*lines))
    said = capsys.readouterr()
    return chat, said.out, said.err


# ---- messages and answers ----


def test_questions_and_answers_become_the_history(capsys):
    chat, out, err = say(capsys, "hello there", "", "   ", "again")
    assert out == "HELLO THERE \nAGAIN \n\n" and err == ""
    assert chat.conversation.turns == (Turn("hello there", "HELLO THERE "), Turn("again", "AGAIN "))
    assert chat.speaker.prompts[1] == "user hello there assistant HELLO THERE user again".split()


def test_a_system_prompt_stands_first_and_is_not_dropped(capsys):
    chat = chat_of(Parrot(capacity=24), Conversation("be brief"))
    lines = [f"one two three {i}" for i in range(5)]
    chat, out, err = say(capsys, *lines, chat=chat)
    assert all(p[:3] == ["system", "be", "brief"] for p in chat.speaker.prompts)
    # 3 of the system prompt, 5 of the question and 10 of each turn: 18 with 6 left for the answer.
    assert [len(p) for p in chat.speaker.prompts] == [8, 18, 18, 18, 18]
    assert chat.conversation.forgotten == 3 and len(chat.conversation.turns) == 5
    notice = "[dropped the oldest turn: the cache holds 24 tokens]\n"
    assert err == notice * 3


def test_turns_are_dropped_in_pairs_and_no_more_than_needed():
    turns = tuple(Turn(f"q{i} " + "x " * i, f"a{i}") for i in range(9))
    said = Conversation(None, turns)
    size = lambda messages: sum(1 + len(m["content"].split()) for m in messages)
    for limit in range(2, 90):
        kept = said.fitted("q", size, limit)
        sizes = [size(Conversation(None, turns[i:]).messages("q")) for i in range(10)]
        assert kept.forgotten == next(i for i in range(10) if sizes[i] <= limit)
        assert kept.messages("q")[0]["role"] == "user" and kept.turns == turns
    with pytest.raises(ValueError, match="the message is 2 tokens, and there is room for 1"):
        said.fitted("q", size, 1)


def test_a_message_that_can_never_fit_is_refused(capsys):
    chat, out, err = say(capsys, "ok", "word " * 60, "go on")
    assert "error: the message is 61 tokens, and there is room for 32: shorten it" in err
    assert [t.question for t in chat.conversation.turns] == ["ok", "go on"]
    chat, out, err = say(capsys, "refused", "fine")
    assert err == "error: the template refuses it\n" and len(chat.conversation.turns) == 1


def test_an_answer_that_is_cut_says_so(capsys):
    chat, out, err = say(capsys, "a b c d", chat=chat_of(longest=3))
    assert err == "[cut after 3 tokens: max_new_tokens]\n"
    assert chat.conversation.turns[0] == Turn("a b c d", "A B C ", "length")


def test_max_length_of_the_settings_limits_history_and_answer(capsys):
    chat = chat_of(Parrot(capacity=40))
    chat.generation = GenerationConfig(max_length=12)
    chat, out, err = say(capsys, "a b c", "d e f", "g h i j k l m", "x " * 20, "/set", chat=chat)
    assert [len(p) for p in chat.speaker.prompts] == [4, 4, 8]
    assert out.startswith("A B C \nD E F \nG H I J \n")
    assert err.splitlines() == [
        "[dropped the oldest turn: max_length is 12]",
        "[dropped the oldest turn: max_length is 12]",
        "[cut after 4 tokens: max_length]",
        "error: the message is 21 tokens, and there is room for 9: shorten it, or "
        "/set max_new_tokens",
    ]
    assert "up to max_length, 12 with the prompt" in out


def test_messages_of_several_lines():
    def read(*lines):
        return read_message(Typed(*lines), "> ", "... ")

    assert read("one") == "one" and read() is None
    assert read("a\\", "b\\", "c") == "a\nb\nc"
    assert read('"""', "a", "", "  b", '"""') == "a\n\n  b"
    assert read('"""a', 'b"""') == "a\nb" and read('"""a b"""') == "a b"
    typed = Typed("a\\", "b")
    read_message(typed, "> ", "... ")
    assert typed.prompts == ["> ", "... "]
    for lines in (["a\\"], ['"""', "a"]):
        with pytest.raises(ValueError, match="the input ends"):
            read(*lines)


def test_lines_of_a_pipe():
    source = Lines(io.StringIO("one\r\n\ntwo"))
    assert [source.read("> ") for _ in range(4)] == ["one", "", "two", None]
    marked = Lines(io.StringIO("\ufeff/exit\n\ufeffkept"))
    assert [marked.read("") for _ in range(3)] == ["/exit", "\ufeffkept", None]
    assert Lines(io.StringIO("\ufeff")).read("") is None
    bad = Lines(io.TextIOWrapper(io.BytesIO(b"a\n\xff\n"), encoding="utf-8"))
    with pytest.raises(ValueError, match="the input is not UTF-8, at line 1 or soon after"):
        bad.read("")
    with pytest.raises(ValueError, match="line 1 of the input has more than 1,048,576"):
        Lines(io.StringIO("x" * (2 << 20))).read("")


def test_in_a_pipe_the_first_error_ends_the_chat(capsys):
    chat = chat_of()
    with pytest.raises(ValueError, match="there is no command /nonsense"):
        converse(chat, Lines(io.StringIO("hello\n/nonsense\nmore\n")))
    assert len(chat.conversation.turns) == 1
    said = capsys.readouterr()
    assert said.out == "HELLO \n" and said.err == ""


def test_terminals_get_no_orders_from_answers():
    assert visible("a\x1b[2Jb\r\x07\x9b\n\té") == "a\\x1b[2Jb\\r\\x07\\x9b\n\té"


# ---- commands ----


def test_every_command_is_listed(capsys):
    _, out, _ = say(capsys, "/help")
    assert all(f"\n{name} " in f"\n{out}" for name in COMMANDS)


def test_commands_of_the_history(capsys):
    chat, out, err = say(
        capsys, "one", "two", "/undo", "/history", "/retry", "/system be brief", "/system",
        "/history", "/clear", "/history", "/system off", "/reset", "/history", "/undo", "/retry",
    )  # fmt: skip
    assert out.splitlines() == [
        "ONE ", "TWO ", "user: one", "assistant: ONE ", "ONE ", "be brief", "system: be brief",
        "user: one", "assistant: ONE ", "system: be brief", "nothing was said yet", "",
    ]  # fmt: skip
    assert err.splitlines() == [
        "[taken back: two]", "[system prompt set]", "[forgotten: a new conversation begins]",
        "[system prompt removed]", "[forgotten: a new conversation begins]",
        "error: nothing was said yet", "error: nothing was said yet",
    ]  # fmt: skip
    assert chat.conversation == Conversation()


def test_a_retry_asks_the_same_again(capsys):
    chat, _, _ = say(capsys, "one", "two", "/retry")
    assert chat.speaker.prompts[1] == chat.speaker.prompts[2] and len(chat.conversation.turns) == 2


@pytest.mark.parametrize("line, message", [
    ("/nonsense", "there is no command /nonsense: /help lists them, and // begins a message"),
    ("/undo it", "/undo takes nothing behind it"), ("/save", "/save needs FILE"),
    ("/load /no/such/file", "/no/such/file: No such file or directory"),
    ("/system refused", "the template refuses it"),
    ("/set warmth 1", "there is no setting 'warmth'; there are temperature, top_k"),
    ("/set top_k many", "top_k: 'many' is no integer"),
    ("/set top_p 0", "top_p: 0 is not above 0"), ("/set temperature -1", "temperature: -1 is no"),
    ("/set max_new_tokens 0", "max_new_tokens: 0 does not lie in 1 to"),
    ('/set stop "', "stop: "), ('/set stop ""', "stop: an empty text would stop at once"),
])  # fmt: skip
def test_errors_of_commands_are_one_line_and_change_nothing(capsys, line, message):
    chat, out, err = say(capsys, "one", line, "two")
    assert err.startswith(f"error: {message}") and err.count("\n") == 1
    assert len(chat.conversation.turns) == 2 and chat.conversation.system is None
    assert chat.generation == GenerationConfig(max_new_tokens=8)


def test_two_slashes_begin_a_message_with_one(capsys):
    chat, out, _ = say(capsys, "//usr is a folder")
    assert out.startswith("/USR IS A FOLDER")
    assert chat.conversation.turns[0].question == "/usr is a folder"


def test_settings_are_shown_and_changed(capsys):
    chat, out, _ = say(capsys, "/set", "/set temperature")
    assert out.split("\n")[0].split() == ["temperature", "0"] and "max_new_tokens       8" in out
    assert not chat.generation.do_sample
    chat, out, _ = say(capsys, "/set temperature 0.5", "/set top-k 7", "/set stop END", chat=chat)
    assert out.split() == ["temperature", "0.5", "top_k", "7", "stop", "['END']"]
    assert chat.generation == GenerationConfig(
        max_new_tokens=8, do_sample=True, temperature=0.5, top_k=7, stop_strings=("END",)
    )
    chat, out, _ = say(
        capsys, "/set temperature 0", '/set stop "\\n"', "/set max_new_tokens 1", "a b", chat=chat
    )
    assert not chat.generation.do_sample and chat.generation.stop_strings == ("\n",)
    assert out.endswith("A \n\n")
    chat, out, _ = say(capsys, "/set stop off", chat=chat)
    assert chat.generation.stop_strings == ()


def test_tokens_are_counted(capsys):
    _, out, _ = say(capsys, "/tokens", "one two", "/tokens", "/stats")
    lines = out.splitlines()
    assert lines[0] == "history: 0 of 40 tokens"
    assert (
        lines[2:4]
        == lines[4:6]
        == [
            "history: 6 of 40 tokens",
            "last answer: 2 tokens in 2.00 s (1.0 a second), the first after 0.50 s; 2 of the "
            "prompt's tokens were cached",
        ]
    )


def test_the_beginning_of_an_answer_is_no_history(capsys):
    _, out, _ = say(capsys, "one two", "/tokens", chat=chat_of(Parrot(begins=True)))
    assert out.splitlines()[:2] == ["ONE TWO ", "history: 6 of 40 tokens"]


def test_exit_ends(capsys):
    for name in ("/exit", "/quit"):
        chat, out, _ = say(capsys, "one", name, "two")
        assert len(chat.conversation.turns) == 1


# ---- files ----


def test_conversations_are_saved_and_loaded(capsys, tmp_path):
    path = tmp_path / "chat.json"
    said = Conversation(
        "kurz, bitte \U0001f600", (Turn("a", "b"), Turn("c\n", "", "interrupted")), 1
    )
    chat, _, err = say(capsys, f"/save {path}", f"/save {path}", chat=chat_of(None, said))
    assert err == f"[saved 2 turns to {path}]\n" * 2
    assert json.loads(path.read_text()) == {
        "messages": [
            {"role": "system", "content": "kurz, bitte \U0001f600"},
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "b", "finish_reason": "stop"},
            {"role": "user", "content": "c\n"},
            {"role": "assistant", "content": "", "finish_reason": "interrupted"},
        ]
    }
    chat, _, err = say(capsys, f"/load {path}")
    assert chat.conversation == Conversation(said.system, said.turns)
    assert err == f"[loaded 2 turns from {path}]\n"
    assert os.listdir(tmp_path) == ["chat.json"]


def test_a_file_that_is_no_conversation_is_not_replaced(capsys, tmp_path):
    path = tmp_path / "config.json"
    path.write_text("{}")
    _, _, err = say(capsys, f"/save {path}", f"/save {tmp_path}", f"/save {tmp_path}/no/where")
    assert [line.split(":")[1] for line in err.splitlines()[:2]] == [
        " not replaced, as it is no saved conversation"
    ] * 2
    assert err.splitlines()[2] == f"error: {tmp_path}/no/where: No such file or directory"
    assert path.read_text() == "{}"


def message(role, content="x", **more):
    return {"role": role, "content": content, **more}


@pytest.mark.parametrize("content, said", [
    ("", "is not JSON"), ("[]", "is not a JSON object"), ("{}", "messages is None"),
    ('{"messages": {}}', "messages is {}, expected a list"),
    ({"messages": ["hi"]}, "message 1 is 'hi', expected an object"),
    ({"messages": [message("user", 3)]}, "message 1: content is 3, expected a text"),
    ({"messages": [message(["user"])]}, "message 1: role is ['user'], expected a text"),
    ({"messages": [message("user"), message("assistant", finish_reason=1)]}, "finish_reason is 1"),
    ({"messages": [message("user")]}, "with the answer to the last message"),
    ({"messages": [message("assistant"), message("user")]}, "expected user and assistant by turns"),
    ({"messages": [message("user"), message("system")]}, "expected user and assistant by turns"),
    ({"messages": [message("user", "\ud800"), message("assistant")]}, "half a character"),
    ('{"messages": ' + "[" * 100_000 + "]" * 100_000 + "}", "nested too deeply"),
])  # fmt: skip
def test_damaged_conversations_are_named(tmp_path, content, said):
    path = tmp_path / "chat.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(FileError, match="chat.json") as raised:
        files.load(str(path))
    assert said in str(raised.value)


def test_transcripts_grow_turn_by_turn(capsys, tmp_path):
    path = tmp_path / "chats.jsonl"
    path.write_bytes(b'{"event": "start"}\n{"role": "us')  # a process was killed
    transcript = Transcript(str(path))
    chat = chat_of(transcript=transcript)
    rows = lambda: [json.loads(x) for x in path.read_text().splitlines()[2:]]

    class Watched(Typed):
        def read(self, prompt):
            seen.append(len(rows()))
            return super().read(prompt)

    seen: list[int] = []
    converse(chat, Watched("one", "/undo", "two", "/system x", "/clear", "/retry", "/system off"))
    transcript.close()
    assert seen == [0, 2, 3, 5, 6, 7, 7, 8]
    assert path.read_text().splitlines()[1] == '{"role": "us'
    assert rows()[:4] == [
        message("user", "one"),
        message("assistant", "ONE ", finish_reason="stop", tokens=1, seconds=2.0),
        {"event": "undo"},
        message("user", "two"),
    ]
    assert rows()[5:] == [message("system", "x"), {"event": "clear"}, {"event": "system off"}]


def test_names_that_are_no_text_are_in_the_transcript(tmp_path):
    name = os.fsdecode(b"caf\xe9/\xf0\x9f\x98\x80")
    transcript = Transcript(str(tmp_path / "chats.jsonl"))
    transcript.write({"model": name}, message("user", "caf\xe9"))
    transcript.close()
    lines = (tmp_path / "chats.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in lines] == [{"model": name}, message("user", "caf\xe9")]


def test_a_transcript_is_a_plain_file(tmp_path):
    with pytest.raises(IsADirectoryError):
        Transcript(str(tmp_path))
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises((FileError, OSError)):
        Transcript(str(tmp_path / "pipe"))
    assert stat.S_ISFIFO(os.stat(tmp_path / "pipe").st_mode)
    with pytest.raises(FileNotFoundError, match="no/where"):
        Transcript(str(tmp_path / "no/where"))


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a full disk")
def test_a_full_disk_names_the_transcript(capsys, tmp_path, monkeypatch):
    transcript = Transcript(str(tmp_path / "chats.jsonl"))
    os.dup2(os.open("/dev/full", os.O_WRONLY), transcript.handle)
    chat, out, err = say(capsys, "one", "two", chat=chat_of(transcript=transcript))
    assert err == f"error: {transcript.path}: No space left on device\n" * 2
    assert len(chat.conversation.turns) == 2


# ---- signals ----


def sends(at, *numbers):
    """A parrot that is sent signals before the word `at`."""

    def before(word):
        for number in numbers if word == at else ():
            os.kill(os.getpid(), number)

    return Parrot(before=before)


def test_ctrl_c_stops_the_answer_not_the_chat(capsys):
    chat = chat_of(sends("c", signal.SIGINT))
    chat, out, err = say(capsys, "a b c d", "e", chat=chat)
    assert out == "A B C \nE \n\n"
    assert err == "[stopped: Ctrl-C again, Ctrl-D or /exit ends the chat]\n"
    assert chat.conversation.turns == (Turn("a b c d", "A B C ", "interrupted"), Turn("e", "E "))
    assert chat.speaker.renewed == 0


def test_a_second_ctrl_c_ends_the_answer_at_once_or_the_chat_at_the_prompt(capsys):
    chat = chat_of(sends("c", signal.SIGINT, signal.SIGINT))
    chat, out, err = say(capsys, "a b c d", KeyboardInterrupt(), "e", chat=chat)
    assert out == "A B \n\n" and chat.speaker.renewed == 1
    assert chat.conversation.turns == (Turn("a b c d", "A B ", "interrupted"),)
    chat, out, err = say(
        capsys, KeyboardInterrupt(), "a", KeyboardInterrupt(), KeyboardInterrupt(), "b"
    )
    assert [t.question for t in chat.conversation.turns] == ["a"]


def test_ctrl_c_that_takes_back_half_a_message_ends_no_chat(capsys):
    interrupt = KeyboardInterrupt()
    lines = [interrupt, "half \\", interrupt, '"""', "a", interrupt, TakenBack(), "a", "b"]
    chat, out, err = say(capsys, *lines)
    assert [t.question for t in chat.conversation.turns] == ["a", "b"]
    assert err == "[Ctrl-C again, Ctrl-D or /exit ends the chat]\n" * 4
    chat, out, err = say(capsys, "half \\", interrupt, interrupt, "a")  # nothing was typed between
    assert chat.conversation.turns == ()


@pytest.mark.parametrize(
    "error", [RuntimeError("not enough memory"), KeyError("x"), RecursionError()]
)
def test_an_error_that_nobody_expected_ends_no_chat(capsys, error, monkeypatch):
    def fail(word):
        if word == "bad":
            raise error

    chat, out, err = say(capsys, "good", "a bad one", "again", chat=chat_of(Parrot(before=fail)))
    assert [t.question for t in chat.conversation.turns] == ["good", "again"]
    assert err.startswith("error: ") and err.count("\n") == 1 and type(error).__name__ in err
    assert chat.speaker.renewed == 1
    with pytest.raises(type(error)):
        converse(chat, Lines(io.StringIO("bad\n")))
    monkeypatch.setattr(failures, "_SHOWN", True)
    with pytest.raises(type(error)):
        say(capsys, "bad", chat=chat)


def test_an_answer_that_had_not_begun_is_no_turn(capsys):
    chat = chat_of(sends("a", signal.SIGINT, signal.SIGINT))
    chat, out, err = say(capsys, "x", "a b", chat=chat)
    assert "[stopped before the answer began: the message is taken back]" in err
    assert [t.question for t in chat.conversation.turns] == ["x"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_other_signals_end_the_chat_behind_the_turn(capsys, tmp_path, number):
    transcript = Transcript(str(tmp_path / "chats.jsonl"))
    chat = chat_of(sends("c", number), transcript=transcript)
    with pytest.raises(Interrupted) as raised:
        converse(chat, Typed("a b c d", "e"))
    assert raised.value.status == 128 + number
    rows = [json.loads(x) for x in (tmp_path / "chats.jsonl").read_text().splitlines()]
    assert [r["content"] for r in rows] == ["a b c d", "A B C "]
    assert rows[1]["finish_reason"] == "interrupted"


def test_in_a_pipe_ctrl_c_ends_the_chat(capsys):
    chat = chat_of(sends("c", signal.SIGINT))
    with pytest.raises(Interrupted) as raised:
        converse(chat, Lines(io.StringIO("a b c d\ne\n")))
    assert raised.value.status == 130


def test_an_error_in_the_middle_of_an_answer_leaves_the_chat_as_it_was(capsys):
    def fail(word):
        if word == "c":
            raise ValueError("logits are NaN")

    chat, out, err = say(capsys, "a b c", "d", chat=chat_of(Parrot(before=fail)))
    assert out == "A B \nD \n\n" and err == "error: logits are NaN\n"
    assert chat.conversation.turns == (Turn("d", "D "),) and chat.speaker.renewed == 1
