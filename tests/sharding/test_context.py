"""Attention of sequences that devices divide, against the same on one device."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import genesis_fn as gf
import genesis_fn.numpy as jnp
from genesis_fn import lax, nn, parallel, tree
from genesis_fn.models import qwen
from genesis_fn.models.decoder_layer import within_segments
from tests.sharding.both import same

RNG = np.random.default_rng(0)
LENGTH = 16
SEGMENTS = np.sort(RNG.integers(0, 3, (2, LENGTH)), 1).astype(np.int32)


def normal(*shape: int) -> gf.Array:
    return jnp.asarray(RNG.normal(size=shape).astype(np.float32))


def operands(kv: int = 2, heads: int = 4) -> list[gf.Array]:
    """Queries, keys, values and a cotangent."""
    return [normal(2, LENGTH, n, 8) for n in (heads, kv, kv, heads)]


def divided(
    mesh: Any, *, layout: str = "contiguous", segment_ids: Any = None, **options: Any
) -> Callable[..., gf.Array]:
    """Attention of arrays in their own order, over the axis "c"."""
    n = mesh.shape["c"]
    to = parallel.to_zigzag if layout == "zigzag" else lambda x, n: x
    back = parallel.from_zigzag if layout == "zigzag" else lambda x, n: x
    if segment_ids is not None:
        options["segment_ids"] = to(segment_ids, n)
    options |= {"mesh": mesh, "axis": "c", "layout": layout}
    return lambda *qkv: back(parallel.context_attention(*[to(x, n) for x in qkv], **options), n)


def with_gradients(attention: Callable[..., gf.Array], ct: gf.Array) -> Callable[..., Any]:
    """(output, its gradients)."""

    def f(*qkv: gf.Array) -> Any:
        out, back = gf.vjp(attention, *qkv)
        return out, back(ct.astype(out.dtype))

    return f


def squares(f: Callable[..., gf.Array]) -> Callable[..., gf.Array]:
    """The squares of the gradients of `f` squared, added up."""
    inner = gf.grad(lambda *xs: (f(*xs) ** 2).sum(), (0, 1, 2))
    return lambda *xs: sum((g**2).sum() for g in inner(*xs))  # pyright: ignore[reportReturnType]


def wanted(options: dict[str, Any]) -> Callable[..., gf.Array]:
    """The same attention on one device."""
    rest = {k: v for k, v in options.items() if k not in ("layout", "method")}
    return lambda *qkv: lax.dot_product_attention(*qkv, **rest)


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"is_causal": True},
    "zigzag": {"is_causal": True, "layout": "zigzag"},
    "zigzag without a mask": {"layout": "zigzag", "scale": 0.3},
    "window": {"is_causal": True, "local_window_size": (5, 0)},
    "window to both sides": {"local_window_size": (6, 3)},
    "window to the right": {"local_window_size": (None, 3)},
    "segments": {"segment_ids": SEGMENTS, "softcap": 2.0},
    "zigzag segments": {"is_causal": True, "layout": "zigzag", "segment_ids": SEGMENTS},
}


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("n", [1, 2, 4])
def test_values_and_gradients(n: int, name: str):
    *qkv, ct = operands()
    mesh, options = gf.make_mesh((n,), ("c",)), OPTIONS[name]
    expected = with_gradients(wanted(options), ct)(*qkv)
    methods = ("ring",) if "zigzag" in name and "window" in name else ("ring", "all_to_all")
    for method in methods:
        found = gf.jit(with_gradients(divided(mesh, method=method, **options), ct))(*qkv)
        same(found, expected, 2e-5, method)


@pytest.mark.parametrize("kv, heads", [(1, 2), (8, 8), (2, 8)])
def test_heads_that_share_keys(kv: int, heads: int):
    """Eight devices in a ring; as many by heads as there are, or one key head for several."""
    *qkv, ct = operands(kv, heads)
    expected = with_gradients(wanted({"is_causal": True}), ct)(*qkv)
    for method, n in (("ring", 8), ("all_to_all", heads)):
        f = divided(gf.make_mesh((n,), ("c",)), method=method, is_causal=True)
        same(gf.jit(with_gradients(f, ct))(*qkv), expected, 2e-5, method)


@pytest.mark.parametrize("name", ["zigzag", "window", "segments"])
def test_second_derivatives_and_half_precision(name: str):
    *qkv, ct = operands()
    options = OPTIONS[name]
    f, g = divided(gf.make_mesh((4,), ("c",)), **options), wanted(options)
    second = lambda f: gf.grad(squares(f), (0, 1, 2))
    same(gf.jit(second(f))(*qkv), second(g)(*qkv), 2e-5)
    half = [x.astype(jnp.bfloat16) for x in qkv]
    found = gf.jit(with_gradients(f, ct))(*half)
    assert {x.dtype for x in tree.leaves(found)} == {np.dtype(jnp.bfloat16)}
    expected = with_gradients(g, ct)(*[x.astype(jnp.float32) for x in half])
    same(tree.map(lambda x: x.astype(jnp.float32), found), expected, 3e-2)


@pytest.mark.parametrize("method", ["ring", "all_to_all"])
def test_beside_other_axes(method: str):
    """Batches divided by "data" and heads by "model" stay so."""
    mesh = gf.make_mesh((2, 2, 2), ("data", "c", "model"))
    *qkv, ct = operands()
    layout = gf.NamedSharding(mesh, gf.P("data", "c", "model"))
    f = gf.jit(with_gradients(divided(mesh, method=method, is_causal=True), ct))
    if method == "all_to_all":  # heads are exchanged, so that "model" divides none
        layout = gf.NamedSharding(mesh, gf.P("data", "c"))
    found = f(*gf.device_put(qkv, layout))
    assert found[0].sharding.spec[:2] == ("data", "c")
    assert method != "ring" or found[1][1].sharding.spec == gf.P("data", "c", "model")
    same(found, with_gradients(wanted({"is_causal": True}), ct)(*qkv), 2e-5)


def test_of_parts_and_forward_mode():
    mesh, qkv = gf.make_mesh((4,), ("c",)), operands()[:3]
    along = gf.P(None, "c")
    attend = lambda *qkv: parallel.ring_attention(*qkv, axis="c", is_causal=True)
    f = gf.shard_map(attend, mesh=mesh, in_specs=along, out_specs=along)
    g = lambda *qkv: lax.dot_product_attention(*qkv, is_causal=True)
    same(f(*qkv), g(*qkv), 2e-5)
    tangents = tuple(operands()[:3])
    same(gf.jvp(f, tuple(qkv), tangents), gf.jvp(g, tuple(qkv), tangents), 2e-5)


def programs_in(jaxpr: Any) -> Any:
    yield jaxpr
    for e in jaxpr.eqns:
        for value in e.params.values():
            if type(value) is type(jaxpr):
                yield from programs_in(value)


def test_no_device_has_all_keys():
    """Nothing as long as the sequence squared, nor of all positions, in a device's program."""
    mesh = gf.make_mesh((8,), ("c",))
    q = jnp.zeros((1, 64, 2, 4))
    f = gf.grad(lambda q: divided(mesh, is_causal=True, layout="zigzag")(q, q, q).sum())
    (inner, *_) = [
        e.params["jaxpr"] for e in gf.make_jaxpr(f)(q).eqns if e.prim.name == "shard_map"
    ]
    shapes = {o.aval.shape for j in programs_in(inner) for e in j.eqns for o in e.outs}
    assert max(map(np.prod, shapes)) <= 8 * 8 * 2 and not any(64 in s for s in shapes)


