"""Runs that are interrupted, killed, started twice or badly asked for, saves in a thread, corpora
without blanks, and memory in long loops."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import genesis_fn
import genesis_fn.numpy as jnp
from genesis_fn import data, io
from genesis_fn.cli import demo, training
from genesis_fn.cli.main import main
from genesis_fn.io.lock import exclusive, locked
from genesis_fn.models import qwen

ROOT = Path(genesis_fn.__file__).parent.parent
TEXT = "".join(f"def f{i}(x):\n    return x + {i % 7}\n\n" for i in range(300))
SIZES = dict(
    vocab_size=280, hidden_size=16, intermediate_size=16, num_hidden_layers=1,
    num_attention_heads=2, num_key_value_heads=1, head_dim=8, max_position_embeddings=256,
)  # fmt: skip


@pytest.fixture(autouse=True)
def hangups_end_processes():
    """As by default, also where the tests themselves run under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    """A folder of text, and a model of a size for it."""
    (tmp_path / "text").mkdir()
    for i in range(3):
        (tmp_path / "text" / f"{i}.py").write_text(TEXT)
    monkeypatch.setattr(demo, "VOCABULARY", 280)
    monkeypatch.setattr(demo, "CONFIG", qwen.QwenConfig(**SIZES))
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
        "8",
        "--prompt",
        "def f",
        "--quiet",
        *more,
    ]


def run(code, *arguments, **options):
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)], env=environment, text=True, **options
    )


def finish(code, *arguments):
    """(exit status, standard output, standard error) of a program."""
    with run(code, *arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        out, err = process.communicate(timeout=120)
    return process.returncode, out, err


# ---- saves in a thread ----

FAILS = """
import atexit, os, sys, numpy as np
from genesis_fn import io
atexit.register(lambda: print("said at the end"))
saver = io.AsyncSaver(sys.argv[1])
saver.save(7, {"w": np.zeros(3)})
if sys.argv[2] == "waits":
    try:
        saver.wait()
    except OSError:
        print("handled")
if sys.argv[2] == "forgets":
    del saver
print("last line")
"""


@pytest.mark.parametrize(("what", "status"), [("goes on", 1), ("forgets", 1), ("waits", 0)])
def test_r07_a_failed_save_fails_the_program(tmp_path, what, status):
    blocked = tmp_path / "file"
    blocked.write_text("")
    code, out, err = finish(FAILS, blocked, what)
    assert code == status and "last line\n" in out and out.endswith("said at the end\n")
    assert (f"a checkpoint in {blocked} was not written" in err) == (status == 1)
    assert ("FileExistsError" in err) == (status == 1)
    if what == "forgets":
        assert finish(FAILS, tmp_path / "folder", what)[0] == 0


def test_r07_a_saver_closes(tmp_path):
    state = {"w": jnp.arange(3.0)}
    with io.AsyncSaver(tmp_path / "a") as saver:
        saver.save(1, state)
    assert io.steps(tmp_path / "a") == [1]
    with pytest.raises(ValueError, match="is closed"):
        saver.save(2, state)
    (tmp_path / "file").write_text("")
    with pytest.raises(FileExistsError), io.AsyncSaver(tmp_path / "file") as saver:
        saver.save(1, state)
    saver = io.AsyncSaver(tmp_path / "file")
    saver.save(1, state)
    with pytest.raises(FileExistsError):
        saver.save(2, state)
    saver.close()  # reported once
    with pytest.raises(RuntimeError) as error, io.AsyncSaver(tmp_path / "file") as saver:
        saver.save(1, state)
        raise RuntimeError("of the loop")
    assert "was not written" in error.value.__notes__[0]
    from genesis_fn.io.async_saver import _unreported

    assert not _unreported


# ---- text without blanks ----


@pytest.mark.parametrize("text", [
    "x" * 400_000, "\0" * 400_000, " " * 400_000, "\t " * 200_000, "漢字" * 100_000,
    json.dumps([[i] for i in range(40_000)], separators=(",", ":")),
    "".join(np.random.default_rng(0).choice(list("abcdef0189+/"), 200_000)),
], ids=["letters", "zeros", "blanks", "tabs", "characters", "json", "base64"])  # fmt: skip
def test_r08_a_line_without_blanks(text):
    began = time.process_time()
    tokenizer = data.train_tokenizer([text], 300)
    tokens = data.encode(tokenizer, [text], data.END)
    assert time.process_time() - began < 10
    assert tokenizer.decode(tokens[:-1].tolist()) == text and tokens[-1] == 0


def test_r08_ordinary_text_is_not_cut():
    texts = [TEXT, "words  and   blanks\n" * 50, "a" * 128, "", "\n\n"]
    for text in texts:
        assert list(data.tokenizer.pieces(text)) == ([text] if text else [])
    long = "a" * 300 + " b" + "\n" * 129
    assert "".join(data.tokenizer.pieces(long)) == long
    assert max(map(len, data.tokenizer.pieces(long))) <= 258


def test_r08_ctrl_c_stops_training_a_tokenizer():
    ended = threading.Event()

    def texts():
        while not ended.is_set():
            yield TEXT

    threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        began = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            data.train_tokenizer(texts(), 300)
        assert time.monotonic() - began < 20
    finally:
        ended.set()
        signal.signal(signal.SIGINT, before)


def test_r08_errors_of_the_texts_are_raised():
    def texts():
        yield "words"
        raise OSError("no more text")

    with pytest.raises(Exception, match="no more text"):
        data.train_tokenizer(texts(), 300)


# ---- signals ----


def final(out):
    """What a run came to: its losses, and the bytes of its last checkpoint."""
    rows = [json.loads(x) for x in (out / "log.jsonl").read_text().splitlines()]
    losses = [(r["step"], r["loss"], r["grad_norm"]) for r in rows if "loss" in r]
    return losses, (out / "checkpoints" / "step-00000006" / "state.safetensors").read_bytes()


def test_r09_signals_save_and_end(corpus, tmp_path, capsys, monkeypatch):
    assert main(command(corpus, tmp_path / "whole")) == 0
    before = {n: signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)}
    sent: list = []

    class Signalled(training.TokenWindows):
        def __getitem__(self, step):
            for number in sent[0] if step == 3 and sent else ():
                os.kill(os.getpid(), number)
            return super().__getitem__(step)

    monkeypatch.setattr(training, "TokenWindows", Signalled)
    term, hup = signal.SIGTERM, signal.SIGHUP
    cases = ([term], 143), ([hup], 129), ([term, hup, term], 143)
    for i, (numbers, status) in enumerate(cases):
        out = tmp_path / f"parts{i}"
        sent[:] = [numbers]
        assert main(command(corpus, out)) == status
        assert "interrupted at step 4; run the same command to go on" in capsys.readouterr().out
        assert io.steps(out / "checkpoints")[-1] == 4
        assert {n: signal.getsignal(n) for n in before} == before
        sent[:] = []
        assert main(command(corpus, out)) == 0
        assert final(out) == final(tmp_path / "whole")
    # Under nohup a run outlives its terminal.
    sent[:] = [[hup]]
    signal.signal(hup, signal.SIG_IGN)
    try:
        assert main(command(corpus, tmp_path / "nohup")) == 0
    finally:
        signal.signal(hup, before[hup])


