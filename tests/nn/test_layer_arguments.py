"""Layers made or called with what they cannot use are refused by name, where they were made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import genesis_fn as gf
import genesis_fn.numpy as jnp
from genesis_fn import nn, random

IMAGE = jnp.ones((1, 8, 8, 4))


def refused(call: Callable[[], Any]) -> str:
    with pytest.raises(gf.errors.ArgumentError) as error:
        call()
    text = str(error.value)
    assert len(text.splitlines()) <= 6, text
    return text


def output(layer: Any, x: Any, **options: Any) -> Any:
    return layer(layer.init(random.key(0)), x, **options)


def test_a_dtype_in_the_position_of_bias() -> None:
    """It was taken for true, and the parameters were float32."""
    for make in (
        lambda: nn.Linear(4, 2, jnp.bfloat16),  # pyright: ignore[reportArgumentType]
        lambda: nn.Conv(3, 8, (3, 3), None, "SAME", None, 1, "bfloat16"),  # pyright: ignore[reportArgumentType]
    ):
        text = refused(make)
        assert "bias is" in text and "dtype=jnp.bfloat16" in text


@pytest.mark.parametrize("size", [4.0, -1, True, "4", None])
def test_sizes_are_counts(size: Any) -> None:
    makes: list[Callable[[Any], Any]] = [
        lambda n: nn.Linear(n, 2),
        lambda n: nn.Linear(2, n),
        lambda n: nn.Embedding(n, 2),
        nn.RMSNorm,
        nn.LayerNorm,
        nn.BatchNorm,
        lambda n: nn.Conv(n, 2),
    ]
    for make in makes:
        assert repr(size) in refused(lambda: make(size))
    assert nn.Linear(np.int64(4), 2) == nn.Linear(4, 2)


@pytest.mark.parametrize("number", ["1e-5", None, -1.0, float("nan"), True])
def test_numbers_are_not_negative(number: Any) -> None:
    """They failed at the call, or gave NaN there."""
    makes: list[Callable[[Any], Any]] = [
        lambda v: nn.LayerNorm(4, v),
        lambda v: nn.RMSNorm(4, v),
        lambda v: nn.GroupNorm(2, 4, v),
        lambda v: nn.BatchNorm(4, momentum=v),
        lambda v: nn.InstanceNorm(4, momentum=v),
        lambda v: nn.MultiHeadAttention(4, 2, eps=v),
        nn.Dropout,
        lambda v: nn.MLP(4, 8, dropout=v),
        lambda v: nn.LSTM(4, 8, layers=2, dropout=v),
    ]
    for make in makes:
        assert f"is {number!r}, but" in refused(lambda: make(number))
    assert nn.LayerNorm(4, 0) == nn.LayerNorm(4, np.float32(0))


def test_dtypes_are_refused_where_the_layer_is_made() -> None:
    wrong: Any = "float33"
    for make in (nn.RMSNorm, lambda n, dtype: nn.Linear(n, n, dtype=dtype)):
        with pytest.raises(gf.errors.DTypeError, match="dtype: 'float33' is not a data type"):
            make(4, dtype=wrong)


def test_misspelled_options_are_refused() -> None:
    """They were ignored."""
    x = jnp.ones((2, 4))
    layers = [nn.Linear(4, 2), nn.LayerNorm(4), nn.RMSNorm(4), nn.Flatten(), nn.Activation(nn.relu)]
    for layer in layers:
        with pytest.raises(TypeError, match="unexpected keyword argument 'tain'"):
            output(layer, x, tain=True)
        output(layer, x, state=None, key=None, train=True)
    with pytest.raises(TypeError, match="'padding'"):
        output(nn.Conv(4, 8), IMAGE, padding="VALID")


@pytest.mark.parametrize("options, same", [
    ({"strides": 2}, {"strides": (2, 2)}),
    ({"dilation": 2}, {"dilation": (2, 2)}),
    ({"padding": 1}, {"padding": ((1, 1), (1, 1))}),
    ({"padding": [(1, 0), [0, 1]]}, {"padding": ((1, 0), (0, 1))}),
    ({"kernel": [2, 3]}, {"kernel": (2, 3)}),
])  # fmt: skip
def test_convolutions_take_one_number_for_all_axes(options: Any, same: Any) -> None:
    given, written = nn.Conv(4, 8, **options), nn.Conv(4, 8, **same)
    assert given == written and hash(given) == hash(written)
    np.testing.assert_array_equal(output(given, IMAGE), output(written, IMAGE))


@pytest.mark.parametrize("options, words", [
    ({"kernel": 3}, "kernel=(3, 3)"),
    ({"kernel": ()}, "kernel is ()"),
    ({"kernel": (3, 3.0)}, "kernel is (3, 3.0)"),
    ({"strides": (2,)}, "strides is (2,)"),
    ({"strides": 0}, "strides is 0"),
    ({"dilation": (1, 2, 3)}, "dilation is (1, 2, 3)"),
    ({"padding": (1, 1)}, "padding is (1, 1)"),
    ({"padding": [(1, 1)]}, "padding is [(1, 1)]"),
    ({"groups": 3}, "groups=3 has to divide features_in=4"),
    ({"groups": 0}, "groups=0 has to divide"),
])  # fmt: skip
def test_convolutions_are_refused_when_they_are_made(options: Any, words: str) -> None:
    assert words in refused(lambda: nn.Conv(4, 8, **options))


def test_sequential_takes_one_list_as_well() -> None:
    layers = (nn.Linear(4, 2), nn.relu)
    assert nn.Sequential(layers) == nn.Sequential([*layers]) == nn.Sequential(*layers)
    assert output(nn.Sequential([]), 3.0) == 3.0


def test_slices_of_sequential() -> None:
    layers = (nn.Linear(4, 3), nn.relu, nn.Linear(3, 2))
    model = nn.Sequential(*layers)
    params, x = model.init(random.key(0)), jnp.ones((5, 4))
    head, tail = model[:2], model[2:]
    assert head == nn.Sequential(*layers[:2]) and model[-1] == layers[2]
    np.testing.assert_array_equal(tail(params[2:], head(params[:2], x)), model(params, x))
    named = nn.Sequential(a=layers[0], b=layers[1], c=layers[2])
    assert named[1:] == nn.Sequential(b=layers[1], c=layers[2]) and len(named[3:]) == 0


def test_a_layer_in_containers_is_named_by_its_path() -> None:
    """There may be many alike."""
    inner = nn.Sequential(up=nn.Linear(4, 4), down=nn.Linear(3, 4))
    model = nn.Sequential(nn.relu, nn.Residual(inner))
    text = refused(lambda: output(model, jnp.ones((2, 4))))
    assert "Linear(3, 4) at [1]['down']: the input is f32[2,4]" in text
    text = refused(lambda: output(nn.Sequential(drop=nn.Dropout(0.2)), jnp.ones(3), train=True))
    assert "Dropout(rate=0.2) at ['drop']: in training it needs key=" in text


@pytest.mark.parametrize("given, words", [
    (((nn.relu, nn.tanh), nn.relu), "got (<function relu"),
    ((nn.Linear(4, 2), None), "got None of type NoneType"),
    (("relu",), "got 'relu' of type str"),
    ((nn.Flatten,), "make a layer of it: Flatten(...)"),
    ((nn.Linear, nn.relu), "make a layer of it: Linear(...)"),
])  # fmt: skip
def test_sequential_refuses_what_is_no_layer(given: Any, words: str) -> None:
    """It was taken for an activation, which failed at the call."""
    assert words in refused(lambda: nn.Sequential(*given))


def test_activation_and_residual_refuse_what_they_cannot_hold() -> None:
    wrong: Any
    for wrong in (3, nn.Flatten, nn.Linear(4, 2)):
        assert "Activation" in refused(lambda: nn.Activation(wrong))
    for wrong in (nn.relu, nn.Linear):
        assert "nn.Activation(f)" in refused(lambda: nn.Residual(wrong))


def test_a_residual_of_another_shape_is_refused() -> None:
    """It was broadcast."""
    text = refused(lambda: output(nn.Residual(nn.Linear(4, 1)), jnp.ones((2, 4))))
    assert "Linear(4, 1): its output is f32[2,1]" in text and "f32[2,4]" in text


@pytest.mark.parametrize("train", [False, True])
def test_running_statistics_are_never_dropped(train: bool) -> None:
    """Without `state=` each call began with fresh ones."""
    x = jnp.ones((2, 4))
    for layer in (
        nn.BatchNorm(4),
        nn.Sequential(nn.BatchNorm(4), nn.relu),
        nn.Residual(nn.BatchNorm(4)),
    ):
        text = refused(lambda: output(layer, x, train=train))
        assert "state= is missing" in text and "init_state()" in text
        y, _ = output(layer, x, state=layer.init_state(), train=train)
        assert y.shape == x.shape


def test_dropout_takes_a_traced_rate() -> None:
    x = jnp.ones((4, 50))

    def dropped(rate: Any, x: Any) -> Any:
        return nn.Dropout(rate)({}, x, key=random.key(0), train=True)

    for rate in (0.0, 0.25):
        # Traced, 1 - rate is rounded to float32, and the quotient may differ by some units.
        np.testing.assert_allclose(gf.jit(dropped)(rate, x), dropped(rate, x), rtol=1e-6)
    half = x.astype("bfloat16")
    assert gf.jit(dropped)(0.25, half).dtype == dropped(0.25, half).dtype
    whole = lambda x: gf.jit(dropped)(1.0, x).sum()
    np.testing.assert_array_equal(gf.grad(whole)(x), np.zeros(x.shape))
    without_key = lambda rate: nn.Dropout(rate)({}, x, train=True)
    assert "in training it needs key=" in refused(lambda: gf.jit(without_key)(0.5))
