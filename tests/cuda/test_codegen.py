"""Generated kernels, interpreted, against the CPU backend: random programs, each form of kernel."""

from __future__ import annotations

import numpy as np
import programs
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

import genesis_fn as g
import genesis_fn.numpy as gnp
from genesis_fn import lax
from genesis_fn.core import dtypes

rng = np.random.default_rng(0)


def normal(*shape: int, dtype: np.dtype = dtypes.F32) -> np.ndarray:
    return rng.standard_normal(shape).astype(dtype)


UNARY = [
    lambda x: x * 2 + 1, gnp.sin, lambda x: gnp.exp(-gnp.abs(x)), gnp.tanh, lambda x: -x,
    lambda x: gnp.where(x > 0, x, x * 0.1), lambda x: x * x, lambda x: gnp.maximum(x, 0.5),
    lambda x: x.astype(gnp.bfloat16).astype(gnp.float32), lambda x: gnp.floor(x * 3),
]  # fmt: skip


@st.composite
def program(draw: st.DrawFn):
    """(function, inputs): a random mixture of elementwise operations, views and reductions."""
    shape = tuple(draw(st.lists(st.integers(1, 6), min_size=1, max_size=3)))
    length = draw(st.integers(1, 10))
    choices = [draw(st.integers(0, 10**9)) for _ in range(length)]
    x = np.random.default_rng(choices[0]).uniform(-2, 2, shape).astype(np.float32)

    def f(x):
        values = [x]
        for c in choices:
            y = values[c % len(values)]
            values.append(step(y, values, np.random.default_rng(c)))
        return values[1:]

    return f, x


def step(x, values, rand):
    """One random operation on `x`."""
    kind = rand.integers(14)
    n, shape = x.ndim, x.shape
    axis = int(rand.integers(n)) if n else 0
    if kind < 4 or n == 0:
        return UNARY[rand.integers(len(UNARY))](x)
    if kind == 4:
        same = [v for v in values if v.shape == shape]
        return x + same[rand.integers(len(same))] * 0.5
    if kind == 5:
        return gnp.transpose(x, tuple(int(i) for i in rand.permutation(n)))
    if kind == 6:
        low = int(rand.integers(shape[axis]))
        return lax.slice_in_dim(x, low, shape[axis], int(rand.integers(1, 3)), axis)
    if kind == 7:
        return lax.rev(x, (axis,))
    if kind == 8:
        config = [(0, 0, 0)] * n
        low = int(rand.integers(-1, 3)) if shape[axis] > 2 else 1
        config[axis] = (low, 2, int(rand.integers(2)))
        return lax.pad(x, 0.25, config)
    if kind == 9:
        same = [v for v in values if v.shape == shape]
        return gnp.concatenate([x, same[rand.integers(len(same))]], axis)
    if kind == 10:
        return gnp.reshape(x, (-1, shape[axis])) if x.size else x
    if kind == 11:
        reduce = (gnp.sum, gnp.max, gnp.min, gnp.mean)[rand.integers(4)]
        return reduce(x, axis, keepdims=bool(rand.integers(2)))
    if kind == 12:
        return x - gnp.mean(x, axis, keepdims=True)
    return gnp.broadcast_to(x, (2, *shape)) if x.size < 300 else x


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(program())
def test_random_programs(case) -> None:
    f, x = case
    programs.compare(f, x, tolerance=1e-4)


def softmax(x):
    e = gnp.exp(x - gnp.max(x, -1, keepdims=True))
    return e / gnp.sum(e, -1, keepdims=True)


@pytest.mark.parametrize(
    "shape", [(3, 20000), (700, 33), (200, 30), (5000, 8), (40000,), (1, 1), (2, 3, 5)]
)
def test_every_form_of_reduction(shape: tuple[int, ...]) -> None:
    x = normal(*shape)
    programs.compare(
        lambda x: (
            gnp.sum(x, 0),
            gnp.max(x, -1),
            gnp.sum(x),
            gnp.argmax(x, -1),
            gnp.argmin(x, 0),
            gnp.any(x > 3, 0),
            gnp.prod(x * 0.01 + 1, 0),
            gnp.std(x, -1),
            softmax(x),
            gnp.sum(x * 2, 0) / 3 + 1,
        ),
        x,
        tolerance=3e-4,
    )


def test_middle_axes() -> None:
    programs.compare(
        lambda x: (gnp.sum(x, 1), gnp.sum(x, (0, 2)), x / gnp.sum(x * x, 1, keepdims=True)),
        normal(4, 70, 9),
        tolerance=1e-4,
    )


def test_nan_and_infinity_in_extremes() -> None:
    x = normal(4, 9)
    x[1, 3], x[2, 0], x[2, 5] = np.nan, np.inf, -np.inf
    programs.compare(
        lambda x: (gnp.max(x, 1), gnp.min(x, 0), gnp.argmax(x, 1), gnp.argmin(x, 1)), x
    )
    long = normal(3, 20000)
    long[1, 17777] = np.nan
    programs.compare(lambda x: (gnp.max(x, 1), gnp.argmax(x, 1), gnp.argmin(x, 1)), long)