DEMO = f"""
import sys
from genesis_fn.cli import demo, main
from genesis_fn.models import qwen
demo.VOCABULARY, demo.CONFIG = 280, qwen.QwenConfig(**{SIZES})
sys.exit(main.main(sys.argv[1:]))
"""


def wait_for(condition):
    for _ in range(1200):
        if condition():
            return
        time.sleep(0.05)
    raise TimeoutError


def test_r09_a_terminal_that_is_gone(corpus, tmp_path):
    """The window is closed: output goes nowhere, and the run is saved all the same."""
    out = tmp_path / "out"
    ours, theirs = pty.openpty()
    arguments = command(corpus, out, "--steps", "100000")
    arguments.remove("--quiet")
    process = run(DEMO, *arguments, stdout=theirs, stderr=theirs)
    os.close(theirs)
    threading.Thread(target=lambda: _drain(ours), daemon=True).start()
    log = out / "log.jsonl"
    wait_for(lambda: log.exists() and log.read_text().count("\n") > 2)
    with pytest.raises(BlockingIOError, match=f"in use by another run .process {process.pid} on"):
        with exclusive(str(out)):
            pass
    os.close(ours)
    process.send_signal(signal.SIGHUP)
    assert process.wait(60) == 129
    (step,) = io.steps(out / "checkpoints")[-1:]
    rows = [json.loads(x) for x in log.read_text().splitlines()]
    assert step == rows[-1]["step"]


def _drain(terminal):
    with contextlib.suppress(OSError):
        while os.read(terminal, 4096):
            pass


# ---- what killed saves leave ----


def test_r10_saves_of_the_same_process_id(tmp_path):
    """In a container every trainer has the same id: what a dead one left is no living one's."""
    state = {"w": jnp.arange(4.0)}
    io.save(tmp_path, 3, state)
    for name in (f".saving-{os.getpid()}-abc", ".saving-xyz", ".removed-xyz"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "state.safetensors").write_bytes(b"half")
    aside = tmp_path / f".replaced-{os.getpid()}-abc"
    aside.mkdir()
    os.rename(tmp_path / "step-00000003", aside / "step-00000003")
    found, step, _ = io.restore(tmp_path, state)
    assert step == 3 and np.array_equal(found["w"], state["w"])
    assert sorted(os.listdir(tmp_path)) == [".lock", "step-00000003"]
    # The newer of two stays.
    (tmp_path / ".replaced-abc" / "step-00000003").mkdir(parents=True)
    io.save(tmp_path, 4, state)
    assert io.restore(tmp_path, state, step=3)[1] == 3 and io.steps(tmp_path) == [3, 4]
    assert sorted(os.listdir(tmp_path)) == [".lock", "step-00000003", "step-00000004"]


