"""Layers as pairs of functions, as `jax.example_libraries.stax` has them:
`init(key, input_shape) -> (output_shape, params)` and `apply(params, inputs, rng=None)`.

`genesis_fn.nn` has layers that are pytrees. A negative length of a shape stands for a batch of any
size. Keys are split as in JAX, so that parameters are the same.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import genesis_fn.numpy as jnp
from genesis_fn import ShapeDtypeStruct, eval_shape, lax, nn, random
from genesis_fn.nn.initializers import glorot_normal, normal, ones, zeros

Shape = tuple[int, ...]
Initializer = Callable[[Any, Shape], Any]


class Layer(NamedTuple):
    """The two functions of a layer."""

    init: Callable[..., Any]
    apply: Callable[..., Any]


def _shape_after(f: Callable[[Any], Any], shape: Shape, batch: int, batch_out: int) -> Shape:
    """The shape of what `f` makes of an array of `shape`, whose axis `batch` passes through."""
    known = tuple(max(n, 1) for n in shape)
    out = list(eval_shape(f, ShapeDtypeStruct(known, "float32")).shape)
    out[batch_out] = shape[batch]
    return tuple(out)


# ---- layers with parameters ----


def Dense(
    out_dim: int,
    W_init: Initializer = glorot_normal(),  # noqa: B008
    b_init: Initializer = normal(),  # noqa: B008
) -> Layer:
    """x @ W + b."""

    def init(key: Any, input_shape: Shape) -> Any:
        for_w, for_b = random.split(key)
        params = W_init(for_w, (input_shape[-1], out_dim)), b_init(for_b, (out_dim,))
        return (*input_shape[:-1], out_dim), params

    return Layer(init, lambda params, inputs, **_: jnp.dot(inputs, params[0]) + params[1])


def _convolution(
    run: Callable[..., Any],
    dimension_numbers: tuple[str, str, str],
    out_chan: int,
    filter_shape: Sequence[int],
    W_init: Initializer | None,
    b_init: Initializer,
) -> Layer:
    """A convolution that `run(inputs, kernel)` computes, and a bias."""
    lhs, rhs, out = dimension_numbers
    init_kernel = W_init or glorot_normal(rhs.index("I"), rhs.index("O"))

    def init(key: Any, input_shape: Shape) -> Any:
        spatial, channels = iter(filter_shape), {"O": out_chan, "I": input_shape[lhs.index("C")]}
        kernel_shape = tuple(channels[c] if c in channels else next(spatial) for c in rhs)
        bias_shape = tuple(out_chan if c == "C" else 1 for c in out)
        for_w, for_b = random.split(key)
        params = init_kernel(for_w, kernel_shape), b_init(for_b, bias_shape)
        convolve = lambda x: run(x, jnp.zeros(kernel_shape))
        return _shape_after(convolve, input_shape, lhs.index("N"), out.index("N")), params

    return Layer(init, lambda params, inputs, **_: run(inputs, params[0]) + params[1])


def GeneralConv(
    dimension_numbers: tuple[str, str, str],
    out_chan: int,
    filter_shape: Sequence[int],
    strides: Sequence[int] | None = None,
    padding: Any = "VALID",
    W_init: Initializer | None = None,
    b_init: Initializer = normal(1e-6),  # noqa: B008
) -> Layer:
    """A convolution of inputs, kernel and outputs with these axes: ("NHWC", "HWIO", "NHWC")."""
    steps = tuple(strides or (1,) * len(filter_shape))
    run = lambda x, w: lax.conv_general_dilated(
        x, w, steps, padding, dimension_numbers=dimension_numbers
    )
    return _convolution(run, dimension_numbers, out_chan, filter_shape, W_init, b_init)


def GeneralConvTranspose(
    dimension_numbers: tuple[str, str, str],
    out_chan: int,
    filter_shape: Sequence[int],
    strides: Sequence[int] | None = None,
    padding: Any = "VALID",
    W_init: Initializer | None = None,
    b_init: Initializer = normal(1e-6),  # noqa: B008
) -> Layer:
    """A transposed convolution of inputs, kernel and outputs with these axes."""
    steps = tuple(strides or (1,) * len(filter_shape))
    run = lambda x, w: lax.conv_transpose(x, w, steps, padding, dimension_numbers=dimension_numbers)
    return _convolution(run, dimension_numbers, out_chan, filter_shape, W_init, b_init)


Conv = functools.partial(GeneralConv, ("NHWC", "HWIO", "NHWC"))
ConvTranspose = functools.partial(GeneralConvTranspose, ("NHWC", "HWIO", "NHWC"))
Conv1DTranspose = functools.partial(GeneralConvTranspose, ("NHC", "HIO", "NHC"))


def BatchNorm(
    axis: int | Sequence[int] = (0, 1, 2),
    epsilon: float = 1e-5,
    center: bool = True,
    scale: bool = True,
    beta_init: Initializer = zeros,
    gamma_init: Initializer = ones,
) -> Layer:
    """Inputs with mean 0 and variance 1 over `axis`, then scaled and shifted by parameters."""
    axes = (axis,) if isinstance(axis, int) else tuple(axis)

    def init(key: Any, input_shape: Shape) -> Any:
        shape = tuple(n for i, n in enumerate(input_shape) if i not in axes)
        for_beta, for_gamma = random.split(key)
        beta = beta_init(for_beta, shape) if center else ()
        return input_shape, (beta, gamma_init(for_gamma, shape) if scale else ())

    def apply(params: Any, inputs: Any, **_: Any) -> Any:
        beta, gamma = params
        z = nn.standardize(inputs, axes, epsilon=epsilon)
        whole = lambda p: jnp.expand_dims(p, axes)
        z = whole(gamma) * z if scale else z
        return z + whole(beta) if center else z

    return Layer(init, apply)


# ---- layers without parameters ----


def _plain(apply: Callable[[Any], Any], shape: Callable[[Any], Any] = lambda s: s) -> Layer:
    return Layer(lambda key, s: (shape(s), ()), lambda params, inputs, **_: apply(inputs))


def elementwise(fun: Callable[..., Any], **fun_kwargs: Any) -> Layer:
    """`fun` of the inputs, which keeps their shape."""
    return _plain(lambda x: fun(x, **fun_kwargs))


Tanh = elementwise(jnp.tanh)
Relu = elementwise(nn.relu)
Exp = elementwise(jnp.exp)
LogSoftmax = elementwise(nn.log_softmax, axis=-1)
Softmax = elementwise(nn.softmax, axis=-1)
Softplus = elementwise(nn.softplus)
Sigmoid = elementwise(nn.sigmoid)
Elu = elementwise(nn.elu)
LeakyRelu = elementwise(nn.leaky_relu)
Selu = elementwise(nn.selu)
Gelu = elementwise(nn.gelu)
Identity = _plain(lambda x: x)
Flatten = _plain(lambda x: x.reshape(x.shape[0], -1), lambda s: (s[0], math.prod(s[1:])))


def _pooling(
    reducer: Callable[..., Any],
    start: float,
    window_shape: Sequence[int],
    strides: Sequence[int] | None,
    padding: str,
    spec: str | None,
    mean: bool = False,
) -> Layer:
    rank = len(window_shape)
    batch, channel = (spec.index("N"), spec.index("C")) if spec else (0, rank + 1)
    window, steps = list(window_shape), list(strides or (1,) * rank)
    for axis in sorted((batch, channel)):
        window.insert(axis, 1)
        steps.insert(axis, 1)

    def reduce(x: Any) -> Any:
        return lax.reduce_window(x, start, reducer, tuple(window), tuple(steps), padding)

    def pool(x: Any) -> Any:
        # Windows at the border have fewer elements.
        return reduce(x) / reduce(jnp.ones_like(x)) if mean else reduce(x)

    return _plain(pool, lambda s: _shape_after(reduce, s, batch, batch))


def MaxPool(
    window_shape: Sequence[int],
    strides: Sequence[int] | None = None,
    padding: str = "VALID",
    spec: str | None = None,
) -> Layer:
    """The largest element of each window; `spec` names the axes ("NHWC")."""
    return _pooling(lax.max, -math.inf, window_shape, strides, padding, spec)


def SumPool(
    window_shape: Sequence[int],
    strides: Sequence[int] | None = None,
    padding: str = "VALID",
    spec: str | None = None,
) -> Layer:
    """The sum of each window; `spec` names the axes ("NHWC")."""
    return _pooling(lax.add, 0.0, window_shape, strides, padding, spec)


def AvgPool(
    window_shape: Sequence[int],
    strides: Sequence[int] | None = None,
    padding: str = "VALID",
    spec: str | None = None,
) -> Layer:
    """The mean of each window, over the elements that are there; `spec` names the axes."""
    return _pooling(lax.add, 0.0, window_shape, strides, padding, spec, mean=True)


def Dropout(rate: float, mode: str = "train") -> Layer:
    """Keeps an element with probability `rate`, divided by it; in another mode, all of them."""

    def apply(params: Any, inputs: Any, rng: Any = None, **_: Any) -> Any:
        if rng is None:
            raise ValueError("Dropout draws random numbers: call apply(params, inputs, rng=key)")
        if mode != "train":
            return inputs
        return jnp.where(random.bernoulli(rng, rate, inputs.shape), inputs / rate, 0)

    return Layer(lambda key, s: (s, ()), apply)


# ---- several inputs, outputs and layers ----


def FanOut(num: int) -> Layer:
    """The inputs `num` times."""
    return _plain(lambda x: [x] * num, lambda s: [s] * num)


FanInSum = _plain(sum, lambda shapes: shapes[0])


def FanInConcat(axis: int = -1) -> Layer:
    """The inputs beside each other along `axis`."""

    def shape(shapes: Sequence[Shape]) -> Shape:
        out = list(shapes[0])
        out[axis] = sum(s[axis] for s in shapes)
        return tuple(out)

    return _plain(lambda xs: jnp.concatenate(xs, axis), shape)


def _keys(rng: Any, count: int) -> Any:
    return [None] * count if rng is None else random.split(rng, count)


def serial(*layers: tuple[Callable[..., Any], Callable[..., Any]]) -> Layer:
    """Layers one after the other."""

    def init(key: Any, input_shape: Shape) -> Any:
        params = []
        for each, _ in layers:
            key, own = random.split(key)
            input_shape, param = each(own, input_shape)
            params.append(param)
        return input_shape, params

    def apply(params: Any, inputs: Any, rng: Any = None, **kwargs: Any) -> Any:
        for (_, each), param, key in zip(layers, params, _keys(rng, len(layers))):
            inputs = each(param, inputs, rng=key, **kwargs)
        return inputs

    return Layer(init, apply)


def parallel(*layers: tuple[Callable[..., Any], Callable[..., Any]]) -> Layer:
    """Layers beside each other: each takes one of the inputs."""

    def init(key: Any, input_shape: Sequence[Shape]) -> Any:
        keys = random.split(key, len(layers))
        pairs = [each(k, s) for (each, _), k, s in zip(layers, keys, input_shape)]
        return tuple(shape for shape, _ in pairs), tuple(params for _, params in pairs)

    def apply(params: Any, inputs: Any, rng: Any = None, **kwargs: Any) -> Any:
        keys = _keys(rng, len(layers))
        rows = zip(layers, params, inputs, keys)
        return [each(p, x, rng=key, **kwargs) for (_, each), p, x, key in rows]

    return Layer(init, apply)


def shape_dependent(make_layer: Callable[[Shape], tuple[Any, Any]]) -> Layer:
    """The layer that `make_layer` gives for the shape of its inputs."""
    return Layer(
        lambda key, s: make_layer(s)[0](key, s),
        lambda params, inputs, **kwargs: make_layer(inputs.shape)[1](params, inputs, **kwargs),
    )
