"""Code generation for the call path of `jit`.

`fast_call` writes one Python function for calls like an example: it takes the leaves out of
arguments of a known structure, guards (compares them with the example), runs the executable and
builds the output. Straight-line code for one structure costs a fraction of generic flattening per
leaf. For `f(x, 2.0)` it is (`_CallWriter.function` compiles it; print it there)

    def f(args, kwargs):
        try:
            if len(args) != 2 or len(kwargs) != 0: return MISS
            x1, x2, = args
            if x1.sig is not c9: return MISS
            if type(x2) is not float: return MISS
            x2 = from_numpy(fitted(x2, c10), device)
        except (AttributeError, KeyError, TypeError): return MISS
        try:
            y0, = run([x1.data, x2.data])
        except Exception as error:
            raise failed(error, [x1, x2]) from error.__cause__
        a = new(ArrayImpl); a.data = y0; a.sig = c9; y0 = a
        return y0
"""

from __future__ import annotations

import gc
import math
import types
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from sys import getrefcount
from typing import Any, NamedTuple
from weakref import getweakrefcount

from genesis_fn.core import tree
from genesis_fn.core.array import ArrayImpl, Deleted, from_numpy
from genesis_fn.core.aval import Signature, sig
from genesis_fn.core.backend.executable import Carry, Executable
from genesis_fn.core.convert import as_array, fitted, is_value
from genesis_fn.core.device import Device
from genesis_fn.core.diagnostics.source_info import SourceLocation, where
from genesis_fn.core.dtypes import scalar_dtype
from genesis_fn.core.primitive import SCALARS
from genesis_fn.core.static import Frozen, Same, aux_key
from genesis_fn.core.train_state import (
    TrainState,
    buffers_of,
    from_buffers,
    layout_of,
    mark_donated,
)
from genesis_fn.transforms.jitting.argspec import ArgSpec, BoundArguments
from genesis_fn.transforms.jitting.jit_cache import Program
from genesis_fn.transforms.keys.key_uses import Uses, after_call, before_call

# Returned by a generated call for arguments that it was not generated for.
MISS = object()
# From so many results on, the cyclic garbage collector is paused while they are made: the arrays of
# the call before are still alive then, so that the number of objects grows and triggers it in every
# call.
_MANY = 64
_SHORT = 8  # static tuples up to this length are compared element by element, without a call
_LINES = 16  # lines of calls for which the marks of donated arrays are kept


# ---- donated memory ----


def donation_marks(
    paths: Sequence[str], avals: Sequence[Any], function: str
) -> Callable[[SourceLocation], list[Deleted]]:
    """A function from the line of a call to the marks that replace the memory of its donated
    arrays. They say which array was donated where, and are made once for each line."""
    known: dict[tuple[int, int], tuple[SourceLocation, list[Deleted]]] = {}

    def marks(line: SourceLocation) -> list[Deleted]:
        key = (id(line.code), line.line)  # the line keeps the code object alive
        if key not in known:
            if len(known) >= _LINES:
                known.clear()
            why = f"was donated to {function} at {line}"
            known[key] = line, [Deleted(f"{p} {why}", a) for p, a in zip(paths, avals)]
        return known[key][1]

    return marks


class ArrayPool:
    """Recycles array objects: those donated to a call become results of a later call, if nobody
    else refers to them by then. Creating and freeing as many costs more than the rest of a call.
    """

    def __init__(self, sigs: Sequence[Any]) -> None:
        self._sigs = sigs
        self._kept: list[list[ArrayImpl]] = []

    def take(self) -> list[ArrayImpl]:
        """An array without memory for each signature, to which nobody else refers."""
        arrays = self._kept.pop() if self._kept else None
        # A count above that of a list alone, or a weak reference, means that the caller still holds
        # a donated array, which must go on raising DonatedError.
        if arrays is not None and sum(map(getrefcount, arrays)) == _ALONE * len(arrays):
            if not sum(map(getweakrefcount, arrays)):
                return arrays
        return [ArrayImpl(None, s) for s in self._sigs]

    def keep(self, arrays: list[ArrayImpl]) -> None:
        """Keep arrays of these signatures, which were just donated, for the next call."""
        self._kept = [arrays]


# `getrefcount` of an object to which only a list refers, as counted by `map`.
_ALONE = next(map(getrefcount, [object()]))