DIES = """
import os, sys, numpy as np
from genesis_fn import io
state = {"w": np.arange(4.0, dtype=np.float32)}
io.save(sys.argv[1], 5, state)
calls, real, wanted = [0], os.replace, int(sys.argv[2])
def replace(a, b):
    if str(b).endswith(("step-00000005", "step-00000006")):
        calls[0] += 1
        if calls[0] == wanted:
            os._exit(9)
    real(a, b)
os.replace = replace
io.save(sys.argv[1], 5, state)
io.save(sys.argv[1], 6, state, keep=1)
"""


@pytest.mark.parametrize("wanted", [2, 4])
def test_r10_killed_between_two_renames(tmp_path, wanted):
    assert finish(DIES, tmp_path, wanted)[0] == 9
    state = {"w": jnp.zeros(4)}
    found, step, _ = io.restore(tmp_path, state)
    assert step == (6 if wanted == 4 else 5) and np.array_equal(found["w"], np.arange(4.0))
    io.save(tmp_path, 7, state, keep=1)
    assert sorted(os.listdir(tmp_path)) == [".lock", "step-00000007"]


MANY = """
import sys, numpy as np
from genesis_fn import io
for step in range(int(sys.argv[2]), 16, 2):
    io.save(sys.argv[1], step, {"w": np.full(1000, step, np.float32)}, keep=3)
    io.save(sys.argv[1], 1000, {"w": np.full(1000, step, np.float32)})
"""


def test_r10_two_processes_save_at_once(tmp_path):
    processes = [run(MANY, tmp_path, i, stderr=subprocess.PIPE) for i in range(2)]
    template = {"w": jnp.zeros(1000)}
    while any(p.poll() is None for p in processes):
        with contextlib.suppress(FileNotFoundError, io.FileError):  # removed meanwhile
            io.restore(tmp_path, template)
        time.sleep(0.02)
    for process in processes:
        assert process.returncode == 0, process.communicate()[1]
        process.communicate()
    for step in io.steps(tmp_path):
        w = np.asarray(io.restore(tmp_path, template, step)[0]["w"])
        assert (w == w[0]).all() and (step == 1000 or w[0] == step)
    assert not [n for n in os.listdir(tmp_path) if n.startswith((".saving", ".rep", ".rem"))]


# ---- one run for a folder ----


def test_r11_a_second_run_is_refused(corpus, tmp_path, capsys):
    out = tmp_path / "out"
    out.mkdir()
    (out / ".log.jsonl.ab_cd123").write_text("of a run that was killed")
    assert main(command(corpus, out)) == 0
    assert [p.name for p in out.glob(".*")] == [".lock"]
    capsys.readouterr()
    before = {p: p.read_bytes() for p in out.rglob("*") if p.is_file() and p.name != ".lock"}
    with exclusive(str(out)):
        for more in ((), ("--seed", "1")):
            assert main(command(corpus, out, *more)) == 1
            said = capsys.readouterr().err
            assert said.count("\n") == 1 and f"{out} is in use by another run (process " in said
    after = {p: p.read_bytes() for p in out.rglob("*") if p.is_file() and p.name != ".lock"}
    assert before == after
    assert main(command(corpus, out)) == 0


HOLDS = """
import os, sys, time
from genesis_fn.io.lock import exclusive
with exclusive(sys.argv[1]):
    ready, told = os.pipe()
    if os.fork() == 0:  # a child, as of a loader of data, that outlives its parent
        os.write(told, b"!")
        time.sleep(30)
        os._exit(0)
    os.read(ready, 1)  # a child that has not started yet still holds its copy of the lock
    print("held", flush=True)
    time.sleep(60)
"""


def test_r11_a_lock_does_not_outlive_its_process(tmp_path):
    process = run(HOLDS, tmp_path, stdout=subprocess.PIPE, start_new_session=True)
    try:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        with locked(str(tmp_path), wait=False) as held:
            assert held is False
        process.kill()
        process.wait()
        with locked(str(tmp_path), wait=False) as held:
            assert held is True
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.stdout.close()
    with exclusive(str(tmp_path)):
        pass


def test_r11_threads_wait_for_each_other(tmp_path):
    inside, most = [], [0]

    def work():
        for _ in range(20):
            with locked(str(tmp_path)) as held:
                assert held
                inside.append(1)
                most[0] = max(most[0], len(inside))
                time.sleep(0.0005)
                inside.pop()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most[0] == 1


