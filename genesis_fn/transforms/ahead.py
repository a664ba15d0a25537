"""Ahead of time: programs traced for given shapes, and their executables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from genesis_fn.core import device as devices, errors, tree
from genesis_fn.core.convert import as_array
from genesis_fn.core.executable import Executable
from genesis_fn.core.jaxpr import Jaxpr
from genesis_fn.core.primitive import ctx
from genesis_fn.core.source import where
from genesis_fn.core.static import Frozen
from genesis_fn.transforms.abstract import Abstract
from genesis_fn.transforms.arguments import Static, static_key
from genesis_fn.transforms.cost import cost, memory
from genesis_fn.transforms.flat import name_of
from genesis_fn.transforms.guard import Donated
from genesis_fn.transforms.key_uses import after_call, before_call
from genesis_fn.transforms.programs import Program


class Traced:
    """A program for given argument shapes: printable, and ready to compile."""

    def __init__(
        self,
        fun: Callable,
        static: Static,
        program: Program,
        in_tree: Any,
        mask: list[bool],
        donated: list[bool],
    ) -> None:
        self.fun, self.static, self.program = fun, static, program
        self.in_tree, self.mask = in_tree, mask
        self.donated = donated

    @property
    def jaxpr(self) -> Jaxpr:
        """The program."""
        return self.program.jaxpr

    @property
    def out_info(self) -> Any:
        """The output's pytree of shapes and dtypes."""
        weak = self.program.outs_weak
        return self.program.build(
            [
                Abstract(a.shape, a.dtype, weak_type=w)
                for a, w in zip(self.jaxpr.out_avals, weak, strict=True)
            ]
        )

    def as_text(self) -> str:
        """The program as text."""
        return str(self.jaxpr)

    def lower(self) -> Traced:
        """Itself: tracing and lowering are one step here."""
        return self

    def cost_analysis(self) -> dict[str, float]:
        """Floating-point operations and bytes that the program needs at least."""
        return cost(self.jaxpr)

    def memory_analysis(self) -> dict[str, int]:
        """Bytes of arguments, outputs, and the peak of what lives between them."""
        return memory(self.jaxpr)

    def compile(self) -> Compiled:
        """The executable on the default device."""
        place = devices.default_device()
        return Compiled(self, self.executable(place), place)

    def executable(self, place: devices.Device) -> Executable:
        """The program compiled for a device, which may reuse the memory of donated arguments."""
        if not any(self.donated):
            return place.backend.compile(self.jaxpr, place)
        mask = [False] * len(self.program.captured) + self.donated
        return place.backend.compile(self.jaxpr, place, donated=mask)


class Compiled:
    """An executable for fixed argument shapes."""

    def __init__(self, traced: Traced, executable: Executable, place: devices.Device) -> None:
        self.traced, self.executable, self.device = traced, executable, place

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        fun, static = self.traced.fun, self.traced.static
        args, kwargs, given = static.bind(args, kwargs)
        leaves, treedef = tree.flatten(static.without(args, kwargs))
        if treedef != self.traced.in_tree:
            raise errors.TreeError(
                f"a compiled {name_of(fun)} was called with arguments of structure {treedef}, "
                f"it was compiled for {self.traced.in_tree}\n  at {where().describe()}"
            )
        self._check_static(leaves, given)
        if ctx.trace is not None:
            raise TypeError(
                f"a compiled {name_of(fun)} was called within a transformed function, which cannot "
                f"look into it\n  at {where().describe()}\n  call the jitted function there"
            )
        arrays = [as_array(x) for x, m in zip(leaves, self.traced.mask) if m]
        program = self.traced.program
        expected = program.jaxpr.in_avals[len(program.captured) :]
        for x, a, label in zip(arrays, expected, program.jaxpr.labels[len(program.captured) :]):
            if x.aval is not a:
                raise errors.ShapeError(
                    f"a compiled {name_of(fun)} takes {a} for {label}, got {x.aval}\n"
                    f"  at {where().describe()}"
                )
        if program.key_uses is not None:
            before_call(program.key_uses, arrays)
        outs = self.executable(*program.captured, *arrays)
        if program.key_uses is not None:
            after_call(program.key_uses, arrays, outs)
        paths = program.jaxpr.labels[len(program.captured) :]
        for x, path, donated in zip(arrays, paths, self.traced.donated):
            if donated:
                x.data = Donated(path, name_of(fun), where(), x.aval)
        return program.build(outs)

    def _check_static(self, leaves: list[Any], given: list[tuple[Any, Any]]) -> None:
        """Raise TypeError for a static value other than the one that was compiled for."""
        fun, static, program = self.traced.fun, self.traced.static, self.traced.program
        known = dict(program.keys[0])
        pairs = [(static.label(n), known.get(n), v) for n, v in given]
        pairs += [
            (path, key, x)
            for path, key, x in zip(program.paths, program.keys[1], leaves)
            if type(key) is Frozen
        ]
        for name, key, x in pairs:
            if key != static_key(x, name, fun):
                raise TypeError(
                    f"a compiled {name_of(fun)} was called with {name}={x!r:.60}, it was compiled "
                    f"for {key!r:.60}\n  at {where().describe()}\n"
                    "  compile it again for another static value, or call the jitted function"
                )

    def as_text(self) -> str:
        """The program as text, as it was compiled."""
        return self.executable.as_text()

    def cost_analysis(self) -> dict[str, float]:
        """Floating-point operations and bytes."""
        return self.traced.cost_analysis()

    def memory_analysis(self) -> dict[str, int]:
        """Bytes of arguments, outputs and temporaries: as planned where the backend says so, else
        as the program needs them."""
        return self.executable.memory_analysis()


__all__ = ["Compiled", "Traced"]