def _pooled(sigs: Sequence[Any], donated: Sequence[Any]) -> dict[int, int]:
    """{result: donated argument with the same signature}, each argument used once."""
    free: dict[Any, list[int]] = {}
    for k, s in reversed(list(enumerate(donated))):
        free.setdefault(s, []).append(k)
    return {i: free[s].pop() for i, s in enumerate(sigs) if free.get(s)}


# ---- states ----


class _Carried(NamedTuple):
    """A donated `TrainState` that a call passes through as one value, and the ranges of its leaves
    among the program's inputs (after the captured ones) and results."""

    state: TrainState
    carry: Carry
    inputs: range
    results: range


def _carried(
    values: tuple[Any, ...],
    sigs: Sequence[Signature],
    program: Program,
    executable: Executable,
    donated: Sequence[int],
) -> _Carried | None:
    """How a call carries its state; None unless there is one, it alone is donated, and the
    executable updates it in place."""
    is_state = lambda x: type(x) is TrainState
    passed = tree.leaves(values, is_leaf=is_state)
    whole = tree.unflatten(program.out_tree, [object()] * program.out_tree.num_leaves)
    returned = tree.leaves(whole, is_leaf=is_state)
    at, outs = [[i for i, x in enumerate(xs) if is_state(x)] for xs in (passed, returned)]
    if len(at) != 1 or len(outs) != 1:
        return None
    if program.key_uses is not None and program.key_uses.same:
        return None  # used keys are marked by array, and a carried state has no arrays
    state, layout = passed[at[0]], layout_of(returned[outs[0]])
    # Static leaves are not inputs of the program.
    first = sum(is_value(x) for x in passed[: at[0]])
    inputs, results = [range(n, n + layout.count) for n in (first, outs[0])]
    if layout_of(state) is not layout or list(donated) != list(inputs):
        return None
    carry = executable.carry(len(program.captured) + first, results.start, layout.count)
    kept = list(sigs[results.start : results.stop])
    if carry is None or [type(x) is ArrayImpl and x.sig for x in tree.leaves(state)] != kept:
        return None
    carry.sigs = kept
    return _Carried(state, carry, inputs, results)


# ---- a whole call ----


def fast_call(
    spec: ArgSpec,
    bound: BoundArguments,
    program: Program,
    executable: Executable,
    device: Device,
    donated: Sequence[int],
    guarded: bool,
) -> Callable[..., Any]:
    """Generate a function (args, kwargs) -> result for calls like this one; MISS for other calls.

    Like means: equal structure and static values, and for each leaf an array of the same signature,
    a number of the same type, or an equal static leaf; and all guards of the program hold. Without
    `guarded`, it compares nothing. Numbers and ndarrays go to `device`. A donated `TrainState` that
    is returned is one leaf where the executable can `carry` it.

    The function holds no captured arrays, for programs that share it differ in them;
    `bind_captured` adds them.
    """
    sigs = [
        sig(s.aval, s.device, s.dense, w)
        for s, w in zip(executable.sigs, program.outs_weak, strict=True)
    ]
    values = spec.with_frozen(*bound.written)
    carried = _carried(values, sigs, program, executable, donated) if donated else None
    out = _CallWriter(spec, program, executable, sigs, carried, guarded)
    out.guard_leaves(out.flatten_arguments(*values), device)
    for g in program.guards:
        out.guard(f"not {g.source(out.name)}")
    if guarded:
        out.catch_misses()
    return out.run(executable, donated) if carried is None else out.run_carried(*carried)


def bind_captured(call: Callable[..., Any], captured: Sequence[Any]) -> Callable[..., Any]:
    """The function of `fast_call` with the captured arrays of one copy of the program."""
    if not captured:
        return call
    space: dict[str, Any] = call.__globals__  # pyright: ignore[reportFunctionMemberAccess]
    space = space | {f"k{i}": x for i, x in enumerate(captured)}
    return types.FunctionType(call.__code__, space)  # pyright: ignore[reportFunctionMemberAccess]


def _failed(executable: Executable, error: Exception, arrays: Sequence[ArrayImpl]) -> Exception:
    """The error to raise for a failed call: DonatedError if an argument was donated before."""
    gone = next((x.data for x in arrays if isinstance(x.data, Deleted)), None)
    return executable.explained(error) if gone is None else gone.error()