@pytest.mark.parametrize("kind", [d for d in dtypes.ALL if not dtypes.is_complex(d)], ids=str)
def test_dtypes(kind: np.dtype) -> None:
    x = (rng.uniform(-4, 4, (6, 5)) if kind.kind != "u" else rng.uniform(0, 9, (6, 5))).astype(kind)

    def f(x):
        y = x if kind == dtypes.BOOL else x + x
        return y, gnp.transpose(y), gnp.max(x, 0), gnp.sum(x, 1), gnp.where(x == x.T[:1, :5], x, y)

    programs.compare(f, x, tolerance=1e-2 if kind.itemsize < 4 else 1e-5)


def test_a_stored_16_bit_value_is_used_rounded() -> None:
    x = normal(64, dtype=dtypes.BF16)
    jaxpr, inputs = programs.traced(lambda x: (x * 1.37, (x * 1.37).astype(gnp.float32) * 2), x)
    y, z = programs.compile_jaxpr(jaxpr, programs.PLACE)(programs.put(x))
    np.testing.assert_array_equal(programs.get(z), programs.get(y).astype(np.float32) * 2)


def test_transposes_use_tiles() -> None:
    executable = programs.compare(lambda x: gnp.transpose(x) + 1, normal(96, 70))
    assert "def tiles" in executable.as_text()
    executable = programs.compare(
        lambda x: gnp.transpose(x, (0, 2, 1, 3)) * 2, normal(2, 12, 20, 16)
    )
    assert "def pointwise" in executable.as_text()


def test_numbers_of_pixels_that_their_channels_share_need_no_tiles() -> None:
    """Neighbours that read the same number, or a channel of another pixel, are no transposition."""

    def f(image, at):
        rows = gnp.clip(at[..., 0], 0, 15).astype("int32")
        return image[rows, gnp.arange(48) % 16] * at[..., 1:]

    image = np.random.default_rng(5).standard_normal((16, 16, 3), np.float32)
    at = np.random.default_rng(6).uniform(0, 15, (64, 48, 2)).astype(np.float32)
    text = programs.compare(f, image, at).as_text()
    assert "def pointwise" in text and "def tiles" not in text


def test_ranges_have_their_axis_before_they_are_computed_with() -> None:
    x = normal(96, 4)
    executable = programs.compare(lambda x: gnp.sum(gnp.tile(x, (1, 8))[:, 3:], 0), x)
    text = executable.as_text()
    assert "[:, None]" in text
    with pytest.raises(AssertionError, match="% 3"):
        programs.ranges_have_their_axis_first(text + "\ndef rows(x):\n    y = (p % 3)[:, None]\n")


def test_equal_structures_have_equal_source() -> None:
    def f(xs):
        return [gnp.sin(x) * 2 for x in xs]

    executable = programs.compare(f, [normal(33) for _ in range(4)])
    assert executable.as_text().count("def pointwise") == 1


def test_deep_programs_are_cut() -> None:
    def interleaved(x):
        for _ in range(9):
            x = gnp.concatenate([x[1::2], x[::2] * 2], 0) + lax.pad(x[::2], 0.5, [(0, 32, 0)])
        return x

    programs.compare(interleaved, normal(64))
    one = gnp.ones(())
    levels = lambda x: lax.associative_scan(lambda a, b: a * b * one, x)
    programs.compare(levels, normal(37), tolerance=1e-4)
    programs.compare(lambda xs: gnp.concatenate(xs), [normal(3, 2) for _ in range(20)])


def test_alike_steps_are_generated_once() -> None:
    @g.default_matmul_precision("float32")
    def layers(x, ws, scales):
        for w, scale in zip(ws, scales, strict=True):
            x = gnp.clip(1 / (gnp.abs(x) * scale), -1.0, 1.0) @ w
        return x

    # Weights that keep x near the steep part of 1 / |x| from growing the error of a rounding.
    x, ws = normal(65, 8), [0.2 * normal(8, 8) for _ in range(4)]
    few = programs.compare(lambda x, *ws: layers(x, ws, [2.0] * 2), x, *ws[:2], tolerance=1e-5)
    many = programs.compare(lambda x, *ws: layers(x, ws, [2.0] * 4), x, *ws, tolerance=1e-5)
    assert len(many.table.generated) == len(few.table.generated) > 0
    # Numbers that are equal, and are not the same.
    signs = [0.0, -0.0, 0.0, -0.0]
    other = programs.compare(lambda x, *ws: layers(x, ws, signs), x, *ws, tolerance=1e-5)
    assert len(other.table.generated) > len(many.table.generated)
