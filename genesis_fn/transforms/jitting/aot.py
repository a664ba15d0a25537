"""Ahead-of-time compilation: programs traced for given shapes, and their executables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from genesis_fn.core import device as devices, errors, tree
from genesis_fn.core.array import ArrayImpl
from genesis_fn.core.aval import Aval, Described
from genesis_fn.core.backend.executable import Executable
from genesis_fn.core.diagnostics.source_info import where
from genesis_fn.core.jaxpr import Jaxpr
from genesis_fn.core.primitive import ctx
from genesis_fn.core.sharding.layout import NamedSharding
from genesis_fn.core.sharding.placement import Placement
from genesis_fn.core.static import Frozen
from genesis_fn.core.types.annotations import PyTree
from genesis_fn.transforms.jitting.argspec import BoundArguments
from genesis_fn.transforms.jitting.jit_cache import Program
from genesis_fn.transforms.jitting.layouts import laid_out
from genesis_fn.transforms.staging.cost_analysis import cost, memory
from genesis_fn.transforms.staging.shape_dtype_struct import ShapeDtypeStruct

if TYPE_CHECKING:
    from genesis_fn.transforms.jitting.function import JitFunction


P = ParamSpec("P")
R = TypeVar("R")


class ArgInfo(Described):
    """What a program takes for an argument: shape and dtype, and whether its memory is donated."""

    __slots__ = ("aval", "donated")

    def __init__(self, aval: Aval, donated: bool) -> None:
        self.aval, self.donated = aval, donated

    def __repr__(self) -> str:
        return f"ArgInfo({self.aval}, donated={self.donated})"


class Traced(Generic[P, R]):
    """A program for given argument shapes, as `jit(f).trace` returns it: to print, or to compile.

    `donated` are the positions of donated arrays among its inputs after the captured ones; `device`
    is that of its arguments: on a mesh, the layout of each.
    """

    def __init__(
        self,
        function: JitFunction[P, R],
        program: Program,
        donated: tuple[int, ...],
        device: devices.Device,
    ) -> None:
        self.function, self.program, self.donated = function, program, donated
        self.device = device

    @property
    def jaxpr(self) -> Jaxpr:
        """The program."""
        return self.program.jaxpr

    @property
    def args_info(self) -> PyTree:
        """(args, kwargs) with an `ArgInfo` for each array, None for each static argument."""
        arrays = enumerate(self.jaxpr.in_avals[len(self.program.captured) :])
        leaves: list[ArgInfo | None] = []
        for known in self.program.key.leaves:
            if type(known) is Frozen:
                leaves.append(None)
            else:
                i, aval = next(arrays)
                leaves.append(ArgInfo(aval, i in self.donated))
        return tree.unflatten(self.program.key.treedef, leaves)

    @property
    def out_info(self) -> PyTree:
        """The output with a ShapeDtypeStruct for each array."""
        outs = zip(self.jaxpr.out_avals, self.program.outs_weak, strict=True)
        leaves = [ShapeDtypeStruct(a.shape, a.dtype, weak_type=w) for a, w in outs]
        return tree.unflatten(self.program.out_tree, leaves)

    def as_text(self) -> str:
        """The program as text."""
        return str(self.jaxpr)

    @property
    def donate_argnums(self) -> tuple[int, ...]:
        """The positions of the arguments that are donated."""
        return tuple(sorted(x for x in self.function.spec.donated if isinstance(x, int)))

    def lower(self, *, lowering_platforms: Sequence[str] | None = None) -> Traced[P, R]:
        """Return itself: tracing and lowering are one step here.

        Args:
            lowering_platforms: for JAX's callers; `compile` is what looks at the device.
        """
        return self

    def cost_analysis(self) -> dict[str, float]:
        """Floating-point operations and least bytes of memory traffic of the program."""
        return cost(self.jaxpr)

    def memory_analysis(self) -> dict[str, int]:
        """Bytes of arguments and outputs, and the peak of temporaries and of all of them."""
        return memory(self.jaxpr)

    def compile(self, compiler_options: Mapping[str, Any] | None = None) -> Compiled[P, R]:
        """Compile for the device of the arguments, else for the default one; for a process's part
        of arguments that are laid out over a mesh.

        Args:
            compiler_options: for JAX's callers; options of XLA have no effect here.
        """
        return Compiled(self, self.device)

    def executable(self, device: devices.Device) -> Executable:
        """Compile for a device; the executable may reuse the memory of donated arguments."""
        return self.function.compile_program(self.program, device, self.donated)


class Compiled(Generic[P, R]):
    """A program compiled for fixed argument shapes and one device, or one layout of each argument
    over a mesh; called like the function.

    It never traces: arguments of another structure, shape, dtype, layout or static value raise.
    """

    def __init__(self, traced: Traced[P, R], device: devices.Device) -> None:
        self.traced, self.device, self.executable = traced, device, traced.executable(device)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        function, program = self.traced.function, self.traced.program
        given: Any = args
        if function.options["in_shardings"] is not None:
            given = laid_out(args, kwargs, function.options["in_shardings"], function.spec)
        name, bound = function.spec.name, function.spec.bind(given, kwargs)
        if bound.treedef != program.key.treedef:
            raise errors.TreeError(
                f"a compiled {name} was called with arguments of structure {bound.treedef}, "
                f"it was compiled for {program.key.treedef}\n  at {where().describe()}"
            )
        self._check_static(bound)
        if ctx.trace is not None:
            raise TypeError(
                f"a compiled {name} was called within a transformed function, which cannot "
                f"look into it\n  at {where().describe()}\n  call the jitted function there"
            )
        jaxpr, first = program.jaxpr, len(program.captured)
        for x, v, label in zip(bound.arrays(), jaxpr.invars[first:], jaxpr.labels[first:]):
            if x.aval is not v.aval:
                raise errors.ShapeError(
                    f"a compiled {name} takes {v.aval} for {label}, got {x.aval}\n"
                    f"  at {where().describe()}"
                )
        self._check_layouts(bound)
        return function.run_program(bound, program, self.device, self.traced.donated)

    @property
    def donate_argnums(self) -> tuple[int, ...]:
        """The positions of the arguments that are donated."""
        return self.traced.donate_argnums

    def _check_layouts(self, bound: BoundArguments) -> None:
        """Raise ShardingError for an array that is laid out otherwise than the one that was
        compiled for: its parts are others."""
        arrays = [x for x in bound.leaves if type(x) is not Frozen]
        device: Any = self.device
        places: list[Any] = [x.sig.device if type(x) is ArrayImpl else None for x in arrays]
        over = type(device) is Placement
        if not over and not any([type(d) is NamedSharding for d in places]):
            return
        program, first = self.traced.program, len(self.traced.program.captured)
        wanted: Any = device.layouts[first:] if over else [None] * len(arrays)
        labels = program.jaxpr.labels[first:]
        for x, place, at, label in zip(arrays, places, wanted, labels, strict=True):
            here = place.over(x.ndim) if isinstance(place, NamedSharding) else ((),) * x.ndim
            if here != (((),) * x.ndim if at is None else at.over(x.ndim)):
                name = self.traced.function.spec.name
                raise errors.ShardingError(
                    f"a compiled {name} takes {label} laid out as {at and at.spec}, got "
                    f"{place.spec if isinstance(place, NamedSharding) else place}\n"
                    f"  at {where().describe()}\n  move it: device_put(x, sharding)"
                )

    def _check_static(self, bound: BoundArguments) -> None:
        """Raise TypeError for a static value other than the one that was compiled for."""
        spec, program = self.traced.function.spec, self.traced.program
        for name, key, x in zip(program.paths, program.key.leaves, bound.leaves):
            if Frozen in (type(key), type(x)) and key != x:
                raise TypeError(
                    f"a compiled {spec.name} was called with {name}={x!r:.60}, it was compiled "
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