def test_zigzag_order():
    x = jnp.arange(12)
    order = parallel.to_zigzag(x, 3, axis=0)
    assert order.tolist() == [0, 1, 10, 11, 2, 3, 8, 9, 4, 5, 6, 7]
    assert parallel.from_zigzag(order, 3, axis=0).tolist() == x.tolist()


def test_what_does_not_fit():
    mesh = gf.make_mesh((4,), ("c",))
    q, k, v, _ = operands()
    f = functools.partial(parallel.context_attention, mesh=mesh, axis="c")
    with pytest.raises(gf.errors.ShapeError, match="dimension 1 of .* multiple of 2 . parts, 10"):
        parallel.to_zigzag(q, 5)
    with pytest.raises(gf.errors.ShapeError, match="context_attention: query .* do not fit"):
        f(q, k[:, :8], v)
    with pytest.raises(gf.errors.ShapeError, match="segment_ids are int32.2, 3., but .* .2, 16."):
        f(q, k, v, segment_ids=jnp.zeros((2, 3), jnp.int32))
    with pytest.raises(gf.errors.ShapeError, match="4 devices along 'c' cannot divide 6 heads"):
        f(jnp.zeros((2, 16, 6, 8)), k, v, method="all_to_all")
    with pytest.raises(gf.errors.ShapeError, match="each device has 3 positions, but two chunks"):
        f(q[:, :12], k[:, :12], v[:, :12], layout="zigzag")
    for options, message in (
        ({"method": "ulysses"}, "method is 'ulysses'"),
        ({"layout": "striped"}, "layout is 'striped'"),
        ({"local_window_size": (-1, 0)}, "is not negative"),
        ({"local_window_size": 3, "layout": "zigzag"}, "in the zigzag layout"),
    ):
        with pytest.raises(gf.errors.ArgumentError, match=message):
            f(q, k, v, **options)


