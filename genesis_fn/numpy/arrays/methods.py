"""Operators and methods of arrays and tracers, installed when this package is imported."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal

import numpy as np

from genesis_fn import numpy
from genesis_fn.core import dtypes, errors
from genesis_fn.core.array import Array, ArrayImpl, from_numpy, keys_over, live, words_of
from genesis_fn.core.aval import Aval
from genesis_fn.core.diagnostics.source_info import where
from genesis_fn.core.diagnostics.torch_habits import ARRAYS, IN_PLACE, of_arguments, of_array
from genesis_fn.core.primitive import Tracer, install_array_methods
from genesis_fn.core.types.extended import is_key
from genesis_fn.lax.creation import on_device
from genesis_fn.lax.promotion import is_operand
from genesis_fn.numpy.arrays import creation
from genesis_fn.numpy.arrays.conversion import concrete, host, number, text, traced_error
from genesis_fn.numpy.indexing import index_expressions as indexing, selection, updates
from genesis_fn.numpy.manipulation import rearrange, shapes, sorting
from genesis_fn.numpy.mathematics import composed, contraction, reductions, ufuncs
from genesis_fn.primitives import elementwise as p
from genesis_fn.primitives.elementwise import bitcast_convert_type
from genesis_fn.primitives.shape import rev

# ---- operators ----


def _operator(f: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: Any, other: Any) -> Any:
        return f(self, other) if is_operand(other) else NotImplemented

    return method


def _reflected(f: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: Any, other: Any) -> Any:
        return f(other, self) if is_operand(other) else NotImplemented

    return method


def _power(self: Any, other: Any, modulo: None = None) -> Any:
    if modulo is not None:
        raise TypeError("pow() of an array takes no third argument")
    return composed.power(self, other) if is_operand(other) else NotImplemented


def _operators() -> dict[str, Callable[..., Any]]:
    table: dict[str, Callable[..., Any]] = {}
    for name, f in {
        "add": ufuncs.add,
        "sub": ufuncs.subtract,
        "mul": ufuncs.multiply,
        "truediv": ufuncs.divide,
        "and": ufuncs.bitwise_and,
        "or": ufuncs.bitwise_or,
        "xor": ufuncs.bitwise_xor,
        "lshift": ufuncs.left_shift,
    }.items():
        table[f"__{name}__"] = f.method  # type: ignore[attr-defined]
        table[f"__r{name}__"] = f.reflected  # type: ignore[attr-defined]
    for name, f in {
        "floordiv": composed.floor_divide,
        "mod": composed.remainder,
        "divmod": composed.divmod,
        "matmul": contraction.matmul,
        "rshift": ufuncs.right_shift,
    }.items():
        table[f"__{name}__"], table[f"__r{name}__"] = _operator(f), _reflected(f)
    for name, f in {
        "eq": ufuncs.equal,
        "ne": ufuncs.not_equal,
        "lt": ufuncs.less,
        "le": ufuncs.less_equal,
        "gt": ufuncs.greater,
        "ge": ufuncs.greater_equal,
    }.items():
        table[f"__{name}__"] = f.method  # type: ignore[attr-defined]
    table["__pow__"], table["__rpow__"] = _power, _reflected(composed.power)
    table["__neg__"], table["__pos__"] = ufuncs.negative, ufuncs.positive
    table["__abs__"], table["__invert__"] = ufuncs.absolute, ufuncs.bitwise_not
    table["__round__"] = lambda self, ndigits=None: composed.round(self, ndigits or 0)
    return table


# ---- Python protocols ----


def _len(self: Any) -> int:
    if not self.aval.shape:
        if is_key(self.aval.dtype):
            raise TypeError("a single key has no length; split(key, n) makes n keys")
        raise TypeError("len() of an array without dimensions")
    return self.aval.shape[0]


def _iter(self: Any) -> Iterator[Any]:
    if not self.aval.shape:
        if is_key(self.aval.dtype):
            raise TypeError("a single key has no elements; split(key, n) makes n keys")
        raise TypeError("iteration over an array without dimensions")
    if is_key(self.aval.dtype):  # by index, which knows each element's uses
        return iter([self[i] for i in range(self.aval.shape[0])])
    return iter(shapes.unstack(self))


def _contains(self: Any, item: Any) -> bool:
    return bool(reductions.any(ufuncs.equal(self, item)))


def _device(self: Tracer) -> Any:
    known = self.nearby()
    if known is None:
        raise AttributeError(
            f"the device of {self!r} is not known: a program is compiled for the device of its "
            f"arguments\n  at {where().describe()}\n  arrays made inside are on that device"
        )
    return known.sig.device


class _Lacking:
    """Descriptor of a name that arrays lack: reading it raises an error that names the equivalent.

    Not a `__getattr__`: Python looks up every attribute of a class that defines one more slowly.
    """

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, x: Any, kind: type) -> Any:
        if x is None:
            raise AttributeError(f"type object {kind.__name__!r} has no attribute {self.name!r}")
        raise of_array(x, self.name, numpy)


def install_missing_name_errors() -> None:
    """Install errors for the names of torch's methods, and of this package's functions, that arrays
    lack. Called at the end of the package's import."""
    functions = [n for n, x in vars(numpy).items() if n[0] != "_" and callable(x)]
    known = {*ARRAYS, *functions, *_methods()}
    names = known | {f"{n}_" for n in {*known, *IN_PLACE} if not n.endswith("_")}
    install_array_methods({n: _Lacking(n) for n in names if not hasattr(Array, n)})


