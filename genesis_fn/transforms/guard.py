"""Generated code for the call path: take the leaves out of arguments of one known structure, and
put outputs back together. It replaces generic flattening, which costs several times more per leaf.

`caller` makes the whole of a call one such function: check, take out, run, put together.
"""

from __future__ import annotations

import dataclasses
import gc
import types
from collections import OrderedDict
from collections.abc import Callable, Sequence
from sys import getrefcount
from typing import Any
from weakref import getweakrefcount

import numpy as np

from genesis_fn.core import tree
from genesis_fn.core.array import Array, Deleted, offers_array
from genesis_fn.core.convert import as_array, is_value
from genesis_fn.core.executable import Executable
from genesis_fn.core.primitive import SCALARS
from genesis_fn.core.source import where
from genesis_fn.core.static import Frozen, Same, aux_key
from genesis_fn.core.train_state import Layout, TrainState, give_up, held, holding
from genesis_fn.transforms.key_uses import Uses, after_call, before_call
from genesis_fn.transforms.reads import Reads

# What a `caller` function returns for arguments that it is not for.
MISS = object()
# With so many results the collector waits: until the caller lets go of the arrays before them, they
# would look like garbage in the making, and be traversed at every call.
_MANY = 64
_SHORT = 8  # tuples of so many static values are compared in line
_LINES = 16  # lines that a jitted function is called from and that are remembered


def _static_key(x: Any) -> tuple[Any, bool]:
    """(key, whether the same object has it for ever) of a static argument."""
    found = Frozen(x)
    return found.key, found.fixed


class _Writer:
    """Source lines, and the objects that they refer to by name."""

    def __init__(self, miss: str = "None") -> None:
        self.lines: list[str] = []
        self.space: dict[str, Any] = {}
        self.names: dict[int, str] = {}  # by the id of what they stand for, which `space` holds
        self.count = 0
        self.miss = miss  # what the function returns for another structure

    def fresh(self) -> str:
        self.count += 1
        return f"x{self.count}"

    def name(self, value: Any) -> str:
        text = self.names.get(id(value))
        if text is None:
            text = self.names[id(value)] = f"c{len(self.space)}"
            self.space[text] = value
        return text

    def function(self, signature: str, result: str) -> Callable:
        body = "\n".join(f"    {line}" for line in self.lines)
        source = f"def f({signature}):\n{body}\n    return {result}\n"
        exec(compile(source, "<genesis guard>", "exec"), self.space)
        # Not among its own globals: what the code holds is freed with the function at once.
        return self.space.pop("f")


def _is_namedtuple(x: Any) -> bool:
    return isinstance(x, tuple) and hasattr(type(x), "_fields")


def puller(
    args: tuple, kwargs: dict[str, Any], order: Sequence[int] | None = None
) -> Callable | None:
    """A function (args, kwargs) -> leaves in pytree order (or in `order`, positions in that), or
    None where the structure differs.

    None is returned here instead where the structure has a node type without a known form.
    """
    out = _Writer()
    leaves: list[str] = []
    if not (_pull(out, "args", args, leaves) and _pull(out, "kwargs", kwargs, leaves)):
        return None
    if order is not None:
        leaves = [leaves[i] for i in order]
    return out.function("args, kwargs", f"[{', '.join(leaves)}]")


