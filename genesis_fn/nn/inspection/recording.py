"""Copies of layers that record their calls: what went in and came out, under which scope.

The layers themselves and `Module` know nothing of it. Each call runs in a `named_scope` of its own,
which the equations of the program carry, so that each can be given to the layer that made it.
"""

from __future__ import annotations

import dataclasses
import uuid
from typing import Any

from genesis_fn import PyTree, named_scope, tree, typeof
from genesis_fn.extend import Aval, Tracer
from genesis_fn.nn.containers import Sequential
from genesis_fn.nn.module import Module

Path = tuple[str, ...]  # the names that lead to a layer or a group of parameters


@dataclasses.dataclass
class LayerCall:
    """A call of a layer: the paths of the parameters within the tree that it was given, and the
    arrays among them by identity."""

    path: Path
    inputs: tuple[Aval, ...]
    relative: list[Path]
    given: list[int]
    outputs: tuple[Aval, ...] = ()


class Recording:
    """The layers of a model, by path in the order of its fields, and their calls by the
    name of their scope."""

    def __init__(self) -> None:
        self.layers: dict[Path, Module] = {}
        self.calls: dict[str, LayerCall] = {}
        # Functions that a layer calls may be jitted and keep the scope of the first call in their
        # programs: it must not be taken for one of another summary.
        self._token = uuid.uuid4().hex[:8]

    def copy(self, layer: Module, path: Path = ()) -> Module:
        """A layer that does the same and records its calls, and those of the layers in it."""
        self.layers[path] = layer
        kind, record = type(layer), self._record

        def call(self: Any, *args: Any, **kwargs: Any) -> PyTree:
            return record(path, lambda: kind.__call__(self, *args, **kwargs), args, kwargs)

        members = {
            "__call__": call,
            # Equal layers at two paths are two: what is traced for one is not taken for the other.
            "__eq__": object.__eq__,
            "__hash__": object.__hash__,
            "__module__": kind.__module__,
            "__qualname__": kind.__qualname__,
        }
        result: Any = object.__new__(type(kind)(kind.__name__, (kind,), members))  # pyright: ignore[reportCallIssue]
        for name, value in _fields(layer):
            within = path if name == "layers" and isinstance(layer, Sequential) else (*path, name)
            if name == "layers" and isinstance(layer, Sequential) and layer.names is not None:
                copies = zip(layer.names, value, strict=True)
                value = tuple([self.copy(x, (*path, n)) for n, x in copies])
            else:
                value = self._copy_in(value, within)
            object.__setattr__(result, name, value)
        return result

    def _copy_in(self, value: Any, path: Path) -> Any:
        """The value of a field with its layers copied, those in containers of Python's, too."""
        if isinstance(value, Module):
            return self.copy(value, path)
        if type(value) in (tuple, list):
            return type(value)([self._copy_in(x, (*path, str(i))) for i, x in enumerate(value)])
        if type(value) is dict:
            return {k: self._copy_in(x, (*path, str(k))) for k, x in value.items()}
        return value

    def scope_of(self, scope: str) -> str:
        """The part of an equation's scope that this recording entered; the layer that made it is
        that of the last name."""
        return "/".join([name for name in scope.split("/") if name in self.calls])

    def _record(self, path: Path, run: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        params = args[0] if args else kwargs.get("params")
        found = tree.leaves_with_path(params)
        given = [*args[1:], *[v for k, v in kwargs.items() if k not in ("params", "state", "key")]]
        call = LayerCall(
            path,
            _avals(given),
            [tuple([str(k.entry) for k in p]) for p, _ in found],
            [id(x) for _, x in found],
        )
        name = (".".join(path) or type(self.layers[path]).__name__).replace("/", "_")
        scope = f"{name}#{self._token}.{len(self.calls)}"
        self.calls[scope] = call
        with named_scope(scope):
            result = run()
        stateful = kwargs.get("state") is not None and isinstance(result, tuple)
        call.outputs = _avals(result[0] if stateful else result)
        return result


def _fields(layer: Module) -> list[tuple[str, Any]]:
    names = dict.fromkeys(vars(layer) if hasattr(layer, "__dict__") else ())
    if dataclasses.is_dataclass(layer):
        names |= dict.fromkeys([f.name for f in dataclasses.fields(layer)])
    return [(n, getattr(layer, n)) for n in names if hasattr(layer, n)]


def _avals(values: PyTree) -> tuple[Aval, ...]:
    """The avals of the arrays among values."""
    leaves = tree.leaves(values)
    return tuple([typeof(x) for x in leaves if isinstance(x, Tracer) or hasattr(x, "aval")])
