"""Arguments of `io`, `data`, `amp`, `cuda` and `models` that were ignored or taken for others."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import genesis_fn as gf
import genesis_fn.numpy as jnp
from genesis_fn import amp, cuda, data, io, models, random

CONFIG = models.QwenConfig(64, 32, 64, 2, 4, 2, 8)
TOKENS = jnp.array([[1, 2, 3]])


def refused(call: Callable[[], Any]) -> str:
    with pytest.raises(gf.errors.ArgumentError) as error:
        call()
    return str(error.value)


def test_files_of_arrays(tmp_path: pathlib.Path) -> None:
    path: Any = tmp_path / "a.safetensors"
    assert "takes a dict of arrays first" in refused(lambda: io.save_file(path, {"w": jnp.ones(2)}))
    nested: Any = {"layer": {"w": jnp.ones(2)}}
    assert "'layer' is a dict" in refused(lambda: io.save_file(nested, path))
    assert not path.exists()


def test_one_text_is_no_list_of_texts() -> None:
    """Its characters were taken for texts, or for files."""
    tokenizer: Any = None
    for call in (
        lambda: list(data.read_texts("a/file.txt")),
        lambda: data.split_files("a/file.txt"),
        lambda: data.encode(tokenizer, "some text", data.END),
    ):
        assert "is one text" in refused(call)


def test_one_suffix_is_a_suffix(tmp_path: pathlib.Path) -> None:
    """Its characters were."""
    for name in ("a.py", "b.xy"):
        (tmp_path / name).write_text("text")
    assert data.text_files(tmp_path, ".py") == [str(tmp_path / "a.py")]


@pytest.mark.parametrize("tokens", [np.arange(50) * 1.5, np.zeros((50, 3), int), np.ones(50, bool)])
def test_tokens_are_integers(tokens: Any) -> None:
    assert "tokens have to be integers [n]" in refused(lambda: data.TokenWindows(tokens, 4, 2))
    for length, batch in ((0, 2), (4, 0)):
        text = refused(lambda: data.TokenWindows(np.arange(50), length, batch))
        assert "length and batch must be positive" in text


def test_loss_scales_are_positive() -> None:
    for make in (
        lambda: amp.StaticLossScale(0.0),
        lambda: amp.DynamicLossScale(-2.0),
        lambda: amp.DynamicLossScale(8.0, min_loss_scale=0.0),
    ):
        with pytest.raises(ValueError, match="must be positive"):
            make()


def test_static_arguments_of_a_scaled_loss() -> None:
    """The signature was that of the loss, one position off."""
    loss = lambda w, b, power=1: ((w * b) ** power).sum()
    g, x = amp.scaled_value_and_grad(loss), jnp.full(3, 2.0)
    scale = amp.StaticLossScale(8.0)
    want = g(scale, x, x, 2)
    for compiled in (gf.jit(g, static_argnames="power"), gf.jit(g, static_argnums=3)):
        for got in (compiled(scale, x, x, 2), compiled(scale, x, x, power=2)):
            np.testing.assert_array_equal(got[1], want[1])
    assert "takes a loss scale first" in refused(lambda: g(x, x))


def test_names_of_gpus() -> None:
    for name in ("cuda:x", "cuda:", "cuda:-1", "tpu:0"):
        with pytest.raises(gf.errors.BackendError, match="is not a GPU"):
            cuda.get_device_name(name)


def test_the_model_as_a_layer_takes_the_options_of_forward() -> None:
    """They were ignored."""
    model = models.Qwen(CONFIG)
    params = model.init(random.key(0))
    mask = jnp.eye(3, dtype=bool)[None, None]
    positions = jnp.array([[0, 5, 9]])
    for options in ({"mask": mask}, {"positions": positions}, {"remat": True}):
        want = models.qwen.forward(params, TOKENS, CONFIG, **options)
        np.testing.assert_array_equal(model(params, TOKENS, **options), want)
    with pytest.raises(TypeError, match="'masks'"):
        model(params, TOKENS, masks=mask)  # pyright: ignore[reportCallIssue]


def test_ends_are_any_sequence_of_tokens() -> None:
    params = models.qwen.init(random.key(0), CONFIG)
    run = lambda eos: models.generate(params, TOKENS, CONFIG, max_new_tokens=4, eos=eos)[0].tolist()
    ends: Any
    for ends in ((3, 4), range(3, 5), np.array([3, 4]), jnp.array([4, 3])):
        assert run(ends) == run([3, 4])
    assert run(np.int64(3)) == run(3)
