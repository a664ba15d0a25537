"""The base class of layers, and the errors of layers that cannot use their arguments.

A layer holds no arrays: it is a frozen dataclass of hyperparameters with `init(key) -> params` and
`__call__(params, x, ...)`.
"""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

import genesis_fn.numpy as jnp
import genesis_fn.random as random
from genesis_fn import Array, ArrayLike, DTypeLike, Key, PyTree, dtypes
from genesis_fn.errors import ArgumentError, DTypeError
from genesis_fn.extend import typeof


class Module:
    """The base class of layers and models.

    A subclass is a frozen dataclass of hyperparameters that overrides `__call__`, `init` if it has
    parameters and `init_state` if it has state: running statistics, the carry of a recurrent layer,
    the cache of attention. A call with `state=` returns (output, next state), one without it the
    output alone; a layer that cannot do without its state raises. Containers hand `state`, `key`
    and `train` on to their layers.

    >>> class Scale(nn.Module):
    ...     def init(self, key):
    ...         return {"scale": jnp.ones(())}
    ...
    ...     def __call__(self, params, x, **_):
    ...         return params["scale"] * x
    >>> Scale()(Scale().init(random.key(0)), 3.0)
    Array(3., dtype=float32)
    """

    def init(self, key: Key) -> PyTree:
        """Fresh parameters."""
        return {}

    def init_state(self, **sizes: Any) -> PyTree:
        """Fresh state; None for layers that have none.

        Running statistics need no size. Carries and caches are made where theirs are given:
        `batch=` for carries, `batch=`, `capacity=` (positions) and perhaps `dtype=` for caches.
        Each layer reads those that concern it.
        """
        return None

    def __call__(
        self,
        params: PyTree,
        x: ArrayLike,
        *,
        state: PyTree = None,
        key: Key | None = None,
        train: bool = False,
    ) -> PyTree:
        """The layer's output; (output, next state) where `state` is given."""
        raise ArgumentError(f"{type(self).__name__} defines no __call__")


def layer_error(layer: Module, path: str, text: str) -> ArgumentError:
    """The error of a layer that cannot use its arguments, with `params[` in `text` at `path`, or
    the layer itself where the text is of something else.

    Containers catch it and put their part of the path in front (`at_path`), for which it carries
    its layer, path and text.
    """
    at_path = text.replace("params[", f"params{path}[", 1)
    where = f" at {path}" if path and at_path == text else ""
    error = ArgumentError(f"{_described(layer)}{where}: {at_path}")
    error.layer, error.path, error.text = layer, path, text  # type: ignore[attr-defined]
    return error


def at_path(path: str, error: ArgumentError) -> ArgumentError:
    """`error` with the path of its layer in a container's parameters, `[2]`."""
    if not hasattr(error, "layer"):
        return error
    return layer_error(error.layer, path + error.path, error.text)  # type: ignore[attr-defined]


def _described(layer: object) -> str:
    """The layer as a user writes it: required fields, and others that differ from the default."""
    if not dataclasses.is_dataclass(layer):
        return type(layer).__name__
    parts = []
    for f in dataclasses.fields(layer):
        value = getattr(layer, f.name)
        if f.default is dataclasses.MISSING:
            parts.append(_field_text(value))
        elif isinstance(value, Array) or value != f.default:
            parts.append(f"{f.name}={_field_text(value)}")
    return f"{type(layer).__name__}({', '.join(parts)})"


def _field_text(value: object) -> str:
    return _described(value) if isinstance(value, Module) else f"{value!r:.40}"


def lookup(layer: Module, tree: PyTree, name: str, shape: tuple[int, ...], init: str) -> Array:
    """Return the array `name` of a layer's parameters or state; raise ArgumentError if it is
    missing or of another shape."""
    what = "params" if init == "init(key)" else "state"
    made = f"{what} = layer.{init} makes {'them' if what == 'params' else 'it'}"
    try:
        x = tree[name]
    except (KeyError, TypeError, IndexError):
        try:
            found = f"has the keys {list(tree.keys())}"
        except (AttributeError, TypeError):
            found = f"is {tree!r:.60}" if tree is None else f"is of type {type(tree).__name__}"
        text = f"{what}[{name!r}] of shape {list(shape)} is wanted, but {what} {found}"
        raise layer_error(layer, "", f"{text}\n  {made}") from None
    if tuple(getattr(x, "shape", ())) != shape and jnp.shape(x) != shape:
        text = f"{what}[{name!r}] is {shown(x)}, but has to be {list(shape)}"
        raise layer_error(layer, "", f"{text}\n  {made}")
    return x


def part(layer: Module, params: PyTree, path: Sequence[str]) -> PyTree:
    """`params` of a part of a layer, at the end of `path`; raises ArgumentError if it lacks one."""
    at = ""
    for name in path:
        try:
            params = params[name]
        except (KeyError, TypeError, IndexError):
            found = (
                f"has the keys {list(params)}"
                if isinstance(params, dict)
                else f"is of type {type(params).__name__}"
            )
            text = f"params[{name!r}] is wanted, but params{at} {found}"
            raise layer_error(layer, at, f"{text}\n  params = layer.init(key) makes them") from None
        at += f"[{name!r}]"
    return params