# ---- models ----

CONFIG = qwen.QwenConfig(64, 32, 64, 2, 4, 2, 8)
TOKENS = RNG.integers(0, 64, (2, LENGTH + 1))


def model_case(mesh: Any, config: Any, layout: str, method: str, segments: Any = None, **more: Any):
    """(value and gradients on the mesh, those of one device, for a placement of parameters)."""
    params, n = qwen.init(gf.random.key(0), config), mesh.shape["c"]
    x, y = jnp.asarray(TOKENS[:, :-1]), jnp.asarray(TOKENS[:, 1:])
    positions = jnp.arange(LENGTH)[None]
    one = lambda p: qwen.loss(p, x, y, config, segment_ids=segments)
    expected = gf.value_and_grad(one)(params)
    if segments is not None:
        positions = within_segments(jnp.asarray(segments), x.shape)
    if layout == "zigzag":
        x, y, positions = [parallel.to_zigzag(v, n) for v in (x, y, positions)]
        segments = None if segments is None else parallel.to_zigzag(segments, n)
    options = {"mesh": mesh, "axis": "c", "layout": layout, "method": method}
    attention = functools.partial(parallel.context_attention, **options)
    more |= {"positions": positions, "segment_ids": segments, "attention": attention}
    of_parts = gf.jit(gf.value_and_grad(lambda p, x, y: qwen.loss(p, x, y, config, **more)))
    rows = "data" if "data" in mesh.axis_names else None
    tokens = gf.device_put((x, y), gf.NamedSharding(mesh, gf.P(rows, "c")))
    return lambda place: of_parts(gf.device_put(params, place), *tokens), expected


CASES = {
    "ring": ((4,), ("c",), "contiguous", "ring", None),
    "zigzag, data": ((2, 4), ("data", "c"), "zigzag", "ring", None),
    "zigzag, segments": ((2,), ("c",), "zigzag", "ring", SEGMENTS),
    "heads, segments, data": ((2, 2), ("data", "c"), "contiguous", "all_to_all", SEGMENTS),
}


@pytest.mark.parametrize("name", CASES)
def test_a_small_qwen(name: str):
    shape, names, layout, method, segments = CASES[name]
    mesh = gf.make_mesh(shape, names)
    f, expected = model_case(mesh, CONFIG, layout, method, segments, remat="data" in names)
    same(f(gf.NamedSharding(mesh, gf.P())), expected, 1e-5)