class _CallWriter:
    """Writes the source lines of a call, and `space`: the objects that they refer to by name.

    Names: `k0` ... captured arrays, `x1` ... values on the way in, `y0` ... results, `c5` ...
    constants of `space`. `inputs` are (name, example) of what the program takes after its captured
    arrays, without a state that is carried. `results` are (name, signature).
    """

    def __init__(
        self,
        spec: ArgSpec,
        program: Program,
        executable: Executable,
        sigs: Sequence[Signature],
        carried: _Carried | None,
        guarded: bool,
    ) -> None:
        self.spec, self.program, self.carried, self.guarded = spec, program, carried, guarded
        self.results = [(f"y{i}", s) for i, s in enumerate(sigs)]
        self.labels = program.jaxpr.labels[len(program.captured) :]
        self.lines: list[str] = []
        self.names: dict[int, str] = {}  # by the id of what they stand for, which `space` holds
        self.count = 0
        self.inputs: list[tuple[str, Any]] = []
        self.space: dict[str, Any] = {
            "MISS": MISS,
            "ArrayImpl": ArrayImpl,
            "new": ArrayImpl.__new__,
            "as_array": as_array,
            "from_numpy": from_numpy,
            "fitted": fitted,
            "where": where,
            "failed": partial(_failed, executable),
        }

    def fresh(self) -> str:
        """A name for a value of the generated function."""
        self.count += 1
        return f"x{self.count}"

    def name(self, value: Any) -> str:
        """The name of a constant, which is added to `space`."""
        text = self.names.get(id(value))
        if text is None:
            text = self.names[id(value)] = f"c{len(self.space)}"
            self.space[text] = value
        return text

    def guard(self, condition: str) -> None:
        """Return MISS where this condition holds."""
        if self.guarded:
            self.lines.append(f"if {condition}: return MISS")

    def catch_misses(self) -> None:
        """Return MISS also where a line so far raises, as for a missing key or attribute. If the
        call is wrong, the full path says how."""
        self.lines = ["try:", *_indented(self.lines)]
        self.lines.append("except (AttributeError, KeyError, TypeError): return MISS")

    def unpack(self, names: Sequence[str], source: str) -> None:
        """Assign the elements of a sequence to names."""
        if names:
            self.lines.append(f"{', '.join(names)}, = {source}")

    def function(self, result: str) -> Callable[..., Any]:
        """Compile the lines to a function."""
        source = "\n".join(["def f(args, kwargs):", *_indented(self.lines), f"    return {result}"])
        exec(compile(source, "<genesis call>", "exec"), self.space)
        # Popped from its own globals: without that cycle the function and what it refers to are
        # freed at once, not by the garbage collector.
        return self.space.pop("f")

    # ---- static values ----

    def guard_static(self, at: str, x: Any, read: Callable[[Any], tuple[Any, bool]]) -> None:
        """Return MISS for a value other than the static `x`, by type and content. `read` gives the
        (key, whether the same object always has it) of a value."""
        self.guard(f"not ({self._equals(at, x, read)})")

    def _equals(self, at: str, x: Any, read: Callable[..., Any]) -> str:
        kind = type(x)
        # Types first: 1, 1.0 and True are equal and three different static values. A float that is
        # a zero (0.0 == -0.0) or has no literal (NaN, infinity) is compared by its key below.
        if x is None or kind is bool:
            return f"{at} is {x}"
        if kind in (str, int, bytes) or (kind is float and x and math.isfinite(x)):
            return f"type({at}) is {kind.__name__} and {at} == {x!r}"
        key, fixed = read(x)
        if kind is tuple and len(x) <= _SHORT:
            tests = [f"type({at}) is tuple and len({at}) == {len(x)}"]
            tests += [self._equals(f"{at}[{i}]", v, read) for i, v in enumerate(x)]
            equal = " and ".join(f"({p})" for p in tests)
        elif key == (kind, Same(x)):
            return f"{at} is {self.name(x)}"
        else:
            equal = f"{self.name(read)}({at})[0] == {self.name(key)}"
        return f"{at} is {self.name(x)} or {equal}" if fixed else equal

    # ---- structures ----

    def flatten(self, at: str, x: Any) -> list[tuple[str, Any]]:
        """Write the lines that take the leaves of a value like `x` out of the variable `at`; return
        (name, example) of each."""
        kind = type(x)
        node = tree.node_functions(kind)
        if node is None or (self.carried and x is self.carried.state):
            return [(at, x)]
        if x is None:
            self.guard(f"{at} is not None")
            return []
        children, static = node[0](x)[:2]
        children = tuple(children)
        names = [self.fresh() for _ in children]
        self.guard(f"type({at}) is not {self.name(kind)}")
        if kind in (dict, OrderedDict):
            # Equal lengths and no missing key (KeyError is a miss) mean equal sets of keys.
            self.guard(f"len({at}) != {len(children)}")
            if any(type(k) is not str for k in x):
                self.guard_static(f"tuple({at})", tuple(x), aux_key)
            if kind is OrderedDict:
                self.guard(f"list({at}) != {self.name(list(x))}")
            self.unpack(names, "".join(f"{at}[{self._key(k)}]," for k in static))
        elif tree.is_sequence(kind):
            self.guard(f"len({at}) != {len(children)}")
            self.unpack(names, at)
        else:
            kids, aux = self.fresh(), self.fresh()
            self.lines.append(f"{kids}, {aux}, *_ = {self.name(node[0])}({at})")
            self.lines.append(f"{kids} = tuple({kids})")
            self.guard(f"len({kids}) != {len(children)}")
            self.guard_static(aux, static, aux_key)
            self.unpack(names, kids)
        return [leaf for n, child in zip(names, children) for leaf in self.flatten(n, child)]

    def unflatten(self, x: Any, names: Mapping[Any, str]) -> str:
        """The expression that builds a pytree like `x`, by the names of its leaves."""
        kind = type(x)
        if x is None or kind is object:
            return "None" if x is None else names[x]
        if kind is TrainState and self.carried:
            return "from_buffers(layout, after)"
        if kind is dict:
            items = [f"{self._key(k)}: {self.unflatten(v, names)}" for k, v in x.items()]
            return "{" + ", ".join(items) + "}"
        node = tree.node_functions(kind)
        if node is None:  # what a node without leaves becomes: an array of float0
            return self.name(x)
        children, static = node[0](x)[:2]
        inside = "".join([f"{self.unflatten(v, names)}, " for v in children])
        if kind is list:
            return f"[{inside}]"
        if tree.is_sequence(kind):
            return f"({inside})" if kind is tuple else f"{self.name(kind)}({inside})"
        return f"{self.name(node[1])}({self.name(static)}, ({inside}))"

    def _key(self, key: Any) -> str:
        return repr(key) if type(key) in (str, int) else self.name(key)

    # ---- arguments ----

    def flatten_arguments(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> list[tuple[str, Any]]:
        """Write the lines that take the leaves out of args and kwargs, as the caller writes them;
        return (name, example) in the order in which the program takes them."""
        names, named = [self.fresh() for _ in args], {k: self.fresh() for k in sorted(kwargs)}
        self.guard(f"len(args) != {len(args)} or len(kwargs) != {len(kwargs)}")
        self.unpack(names, "args")
        self.lines += [f"{at} = kwargs[{k!r}]" for k, at in named.items()]
        leaves = tuple([self.flatten(at, x) for at, x in zip(names, args)])
        rest = {k: self.flatten(at, kwargs[k]) for k, at in named.items()}
        leaves, rest = self.spec.in_order(leaves, rest)
        return [x for each in (*leaves, *rest.values()) for x in each]

    def guard_leaves(self, leaves: Sequence[tuple[str, Any]], device: Device) -> None:
        """Write the guards of the leaves and the conversion of values to arrays."""
        self.space["device"] = device
        for at, x in leaves:
            kind = type(x)
            if kind is TrainState:
                self.lines += [f"state = {at}", "memory = buffers_of(state, layout, sigs)"]
                self.guard("memory is None")
                continue
            if not is_value(x):
                self.guard_static(at, x.value if kind is Frozen else x, _static_key)
                continue
            if kind in SCALARS:
                self.guard(f"type({at}) is not {kind.__name__}")
                number = f"fitted({at}, {self.name(scalar_dtype(kind))})"
                self.lines.append(f"{at} = from_numpy({number}, device)")
            else:
                if kind is not ArrayImpl:
                    x = as_array(x, None, device)
                    assert type(x) is ArrayImpl  # a call is of concrete values
                    self.guard(f"type({at}) is not {self.name(kind)}")
                    self.lines.append(f"{at} = as_array({at}, None, device)")
                # Signatures (shape, dtype, device, weakness) are interned: identity is equality.
                self.guard(f"{at}.sig is not {self.name(x.sig)}")
            self.inputs.append((at, x))

    # ---- running ----

    def run(self, executable: Executable, donated: Sequence[int]) -> Callable[..., Any]:
        """Write the call of the executable, from storages to storages; mark what was donated."""
        uses, results = self.program.key_uses, self.results
        self._use_keys(uses)
        self.space |= {"run": executable.run, "own": executable.own}
        lost = [self.inputs[i] for i in donated]
        pooled = _pooled([s for _, s in results], [x.sig for _, x in lost])
        pool = self.name(ArrayPool([results[i][1] for i in pooled])) if pooled else ""
        if pooled:
            self.unpack([results[i][0] for i in pooled], f"{pool}.take()")
        # Results of the pool get their storage while unpacking; the others become arrays later.
        targets = [f"{y}.data" if i in pooled else y for i, (y, _) in enumerate(results)]
        self._run(f"{', '.join(targets)}, = " if targets else "", "", executable.overwritten)
        if donated:
            avals = [x.sig.aval for _, x in lost]
            paths = [self.labels[i] for i in donated]
            self.space["marks"] = donation_marks(paths, avals, self.spec.name)
            self.unpack([f"{at}.data" for at, _ in lost], "marks(where(depth=4))")
        if pooled:
            self.lines.append(f"{pool}.keep([{', '.join([lost[k][0] for k in pooled.values()])}])")
        return self._return([r for i, r in enumerate(results) if i not in pooled], uses)

    def run_carried(
        self, state: TrainState, carry: Carry, inputs: range, results: range
    ) -> Callable[..., Any]:
        """The same for a call that carries a state as one value."""
        paths, avals = [self.labels[i] for i in inputs], [s.aval for s in carry.sigs]
        self.space |= {
            "buffers_of": buffers_of,
            "from_buffers": from_buffers,
            "mark_donated": mark_donated,
            "layout": layout_of(state),
            "sigs": carry.sigs,
            "run": carry.run,
            "marks": donation_marks(["a state", *paths], ["of a state", *avals], self.spec.name),
        }
        uses = self.program.key_uses
        if uses is not None:  # without those of the state, which has no arrays
            uses = Uses(tuple([u for i, u in enumerate(uses.used) if i not in inputs]))
        self._use_keys(uses)
        others = [r for i, r in enumerate(self.results) if i not in results]
        self._run("after, others = ", "memory, ", ())
        self.unpack([y for y, _ in others], "others")
        self.lines += [
            "mark, *marked = marks(where(depth=4))",
            "if type(memory) is list:",
            "    for x, m in zip(memory, marked): x.data = m",
            "mark_donated(state, mark)",
        ]
        return self._return(others, uses)

    def _use_keys(self, uses: Uses | None) -> None:
        if uses is not None:
            self.space["before_call"] = before_call
            arrays = ", ".join([at for at, _ in self.inputs])
            self.lines.append(f"before_call({self.name(uses)}, [{arrays}])")

    def _run(self, results: str, first: str, overwritten: Sequence[int]) -> None:
        arrays = [f"k{i}" for i in range(len(self.program.captured))]
        arrays += [at for at, _ in self.inputs]
        storages = [f"own({a})" if i in overwritten else f"{a}.data" for i, a in enumerate(arrays)]
        self.lines += [
            "try:",
            f"    {results}run({first}[{', '.join(storages)}])",
            "except Exception as error:",
            f"    raise failed(error, [{', '.join(arrays)}]) from error.__cause__",
        ]

    def _return(
        self, storages: Sequence[tuple[str, Signature]], uses: Uses | None
    ) -> Callable[..., Any]:
        """Write the lines that make arrays of `storages` and the output of arrays; compile."""
        names = [y for y, _ in self.results]
        many = len(storages) >= _MANY
        if many:
            self.space["gc"] = gc  # `no_collection` would cost a microsecond
            self.lines += ["collects = gc.isenabled()", "gc.disable()"]
        for y, s in storages:  # without the call of `ArrayImpl.__init__`
            self.lines.append(f"a = new(ArrayImpl); a.data = {y}; a.sig = {self.name(s)}; {y} = a")
        if uses is not None and uses.same:
            self.space["after_call"] = after_call
            arrays = ", ".join([at for at, _ in self.inputs])
            self.lines.append(f"after_call({self.name(uses)}, [{arrays}], [{', '.join(names)}])")
        # Plain objects, as JAX passes to nodes of users that check what they are made of.
        leaves = {object(): name for name in names}
        text = self.unflatten(tree.unflatten(self.program.out_tree, list(leaves)), leaves)
        if many:
            end = "    if collects: gc.enable()"
            self.lines += ["try:", f"    result = {text}", "finally:", end]
            text = "result"
        return self.function(text)


def _static_key(x: Any) -> tuple[Any, bool]:
    """(key, whether the same object always has it) of a static argument."""
    frozen = Frozen(x)
    return frozen.key, frozen.fixed


def _indented(lines: Sequence[str]) -> list[str]:
    return [f"    {line}" for line in lines]
