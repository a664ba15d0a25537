"""`summary`: what a model does with an input, layer by layer, found by tracing it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from genesis_fn import Array, Key, PyTree, ShapeDtypeStruct, jit, tree, typeof
from genesis_fn.errors import ArgumentError
from genesis_fn.extend import Aval, Work, attribute
from genesis_fn.nn.inspection.recording import Path, Recording
from genesis_fn.nn.inspection.table import html_table, text_table
from genesis_fn.nn.module import Module


@dataclasses.dataclass(frozen=True)
class SummaryRow:
    """A layer or a group of parameters, with all that is in it.

    * `path`: where it is; "" of the model. `level`: how many rows it lies in.
    * `layer`: the layer, or for a group of parameters the operation that uses it first.
    * `inputs`, `outputs`: dtypes and shapes, of the first call where there are several; empty of
      a layer that is not called, and of groups of groups.
    * `parameters`: its own, by their paths in the tree of parameters; `count` and `nbytes` say how
      many elements and bytes all have that are in it.
    * `flops`: floating-point operations, 2 for a multiply-add, with those of the rows in it.
    """

    path: str
    level: int
    layer: str
    inputs: tuple[Aval, ...]
    outputs: tuple[Aval, ...]
    parameters: dict[str, Aval]
    count: int
    nbytes: int
    flops: float


@dataclasses.dataclass(frozen=True)
class ModelSummary:
    """What `summary` returns: a table to print, and its numbers.

    * `rows`: a `SummaryRow` for the model and for each layer and group of parameters in it.
    * `parameters`, `parameter_bytes`, `state_bytes`: elements and bytes.
    * `flops`: of the call, 2 for a multiply-add; `product_flops`: of these, in matrix products and
      convolutions, which is what profilers and papers count.
    * `activation_bytes`: of all results of operations, each once, nothing fused or freed;
      `peak_bytes`: of those that live at one time, freed after their last use.
    """

    rows: tuple[SummaryRow, ...]
    parameters: int
    parameter_bytes: int
    state_bytes: int
    flops: float
    product_flops: float
    activation_bytes: int
    peak_bytes: int

    def __repr__(self) -> str:
        return text_table(self)

    def _repr_html_(self) -> str:
        return html_table(self)


@dataclasses.dataclass
class _Node:
    """A layer, a group of parameters, or what holds some, while the summary is made."""

    layer: str = ""
    inputs: tuple[Aval, ...] = ()
    outputs: list[Aval] = dataclasses.field(default_factory=list)
    is_layer: bool = False
    own: list[int] = dataclasses.field(default_factory=list)  # numbers of parameters
    flops: float = 0.0
    children: dict[str, _Node] = dataclasses.field(default_factory=dict)

    def at(self, path: Path) -> _Node:
        """The node at a path, made if it is not there."""
        node = self
        for name in path:
            node = node.children.setdefault(name, _Node())
        return node

    def within(self) -> Iterator[_Node]:
        """This node and those in it."""
        yield self
        for child in self.children.values():
            yield from child.within()


def summary(
    model: Module | Callable[..., PyTree],
    params: PyTree,
    input: PyTree,
    *,
    state: PyTree = None,
    key: Key | None = None,
    train: bool = False,
    depth: int | None = None,
    **options: PyTree,
) -> ModelSummary:
    """Tell what a model does with an input: a table of its layers, without computing anything.

    The call is traced. Layers are found in the fields of the model, in tuples, lists and dicts as
    well; a layer whose parameters are nested, or a model that is one function over a tree of them,
    has a row for each group of parameters, whose operations and output are those of the equations
    that use it. Each row includes the rows in it; what belongs to none of these, such as the sum of
    a residual connection, counts for the row around. Operations are those of the program, as
    `jit(f).trace(...).cost_analysis()` counts them: 2 for a multiply-add, those of elementwise
    functions, of the body of a scan as often as it runs, of a while loop one step.

    Args:
        model: layer, or a function of (params, input).
        params: its parameters; ShapeDtypeStructs may stand for arrays here and in the other
            arguments, as of `eval_shape(model.init, key)`.
        input: array, or pytree of them.
        state: state, for layers that have one.
        key: random key, for layers that draw in training.
        train: whether the call is one of training.
        depth: levels of rows below the model's; None: all.
        **options: further arguments of the call, by name.

    Returns:
        A `ModelSummary`, whose text is the table; three and more alike layers in a row are shown
        once. `rows` and the totals are its data.

    Raises:
        ArgumentError: `model` cannot be called, or `depth` is no count. What the call itself raises
            is raised as it is.

    >>> model = nn.Sequential(nn.Linear(4, 8, bias=False), nn.relu, nn.Linear(8, 2, bias=False))
    >>> found = nn.summary(model, model.init(random.key(0)), gf.ShapeDtypeStruct((3, 4), "float32"))
    >>> found.parameters, found.product_flops, found.rows[1].path, found.rows[1].outputs
    (48, 288.0, '0', (f32[3,8],))
    """
    if not callable(model) or isinstance(model, type):
        raise ArgumentError(
            f"summary takes a layer or a function of (params, input), got {model!r:.60}"
        )
    if depth is not None and (isinstance(depth, bool) or not isinstance(depth, int) or depth < 0):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ArgumentError(f"summary: depth is {depth!r:.60}, but is an integer, not negative")
    recording = Recording()
    called = recording.copy(model) if isinstance(model, Module) else model
    found, treedef = tree.flatten_with_path(params)
    arrays = [i for i, (_, x) in enumerate(found) if _is_traced(x)]
    given: list[dict[int, int]] = []
    # Arrays among the options are traced; numbers and flags are what they are.
    others, options_def = tree.flatten(options)
    places = [i for i, x in enumerate(others) if _is_array(x)]

    def call(leaves: list[Any], x: PyTree, state: PyTree, key: Any, more: list[Any]) -> PyTree:
        whole = _with([x for _, x in found], treedef, arrays, leaves)
        given.append({id(leaf): n for n, leaf in enumerate(leaves)})
        # Only what is given: a model of one's own need not take the others.
        extra: dict[str, Any] = _with(others, options_def, places, more)
        extra |= {"train": True} if train else {}
        extra |= {n: v for n, v in (("state", state), ("key", key)) if v is not None}
        return called(whole, x, **extra)

    leaves = [found[i][1] for i in arrays]
    traced = jit(call).trace(leaves, input, state, key, [others[i] for i in places])
    paths = [tuple([str(k.entry) for k in found[i][0]]) for i in arrays]
    # Input, state, key and options come behind the parameters: they are data.
    data = len(traced.jaxpr.invars) - len(traced.program.captured) - len(paths)
    groups = [path[:-1] for path in paths]
    work = attribute(traced, [*groups, *[None] * data], recording.scope_of)
    parameters = {".".join(path): _aval(x) for path, x in zip(paths, leaves)}
    root = _nodes(recording, work, given[-1], paths)
    if not isinstance(model, Module):
        root.layer = getattr(model, "__name__", type(model).__name__)
        root.inputs, root.outputs = _avals(input), list(_avals(traced.out_info))
    memory = traced.memory_analysis()
    return ModelSummary(
        tuple(_rows(root, (), 0, math.inf if depth is None else depth, list(parameters.items()))),
        sum(a.size for a in parameters.values()),
        sum(a.nbytes for a in parameters.values()),
        sum(a.nbytes for a in _avals(state)),
        float(sum(w.flops for w in work)),
        float(sum(w.products for w in work)),
        int(sum(w.nbytes for w in work)),
        memory["temp_size_in_bytes"] + memory["output_size_in_bytes"],
    )


def _with(leaves: list[Any], treedef: Any, places: list[int], values: list[Any]) -> Any:
    """A tree with `values` at those places among its leaves."""
    new = dict(zip(places, values, strict=True))
    return tree.unflatten(treedef, [new.get(i, x) for i, x in enumerate(leaves)])


def _is_traced(x: Any) -> bool:
    return _is_array(x) or isinstance(x, (int, float, complex))


def _is_array(x: Any) -> bool:
    return hasattr(x, "shape") and hasattr(x, "dtype")


def _aval(x: Any) -> Aval:
    other = hasattr(x, "shape") and not isinstance(x, (Array, ShapeDtypeStruct, np.ndarray))
    return typeof(ShapeDtypeStruct(x.shape, x.dtype) if other else x)


def _avals(values: PyTree) -> tuple[Aval, ...]:
    return tuple([_aval(x) for x in tree.leaves(values) if _is_traced(x)])


# ---- the nodes: layers, and groups of parameters ----


def _nodes(
    recording: Recording, work: Sequence[Work], given: dict[int, int], paths: Sequence[Path]
) -> _Node:
    """The model's node. `given` numbers its parameters by identity, `paths` are theirs."""
    root = _Node(is_layer=True)
    for path, layer in recording.layers.items():
        node = root.at(path)
        node.layer, node.is_layer = _described(layer), True
    for call in recording.calls.values():
        node = root.at(call.path)
        if not node.outputs:
            node.inputs, node.outputs = call.inputs, list(call.outputs)
    taken = _parameters_taken(recording, work, given, paths)
    used = {n: i for i, w in reversed(list(enumerate(work))) for n in w.parameters}
    groups = _add_parameters(root, taken, lambda n: used.get(n, len(work)))
    _add_work(root, recording, work, groups, paths)
    return root