def _dir(self: Any) -> list[str]:
    lacking = {n for n, v in vars(Array).items() if type(v) is _Lacking}
    return [n for n in object.__dir__(self) if n not in lacking or hasattr(self, n)]


def _bool(self: Any) -> bool:
    return bool(number(self, "bool"))


def _int(self: Any) -> int:
    return int(number(self, "int"))


def _float(self: Any) -> float:
    return float(number(self, "float"))


def _complex(self: Any) -> complex:
    return complex(number(self, "complex"))


def _index(self: Any) -> int:
    d = self.aval.dtype
    if self.aval.shape or not (dtypes.is_integer(d) or d == dtypes.BOOL):
        raise TypeError(f"only integer scalars can be used as an index, got {self.aval}")
    return int(number(self, "index"))


def _format(self: Any, spec: str) -> str:
    # A tracer prints as itself: a log line in traced code must not fail.
    if isinstance(self, Tracer) and (self.owner.ended() or self.concrete() is None):
        return repr(self)
    if is_key(self.aval.dtype):
        return repr(self)
    values = host(self, "text")
    return format(values if self.aval.shape else values[()], spec)


def _repr(self: ArrayImpl) -> str:
    return text(self)


def _str(self: ArrayImpl) -> str:
    return text(self) if is_key(self.dtype) else str(host(self))