def _pull(out: _Writer, at: str, x: Any, leaves: list[str]) -> bool:
    kind = type(x)
    if x is None:
        out.lines.append(f"if {at} is not None: return {out.miss}")
        return True
    if kind in (tuple, list) or (_is_namedtuple(x) and kind not in tree.NODE_TYPES):
        out.lines.append(
            f"if type({at}) is not {out.name(kind)} or len({at}) != {len(x)}: return {out.miss}"
        )
        names = [out.fresh() for _ in x]
        if names:
            out.lines.append(f"{', '.join(names)}, = {at}")
        return all([_pull(out, n, v, leaves) for n, v in zip(names, x)])
    if kind in (dict, OrderedDict):
        out.lines.append(
            f"if type({at}) is not {out.name(kind)} or len({at}) != {len(x)}: return {out.miss}"
        )
        if any(type(k) is not str for k in x):
            _refuse_others(out, f"tuple({at})", tuple(x))
        if kind is OrderedDict:
            out.lines.append(f"if list({at}) != {out.name(list(x))}: return {out.miss}")
        keys = tree.structure(x, is_leaf=lambda v: v is not x).entries()
        names = [out.fresh() for _ in keys]
        if keys:
            # Equal length and every key found means equal key sets.
            texts = [repr(k) if type(k) in (str, int) else out.name(k) for k in keys]
            reads = ", ".join(f"{at}[{t}]" for t in texts)
            out.lines.append("try:")
            out.lines.append(f"    {', '.join(names)}, = {reads},")
            out.lines.append(f"except KeyError: return {out.miss}")
        return all([_pull(out, n, x[k], leaves) for n, k in zip(names, keys)])
    if kind in tree.NODE_TYPES:
        flat = tree.NODE_TYPES[kind][0]
        children, static = flat(x)[:2]
        children = tuple(children)
        whole, meta = out.fresh(), out.fresh()
        out.lines.append(f"if type({at}) is not {out.name(kind)}: return {out.miss}")
        out.lines.append(f"{whole}, {meta}, *_ = {out.name(flat)}({at})")
        out.lines.append(f"{whole} = tuple({whole})")
        out.lines.append(f"if len({whole}) != {len(children)}: return {out.miss}")
        _refuse_others(out, meta, static, aux_key)
        names = [out.fresh() for _ in children]
        if names:
            out.lines.append(f"{', '.join(names)}, = {whole}")
        return all([_pull(out, n, v, leaves) for n, v in zip(names, children)])
    if not tree.structure(x).is_leaf():
        return False
    leaves.append(at)
    return True


def builder(treedef: tree.PyTreeDef) -> Callable[[list], Any]:
    """A function from leaves to the pytree of that structure."""
    if treedef.is_leaf():
        return lambda leaves: leaves[0]
    out = _Writer()
    names = [f"l{i}" for i in range(treedef.num_leaves)]
    text = _build(out, tree.unflatten(treedef, [_Leaf(n) for n in names]))
    if text is None:
        return lambda leaves: tree.unflatten(treedef, leaves)
    if names:
        out.lines.append(f"{', '.join(names)}, = leaves")
    return out.function("leaves", text)


class _Leaf:
    """The name that the generated text has for a leaf."""

    def __init__(self, name: str) -> None:
        self.name = name


def _build(out: _Writer, x: Any) -> str | None:
    kind = type(x)
    if x is None:
        return "None"
    if kind is _Leaf:
        return x.name
    if kind in (tuple, list) or (_is_namedtuple(x) and kind not in tree.NODE_TYPES):
        parts = [_build(out, v) for v in x]
        if None in parts:
            return None
        inside = ", ".join(parts)  # pyright: ignore[reportCallIssue, reportArgumentType]
        if kind is list:
            return f"[{inside}]"
        if kind is tuple:
            return f"({inside}{',' if parts else ''})"
        return f"{out.name(kind)}({inside})"
    if kind is dict:
        key = lambda k: repr(k) if type(k) in (str, int) else out.name(k)
        parts = [(key(k), _build(out, v)) for k, v in x.items()]
        if any(v is None for _, v in parts):
            return None
        return "{" + ", ".join(f"{k}: {v}" for k, v in parts) + "}"
    if kind in tree.NODE_TYPES:
        flat, rebuild = tree.NODE_TYPES[kind]
        children, static = flat(x)[:2]
        parts = [_build(out, v) for v in children]
        if None in parts:
            return None
        inside = ", ".join(p for p in parts if p is not None)
        return f"{out.name(rebuild)}({out.name(static)}, ({inside}{',' if parts else ''}))"
    return None


# ---- a whole call ----