def _parameters_taken(
    recording: Recording, work: Sequence[Work], given: dict[int, int], paths: Sequence[Path]
) -> dict[Path, dict[int, Path]]:
    """{path of a layer: {number of a parameter: its path in what the layer takes}}."""
    if not recording.layers:
        return {(): dict(enumerate(paths))}
    taken: dict[Path, dict[int, Path]] = {path: {} for path in recording.layers}
    for call in recording.calls.values():
        found = zip(call.given, call.relative, strict=True)
        taken[call.path].update({given[i]: path for i, path in found if i in given})
    # Within vmap and loops a layer takes parts of the arrays: those that its equations use.
    for w in work:
        for scope in w.scope.split("/") if w.scope else ():
            call = recording.calls[scope]
            for n in w.parameters - taken[call.path].keys():
                ends = [r for r in call.relative if r == paths[n][len(paths[n]) - len(r) :]]
                if ends:
                    taken[call.path][n] = max(ends, key=len)
    return taken


def _add_parameters(
    root: _Node, taken: dict[Path, dict[int, Path]], order: Callable[[int], int]
) -> dict[tuple[Path, int], Path]:
    """Give each parameter to the innermost layers that take it; where a layer's own are nested, to
    a node for each group, in the order of their use, for which {(path of the layer, number): path
    of the group}."""
    groups: dict[tuple[Path, int], Path] = {}
    for path, parameters in taken.items():
        inside = [p for p in taken if len(p) > len(path) and p[: len(path)] == path]
        passed_on = {n for p in inside for n in taken[p]}
        for n, relative in sorted(parameters.items(), key=lambda item: order(item[0])):
            if n not in passed_on:
                group = (*path, *relative[:-1])
                root.at(group).own.append(n)
                if group != path:
                    groups[path, n] = group
    return groups


