"""Pipeline parallelism against one device: losses, gradients, what is kept, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import genesis_fn as gf
import genesis_fn.numpy as jnp
from genesis_fn import lax, parallel
from genesis_fn.core.jaxpr import Eqn, Jaxpr, e_jaxprs
from genesis_fn.models import DecoderConfig, decoder
from genesis_fn.transforms.sharding.partitioner import partition

VOCABULARY, HIDDEN, IGNORED = 11, 6, -100


def batch(rows: int, length: int = 5) -> tuple[Any, Any]:
    """(tokens, labels, of which the last rows have fewer that count)."""
    rng = np.random.default_rng(rows)
    tokens, labels = rng.integers(0, VOCABULARY, (2, rows, length))
    labels[rng.random((rows, length)) < np.linspace(0, 0.9, rows)[:, None]] = IGNORED
    return jnp.asarray(tokens), jnp.asarray(labels)


def parameters(stages: int) -> dict[str, Any]:
    rng = np.random.default_rng(stages)
    draw = lambda *shape: jnp.asarray(rng.normal(0, 0.4, shape), jnp.float32)
    return {
        "first": draw(VOCABULARY, HIDDEN),
        "stages": {"w": draw(stages, HIDDEN, HIDDEN), "b": draw(stages, HIDDEN)},
        "last": draw(VOCABULARY, HIDDEN),
    }


def first(p: Any, tokens: Any) -> Any:
    return jnp.take(p, tokens, axis=0)


def stage(p: Any, x: Any, tokens: Any) -> Any:
    return x + jnp.tanh(x @ p["w"] + p["b"]) * (tokens % 3)[..., None]


def last(p: Any, x: Any, labels: Any) -> Any:
    total = lax.linear_cross_entropy(x, p, labels, ignore_index=IGNORED, reduction="sum")
    return total, jnp.sum(labels != IGNORED, dtype=jnp.float32)


def on_one(params: Any, tokens: Any, labels: Any) -> Any:
    x = first(params["first"], tokens)
    for i in range(params["stages"]["b"].shape[0]):
        x = stage(gf.tree.map(lambda p: p[i], params["stages"]), x, tokens)
    total, count = last(params["last"], x, labels)
    return total / count


def same(mine: Any, reference: Any, tolerance: float = 1e-6) -> None:
    assert gf.tree.structure(mine) == gf.tree.structure(reference)
    for path, x, y in zip(gf.tree.paths(mine), gf.tree.leaves(mine), gf.tree.leaves(reference)):
        x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
        assert x.shape == y.shape
        error = np.linalg.norm(x - y) / np.linalg.norm(y)
        assert error < tolerance, f"{path}: {error}"


def programs(jaxpr: Jaxpr, within: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Eqn]]:
    """Each operation, and the names of those whose programs it is in."""
    for e in jaxpr.eqns:
        yield within, e
        for inner in e_jaxprs(e):
            yield from programs(inner, (*within, e.prim.name))


def operations(f: Any, *args: Any) -> list[tuple[tuple[str, ...], Eqn]]:
    return [*programs(gf.make_jaxpr(f)(*args).jaxpr)]


# ---- values ----


@pytest.mark.parametrize("stages, microbatches", [(1, 3), (2, 1), (2, 6), (3, 2), (4, 3)])
def test_equals_one_device(stages: int, microbatches: int):
    mesh = gf.make_mesh((stages,), ("stage",))
    params, (tokens, labels) = parameters(stages), batch(6)
    loss = parallel.pipeline(first, stage, last, mesh, microbatches=microbatches)
    expected = gf.value_and_grad(on_one)(params, tokens, labels)
    found = gf.jit(gf.value_and_grad(loss))(params, tokens, labels)
    same(found, expected)
    same(loss(params, tokens, labels), expected[0])
    assert {g.sharding.spec for g in gf.tree.leaves(found[1]["stages"])} <= {gf.P("stage"), gf.P()}


def test_tied_weights_get_the_sum_of_both_uses():
    mesh = gf.make_mesh((2,), ("s",))
    params, (tokens, labels) = parameters(2), batch(4)
    staged = parallel.pipeline(first, stage, last, mesh, axis="s", microbatches=2)
    tied = lambda f: (
        lambda table, stages: (
            3 * f({"first": table, "stages": stages, "last": table}, tokens, labels)
        )
    )
    given = params["first"], params["stages"]
    expected = gf.value_and_grad(tied(on_one), argnums=(0, 1))(*given)
    same(gf.value_and_grad(tied(staged), argnums=(0, 1))(*given), expected)


def test_a_mean_for_each_micro_batch():
    mesh = gf.make_mesh((2,), ("stage",))
    stages = jnp.stack([jnp.eye(2)] * 2)
    params = {"first": jnp.ones((3, 2)), "stages": stages, "last": jnp.ones(2)}
    x, y = jnp.arange(12.0).reshape(4, 3), jnp.arange(4.0)
    loss = parallel.pipeline(
        lambda p, x: {"h": jnp.sin(x @ p)},
        lambda p, x, inputs: {"h": x["h"] @ p},
        lambda p, x, y: jnp.mean((x["h"] @ p - y) ** 2),
        mesh,
        microbatches=2,
    )

    def whole(params: Any) -> Any:
        return jnp.mean((jnp.sin(x @ params["first"]) @ params["last"] - y) ** 2)

    value, grads = gf.value_and_grad(loss)(params, x, y)
    expected, reference = gf.value_and_grad(whole)(params)
    same((value, grads["first"], grads["last"]), (expected, reference["first"], reference["last"]))
    with pytest.raises(gf.errors.NotDifferentiableError, match="with respect to params alone"):
        gf.grad(loss, argnums=1)(params, x, y)


def test_no_label_counts():
    mesh = gf.make_mesh((2,), ("stage",))
    loss = parallel.pipeline(first, stage, last, mesh, microbatches=2)
    tokens, labels = batch(4)
    value, grads = gf.value_and_grad(loss)(parameters(2), tokens, jnp.full_like(labels, IGNORED))
    assert value == 0 and not any(np.asarray(g).any() for g in gf.tree.leaves(grads))


# ---- decoders ----


def tiny(**options: Any) -> tuple[DecoderConfig, Any]:
    config = DecoderConfig(VOCABULARY, 16, 24, 4, 2, 1, 8, **options)
    return config, decoder.init(gf.random.key(0), config)


def staged(params: Any, stages: int) -> Any:
    return {**params, "layers": parallel.stages_of(params["layers"], stages)}


def unstaged(params: Any) -> Any:
    return {**params, "layers": parallel.layers_of_stages(params["layers"])}


def test_a_decoder_with_texts_in_a_row():
    config, params = tiny(tie_word_embeddings=False, sliding_window=3)
    (tokens, labels), mesh = batch(4, 6), gf.make_mesh((2,), ("stage",))
    ids = jnp.asarray([[0, 0, 1, 1, 1, 1]] * 4)
    loss = parallel.pipelined_decoder(
        config, mesh, microbatches=2, ignore_index=IGNORED, z_loss=1e-3, remat=True
    )
    value, grads = gf.value_and_grad(lambda p: loss(p, tokens, labels, segment_ids=ids))(
        staged(params, 2)
    )
    expected = gf.value_and_grad(
        lambda p: decoder.loss(
            p, tokens, labels, config, ignore_index=IGNORED, z_loss=1e-3, segment_ids=ids
        )
    )(params)
    same((value, unstaged(grads)), expected)


def test_a_tied_decoder_beside_data_parallelism_in_16_bits():
    """Rows are divided along another axis, and stay so: what is sent and kept are parts."""
    config, params = tiny()
    (tokens, labels), mesh = batch(8), gf.make_mesh((2, 2), ("data", "stage"))
    laid = parallel.data((tokens, labels), mesh)
    layers = gf.NamedSharding(mesh, gf.P("stage"))
    given = staged(params, 2)
    given["layers"] = gf.device_put(given["layers"], gf.tree.map(lambda _: layers, given["layers"]))
    options: dict[str, Any] = {"microbatches": 2, "ignore_index": IGNORED}
    expected = gf.value_and_grad(
        lambda p: decoder.loss(p, tokens, labels, config, ignore_index=IGNORED)
    )(params)
    exact = gf.jit(gf.value_and_grad(parallel.pipelined_decoder(config, mesh, **options)))
    value, grads = exact(given, *laid)
    assert {g.sharding.spec for g in gf.tree.leaves(grads["layers"])} == {gf.P("stage")}
    same((value, unstaged(grads)), expected)

    low = parallel.pipelined_decoder(config, mesh, compute="bfloat16", **options)
    value, grads = gf.value_and_grad(low)(given, *laid)
    assert {g.dtype.name for g in gf.tree.leaves(grads)} == {"float32"}
    same((value, unstaged(grads)), expected, 2e-2)
    contracted = {
        e.ins[0].aval.dtype.name
        for within, e in operations(gf.grad(low), given, tokens, labels)
        if e.prim.name == "dot_general"
    }
    assert "bfloat16" in contracted


def test_layers_become_stages_and_back():
    _, params = tiny()
    back = parallel.layers_of_stages(parallel.stages_of(params["layers"], 2))
    assert gf.tree.structure(back) == gf.tree.structure(params["layers"])
    for x, y in zip(gf.tree.leaves(back), gf.tree.leaves(params["layers"])):
        np.testing.assert_array_equal(x, y)


# ---- what it costs ----


def test_memory_does_not_grow_with_micro_batches():
    mesh = gf.make_mesh((3,), ("stage",))

    def carried(microbatches: int) -> list[str]:
        loss = parallel.pipeline(first, stage, last, mesh, microbatches=microbatches)
        steps = operations(gf.grad(loss), parameters(3), *batch(2 * microbatches))
        (scan,) = [e for within, e in steps if e.prim.name == "scan" and "cond" not in within]
        assert scan.params["length"] == microbatches + 4
        outs = scan.params["jaxpr"].outs
        assert len(outs) == scan.params["carry"], "nothing is stacked over the ticks"
        return [str(v.aval) for v in outs]

    assert carried(2) == carried(12)
    assert carried(2)[2].startswith("f32[5,2,5,6]")


def test_stages_pay_for_what_they_do():
    """Head and embedding are within branches; without gradients there are forward passes alone."""
    mesh = gf.make_mesh((2,), ("stage",))
    loss = parallel.pipeline(first, stage, last, mesh, microbatches=2)
    params = parameters(2)
    for f, exchanges in ((loss, 1), (gf.value_and_grad(loss), 2)):
        steps = operations(f, params, *batch(4))
        assert sum(e.prim.name == "ppermute" for _, e in steps) == exchanges
        contractions = [within for within, e in steps if e.prim.name in ("dot_general", "fused")]
        assert contractions and all("cond" in within for within in contractions)


def test_devices_beside_each_other_meet_once():
    """Along another axis that divides rows: what is kept and sent are parts, and gradients are
    summed once, behind the loop, not for each micro-batch."""
    mesh = gf.make_mesh((2, 2), ("stage", "data"))
    loss = parallel.pipeline(first, stage, last, mesh, microbatches=2)
    given = parameters(2), *batch(8)
    jaxpr = gf.jit(gf.value_and_grad(loss)).trace(*given).jaxpr
    layouts = [((),) * k.ndim for k in jaxpr.in_avals[:-2]] + [(("data",), ())] * 2
    program, _ = partition(jaxpr, mesh, tuple(layouts), (None,) * len(jaxpr.outs))
    steps = [*programs(program)]
    (scan,) = [e for within, e in steps if e.prim.name == "scan"]
    kept = [v.aval.shape for v in scan.params["jaxpr"].outs[:3]]
    assert kept == [(2, 5, HIDDEN), (2, 5, HIDDEN), (3, 2, 5, HIDDEN)]
    sums = [
        within
        for within, e in steps
        if e.prim.name == "psum_invariant" and e.params["axis_name"].name == "data"
    ]
    # The loss, the number of labels, and four parameters.
    assert len(sums) == 6 and not any("scan" in within for within in sums)


# ---- what is refused ----


def test_what_cannot_be_divided():
    mesh = gf.make_mesh((2,), ("stage",))
    params, (tokens, labels) = parameters(2), batch(6)
    make = lambda m, **options: parallel.pipeline(
        first, stage, last, mesh, microbatches=m, **options
    )
    with pytest.raises(gf.errors.ArgumentError, match="microbatches=0 must be a positive integer"):
        make(0)
    with pytest.raises(ValueError, match="axis 'model' is not in the mesh, whose axes are 'stage'"):
        make(2, axis="model")
    with pytest.raises(gf.errors.ShapeError, match="6 rows cannot be divided into 4 micro-batches"):
        make(4)(params, tokens, labels)
    with pytest.raises(gf.errors.ShapeError, match=r"equal rows, got \[6, 5\], \[5, 5\]"):
        make(2)(params, tokens, labels[:5])
    with pytest.raises(gf.errors.ShapeError, match=r"stages\['b'\] \[3, 6\] must have .* of 2, an"):
        make(2)(parameters(3), tokens, labels)
    with pytest.raises(gf.errors.ShapeError, match=r"got keys \['stages'\]"):
        make(2)({"stages": params["stages"]}, tokens, labels)
    wide = parallel.pipeline(
        first, lambda p, x, _: jnp.concatenate([x, x], -1), last, mesh, microbatches=2
    )
    with pytest.raises(gf.errors.ShapeError, match="a stage takes activations .* one shape"):
        wide(params, tokens, labels)


def test_layers_that_are_not_alike():
    mesh = gf.make_mesh((2,), ("stage",))
    make = lambda config: parallel.pipelined_decoder(config, mesh, microbatches=1)
    config, params = tiny()
    kinds = ("full_attention", "full_attention", "sliding_attention", "full_attention")
    windowed, _ = tiny(sliding_window=3, layer_types=kinds)
    with pytest.raises(gf.errors.ArgumentError, match="layer 2 is not as layer 0: config.windows"):
        make(windowed)
    routed, _ = tiny(num_experts=4, num_experts_per_tok=2, output_router_logits=True)
    with pytest.raises(gf.errors.ArgumentError, match="output_router_logits"):
        make(routed)
    three = DecoderConfig(VOCABULARY, 16, 24, 3, 2, 1, 8)
    with pytest.raises(gf.errors.ShapeError, match="3 layers cannot be divided into 2 stages"):
        make(three)
    with pytest.raises(gf.errors.ShapeError, match=r"stages_of\(params\['layers'\], 2\)"):
        make(config)(params, *batch(2))
    with pytest.raises(gf.errors.ShapeError, match="must begin with 2 stages of 2 layers"):
        make(config)(staged(params, 4), *batch(2))
    with pytest.raises(gf.errors.ShapeError, match="tie_word_embeddings"):
        make(tiny(tie_word_embeddings=False)[0])(staged(params, 2), *batch(2))
    with pytest.raises(gf.errors.ShapeError, match="4 layers cannot be divided into 3 stages"):
        parallel.stages_of(params["layers"], 3)
    other = [{"w": jnp.ones(2)}, {"w": jnp.ones(3)}]
    with pytest.raises(gf.errors.ShapeError, match=r"layer 1 is not as .* \['w'\] is .*\[3\]"):
        parallel.stages_of(other, 1)
    with pytest.raises(gf.errors.ShapeError, match="layer 1 is not as layer 0"):
        parallel.stages_of([{"w": jnp.ones(2)}, {"v": jnp.ones(2)}], 2)