class Donated(Deleted):
    """Stands in an Array that was donated to a jitted call."""

    __slots__ = ("path", "function", "line")

    def __init__(self, path: str, function: str, line: Any, aval: Any) -> None:
        self.path, self.function, self.line, self.aval = path, function, line, aval

    @property
    def why(self) -> str:  # type: ignore[override]
        """Which argument of which call."""
        return f"{self.path} was donated to {self.function} at {self.line}"


def caller(
    args: tuple, kwargs: dict[str, Any], order: Callable[[tuple, dict], list[int] | None], *,
    static: dict[Any, Any], captured: Sequence[Array], executable: Executable, sigs: Sequence[Any],
    out_tree: tree.PyTreeDef, donated: Sequence[int], paths: Sequence[str], name: str,
    number: Callable[[Any], Array], failed: Callable[[Exception, list], Exception], place: Any,
    key_uses: Uses | None = None,
    reads: Reads | None = None,
) -> Callable | None:  # fmt: skip
    """A function (args, kwargs) -> result for calls like this one, or MISS for other calls.

    Like means: equal structure and static values (`static`, by position or name), and for each leaf
    an array of the same signature, a number of the same type, or an equal static leaf. The program
    takes the leaves as they stand, or in the `order` of (args, kwargs). `sigs` are those of the
    executable's results, weak ones marked. Numbers and ndarrays go to `place`; `key_uses` is what
    the program does with keys. Where `reads` are others, the call is another one. None where the
    structure has no known form, or a leaf is a tracer.

    A donated `TrainState` that comes back is one leaf where the executable can `carry` it.
    """
    out = _Writer("MISS")
    carried = _carried(args, kwargs, static, len(captured), executable, sigs, out_tree, donated)
    if carried is not None and key_uses is not None:
        outside = _beside(key_uses, carried)
        carried, key_uses = (None, key_uses) if outside is None else (carried, outside)
    if carried is not None:
        args, kwargs, out_tree = carried.args, carried.kwargs, carried.out_tree
    out.space.update(
        MISS=MISS, Array=Array, new=Array.__new__, as_array=as_array, ndarray=np.ndarray,
        number=number, failed=failed, where=where, place=place,
    )  # fmt: skip
    leaves: list[tuple[str, Any]] = []
    if not (_pull_call(out, args, kwargs, static, leaves)):
        return None
    places = order(args, kwargs)
    if places is not None:
        leaves = [leaves[i] for i in places]
    dynamic: list[tuple[str, Any]] = []
    checks = []
    state = ""
    for at, x in leaves:
        kind = type(x)
        if x is _STATE:
            state = at
            continue
        if kind is Array:
            checks.append(f"{at}.sig is not {out.name(x.sig)}")
        elif isinstance(x, (np.ndarray, np.generic)) or offers_array(kind):
            out.lines += [f"if type({at}) is not {out.name(kind)}: return MISS"]
            out.lines += [f"{at} = as_array({at}, None, place)"]
            checks.append(f"{at}.sig is not {out.name(as_array(x, None, place).sig)}")
        elif kind in SCALARS:
            out.lines.append(f"if type({at}) is not {kind.__name__}: return MISS")
            out.lines.append(f"{at} = number({at})")
        elif hasattr(x, "aval") or hasattr(x, "__genesis_array__"):
            return None
        else:
            _refuse_others(out, at, x)
            continue
        dynamic.append((at, x))
    if reads is not None:
        out.lines += [
            "try:",
            f"    if not ({reads.text(out.name)}): return MISS",
            "except AttributeError: return MISS",
        ]
    if checks:
        # Anything but an array has no signature.
        out.lines += [
            "try:",
            f"    if {' or '.join(checks)}: return MISS",
            "except AttributeError: return MISS",
        ]
    fixed = {f"k{i}": x for i, x in enumerate(captured)}  # what `bound` replaces
    out.space |= fixed
    arrays = [*fixed, *[at for at, _ in dynamic]]
    left = ""
    if carried is not None:
        out.space.update(
            held=held, holding=holding, give_up=give_up, run=carried.carry.run,
            layout=carried.layout, sigs=carried.carry.sigs,
        )  # fmt: skip
        out.lines += [f"memory = held({state}, layout, sigs)", "if memory is None: return MISS"]
        given = f"memory, [{', '.join(f'{a}.data' for a in arrays)}]"
        sigs = [s for k, s in enumerate(sigs) if k not in carried.results]
        left = "after, others = "
    else:
        out.space.update(run=executable.run, own=executable.own)
        taken = set(executable.overwritten)
        storages = [f"own({a})" if i in taken else f"{a}.data" for i, a in enumerate(arrays)]
        given = f"[{', '.join(storages)}]"
    results = [f"y{i}" for i in range(len(sigs))]
    again = {} if carried is not None else _again(sigs, [dynamic[i][1].sig for i in donated])
    for i in again:
        results[i] = f"s{i}"
    # Results go where they belong as they are unpacked: shells need no more than that.
    places = ", ".join(f"s{i}.data" if i in again else y for i, y in enumerate(results))
    if again:
        shells = out.name(Shells([sigs[i] for i in again]))
        out.lines.append(f"{', '.join(results[i] for i in again)}, = {shells}.take()")
    if results and not left:
        left = f"{places}, = "
    if key_uses is not None:
        inputs = ", ".join(at for at, _ in dynamic)
        out.space.update(before_call=before_call, after_call=after_call)
        out.lines.append(f"before_call({out.name(key_uses)}, [{inputs}])")
    out.lines += [
        "try:", f"    {left}run({given})", "except Exception as error:",
        f"    raise failed(error, [{', '.join(arrays)}]) from None",
    ]  # fmt: skip
    made = [i for i in range(len(sigs)) if i not in again]
    if carried is not None:
        if results:
            out.lines.append(f"{places}, = others")
        out.space["marks"] = _marks(
            ["a state", *[paths[i] for i in donated]], ["of a state", *carried.avals], name
        )
        out.lines += [
            "mark, *marked = marks(where(depth=4))",
            "if type(memory) is list:",
            "    for x, m in zip(memory, marked): x.data = m",
            f"give_up({state}, mark)",
        ]
        results.insert(carried.place, "holding(layout, after)")
    elif donated:
        avals = [dynamic[i][1].aval for i in donated]
        out.space["marks"] = _marks([paths[i] for i in donated], avals, name)
        given_up = ", ".join(f"{dynamic[i][0]}.data" for i in donated)
        out.lines.append(f"{given_up}, = marks(where(depth=4))")
    if again:
        worn = [dynamic[donated[k]][0] for k in again.values()]
        out.lines.append(f"{shells}.keep([{', '.join(worn)}])")
    many = len(sigs) >= _MANY
    if many:
        out.space["gc"] = gc
        out.lines += ["collects = gc.isenabled()", "gc.disable()"]
    for i in made:
        out.lines.append(f"a = new(Array); a.data = y{i}; a.sig = {out.name(sigs[i])}; y{i} = a")
    if key_uses is not None and key_uses.same:
        outs = ", ".join(results)
        out.lines.append(f"after_call({out.name(key_uses)}, [{inputs}], [{outs}])")
    text = _build(out, tree.unflatten(out_tree, [_Leaf(y) for y in results]))
    if text is None:
        rebuild = out.name(lambda found: tree.unflatten(out_tree, found))
        text = f"{rebuild}([{', '.join(results)}])"
    if many:
        out.lines += ["try:", f"    result = {text}", "finally:", "    if collects: gc.enable()"]
        text = "result"
    return out.function("args, kwargs", text)


