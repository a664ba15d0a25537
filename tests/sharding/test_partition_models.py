"""Language models laid out over a mesh: the numbers of one device, and the communication that is
known for each way of laying out, no more.

Data parallelism sums each gradient once. FSDP (Zhao et al. 2023, ZeRO stage 3) gathers each weight
where it is used, in the forward and the backward pass, and sums gradients into the layout. Tensor
parallelism (Shoeybi et al. 2019) sums activations once for attention and once for the feed-forward
network, forwards and backwards.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import genesis_fn as gf
from genesis_fn import P, lax, models, numpy as jnp, optim, parallel, random, tree
from genesis_fn.core.jaxpr import Eqn, Jaxpr, e_jaxprs
from genesis_fn.models import decoder
from genesis_fn.transforms.sharding.partitioner import partition

LAYERS = 2
# No length of a parameter is a multiple of the length of a sequence, which tells activations.
ROWS, LENGTH = 8, 15
QWEN3 = models.DecoderConfig(
    vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=LAYERS,
    num_attention_heads=4, num_key_value_heads=2, head_dim=8, initializer_range=0.3,
)  # fmt: skip
replaced = functools.partial(dataclasses.replace, QWEN3)
CONFIGS = {
    "qwen3": QWEN3,
    # More words than a device has rows.
    "llama": replaced(qk_norm=False, tie_word_embeddings=False, vocab_size=256),
    "qwen3_moe": replaced(
        num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, output_router_logits=True
    ),
}
MESHES = {
    "dp": ((4,), ("data",)),
    "fsdp": ((4,), ("data",)),
    "tp": ((2,), ("model",)),
    "fsdp_tp": ((2, 2), ("data", "model")),
}

# ---- layouts ----


def tensor_parallel(path: str, ndim: int) -> list[Any]:
    """The path rules: rows of what projects into heads and hidden features, columns of what
    projects out of them; norms and routers are whole."""
    spec: list[Any] = [None] * ndim
    if "norm" not in path and "'gate'" not in path:
        rows = -1 if "o_proj" in path or "down_proj" in path else -2
        spec[rows] = "model"
    return spec


def layouts_of(way: str, params: Any) -> Any:
    """A NamedSharding for each parameter."""
    shape, names = MESHES[way]
    mesh = gf.make_mesh(shape, names)

    def one(path: Any, x: Any) -> gf.NamedSharding:
        spec = tensor_parallel(tree.keystr(path), x.ndim) if "model" in names else [None] * x.ndim
        if way.startswith("fsdp"):
            fits = [i for i, n in enumerate(x.shape) if spec[i] is None and n % shape[0] == 0]
            spec[max(fits, key=lambda i: x.shape[i])] = "data"
        return gf.NamedSharding(mesh, P(*spec))

    return tree.map_with_path(one, params)


def rows_of(layouts: Any) -> gf.NamedSharding:
    """The layout of tokens."""
    mesh = tree.leaves(layouts)[0].mesh
    return gf.NamedSharding(mesh, P("data") if "data" in mesh.axis_names else P())


# ---- the collectives of one device's program ----


def equations(jaxpr: Jaxpr) -> Iterator[Eqn]:
    for e in jaxpr.eqns:
        yield e
        for inner in e_jaxprs(e):
            yield from equations(inner)


def collectives(f: Callable[..., Any], *args: Any) -> Counter[str]:
    """How often each collective occurs in one device's program of `f`, by pass, axis and what it is
    about."""
    jaxpr = gf.jit(f).trace(*args).jaxpr
    given = [x.sharding for x in tree.leaves(args)]
    captured = len(jaxpr.invars) - len(given)
    ndims = [a.ndim for a in jaxpr.in_avals]
    ins = [((),) * n for n in ndims[:captured]]
    ins += [s.over(n) for s, n in zip(given, ndims[captured:], strict=True)]
    program, _ = partition(jaxpr, given[0].mesh, tuple(ins), (None,) * len(jaxpr.outs))
    found: Counter[str] = Counter()
    for e in equations(program):
        name = e.prim.name.removesuffix("_invariant")
        if e.prim.collective and name not in ("pvary", "axis_index"):
            direction = "backward" if e.backward else "forward"
            found[f"{direction} {name} {e.params['axis_name']} {_about(e)}"] += 1
    return found


def _about(e: Eqn) -> str:
    shape = e.ins[0].aval.shape
    activations = any(n % LENGTH == 0 for n in shape)
    return "activations" if activations else "parameters" if shape else "scalars"


def expected(way: str, config: models.DecoderConfig, params: Any, remat: bool) -> Counter[str]:
    """What the papers say; embedding and head as said at each."""
    count, leaves = LAYERS, len(tree.leaves(params))
    sparse, tied = config.num_experts > 0, config.tie_word_embeddings
    found: Counter[str] = Counter()
    data, model = (n in MESHES[way][1] for n in ("data", "model"))
    # The loss is a sum over rows.
    found.update({f"forward psum {n} scalars": 1 for n in MESHES[way][1]})
    if data and sparse:  # of the load-balancing loss: tokens and probabilities of each expert
        found["forward psum data parameters"] += 2
    if way == "dp":
        found["backward psum data parameters"] = leaves
    if way.startswith("fsdp"):
        found["backward psum_scatter data parameters"] = leaves
        # The head of a tied embedding gathers it once more.
        found["forward all_gather data parameters"] = leaves + tied
        # Embedding and head need no weight any more.
        found["backward all_gather data parameters"] = leaves - 2 + tied
        if (
            config.vocab_size > 2 * ROWS * LENGTH and not model
        ):  # of a large table the rows of all are sent
            found["forward all_gather data parameters"] -= 1
            found["forward all_gather data activations"] = 1
            found["forward psum_scatter data activations"] = 1
    if model:
        found["forward psum model activations"] = 2 * count
        found["backward psum model activations"] = 2 * count + sparse * count + remat * count
        # The table is gathered, unless it is larger than what is taken from it, which is summed.
        words = config.vocab_size > ROWS * LENGTH / (2 if data else 1)
        found["forward all_gather model parameters"] = not words
        found["forward psum model activations"] += words
        if words:
            # Each device has its words of the head: a row's greatest logit, sum of exponentials and
            # logit of the label are exchanged, and its cotangent is a sum.
            found["forward pmax model activations"] = 1
            found["forward psum model activations"] += 2
            found["backward psum model activations"] += 1
            # Every device knows the loss.
            found["forward psum model scalars"] -= 1
        else:
            # The head's weight is gathered; its rows are divided further, and their cotangents
            # gathered again.
            found["forward all_gather model parameters"] += 1
            found["forward all_gather model activations"] = 1
            found["backward psum_scatter model parameters"] = 1
        # A device's own heads alone use a norm of queries or keys, and its rows of tokens the head.
        found["backward psum model parameters"] = 2 * count * config.qk_norm
    return +found


# ---- losses and gradients ----

CASES = [
    (name, way, again)
    for name in CONFIGS
    for way in MESHES
    for again in (False, True)
    if name != "llama" or not again
]


def batch(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Tokens of rows, one more than are predicted, and the texts that they belong to."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, 64, (ROWS, LENGTH + 1)).astype(np.int32)
    return tokens, np.sort(rng.integers(0, 3, (ROWS, LENGTH)), 1).astype(np.int32)


def loss_of(config: models.DecoderConfig, again: bool) -> Callable[..., Any]:
    """The loss; with `again` of packed rows, whose layers are computed again backwards."""

    def loss(params: Any, tokens: Any, ids: Any) -> Any:
        packed = {"segment_ids": ids} if again else {}
        return decoder.loss(params, tokens[:, :-1], tokens[:, 1:], config, remat=again, **packed)

    return loss


@pytest.mark.parametrize(("name", "way", "again"), CASES)
def test_losses_and_gradients(name: str, way: str, again: bool) -> None:
    config = CONFIGS[name]
    params, (tokens, ids) = decoder.init(random.key(0), config), batch()
    loss, layouts = loss_of(config, again), layouts_of(way, params)
    rows = rows_of(layouts)

    def laid_out(params: Any, tokens: Any, ids: Any) -> Any:
        return loss(lax.with_sharding_constraint(params, layouts), tokens, ids)

    args = gf.device_put((params, tokens, ids), (layouts, rows, rows))
    found = collectives(gf.value_and_grad(laid_out), *args)
    assert found == expected(way, config, params, again)
    value, grads = gf.jit(gf.value_and_grad(laid_out))(*args)
    one, ones = gf.jit(gf.value_and_grad(loss))(params, tokens, ids)
    np.testing.assert_allclose(value, one, rtol=1e-6)
    wanted = dict(tree.leaves_with_path(ones))
    for (path, g), at in zip(tree.leaves_with_path(grads), tree.leaves(layouts), strict=True):
        assert g.sharding == at, tree.keystr(path)
        np.testing.assert_allclose(g, wanted[path], atol=1e-6, err_msg=tree.keystr(path))


@pytest.mark.parametrize("remat", [False, True])
def test_sequence_parallel(remat: bool) -> None:
    """Korthikanti et al. 2022: a block gathers what it reads and scatters what it computes, in both
    directions, and nothing else of activations is sent. The embedding scatters and the head gathers
    too."""
    mesh = gf.make_mesh((2, 3), ("data", "model"))
    config = replaced(
        vocab_size=192, hidden_size=36, num_attention_heads=6, num_key_value_heads=3,
        intermediate_size=72,
    )  # fmt: skip
    params, (tokens, _) = decoder.init(random.key(0), config), batch()
    layouts = parallel.tensor(params, mesh)
    sequence = parallel.SequenceParallel(mesh, batch="data")

    def loss(params: Any, tokens: Any, **how: Any) -> Any:
        return decoder.loss(params, tokens[:, :-1], tokens[:, 1:], config, remat=remat, **how)

    divided = functools.partial(loss, sequence=sequence)
    args = gf.device_put((params, tokens), (layouts, gf.NamedSharding(mesh, P("data"))))
    f = gf.value_and_grad(parallel.laid_out(divided, layouts))
    found: Counter[str] = Counter()
    for name, count in collectives(f, *args).items():
        direction, what, axis, _ = name.split()
        found[f"{direction} {what} {axis}"] += count
    again = 2 * LAYERS * remat
    assert found["forward all_gather model"] == found["forward psum_scatter model"] == 5
    assert found["backward all_gather model"] == 5 + again
    # What attention adds, which the second half of a layer reads, is made again.
    assert found["backward psum_scatter model"] == 5 + again // 2
    # Of the cross-entropy alone: two numbers a row.
    assert found["forward psum model"] == 2
    # Norms, which each device computes for its positions or its heads.
    assert found["backward psum model"] == 4 * LAYERS + 1
    value, grads = gf.jit(f)(*args)
    one, ones = gf.jit(gf.value_and_grad(loss))(params, tokens)
    np.testing.assert_allclose(value, one, rtol=1e-6)
    tree.map(functools.partial(np.testing.assert_allclose, atol=1e-6), grads, ones)
    tangents = tree.map(jnp.ones_like, params)
    _, along = gf.jvp(lambda p: divided(p, args[1]), (args[0],), (tangents,))
    wanted = gf.jvp(lambda p: loss(p, tokens), (params,), (tangents,))[1]
    np.testing.assert_allclose(along, wanted, rtol=1e-5)
    with pytest.raises(gf.errors.ShardingError, match="14"):
        divided(args[0], args[1][:, :-1])


def test_mixed_precision() -> None:
    """Weights are gathered as they are multiplied, in bfloat16; gradients are summed in float32."""
    params, (tokens, ids) = decoder.init(random.key(0), QWEN3), batch()
    loss, layouts = gf.amp(loss_of(QWEN3, False), "bfloat16"), layouts_of("fsdp_tp", params)
    rows = rows_of(layouts)

    def laid_out(params: Any, tokens: Any, ids: Any) -> Any:
        return loss(lax.with_sharding_constraint(params, layouts), tokens, ids)

    args = gf.device_put((params, tokens, ids), (layouts, rows, rows))
    found = collectives(gf.value_and_grad(laid_out), *args)
    assert found == expected("fsdp_tp", QWEN3, params, False)
    value, grads = gf.jit(gf.value_and_grad(laid_out))(*args)
    one, ones = gf.jit(gf.value_and_grad(loss))(params, tokens, ids)
    np.testing.assert_allclose(value, one, rtol=1e-3)
    tree.map(lambda g, h: np.testing.assert_allclose(g, h, atol=2e-2), grads, ones)


# ---- a training step ----


@pytest.mark.parametrize("way", MESHES)
def test_training_step(way: str) -> None:
    """The optimizer's state is divided as the parameters are: beside the gradients, only the sum of
    squares that clips them is communicated, once along each axis that divides parameters."""
    params, (tokens, ids) = decoder.init(random.key(0), QWEN3), batch()
    optimizer = optim.chain(optim.clip_by_global_norm(0.5), optim.adamw(1e-3))
    loss = loss_of(QWEN3, False)

    def step(layouts: Any, state: Any, tokens: Any, ids: Any) -> Any:
        params, moments, average = state

        def laid_out(params: Any) -> Any:
            at = params if layouts is None else lax.with_sharding_constraint(params, layouts)
            return loss(at, tokens, ids)

        value, grads = gf.value_and_grad(laid_out)(params)
        updates, moments = optimizer.update(grads, moments, params)
        params = optim.apply_updates(params, updates)
        return (params, moments, optim.incremental_update(params, average, 0.1)), value

    layouts = layouts_of(way, params)
    rows = rows_of(layouts)
    placed = gf.device_put(params, layouts)
    laid = functools.partial(step, layouts)
    args = ((placed, gf.jit(optimizer.init)(placed), placed), *gf.device_put((tokens, ids), rows))
    wanted = expected(way, QWEN3, params, False)
    wanted.update({f"forward psum {n} scalars": way != "dp" for n in MESHES[way][1]})
    assert collectives(laid, *args) == wanted
    state, value = gf.jit(laid)(*args)
    for kept in (state[0], state[1][1][0].mu, state[1][1][0].nu, state[2]):
        assert [x.sharding for x in tree.leaves(kept)] == tree.leaves(layouts)
    first = (params, optimizer.init(params), params)
    one, value_of_one = gf.jit(functools.partial(step, None))(first, tokens, ids)
    np.testing.assert_allclose(value, value_of_one, rtol=1e-6)
    tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=2e-6), state[2], one[2])
    tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, atol=1e-6), state[1][1][0].mu, one[1][1][0].mu
    )
