"""Text, tokenizers, token windows."""

from __future__ import annotations

import os
import signal
import time

import numpy as np
import pytest

from genesis_fn import data
from genesis_fn.io import FileError


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "b.py").write_text("print('b')\n")
    (tmp_path / "a.txt").write_text("héllo wörld\n")
    (tmp_path / "c.bin").write_bytes(b"\0\1")
    (tmp_path / "bad.md").write_bytes(b"\xff\xfe\xfa")
    (tmp_path / "blank.md").write_text("  \n")
    for skipped in ("site-packages", "__pycache__", ".git"):
        (tmp_path / skipped).mkdir()
        (tmp_path / skipped / "x.py").write_text("no")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "d.py").write_text("d = 4\n")
    return tmp_path


def test_files_of_a_folder(folder):
    files = data.text_files(folder)
    names = [f.removeprefix(str(folder) + "/") for f in files]
    assert names == ["a.txt", "b.py", "bad.md", "blank.md", "sub/d.py"]
    assert list(data.read_texts(files)) == ["héllo wörld\n", "print('b')\n", "d = 4\n"]
    assert list(data.read_texts(files, limit=20)) == ["héllo wörld\n", "print("]
    assert list(data.read_texts(files, limit=9)) == ["héllo w"]  # not half an ö
    assert data.text_files(folder / "a.txt") == [str(folder / "a.txt")]
    with pytest.raises(FileNotFoundError, match="no folder"):
        data.text_files(folder / "nowhere")
    (folder / "void").mkdir()
    with pytest.raises(FileNotFoundError, match="no text files"):
        data.text_files(folder / "void")


def test_the_split_depends_on_names_only():
    files = [f"/x/{i}.py" for i in range(2000)]
    train, valid = data.split_files(files)
    assert sorted(train + valid) == sorted(files) and not set(train) & set(valid)
    assert 60 < len(valid) < 140
    fewer, held = data.split_files([f.replace("/x/", "/y/") for f in files[::2]])
    assert {f.rsplit("/")[-1] for f in held} <= {f.rsplit("/")[-1] for f in valid}
    assert data.split_files(["/x/only.py"])[0] == ["/x/only.py"]
    assert len(data.split_files(["/x/a.py", "/x/b.py"])[1]) == 1


def test_the_standard_library_is_text():
    files = data.text_files(data.standard_library())
    assert len(files) > 300 and any(f.endswith("/argparse.py") for f in files)


def test_tokenizer(tmp_path):
    texts = ["def f(x):\n    return x + 1\n" * 50, "naïve ünïcode — テキスト\n" * 20]
    tokenizer = data.train_tokenizer(texts, 280)
    assert tokenizer.get_vocab_size() == 280 and tokenizer.token_to_id(data.END) == 0
    for text in [*texts, "something else\t\0\U0001f600"]:
        assert tokenizer.decode(tokenizer.encode(text).ids) == text
    data.save_tokenizer(tokenizer, tmp_path / "tokenizer.json")
    again = data.load_tokenizer(tmp_path)
    assert again.encode(texts[0]).ids == tokenizer.encode(texts[0]).ids
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(FileError, match="not a tokenizer"):
        data.load_tokenizer(tmp_path / "tokenizer.json")
    tokens = data.encode(tokenizer, ["def", "x"], data.END)
    assert tokens.dtype == np.int32 and tokens[-1] == 0 and (tokens == 0).sum() == 2
    assert data.encode(tokenizer, [], data.END).size == 0


def test_unigram_entropy():
    assert data.unigram_entropy(np.array([3, 3, 3])) == 0
    np.testing.assert_allclose(data.unigram_entropy(np.arange(8).repeat(5)), np.log(8))
    p = np.array([0.5, 0.25, 0.25])
    np.testing.assert_allclose(data.unigram_entropy(np.array([0, 0, 1, 9])), -(p * np.log(p)).sum())


def test_windows():
    tokens = np.arange(100)
    windows = data.TokenWindows(tokens, 7, 4, seed=3)
    batch = windows[5]
    assert batch.shape == (4, 8) and batch.dtype == np.int32
    np.testing.assert_array_equal(batch[:, 1:], batch[:, :-1] + 1)
    np.testing.assert_array_equal(data.TokenWindows(tokens, 7, 4, seed=3)[5], batch)
    assert not np.array_equal(windows[6], batch)
    assert not np.array_equal(data.TokenWindows(tokens, 7, 4, seed=4)[5], batch)
    starts = np.concatenate([windows[i][:, 0] for i in range(400)])
    assert set(starts) == set(range(93))
    with pytest.raises(ValueError, match="too few"):
        data.TokenWindows(tokens, 100, 4)


def test_windows_in_order():
    windows = data.TokenWindows(np.arange(100), 9, 3)
    batches = list(windows.in_order(10))
    assert len(batches) == 3 and all(b.shape == (3, 10) for b in batches)
    np.testing.assert_array_equal(np.concatenate(batches).reshape(-1), np.arange(90))
    assert len(list(windows.in_order(2))) == 2


@pytest.mark.parametrize("at", [1, 2, 600])
def test_an_interrupted_training_takes_no_more_texts(at):
    """A thread that wants the interpreter when the process ends is aborted, and the process.
    With the first text, the interrupt may reach the caller while it still starts the thread."""
    taken = 0

    def texts():
        nonlocal taken
        end = time.monotonic() + 10
        while time.monotonic() < end:
            taken += 1
            if taken == at:
                os.kill(os.getpid(), signal.SIGINT)
            yield f"word{taken} of {taken * 7919} more "

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            data.train_tokenizer(texts(), 2048)
    finally:
        signal.signal(signal.SIGINT, before)
    until, _ = taken, time.sleep(0.2)
    assert taken == until