def bound(call: Callable, captured: Sequence[Any]) -> Callable:
    """What `caller` made, for another copy of the program; without arrays where none are given."""
    space: dict[str, Any] = call.__globals__  # pyright: ignore[reportFunctionMemberAccess]
    fixed = {k: None for k in space if k[0] == "k" and k[1:].isdigit()}
    space = space | fixed | {f"k{i}": x for i, x in enumerate(captured)}
    return types.FunctionType(call.__code__, space)  # pyright: ignore[reportFunctionMemberAccess]


def _again(sigs: Sequence[Any], donated: Sequence[Any]) -> dict[int, int]:
    """{result: donated argument of its signature}, for as many results as there are."""
    free: dict[Any, list[int]] = {}
    for k, s in reversed(list(enumerate(donated))):
        free.setdefault(s, []).append(k)
    return {i: free[s].pop() for i, s in enumerate(sigs) if free.get(s)}


class Shells:
    """Arrays without memory: those donated to a call become the results of the next call but one,
    if nobody else has them by then. Making and freeing as many costs more than the rest of a call.
    """

    def __init__(self, sigs: Sequence[Any]) -> None:
        self._sigs = sigs
        self._kept: list[list[Array]] = []

    def take(self) -> list[Array]:
        """An array without memory for each signature, nobody else's."""
        found = self._kept.pop() if self._kept else None
        if found is not None and sum(map(getrefcount, found)) == _ALONE * len(found):
            if not sum(map(getweakrefcount, found)):
                return found
        return [Array(None, s) for s in self._sigs]

    def keep(self, arrays: list[Array]) -> None:
        """Hold arrays of these signatures that were just donated until a call can use them."""
        self._kept = [arrays]