def test_sliding_windows_and_amp():
    mesh, x = gf.make_mesh((4,), ("c",)), jnp.asarray(TOKENS)
    kinds = ("full_attention", "sliding_attention")
    config = qwen.QwenConfig(64, 32, 64, 2, 4, 2, 8, sliding_window=5, layer_types=kinds)
    assert config.windows == (None, 5)
    params = qwen.init(gf.random.key(0), config)
    attention = functools.partial(parallel.context_attention, mesh=mesh, axis="c")
    run = lambda p, **how: qwen.loss(p, x[:, :-1], x[:, 1:], config, **how)
    of_parts = functools.partial(run, attention=attention)
    f, g = gf.value_and_grad(of_parts), gf.value_and_grad(run)
    same(gf.jit(f)(params), g(params), 1e-5)
    f, g = [gf.value_and_grad(gf.amp(h, "bfloat16")) for h in (of_parts, run)]
    same(gf.jit(f)(params), g(params), 1e-2)
    # Keys and values travel in the dtype that attention is computed in.
    program = str(gf.make_jaxpr(f)(params))
    sent = [line for line in program.splitlines() if "= ppermute[" in line]
    forward = list(itertools.takewhile(lambda line: ":bf16[" in line, sent))
    assert len(forward) >= 8


def of_a_process() -> Any:
    """A step of a model with divided sequences and experts, and that of one device."""
    mesh = gf.make_mesh((gf.process_count(),), ("c",))
    config = qwen.QwenConfig(
        64, 32, 64, 1, 4, 2, 8, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16
    )
    experts = functools.partial(parallel.expert_mlp, mesh=mesh, axis="c")
    f, expected = model_case(mesh, config, "zigzag", "ring", experts=experts)
    params = qwen.init(gf.random.key(0), config)
    place = lambda path, x: gf.P("c") if "experts" in tree.keystr(path) else gf.P()
    found = f(tree.map_with_path(lambda *x: gf.NamedSharding(mesh, place(*x)), params))
    return gf.device_put(found, gf.NamedSharding(mesh, gf.P())), expected


def test_two_processes():
    for found, expected in gf.distributed.run(of_a_process, processes=2, timeout=120):
        same(found, expected, 1e-5)


def test_amp_reaches_into_shard_map():
    mesh = gf.make_mesh((2,), ("c",))
    x, w = normal(4, 8), normal(8, 8)

    def of_parts(x: Any, w: Any) -> Any:
        return nn.silu(lax.all_gather(x @ w, "c", tiled=True) @ w)[:2]

    specs = {"in_specs": (gf.P("c"), gf.P()), "out_specs": gf.P("c")}
    f = lambda x, w: gf.shard_map(of_parts, mesh=mesh, **specs)(x @ w, w)
    g = gf.amp(f, "bfloat16")
    products = [s for s in str(gf.make_jaxpr(g)(x, w)).splitlines() if "= dot_general[" in s]
    assert len(products) == 3 and all(":bf16[" in s.split("=")[0] for s in products)
    assert g(x, w).dtype == np.float32
    same(gf.grad(lambda *a: g(*a).sum())(x, w), gf.grad(lambda *a: f(*a).sum())(x, w), 3e-2)


def test_a_program_that_one_process_maps_over_two_axes():
    """Sums by ids of one axis, of values of the other, within a program of their own."""
    mesh = gf.make_mesh((2, 2), ("data", "c"))

    @gf.checkpoint
    def sums(x: Any) -> Any:
        ids = (jnp.arange(4) + lax.axis_index("c")) % 4
        return gf.extend.segment_sum(x * (1.0 + lax.axis_index("data")), ids, 4)

    f = gf.shard_map(sums, mesh=mesh, in_specs=gf.P(), out_specs=gf.P(("data", "c")))
    assert gf.jit(f)(jnp.arange(4.0)).tolist() == [
        *(0, 1, 2, 3, 3, 0, 1, 2), *(0, 2, 4, 6, 6, 0, 2, 4)
    ]  # fmt: skip
