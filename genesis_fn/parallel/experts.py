"""Expert parallelism: the experts of a mixture are divided among devices, and tokens go to them.

Each device routes its own tokens, sends them to the devices that hold their experts (`all_to_all`),
computes its experts for what it received, and sends the results back, after GShard (Lepikhin et al.
2020) and Switch Transformers (Fedus et al. 2021). A token goes to a device once, however many of
its experts are there, and comes back as their weighted sum.

Shapes are static: a device has a buffer of `capacity` tokens for each other one. As long as that is
the number of its tokens, none is dropped and the result is that of one device; a smaller capacity
saves memory and time, and drops what does not fit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence

import genesis_fn.numpy as jnp
from genesis_fn import Array, ArrayLike, P, PyTree, errors, lax, nn, shard_map
from genesis_fn.extend import segment_sum, take_rows, where
from genesis_fn.nn import silu
from genesis_fn.sharding import Mesh


def dispatched_mlp(
    x: ArrayLike,
    weights: ArrayLike,
    experts: ArrayLike,
    params: PyTree,
    activation: Callable[[Array], Array] = silu,
    *,
    axis: Hashable,
    capacity_factor: float | None = None,
) -> Array:
    """`nn.expert_mlp` within `shard_map`, of experts that the devices along an axis hold.

    Source: Lepikhin et al., "GShard: Scaling Giant Models with Conditional Computation and
    Automatic Sharding", 2020; Fedus, Zoph and Shazeer, "Switch Transformers", 2021.

    Args:
        x: array [T, features], this device's tokens.
        weights: array [T, k], from `nn.top_k_routing`.
        experts: integers [T, k] from 0 to E - 1, counted over all devices; others are none.
        params: the weights of this device's experts as `nn.expert_mlp` takes them: device i of n
            has the experts from i * E / n on.
        activation: function of the gate.
        axis: the axis of the mesh along which experts and tokens are divided.
        capacity_factor: how many tokens a device can send to another, in multiples of T * k / n,
            which all send where experts have equal load. Of more tokens the last ones are dropped:
            they lack what those experts would add. None drops none.

    Returns:
        An array [T, features], of the dtype that `x` and the parameters promote to.

    Raises:
        ShapeError: an array does not have the shape above.
        ArgumentError: `capacity_factor` is not positive.

    >>> mesh = gf.make_mesh((1,), ("expert",))
    >>> params = nn.MoE(3, 8, experts=4, top_k=2).init(random.key(0))["experts"]
    >>> weights, experts, _ = nn.top_k_routing(jnp.zeros((5, 4)), 2)
    >>> f = lambda *xs: parallel.dispatched_mlp(*xs, axis="expert")
    >>> along = gf.P("expert")
    >>> g = gf.shard_map(f, mesh=mesh, in_specs=along, out_specs=along)
    >>> g(jnp.ones((5, 3)), weights, experts, params).shape
    (5, 3)
    """
    rows, chosen = jnp.asarray(x), jnp.asarray(experts).astype(jnp.int32)
    _check("dispatched_mlp", rows, weights, chosen)
    n, (tokens, k) = lax.axis_size(axis), chosen.shape
    own = params["gate_proj"]["weight"].shape[0]
    first = own * jnp.arange(n, dtype=jnp.int32)  # each device's first expert
    theirs = (chosen[:, :, None] >= first) & (chosen[:, :, None] < first + own)
    token = _sent(jnp.any(theirs, 1), _capacity(tokens, k, n, capacity_factor))

    exchanged = lambda y: lax.all_to_all(y, axis, 0, 0, tiled=True)
    received = exchanged(take_rows(rows, token, mode="fill", fill_value=0))
    shares = exchanged(take_rows(jnp.asarray(weights), token, mode="fill", fill_value=0))
    # Counted from the receiver's first one, so that others' are out of its range.
    ids = take_rows(chosen, token, mode="fill", fill_value=-1) - first[:, None, None]
    flat = lambda y: jnp.reshape(y, (-1, y.shape[-1]))
    y = nn.expert_mlp(flat(received), flat(shares), flat(exchanged(ids)), params, activation)
    returned = exchanged(jnp.reshape(y, (n, -1, y.shape[-1])))
    return segment_sum(returned, token, tokens)


def _capacity(tokens: int, k: int, devices: int, factor: float | None) -> int:
    """How many tokens a device can send to another one."""
    if factor is None:
        return tokens
    if not factor > 0:
        raise errors.ArgumentError(f"capacity_factor is {factor}, but is positive or None")
    return min(tokens, math.ceil(factor * tokens * k / devices))


def _sent(wanted: Array, capacity: int) -> Array:
    """The tokens [n, capacity] that each of n devices is sent, of those that `wanted` [T, n] marks:
    the first ones; T where there are fewer."""
    tokens = wanted.shape[0]
    order = jnp.argsort((~wanted).astype(jnp.uint8), axis=0, stable=True)[:capacity]
    count = jnp.sum(wanted, 0, dtype=jnp.int32)
    filled = jnp.arange(order.shape[0], dtype=jnp.int32)[:, None] < count
    return jnp.swapaxes(jnp.where(filled, order, tokens), 0, 1)


# ---- whole arrays ----


def expert_mlp(
    x: ArrayLike,
    weights: ArrayLike,
    experts: ArrayLike,
    params: PyTree,
    activation: Callable[[Array], Array] = silu,
    *,
    mesh: Mesh,
    axis: Hashable,
    batch_axes: Sequence[Hashable] = (),
    capacity_factor: float | None = None,
) -> Array:
    """`nn.expert_mlp` of whole arrays, computed by devices that each hold some of the experts.

        experts = functools.partial(parallel.expert_mlp, mesh=mesh, axis="expert")
        models.qwen.loss(params, tokens, labels, config, experts=experts)

    Tokens are divided among the same devices. The axis may be one that divides the batch, as in
    GShard; then `batch_axes` are the others that do.

    Source: Lepikhin et al., "GShard", 2020; Fedus et al., "Switch Transformers", 2021.

    Args:
        x: array [T, features], a token a row.
        weights: array [T, k], from `nn.top_k_routing`.
        experts: integers [T, k]; an index outside of the E experts is none, and adds nothing.
        params: as of `nn.expert_mlp`, with E a multiple of the number of devices along the axis.
        activation: function of the gate.
        mesh: the devices.
        axis: the axis of the mesh that divides experts and tokens.
        batch_axes: axes that divide the tokens before: each of their positions exchanges its own
            tokens only, and has all experts.
        capacity_factor: as of `dispatched_mlp`, for the tokens of a device; None drops none.

    Returns:
        An array [T, features], of the dtype that `x` and the parameters promote to.

    Raises:
        ShapeError: an array does not have the shape above.
        ShardingError: the axis does not divide the experts.
        ArgumentError: `capacity_factor` is not positive.

    >>> mesh = gf.make_mesh((1,), ("expert",))
    >>> params = nn.MoE(3, 8, experts=4, top_k=2).init(random.key(0))["experts"]
    >>> weights, experts, _ = nn.top_k_routing(jnp.zeros((5, 4)), 2)
    >>> args = jnp.ones((5, 3)), weights, experts, params
    >>> parallel.expert_mlp(*args, mesh=mesh, axis="expert").shape
    (5, 3)
    """
    rows, chosen = jnp.asarray(x), jnp.asarray(experts).astype(jnp.int32)
    _check("expert_mlp", rows, weights, chosen)
    names = (*batch_axes, axis)
    missing = -rows.shape[0] % math.prod(mesh.shape[a] for a in names)

    def filled(y: ArrayLike, fill: int = 0) -> Array:
        around = ((0, missing), (0, 0))
        return jnp.pad(y, around, constant_values=fill) if missing else jnp.asarray(y)

    def of_parts(x: Array, weights: Array, experts: Array, params: PyTree) -> Array:
        return dispatched_mlp(
            x, weights, experts, params, activation, axis=axis, capacity_factor=capacity_factor
        )

    divided = shard_map(
        of_parts,
        mesh=mesh,
        in_specs=(P(names), P(names), P(names), P(axis)),
        out_specs=P(names),
        axis_names={*names},
    )
    return divided(filled(rows), filled(weights), filled(chosen, -1), params)[: rows.shape[0]]


def _check(what: str, x: Array, weights: ArrayLike, experts: Array) -> None:
    """Raise ShapeError where the tokens and their routing do not fit."""
    shapes = [list(jnp.shape(y)) for y in (x, weights, experts)]
    if x.ndim != 2 or experts.ndim != 2 or shapes[1] != shapes[2] or shapes[2][0] != shapes[0][0]:
        raise errors.ShapeError(
            f"{what}: x is {shapes[0]}, weights are {shapes[1]} and experts {shapes[2]}, but have "
            f"to be [T, features] and [T, k] twice\n  at {where().describe()}"
        )