# What counting the references of an object gives that a list alone holds.
_ALONE = next(map(getrefcount, [object()]))

# Stands for a state among the arguments and results of a call that carries one.
_STATE = object()


@dataclasses.dataclass
class _Carried:
    """A state that a call carries: the arguments and results with one leaf for it."""

    args: tuple
    kwargs: dict[str, Any]
    out_tree: tree.PyTreeDef
    layout: Layout
    carry: Any
    avals: list[Any]
    place: int  # of the state among the leaves of the result
    results: range  # its leaves' numbers among the program's results
    inputs: range  # and among its arguments


def _carried(
    args: tuple, kwargs: dict[str, Any], static: dict[Any, Any], captured: int,
    executable: Executable, sigs: Sequence[Any], out_tree: tree.PyTreeDef, donated: Sequence[int],
) -> _Carried | None:  # fmt: skip
    """How a call carries its state: it has one, which is donated and nothing else is, and the
    executable updates it in place."""
    if not donated:
        return None
    values = (
        tuple([None if i in static else a for i, a in enumerate(args)]),
        {k: v for k, v in kwargs.items() if k not in static},
    )
    is_state = lambda x: type(x) is TrainState
    given = tree.leaves(values, is_leaf=is_state)
    whole = tree.unflatten(out_tree, [_Leaf("")] * out_tree.num_leaves)
    returned = tree.leaves(whole, is_leaf=is_state)
    states = [x for x in given if is_state(x)]
    outs = [k for k, x in enumerate(returned) if is_state(x)]
    if len(states) != 1 or len(outs) != 1:
        return None
    state, layout = states[0], returned[outs[0]]._layout
    leaves = tree.leaves(state)
    # Static leaves are not inputs of the program.
    position = next(i for i, x in enumerate(given) if x is state)
    first = sum(is_value(x) for x in given[:position])
    if layout is not state._layout or list(donated) != list(range(first, first + len(leaves))):
        return None
    results = range(outs[0], outs[0] + layout.count)
    carry = executable.carry(captured + first, results.start, layout.count)
    if carry is None or any(type(x) is not Array for x in leaves):
        return None
    carry.sigs = list(sigs[results.start : results.stop])
    if [x.sig for x in leaves] != carry.sigs:
        return None
    one = lambda x: _STATE if x is state else x
    swapped = tree.map(one, values, is_leaf=is_state)
    return _Carried(
        tuple([args[i] if i in static else a for i, a in enumerate(swapped[0])]),
        {k: kwargs[k] if k in static else v for k, v in swapped[1].items()} | {
            k: v for k, v in kwargs.items() if k in static
        },
        tree.structure(whole, is_leaf=is_state),
        layout, carry, [x.aval for x in leaves], outs[0], results,
        range(first, first + len(leaves)),
    )  # fmt: skip