def _add_work(
    root: _Node,
    recording: Recording,
    work: Sequence[Work],
    groups: dict[tuple[Path, int], Path],
    paths: Sequence[Path],
) -> None:
    """Add the operations of each equation to its layer, or to the group whose parameters it
    uses."""
    made: dict[Any, tuple[Path, int]] = {}  # {value: (group, number among its outputs)}
    for w in work:
        layer = recording.calls[w.scope.rpartition("/")[2]].path if w.scope else ()
        used = [groups[layer, n] for n in sorted(w.parameters) if (layer, n) in groups]
        if not used:
            root.at(layer).flops += w.flops
            continue
        node = root.at(used[0])
        node.flops += w.flops
        if not w.uses_data or node.is_layer:
            continue
        if not node.outputs:
            node.layer, node.inputs = w.operation, w.inputs
        # A bias is added to what the weight made: one output, not two.
        before = [made[v][1] for v in w.data if v in made and made[v][0] == used[0]]
        if before:
            node.outputs[before[0]] = w.outputs[0].aval
        else:
            node.outputs += [o.aval for o in w.outputs]
        at = before[0] if before else len(node.outputs) - 1
        made.update({o: (used[0], at) for o in w.outputs})


def _described(layer: Module) -> str:
    """The layer with its own sizes and options: `Linear(4, 8)`."""
    if not dataclasses.is_dataclass(layer):
        return type(layer).__name__
    parts = []
    for f in dataclasses.fields(layer):
        value = getattr(layer, f.name)
        required = f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
        text = _value_text(value)
        if text is not None and (required or value != f.default):
            parts.append(text if required else f"{f.name}={text}")
    return type(layer).__name__ + (f"({', '.join(parts)})" if parts else "")


def _value_text(value: Any) -> str | None:
    """A hyperparameter in short; None for what says little in a line, such as layers."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return repr(value)
    if isinstance(value, (tuple, list)) and all(isinstance(v, (int, float)) for v in value):
        return repr(value)
    name = getattr(value, "__name__", None) or getattr(value, "name", None)
    return name if isinstance(name, str) else None


# ---- rows ----


def _rows(
    node: _Node, path: Path, level: int, depth: float, parameters: Sequence[tuple[str, Aval]]
) -> Iterator[SummaryRow]:
    """The rows of a node and of those in it, `depth` levels of them."""
    numbers = {n for inner in node.within() for n in inner.own}
    # The entries of a list say more than the list, and one entry more than what holds it alone.
    numbered = all(name.isdigit() for name in node.children)
    shown = node.is_layer or bool(node.own) or not (numbered or len(node.children) == 1)
    if shown:
        yield SummaryRow(
            ".".join(path),
            level,
            node.layer,
            node.inputs,
            tuple(dict.fromkeys(node.outputs)),
            dict([parameters[n] for n in node.own]),
            sum(parameters[n][1].size for n in numbers),
            sum(parameters[n][1].nbytes for n in numbers),
            float(sum(inner.flops for inner in node.within())),
        )
    if not shown or level < depth:
        for name, child in node.children.items():
            yield from _rows(child, (*path, name), level + shown, depth, parameters)