def lookup_within(
    layer: Module, params: PyTree, path: Sequence[str], shape: tuple[int, ...]
) -> Array:
    """`lookup` of the parameter at the end of `path`; its errors name the whole path."""
    *parts, name = path
    own = part(layer, params, parts)
    try:
        return lookup(layer, own, name, shape, "init(key)")
    except ArgumentError as error:
        raise at_path("".join([f"[{p!r}]" for p in parts]), error) from error.__cause__


def init_parts(parts: Mapping[str, Module], key: Key) -> dict[str, PyTree]:
    """Fresh parameters of the parts of a layer, by their names."""
    keys = random.split(key, len(parts))
    return {name: x.init(k) for (name, x), k in zip(parts.items(), keys)}


def call_part(layer: Module, part_layer: Module, params: PyTree, name: str, x: ArrayLike) -> Array:
    """The output of the part `name` of a layer; its errors name its path in the parameters."""
    own = part(layer, params, [name])
    try:
        return part_layer(own, x)
    except ArgumentError as error:
        raise at_path(f"[{name!r}]", error) from error.__cause__


def require_state(layer: Module, state: PyTree) -> None:
    """Raise ArgumentError where a layer with running state is called without it, which would drop
    the statistics of all earlier calls."""
    if state is None:
        raise layer_error(
            layer,
            "",
            "state= is missing, its running statistics\n"
            "  state = layer.init_state() makes the first; each call returns the next",
        )


def shown(x: ArrayLike) -> str:
    """The dtype and shape of an array, as errors show them: f32[2,4]."""
    return str(typeof(jnp.asarray(x)))


def checked_input(
    layer: Module, x: Any, features: int, field: str, ndim: int | None = None
) -> Array:
    """Return `x` if its last axis has `features` elements; raise ArgumentError otherwise."""
    if x is None or isinstance(x, (str, dict)):
        raise layer_error(layer, "", f"the input is {x!r:.60}, no array: call layer(params, x)")
    shape = jnp.shape(x)
    if not shape or shape[-1] != features or ndim not in (None, len(shape)):
        wanted = ["...", features] if ndim is None else ["batch", *"DHW"[5 - ndim :], features]
        text = f"the input is {shown(x)}, but has to be [{', '.join(map(str, wanted))}]"
        remedy = f"features are the last axis, {field}={features}"
        if len(shape) > 1 and shape[1] == features and shape[-1] != features:
            remedy += ": move them there with jnp.moveaxis(x, 1, -1)"
        raise layer_error(layer, "", f"{text}\n  {remedy}")
    return x


def check_fields(layer: Any) -> None:
    """Raise ArgumentError for a field that is not what its annotation says: a size that is no
    count, a `bias` that is no bool, such as a dtype in its position, an `eps` that is no number, an
    unknown dtype."""
    for f in dataclasses.fields(layer):
        value: Any = getattr(layer, f.name)
        kind = str(f.type)
        if kind.endswith(" | None"):
            if value is None:
                continue
            kind = kind.removesuffix(" | None")
        wanted = None
        if kind == "bool" and not isinstance(value, bool):
            wanted = "True or False\n  give a dtype by name: dtype=jnp.bfloat16"
        elif kind == "int" and not is_count(value):
            wanted = "a number of elements: an integer, not negative"
        elif kind == "float" and not is_amount(value):
            wanted = "a number, not negative"
        elif kind == "DTypeLike":
            spec: Any = value  # a checker takes it for the bool of above
            try:
                dtypes.dtype(spec)
            except DTypeError as error:
                raise DTypeError(f"{type(layer).__name__}: {f.name}: {error}") from None
        if wanted is not None:
            name = type(layer).__name__
            raise ArgumentError(f"{name}: {f.name} is {value!r:.60}, but is {wanted}")


def wide_dtype(dtype: dtypes.DType) -> dtypes.DType:
    """What sums of elements are computed in: float32 for integers and floats of 16 and 8 bits."""
    wide = dtypes.is_inexact(dtype) and dtype.itemsize >= 4
    return dtype if wide else dtypes.dtype("float32")


def uniform_fan_in(key: Key, shape: Sequence[int], fan_in: int, dtype: DTypeLike) -> Array:
    """PyTorch's default for linear and convolution layers: uniform within 1 / sqrt(fan_in)."""
    limit = 1 / math.sqrt(max(fan_in, 1))
    return random.uniform(key, tuple(shape), dtype, -limit, limit)


def is_amount(value: Any) -> bool:
    """Whether `value` is a real number that is not negative; what a traced one is, is not known."""
    if isinstance(value, Array):
        return value.ndim == 0
    return type(value) is not bool and isinstance(value, Real) and float(value) >= 0


def is_count(value: Any) -> bool:
    """Whether `value` is an integer that is not negative."""
    try:
        return not isinstance(value, bool) and operator.index(value) >= 0
    except TypeError:
        return False