def _beside(found: Uses, carried: _Carried) -> Uses | None:
    """What the program does with the keys that are not in the state it carries: those are given up.
    None where it returns keys as they came: their marks go by arrays, which a carried state lacks.
    """
    if found.same:
        return None
    return Uses(tuple([u for i, u in enumerate(found.used) if i not in carried.inputs]))


def _marks(
    paths: Sequence[str], avals: Sequence[Any], function: str
) -> Callable[[Any], list[Donated]]:
    """What stands in donated arrays, by the line of the call: made once for each line."""
    known: dict[tuple[int, int], list[Donated]] = {}

    def marks(line: Any) -> list[Donated]:
        key = (id(line.code), line.line)  # the marks keep the code object alive
        found = known.get(key)
        if found is None:
            if len(known) >= _LINES:
                known.clear()
            found = [Donated(path, function, line, a) for path, a in zip(paths, avals)]
            known[key] = found
        return found

    return marks


def _refuse_others(out: _Writer, at: str, x: Any, read: Callable = _static_key) -> None:
    """Write the line that refuses a value other than the static `x`, by type and content: as
    `read` gives (key, whether the same object has it for ever)."""
    out.lines.append(f"if not ({_is_like(out, at, x, read)}): return {out.miss}")


def _is_like(out: _Writer, at: str, x: Any, read: Callable) -> str:
    kind, known = type(x), out.name(x)
    if x is None or kind is bool:
        return f"{at} is {x}"
    if kind in (str, int, bytes) or (kind is float and x == x and x):
        return f"type({at}) is {kind.__name__} and {at} == {x!r}"
    if kind is tuple and len(x) <= _SHORT:
        parts = [f"type({at}) is tuple and len({at}) == {len(x)}"]
        for i, v in enumerate(x):
            parts.append(_is_like(out, f"{at}[{i}]", v, read))
        return f"{at} is {known} or {' and '.join(f'({p})' for p in parts)}" if (
            read(x)[1]
        ) else " and ".join(f"({p})" for p in parts)  # fmt: skip
    key, fixed = read(x)
    if key == (kind, Same(x)):
        return f"{at} is {known}"
    same = f"{out.name(_Matches(key, read))}({at})"
    return f"{at} is {known} or {same}" if fixed else same


class _Matches:
    """Whether a value has a key."""

    __slots__ = ("key", "read")

    def __init__(self, key: Any, read: Callable) -> None:
        self.key, self.read = key, read

    def __call__(self, x: Any) -> bool:
        try:
            return self.read(x)[0] == self.key
        except TypeError:  # an array, say: the slow path tells of it
            return False


def _pull_call(
    out: _Writer, args: tuple, kwargs: dict[str, Any], static: dict[Any, Any], leaves: list
) -> bool:
    """Write the lines that take `leaves` [(name, example)] out of args and kwargs."""
    out.lines.append(f"if len(args) != {len(args)} or len(kwargs) != {len(kwargs)}: return MISS")
    names = [out.fresh() for _ in args]
    if names:
        out.lines.append(f"{', '.join(names)}, = args")
    found: list[str] = []
    examples = tree.leaves(
        (
            tuple([None if i in static else a for i, a in enumerate(args)]),
            {k: v for k, v in kwargs.items() if k not in static},
        )
    )
    for i, (at, x) in enumerate(zip(names, args)):
        if i in static:
            _refuse_others(out, at, x)
        elif not _pull(out, at, x, found):
            return False
    for k in sorted(kwargs):
        at = out.fresh()
        out.lines += [f"try: {at} = kwargs[{k!r}]", "except KeyError: return MISS"]
        if k in static:
            _refuse_others(out, at, kwargs[k])
        elif not _pull(out, at, kwargs[k], found):
            return False
    if len(found) != len(examples):
        return False
    # A leaf may be an argument itself; every leaf gets a name that can be assigned.
    leaves.extend(zip(found, examples))
    return True
