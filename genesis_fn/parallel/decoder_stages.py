"""Decoders in stages: the layers stacked, and the loss by `pipeline`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence

import genesis_fn.numpy as jnp
from genesis_fn import Array, ArrayLike, DTypeLike, PyTree, amp, checkpoint, lax, tree
from genesis_fn.core.errors import ArgumentError, ShapeError
from genesis_fn.core.sharding.mesh import Mesh
from genesis_fn.core.tree import first_difference
from genesis_fn.extend import take_rows
from genesis_fn.models import decoder
from genesis_fn.models.decoder_config import DecoderConfig
from genesis_fn.models.decoder_layer import (
    layers_of,
    rotary_angles,
    run_layer,
    visible_within,
    within_segments,
)
from genesis_fn.parallel.pipeline_schedule import pipeline


def stages_of(layers: Sequence[PyTree], stages: int) -> PyTree:
    """The parameters of layers that are alike, stacked as stages.

    Args:
        layers: the parameters of each layer, as `params["layers"]` of a decoder.
        stages: how many stages the layers are divided into, in their order.

    Returns:
        A pytree of arrays [stages, layers of a stage, ...].

    Raises:
        ShapeError: a layer differs from the first one, or they cannot be divided so.

    >>> stages_of([{"w": jnp.ones(3)}] * 4, 2)["w"].shape
    (2, 2, 3)
    """
    if stages < 1 or not layers or len(layers) % stages:
        raise ShapeError(f"stages_of: {len(layers)} layers cannot be divided into {stages} stages")
    for i, layer in enumerate(layers):
        if difference := _difference(layers[0], layer):
            raise ShapeError(f"stages_of: layer {i} is not as layer 0: {difference}")
    each = len(layers) // stages
    stack = lambda *xs: jnp.reshape(jnp.stack(xs), (stages, each, *jnp.shape(xs[0])))
    return tree.map(stack, *layers)


def _difference(a: PyTree, b: PyTree) -> str:
    """The first difference of structure, shape or dtype; "" if there is none."""
    if tree.structure(a) != tree.structure(b):
        return first_difference(a, b, "layer") or "other containers"
    for path, x, y in zip(tree.paths(a), tree.leaves(a), tree.leaves(b)):
        if (x.shape, x.dtype) != (y.shape, y.dtype):
            return f"{path} is {y.dtype}{list(y.shape)}, not {x.dtype}{list(x.shape)}"
    return ""


def layers_of_stages(stages: PyTree) -> list[PyTree]:
    """The parameters of each layer: the inverse of `stages_of`.

    Args:
        stages: pytree of arrays [stages, layers of a stage, ...].

    Returns:
        A list of the layers' parameters.

    >>> [layer["w"].shape for layer in layers_of_stages({"w": jnp.ones((2, 2, 3))})]
    [(3,), (3,), (3,), (3,)]
    """
    n, each = tree.leaves(stages)[0].shape[:2]
    return [
        tree.map(lambda x: x[stage, layer], stages) for stage in range(n) for layer in range(each)
    ]


def pipelined_decoder(
    config: DecoderConfig,
    mesh: Mesh,
    *,
    axis: Hashable = "stage",
    microbatches: int,
    ignore_index: int | None = None,
    z_loss: float = 0.0,
    remat: bool = False,
    compute: DTypeLike | None = None,
) -> Callable[..., Array]:
    """`models.decoder.loss` with the layers divided into stages along an axis of the mesh.

    Args:
        config: the hyperparameters; layers must be alike.
        mesh: the devices.
        axis: name of the axis along which stages follow each other.
        microbatches: how many micro-batches a batch is divided into (see `pipeline`).
        ignore_index: label of positions that do not count; the mean is over all that do.
        z_loss: weight of the penalty logsumexp(logits)**2 per position.
        remat: keep the inputs of a stage's layers alone while the stage runs backward.
        compute: 16-bit dtype of contractions, as by `gf.amp`; None for the parameters' own.

    Returns:
        A function of (params, tokens, labels, *, segment_ids=None) to the loss. `params` are the
        decoder's, with `stages_of(params["layers"], stages)` in place of the layers.

    Raises:
        ArgumentError: layers differ in their windows or experts, or their load-balancing loss is
            wanted, which is of all layers together; `microbatches` is less than 1.
        ShardingError: the mesh has no such axis.
        ShapeError: the axis does not divide the layers; when it is called, parameters are of
            another config, or `microbatches` does not divide the rows.

    >>> config = gf.models.DecoderConfig(64, 32, 64, 2, 4, 2, 8)
    >>> mesh = gf.make_mesh((1,), ("stage",))
    >>> params = gf.models.decoder.init(random.key(0), config)
    >>> params = {**params, "layers": stages_of(params["layers"], 1)}
    >>> loss = pipelined_decoder(config, mesh, microbatches=2)
    >>> tokens = jnp.array([[1, 2, 3, 4], [5, 6, 7, 8]])
    >>> loss(params, tokens[:, :-1], tokens[:, 1:]).shape
    ()
    """
    _check_alike(config)
    first = functools.partial(_embedded)
    stage = functools.partial(_through_layers, config=config, remat=remat)
    last = functools.partial(_ended, config=config, ignore_index=ignore_index, z_loss=z_loss)
    if compute is not None:
        first, stage, last = [amp(f, compute) for f in (first, stage, last)]
    staged = pipeline(first, stage, last, mesh, axis=axis, microbatches=microbatches)
    stages = mesh.shape[axis]
    if config.num_hidden_layers % stages:
        raise ShapeError(
            f"pipelined_decoder: {config.num_hidden_layers} layers cannot be divided into {stages} "
            "stages"
        )

    def loss(
        params: PyTree,
        tokens: ArrayLike,
        labels: ArrayLike,
        *,
        segment_ids: ArrayLike | None = None,
    ) -> Array:
        _check_params(params, config, stages)
        parts = {
            "first": params["embed_tokens"],
            "stages": params["layers"],
            "last": {"norm": params["norm"], "head": decoder.head_weight(params)},
        }
        inputs = {"tokens": jnp.asarray(tokens)}
        if segment_ids is not None:
            inputs["segment_ids"] = jnp.asarray(segment_ids)
        return staged(parts, inputs, labels)

    return loss


def _check_alike(config: DecoderConfig) -> None:
    for name, values in (("windows", config.windows), ("sparse_layers", config.sparse_layers)):
        for i, value in enumerate(values):
            if value != values[0]:
                raise ArgumentError(
                    f"pipelined_decoder: layer {i} is not as layer 0: config.{name} has {value} "
                    f"for it, not {values[0]}; the layers of a stage are one loop"
                )
    if config.output_router_logits and config.num_experts:
        raise ArgumentError(
            "pipelined_decoder: config.output_router_logits wants a loss of the routing of all "
            "layers together, which no stage has"
        )


def _check_params(params: PyTree, config: DecoderConfig, stages: int) -> None:
    """Raise ShapeError for parameters of another config, or whose layers are not stacked so."""
    stacked, each = params.get("layers"), config.num_hidden_layers // stages
    if isinstance(stacked, (list, tuple)):
        raise ShapeError(
            f"pipelined_decoder: params['layers'] is a list of layers\n  stack them: "
            f"stages_of(params['layers'], {stages})"
        )
    for path, x in zip(tree.paths(stacked), tree.leaves(stacked)):
        if x.shape[:2] != (stages, each):
            raise ShapeError(
                f"pipelined_decoder: layers{path} {list(x.shape)} must begin with {stages} stages "
                f"of {each} layers"
            )
    layers_of({**params, "layers": [stacked] * config.num_hidden_layers}, config)


# ---- the parts of the model ----


def _embedded(p: PyTree, inputs: dict[str, Array]) -> Array:
    return take_rows(p["weight"], inputs["tokens"])


def _through_layers(
    p: PyTree, x: Array, inputs: dict[str, Array], *, config: DecoderConfig, remat: bool
) -> Array:
    """The activations [B, T, hidden] after the layers of one stage, whose parameters are stacked
    [layers, ...]."""
    t, ids = x.shape[1], inputs.get("segment_ids")
    places = jnp.arange(t)[None, :] if ids is None else within_segments(ids, x.shape[:2])
    angles = rotary_angles(places, config)
    visible = {"segment_ids": ids, **visible_within(t, config.windows[0])}

    def layer(x: Array, p: PyTree) -> Array:
        return run_layer(p, x, angles, config, visible)[0]

    step = checkpoint(layer) if remat else layer
    return lax.scan(lambda x, p: (step(x, p), None), x, p)[0]


def _ended(
    p: PyTree,
    x: Array,
    labels: Array,
    *,
    config: DecoderConfig,
    ignore_index: int | None,
    z_loss: float,
) -> tuple[Array, Array]:
    """(the sum of the cross-entropies, the number of labels that count)."""
    x = lax.rms_norm(x, p["norm"]["weight"], eps=config.rms_norm_eps)
    return decoder.cross_entropy_sum(x, p["head"], labels, ignore_index, z_loss)
