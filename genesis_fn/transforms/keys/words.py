"""Programs with random keys as programs on their words: the physical form, which is compiled.

A key is two words along one more axis at the end. An operation that moves elements does to both
words what it does to a key, so on words it is its own batching rule over that axis. Calls, loops
and branches run the physical form of their programs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from genesis_fn.core import dtypes, primitive
from genesis_fn.core.array import ArrayImpl, keys_over, words_of
from genesis_fn.core.aval import Aval
from genesis_fn.core.configuration import config
from genesis_fn.core.jaxpr import Eqn, Jaxpr, Var, jaxprs_in, memoized
from genesis_fn.core.primitive import Primitive, bind, ctx, running, typeof
from genesis_fn.core.types.extended import WORDS
from genesis_fn.primitives import elementwise, shape
from genesis_fn.primitives.factories import full_p, move_batch
from genesis_fn.primitives.indexing import gather, indexing, scatter
from genesis_fn.primitives.reductions import reduce
from genesis_fn.transforms.autodiff.checkpointing import checkpoint_p, name_p
from genesis_fn.transforms.batching import collectives, exchanges
from genesis_fn.transforms.control_flow.conditionals import cond_p
from genesis_fn.transforms.control_flow.loops import while_p
from genesis_fn.transforms.control_flow.scanning import scan_p
from genesis_fn.transforms.custom.custom_call import custom_call_p
from genesis_fn.transforms.custom.fused_functions import fused_p
from genesis_fn.transforms.sharding.constraint import sharding_constraint_p
from genesis_fn.transforms.sharding.shard_mapping import shard_map_p
from genesis_fn.transforms.staging.call import jit_p, region_p, wide_p
from genesis_fn.transforms.staging.stage_trace import StageTrace, StageTracer

# ---- rules ----


def _by_batching(
    prim: Primitive, xs: Sequence[Any], avals: Sequence[Any], params: dict[Any, Any]
) -> Any:
    """An operation that moves elements: its batching rule over the axis of words."""
    dims = [a.ndim if type(a) is Aval and dtypes.is_key(a.dtype) else None for a in avals]
    out, d = prim.batch(WORDS, xs, dims, **params)  # pyright: ignore[reportOptionalCall]
    if not prim.multi:
        return _at_end(out, d)
    kinds = prim.abstract(tuple(avals), params)  # a barrier passes keys and other values
    return [_at_end(x, i) if dtypes.is_key(k.dtype) else x for x, i, k in zip(out, d, kinds)]


def _along_axis(
    prim: Primitive, xs: Sequence[Any], avals: Sequence[Any], params: dict[Any, Any]
) -> Any:
    """A collective that moves elements, or says of them that they vary: over both words alike."""
    out, d = prim.batch(WORDS, xs, [avals[0].ndim], over_other=True, **params)  # pyright: ignore[reportOptionalCall]
    return _at_end(out, d)


def _at_end(x: Any, d: int | None) -> Any:
    """Move the axis of words, at `d`, to the end."""
    ndim = typeof(x).ndim
    return move_batch(x, d, ndim if d is None else ndim - 1, WORDS)


def _reshape(prim: Primitive, xs: Sequence[Any], avals: Any, params: dict[Any, Any]) -> Any:
    return bind(prim, xs[0], shape=(*params["shape"], WORDS))


def _broadcast(prim: Primitive, xs: Sequence[Any], avals: Any, params: dict[Any, Any]) -> Any:
    new, dims = params["shape"], params["dims"]
    return bind(prim, xs[0], shape=(*new, WORDS), dims=(*dims, len(new)))


def _transpose(prim: Primitive, xs: Sequence[Any], avals: Any, params: dict[Any, Any]) -> Any:
    order = params["permutation"]
    return bind(prim, xs[0], permutation=(*order, len(order)))


def _full(prim: Primitive, xs: Any, avals: Any, params: dict[Any, Any]) -> Any:
    return bind(prim, **params | {"shape": (*params["shape"], WORDS), "dtype": dtypes.U32})


def _equal(prim: Primitive, xs: Sequence[Any], avals: Sequence[Any], params: dict[Any, Any]) -> Any:
    same = bind(prim, *xs)
    # Keys are equal if both words are, and differ if one does.
    combine = reduce.reduce_and if prim is elementwise.eq.prim else reduce.reduce_or
    return combine(same, (typeof(same).ndim - 1,))


def _nested(prim: Primitive, xs: Sequence[Any], avals: Any, params: dict[Any, Any]) -> Any:
    return bind(prim, *xs, **{k: _physical_param(v) for k, v in params.items()})


def _physical_param(value: Any) -> Any:
    if type(value) is Jaxpr:
        return physical(value)
    if type(value) is Aval:
        return value.physical
    return tuple(map(_physical_param, value)) if type(value) is tuple else value


def _parts(prim: Primitive, xs: Sequence[Any], avals: Any, params: dict[Any, Any]) -> Any:
    """`shard_map`: words of a key are not divided."""
    jaxpr = params["jaxpr"]
    wide = lambda layouts, kinds: tuple(
        [(*at, ()) if dtypes.is_key(k.dtype) else at for at, k in zip(layouts, kinds, strict=True)]
    )
    ins, outs = (
        wide(params["in_layouts"], jaxpr.in_avals),
        wide(params["out_layouts"], jaxpr.out_avals),
    )
    given = {"jaxpr": physical(jaxpr), "in_layouts": ins, "out_layouts": outs}
    return bind(prim, *xs, **params | given)


for _prim in (
    shape.slice_p,
    shape.rev_p,
    shape.copy_p,
    shape.concatenate_p,
    shape.split_p,
    shape.barrier_p,
    elementwise.select_p,
    gather.gather_p,
    gather.take_rows_p,
    scatter.scatter_p,
    indexing.dynamic_slice_p,
    indexing.dynamic_update_slice_p,
    name_p,
):
    _prim.words = _by_batching
for _prim in (
    jit_p,
    region_p,
    wide_p,
    checkpoint_p,
    cond_p,
    custom_call_p,
    fused_p,
    while_p,
    scan_p,
):
    _prim.words = _nested
for _prim in (
    collectives.pvary_p,
    collectives.assume_invariant_p,
    collectives.all_gather_p,
    collectives.all_gather_invariant_p,
    exchanges.all_to_all_p,
    exchanges.ppermute_p,
):
    _prim.words = _along_axis
for _prim in (elementwise.eq.prim, elementwise.ne.prim):
    _prim.words = _equal
sharding_constraint_p.words, shard_map_p.words = _nested, _parts
shape.reshape_p.words, shape.broadcast_in_dim_p.words = _reshape, _broadcast
shape.transpose_p.words, full_p.words = _transpose, _full


# ---- programs ----


def _is_key(x: Any) -> bool:
    return type(x) is Var and dtypes.is_key(x.aval.dtype)


@memoized
def _mentions_keys(jaxpr: Jaxpr) -> tuple[bool]:
    mentions = any(map(_is_key, jaxpr.invars)) or any(map(_touches_keys, jaxpr.eqns))
    return (mentions,)


def _touches_keys(e: Eqn) -> bool:
    if any(map(_is_key, e.ins)) or any(map(_is_key, e.outs)):
        return True
    return any(_mentions_keys(j)[0] for j in jaxprs_in(e.params))


@memoized
def physical(jaxpr: Jaxpr) -> Jaxpr:
    """Return the program with words in place of keys; the program itself if it has none."""
    if not _mentions_keys(jaxpr)[0]:
        return jaxpr
    trace = StageTrace(jaxpr.name, jaxpr.labels)
    env: dict[Var, StageTracer] = {}
    for v in jaxpr.invars:
        variable = Var(v.aval.physical) if _is_key(v) else v
        trace.invars.append(variable)
        env[v] = StageTracer(trace, variable)
    # New equations get the line of the old one, and belong to a backward pass if it does.
    before = ctx.line, ctx.backward
    try:
        with running(trace):
            for e in jaxpr.eqns:
                xs = [env[i] if type(i) is Var else i for i in e.ins]
                ctx.line, ctx.backward = e.where, e.backward
                if _touches_keys(e):
                    with config.computing(e.numerics):
                        outs = on_words(e, xs)
                else:  # keeps its output variables, so that only the operands are replaced
                    e = e.replace(ins=[x.variable if type(x) is StageTracer else x for x in xs])
                    trace.eqns.append(e)
                    outs = [StageTracer(trace, v, e) for v in e.outs]
                env.update(zip(e.outs, outs, strict=True))
        program, captured = trace.finish([env[o] for o in jaxpr.outs])
    finally:
        ctx.line, ctx.backward = before
        trace.alive = False
    assert not captured, "the physical form of a program captures nothing"
    return program


def on_words(e: Eqn, xs: Sequence[Any]) -> list[Any]:
    """Apply an equation that involves keys to operands in physical form, and return its outputs."""
    avals = [i.aval if type(i) is Var else i for i in e.ins]
    outs = e.prim.words(e.prim, xs, avals, e.params)  # pyright: ignore[reportOptionalCall]
    return list(outs) if e.prim.multi else [outs]


def _by_words(
    prim: Primitive, avals: tuple[Any, ...], params: dict[str, Any]
) -> Callable[..., Any] | None:
    """Return what runs `prim` on arrays by its rule on words; None if no keys are involved."""
    out = prim.abstract(avals, params)
    kinds = list(out) if prim.multi else [out]
    keyed = any([type(a) is Aval and dtypes.is_key(a.dtype) for a in (*avals, *kinds)])
    if not keyed and not any(_mentions_keys(j)[0] for j in jaxprs_in(params)):
        return None
    rule = prim.words

    def run(*args: Any) -> Any:
        xs = [
            words_of(x) if type(x) is ArrayImpl and dtypes.is_key(x.aval.dtype) else x for x in args
        ]
        result = rule(prim, xs, avals, params)  # pyright: ignore[reportOptionalCall]
        outs = list(result) if prim.multi else [result]
        outs = [keys_over(o, k) if dtypes.is_key(k.dtype) else o for o, k in zip(outs, kinds)]
        return outs if prim.multi else outs[0]

    return run


primitive.by_words = _by_words