def _array(self: Any, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
    x = host(self)
    if dtype is not None and np.dtype(dtype) != x.dtype:
        if copy is False:
            raise ValueError(f"an array of {x.dtype.name} cannot be {dtype} without a copy")
        return x.astype(dtype)
    return x.copy() if copy else x


def _reduce(self: Any) -> tuple[Any, ...]:
    if is_key(self.dtype):
        return _restored_keys, (np.array(host(words_of(concrete(self, "pickle")))), self.aval)
    return from_numpy, (np.array(host(self, "pickle")),)


def _restored_keys(words: np.ndarray, kind: Aval) -> ArrayImpl:
    return keys_over(from_numpy(words), kind)


def _namespace(self: Any, api_version: str | None = None) -> Any:
    if api_version not in (None, "2021.12", "2022.12", "2023.12", "2024.12"):
        raise ValueError(f"the array API version {api_version!r} is not supported")
    return numpy


def _dlpack(
    self: Any,
    *,
    stream: Any = None,
    max_version: Any = None,
    dl_device: Any = None,
    copy: bool | None = None,
) -> Any:
    options = {"stream": stream, "max_version": max_version, "dl_device": dl_device, "copy": copy}
    known = {n: v for n, v in options.items() if v is not None}
    return creation.to_dlpack(concrete(self, "dlpack"), **known)


def _dlpack_device(self: Any) -> tuple[int, int]:
    return creation.dlpack_device(concrete(self, "dlpack"))


# ---- methods ----


def _reshape(self: Any, *args: Any, order: str = "C", copy: bool | None = None) -> Any:
    new = args[0] if len(args) == 1 and not hasattr(args[0], "__index__") else args
    return shapes.reshape(self, new, order=order)


def _transpose(self: Any, *axes: Any) -> Any:
    if not axes or axes == (None,):
        return shapes.transpose(self)
    return shapes.transpose(self, axes[0] if isinstance(axes[0], (tuple, list)) else axes)


def _item(self: Any, *args: Any) -> Any:
    if not args:
        return number(self, "item")
    index = args[0] if len(args) == 1 and isinstance(args[0], tuple) else args
    if len(index) == 1:  # a position in the flattened array
        return number(shapes.ravel(self)[index[0]], "item")
    return number(self[index], "item")


def _compress(self: Any, condition: Any, axis: int | None = None, **options: Any) -> Any:
    return selection.compress(condition, self, axis, **options)


def _byteswap(self: Any) -> Any:
    d = self.aval.dtype
    if dtypes.is_key(d):
        raise errors.DTypeError(f"byteswap is not for random keys, got {self.aval}")
    if d.itemsize == 1:
        return self
    if dtypes.is_complex(d):
        return p.complex_(_byteswap(p.real(self)), _byteswap(p.imag(self)))
    octets = bitcast_convert_type(self, dtypes.dtype("uint8"))
    return bitcast_convert_type(rev(octets, (octets.ndim - 1,)), d)


def _buffer_pointer(self: Any) -> int:
    if not isinstance(self, ArrayImpl):
        raise traced_error(self, "memory")
    data: Any = live(self).data
    if hasattr(data, "data_ptr"):  # a tensor
        return data.data_ptr()
    if hasattr(data, "address"):  # a block of a GPU's memory
        return data.address
    raise errors.BackendError(f"{self.aval} has no address: it is not in one piece of memory")


def _tobytes(self: Any, order: Literal["C", "F"] = "C") -> bytes:
    return host(self, "tobytes").tobytes(order)


def _view(self: Any, dtype: Any = None, *more: Any) -> Any:
    if dtype is None:
        return self
    if more or isinstance(dtype, (int, tuple, list)):
        raise TypeError(
            f"view(dtype) reads the bytes as another dtype\n  at {where().describe()}\n"
            "  write x.reshape(shape) for another shape"
        )
    d, old = dtypes.dtype(dtype), self.aval.dtype
    if d == dtypes.BOOL or old == dtypes.BOOL:
        return self.astype(d) if d != old else self
    if d.itemsize == old.itemsize:
        return bitcast_convert_type(self, d)
    if not self.aval.shape:
        raise ValueError(f"view: a scalar {self.aval} has no last axis to change the item size in")
    if d.itemsize < old.itemsize:
        wide = bitcast_convert_type(self, d)
        *front, n, k = wide.aval.shape
        return shapes.reshape(wide, (*front, n * k))
    k = d.itemsize // old.itemsize
    *front, n = self.aval.shape
    if n % k:
        raise ValueError(f"view: the last axis of {self.aval} does not divide into {d.name}")
    return bitcast_convert_type(shapes.reshape(self, (*front, n // k, k)), d)


def _to_device(self: Any, device: Any, *, stream: Any = None) -> Any:
    return on_device(self, device)


def _astype(self: Any, dtype: Any, copy: bool = False, device: Any = None) -> Any:
    return creation.astype(self, dtype, copy=copy, device=device)


def _flatten(self: Any, order: str = "C") -> Any:
    return shapes.ravel(self, order=order)


def _methods() -> dict[str, Any]:
    def bound(name: str, f: Callable[..., Any]) -> Callable[..., Any]:
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return f(self, *args, **kwargs)
            except TypeError as error:
                better = of_arguments(f.__name__, error, kwargs)
                if better is None:
                    raise
            raise better

        method.__name__, method.__doc__ = name, f.__doc__
        method.__wrapped__ = f  # type: ignore[attr-defined]  # whose signature `help` shows
        return method

    functions = {
        **{
            n: getattr(reductions, n)
            for n in (
                "sum",
                "prod",
                "mean",
                "var",
                "std",
                "max",
                "min",
                "any",
                "all",
                "argmax",
                "argmin",
                "cumsum",
                "cumprod",
                "ptp",
            )
        },
        **{n: getattr(shapes, n) for n in ("squeeze", "ravel", "swapaxes")},
        **{
            n: getattr(sorting, n)
            for n in ("sort", "argsort", "partition", "argpartition", "searchsorted")
        },
        **{n: getattr(selection, n) for n in ("take", "choose")},
        "round": composed.round,
        "conj": ufuncs.conj,
        "conjugate": ufuncs.conj,
        "dot": contraction.dot,
        "trace": contraction.trace,
        "diagonal": contraction.diagonal,
        "copy": creation.copy,
        "repeat": rearrange.repeat,
        "clip": composed.clip,
        "nonzero": selection.nonzero,
    }
    table: dict[str, Any] = {n: bound(n, f) for n, f in functions.items()}
    table |= {
        "reshape": _reshape,
        "transpose": _transpose,
        "flatten": _flatten,
        "item": _item,
        "astype": _astype,
        "view": _view,
        "tolist": lambda self: host(self, "tolist").tolist(),
        "tobytes": _tobytes,
        "byteswap": _byteswap,
        "unsafe_buffer_pointer": _buffer_pointer,
        "compress": _compress,
        "to_device": _to_device,
        "T": property(shapes.transpose),
        "mT": property(shapes.matrix_transpose),
        "real": property(ufuncs.real),
        "imag": property(ufuncs.imag),
        "device": property(_device),  # of tracers: arrays have their own
        "at": property(updates.At),
        "flat": property(lambda self: self.reshape(-1)),
    }
    return table


def _protocols() -> dict[str, Any]:
    return {
        "__len__": _len,
        "__iter__": _iter,
        "__contains__": _contains,
        "__bool__": _bool,
        "__int__": _int,
        "__float__": _float,
        "__complex__": _complex,
        "__index__": _index,
        "__format__": _format,
        "__array__": _array,
        "__array_namespace__": _namespace,
        "__dir__": _dir,
        "__copy__": lambda self: self,
        "__deepcopy__": lambda self, memo: self,
        "__getitem__": indexing.getitem,
        "__trunc__": _int,
        "__reduce__": _reduce,
        "__dlpack__": _dlpack,
        "__dlpack_device__": _dlpack_device,
    }


install_array_methods({**_operators(), **_methods(), **_protocols()})
for _name, _method in {
    "__repr__": _repr,
    "__str__": _str,
    "__cuda_array_interface__": property(creation.cuda_array_interface),
}.items():
    setattr(ArrayImpl, _name, _method)