def test_r11_folders_without_locks(tmp_path, monkeypatch):
    import fcntl

    def none(*_):
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", none)
    (tmp_path / ".saving-of-somebody").mkdir()
    io.save(tmp_path, 1, {"w": jnp.zeros(1)})
    with exclusive(str(tmp_path)):
        assert io.restore(tmp_path, {"w": jnp.zeros(1)})[1] == 1
    assert ".saving-of-somebody" in os.listdir(tmp_path)


# ---- removing old checkpoints ----


def test_r17_a_checkpoint_goes_at_once(tmp_path, monkeypatch):
    """Killed while old ones are removed: what is left of one is not under its name."""
    state = {"w": jnp.arange(4.0)}
    io.save(tmp_path, 1, state)

    class Killed(BaseException):
        pass

    def killed(folder, **_):
        for root, _folders, files in os.walk(folder):
            for file in files[:1]:
                os.unlink(os.path.join(root, file))
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr("shutil.rmtree", killed)
        io.save(tmp_path, 2, state, keep=1)
    assert io.steps(tmp_path) == [2] and io.restore(tmp_path, state)[1] == 2
    io.save(tmp_path, 3, state)
    assert sorted(os.listdir(tmp_path)) == [".lock", "step-00000002", "step-00000003"]


# ---- memory ----

LOOP = """
import sys
import genesis_fn.numpy as jnp
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096 / 2**20
def turn(i):
    x = jnp.ones((1024, 1024)) * i
    return (x + i / 7 - 0.5 * i).sum()
for i in range(10):
    turn(i)
before = resident()
for i in range(10, 300):
    turn(i)
print(resident() - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_r18_eager_loops_keep_memory_flat():
    code, out, err = finish(LOOP)
    assert code == 0, err
    assert float(out) < 60  # MiB; a leak of one array a turn would be 1,160


def test_r18_remembered_numbers_are_right():
    """More of them than are remembered at once, from several threads."""
    x = jnp.asarray(np.float32([1.0, 3.0]))
    n = jnp.asarray(np.int32([1, 3]))
    wrong = []

    def work(seed):
        for value in np.random.default_rng(seed).integers(-9999, 9999, 1500).tolist():
            f = value / 8
            if np.asarray(x * f).tolist() != [f, 3 * f] or np.asarray(n + value)[1] != 3 + value:
                wrong.append(value)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    for value in (1e300, -1e300, float("nan"), float("inf"), 0.0, -0.0, True, 2.0, 2, -1e-320):
        with np.errstate(over="ignore"):
            expected = np.float32([1, 3]) * np.float32(value)
        np.testing.assert_array_equal(np.asarray(x * value), expected)


# ---- options ----


@pytest.mark.parametrize(("option", "message"), [
    (("--batch", "0"), "argument --batch: 0 does not lie in 1 to"),
    (("--length", "0"), "argument --length: 0 does not lie in 1 to"),
    (("--steps", "-3"), "argument --steps: -3 does not lie in 1 to"),
    (("--steps", "many"), "argument --steps: 'many' is no integer"),
    (("--seed", "99999999999999999999"), "argument --seed: 99999999999999999999 does not lie in 0"),
    (("--seed", "-1"), "argument --seed: -1 does not lie in 0"),
    (("--seconds", "nan"), "argument --seconds: nan is no number of seconds"),
])  # fmt: skip
def test_r20_options_out_of_range_are_named(corpus, tmp_path, capsys, option, message):
    with pytest.raises(SystemExit) as ended:
        main(command(corpus, tmp_path / "out", *option))
    assert ended.value.code == 2 and message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("options", [
    ("--steps", "2", "--seed", str(2**63 - 1)), ("--steps", "1", "--prompt", ""),
])  # fmt: skip
def test_r20_the_least_and_most_of_options(corpus, tmp_path, capsys, options):
    assert main(command(corpus, tmp_path / "out", *options)) == 0
    said = capsys.readouterr().out
    assert f"step {options[1]}: validation loss" in said and "nan" not in said


def test_r16_a_corpus_with_names_of_any_bytes(corpus, tmp_path, capsys):
    os.rename(corpus, os.fsencode(tmp_path) + b"/te\xffxt")
    with open(os.fsencode(tmp_path) + b"/te\xffxt/\xe9.py", "w") as f:
        f.write(TEXT)
    folder = os.fsdecode(os.fsencode(tmp_path) + b"/te\xffxt")
    assert main(command(folder, tmp_path / "out", "--steps", "1")) == 0
    assert main(command(folder + "/none", tmp_path / "out")) == 1
    assert "no folder" in capsys.readouterr().err
