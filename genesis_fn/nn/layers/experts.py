"""Mixture of experts: routing as data, its losses, the experts' products, and the layer MoE."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Literal

import genesis_fn.numpy as jnp
import genesis_fn.random as random
from genesis_fn import Array, ArrayLike, DTypeLike, Key, PyTree
from genesis_fn.errors import ArgumentError, ShapeError
from genesis_fn.extend import wide
from genesis_fn.lax import stop_gradient, top_k as greatest
from genesis_fn.nn.expert_rows import (
    expert_order,
    expert_product,
    rows_of_choices,
    rows_of_tokens,
    tokens_of_rows,
)
from genesis_fn.nn.functions import logsumexp, sigmoid, silu, softmax
from genesis_fn.nn.layers.dense import Linear
from genesis_fn.nn.layers.feed_forward import GatedMLP, check_activation
from genesis_fn.nn.module import (
    Module,
    call_part,
    check_fields,
    checked_input,
    init_parts,
    lookup_within,
    shown,
    uniform_fan_in,
)

# Sums of scores that are all 0 divide 0, not NaN; no other sum in float32 changes.
_LEAST_SUM = 1e-20


def _single(x: ArrayLike) -> Array:
    """`x` in float32; float64 stays."""
    x = jnp.asarray(x)
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


# ---- routing ----


@wide
def router_logits(x: ArrayLike, weight: ArrayLike) -> Array:
    """x @ weight.T in float32, whatever the dtypes and under `amp`: a rounded logit chooses another
    expert.

    Args:
        x: array [..., features].
        weight: array [E, features], a row for each expert.

    Returns:
        An array [..., E], float32 (float64 of float64), for `top_k_routing`.

    >>> nn.router_logits(jnp.ones((5, 3), jnp.bfloat16), jnp.ones((4, 3), jnp.bfloat16)).dtype
    dtype('float32')
    """
    dtype = jnp.promote_types(jnp.result_type(x, weight), jnp.float32)
    return jnp.einsum("...i,oi->...o", x, weight, preferred_element_type=dtype)


def top_k_routing(
    logits: ArrayLike,
    k: int,
    *,
    normalize: bool = True,
    score: Literal["softmax", "sigmoid"] = "softmax",
    bias: ArrayLike | None = None,
) -> tuple[Array, Array, Array]:
    """The k experts of each token with the greatest scores, and their weights.

    With scores s = softmax(logits) over all experts, or sigmoid(logits):

        experts = the k greatest of s + bias, the earlier of equal ones first
        weights = s[experts], divided by their sum if normalize

    Source: Shazeer et al., "Outrageously Large Neural Networks: The Sparsely-Gated
    Mixture-of-Experts Layer", 2017; `bias` from DeepSeek-AI, "DeepSeek-V3 Technical Report", 2024.

    Args:
        logits: array [..., E], one for each expert; computed in float32 (float64 stays).
        k: number of experts of a token, from 1 to E.
        normalize: whether the weights of a token sum to 1.
        score: "softmax" over all experts, or "sigmoid" of each alone.
        bias: array [E] that is added to scores where experts are chosen, and not in weights; None
            adds nothing.

    Returns:
        (weights [..., k], experts int32 [..., k], probabilities [..., E]). Probabilities sum to 1:
        softmax's scores, or sigmoid's divided by their sum. Weights and probabilities have
        derivatives, the choice has none.

    Raises:
        ArgumentError: `k` is not from 1 to E, or there is no such `score`.
        ShapeError: `bias` is not [E].

    >>> weights, experts, _ = nn.top_k_routing(jnp.array([1.0, 3.0, 2.0]), 2)
    >>> weights, experts
    (Array([0.7310586 , 0.26894143], dtype=float32), Array([1, 2], dtype=int32))
    """
    logits = _single(logits)
    count = logits.shape[-1] if logits.ndim else 0
    if not 1 <= k <= count:
        raise ArgumentError(
            f"top_k_routing: k is {k!r:.60}, but is from 1 to the {count} experts of the logits "
            f"{shown(logits)}"
        )
    if score == "softmax":
        scores = probabilities = softmax(logits, -1)
    elif score == "sigmoid":
        scores = sigmoid(logits)
        probabilities = scores / (jnp.sum(scores, -1, keepdims=True) + _LEAST_SUM)
    else:
        raise ArgumentError(f'top_k_routing: score is {score!r:.60}, but is "softmax" or "sigmoid"')
    choice = scores
    if bias is not None:
        if jnp.shape(bias) != (count,):
            raise ShapeError(f"top_k_routing: bias is {shown(bias)}, but has to be [{count}]")
        choice = scores + _single(bias)
    _, experts = greatest(stop_gradient(choice), int(k))
    # Not a gather: its derivative would add k * T numbers to rows, which sorts them.
    mine = experts[..., None] == jnp.arange(count, dtype=jnp.int32)
    weights = jnp.sum(jnp.where(mine, scores[..., None, :], 0), -1)
    if normalize:
        weights = weights / (jnp.sum(weights, -1, keepdims=True) + _LEAST_SUM)
    return weights, experts, probabilities


def expert_load(experts: ArrayLike, num_experts: int, where: ArrayLike | None = None) -> Array:
    """How many tokens each expert has.

    Args:
        experts: integers [..., k], from `top_k_routing`.
        num_experts: number of experts, E.
        where: booleans [...]: the tokens that count; None counts all.

    Returns:
        int32 [E].

    >>> nn.expert_load(jnp.array([[0, 1], [1, 2]]), 4)
    Array([1, 2, 1, 0], dtype=int32)
    """
    chosen: Array = jnp.asarray(experts)
    mine = chosen[..., None] == jnp.arange(num_experts, dtype=chosen.dtype)
    if where is not None:
        counted = _tokens("expert_load", where, chosen.shape[:-1])
        mine = mine & counted[..., None, None]
    return jnp.sum(mine, tuple(range(chosen.ndim)), dtype=jnp.int32)


def _tokens(name: str, where: ArrayLike, shape: tuple[int, ...]) -> Array:
    """`where` as booleans; raises ShapeError if there is not one for each token."""
    if jnp.shape(where) != shape:
        raise ShapeError(f"{name}: where is {shown(where)}, but has to be {list(shape)}: tokens")
    return jnp.asarray(where) != 0


# ---- losses of a router ----


def load_balancing_loss(
    probabilities: ArrayLike, experts: ArrayLike, num_experts: int, where: ArrayLike | None = None
) -> Array:
    """The loss that is least where all experts have as many tokens.

        E * sum over e of f[e] * P[e]

    f[e] is the number of choices of expert e divided by the number of tokens, P[e] its mean
    probability: k where all are equal. f has no derivative. Source: Fedus, Zoph and Shazeer,
    "Switch Transformers", 2021, after Shazeer et al., 2017; normalised as in Hugging Face's
    transformers. Without a token it is 0.

    Args:
        probabilities: array [..., E], from `top_k_routing`.
        experts: integers [..., k], from `top_k_routing`.
        num_experts: number of experts, E.
        where: booleans [...]: the tokens that count, an attention mask; None counts all.

    Returns:
        A scalar, float32 (float64 of float64).

    Raises:
        ShapeError: an array does not have the shape above.

    >>> _, experts, probabilities = nn.top_k_routing(jnp.zeros((6, 4)), 2)
    >>> nn.load_balancing_loss(probabilities, experts, 4)
    Array(2., dtype=float32)
    """
    p = _single(probabilities)
    if p.ndim == 0 or p.shape[-1] != num_experts or jnp.shape(experts)[:-1] != p.shape[:-1]:
        raise ShapeError(
            f"load_balancing_loss: probabilities are {shown(p)} and experts {shown(experts)}, but "
            f"have to be [..., {num_experts}] and [..., k] of the same tokens"
        )
    load = expert_load(experts, num_experts, where).astype(p.dtype)
    tokens = _token_count(p.shape[:-1], where, p.dtype)
    if where is not None:
        p = jnp.where(_tokens("load_balancing_loss", where, p.shape[:-1])[..., None], p, 0)
    mean = jnp.sum(p, tuple(range(p.ndim - 1))) / tokens
    return num_experts * jnp.sum(load / tokens * mean)


def _token_count(shape: tuple[int, ...], where: ArrayLike | None, dtype: DTypeLike) -> Array:
    """The number of tokens that count, at least 1."""
    every = jnp.ones(shape, bool) if where is None else jnp.asarray(where) != 0
    return jnp.maximum(jnp.sum(every, dtype=dtype), 1)


def router_z_loss(logits: ArrayLike, where: ArrayLike | None = None) -> Array:
    """The loss that keeps a router's logits small.

        mean over tokens of logsumexp(logits)**2

    Source: Zoph et al., "ST-MoE: Designing Stable and Transferable Sparse Expert Models", 2022.
    Without a token it is 0.

    Args:
        logits: array [..., E].
        where: booleans [...]: the tokens that count; None counts all.

    Returns:
        A scalar, float32 (float64 of float64).

    Raises:
        ShapeError: `where` has not one element for each token.

    >>> nn.router_z_loss(jnp.zeros((6, 4)))
    Array(1.9218121, dtype=float32)
    """
    logits = _single(logits)
    square = logsumexp(logits, -1) ** 2
    if where is not None:
        square = jnp.where(_tokens("router_z_loss", where, square.shape), square, 0)
    return jnp.sum(square) / _token_count(square.shape, where, square.dtype)


# ---- the experts ----


def expert_mlp(
    x: ArrayLike,
    weights: ArrayLike,
    experts: ArrayLike,
    params: PyTree,
    activation: Callable[[Array], Array] = silu,
) -> Array:
    """The weighted sum of each token's experts, gated feed-forward blocks.

        y[t] = sum over j of weights[t, j] * mlp(experts[t, j], x[t])
        mlp(e, x) = down[e] @ (activation(gate[e] @ x) * (up[e] @ x))

    Rows are sorted by expert and multiplied in groups. No token is dropped, however many an expert
    has.

    Args:
        x: array [T, features], a token a row.
        weights: array [T, k], from `top_k_routing`.
        experts: integers [T, k]; an index outside of the E experts is none, and adds nothing.
        params: {"gate_proj": {"weight": [E, hidden, features]}, "up_proj": the same, "down_proj":
            {"weight": [E, features, hidden]}}.
        activation: function of the gate.

    Returns:
        An array [T, features], of the dtype that `x` and the parameters promote to.

    Raises:
        ShapeError: an array does not have the shape above.

    >>> params = nn.MoE(3, 8, experts=4, top_k=2).init(random.key(0))["experts"]
    >>> weights, experts, _ = nn.top_k_routing(jnp.zeros((5, 4)), 2)
    >>> nn.expert_mlp(jnp.ones((5, 3)), weights, experts, params).shape
    (5, 3)
    """
    rows: Array = jnp.asarray(x)
    gate, up, down = [params[n]["weight"] for n in ("gate_proj", "up_proj", "down_proj")]
    _check_shapes(rows, weights, experts, gate, up, down)
    count = gate.shape[0]
    dtype = jnp.result_type(rows, gate, up, down)
    chosen: Array = jnp.asarray(experts)
    chosen = jnp.where((chosen >= 0) & (chosen < count), chosen, count)
    order = expert_order(chosen, count=count)
    grouped = rows_of_tokens(rows.astype(dtype), order)
    product = lambda x, weight: expert_product(x, weight.astype(x.dtype), chosen)
    h = activation(product(grouped, gate)) * product(grouped, up)
    # Weighting the hidden features instead of the outputs touches fewer numbers.
    h = (h * rows_of_choices(jnp.asarray(weights), order)[..., None]).astype(dtype)
    return tokens_of_rows(product(h, down), order)


def _check_shapes(
    x: Array, weights: ArrayLike, experts: ArrayLike, gate: Array, up: Array, down: Array
) -> None:
    routing = jnp.shape(experts)
    if x.ndim != 2 or len(routing) != 2 or routing[0] != x.shape[0]:
        raise ShapeError(
            f"expert_mlp: x is {shown(x)} and experts {shown(experts)}, but have to be "
            "[T, features] and [T, k]"
        )
    if jnp.shape(weights) != routing:
        raise ShapeError(
            f"expert_mlp: weights are {shown(weights)}, but have to be [T, k] as experts, "
            f"{list(routing)}"
        )
    e, hidden = gate.shape[:2] if len(gate.shape) == 3 else (0, 0)
    wanted = (e, hidden, x.shape[1])
    if gate.shape != wanted or up.shape != wanted or down.shape != (e, x.shape[1], hidden):
        raise ShapeError(
            f"expert_mlp: the weights of gate_proj, up_proj and down_proj are {shown(gate)}, "
            f"{shown(up)} and {shown(down)}, but have to be [E, hidden, {x.shape[1]}] twice and "
            f"[E, {x.shape[1]}, hidden]"
        )


@dataclasses.dataclass(frozen=True)
class MoE(Module):
    """A mixture of experts: each token through the `top_k` feed-forward blocks that a router chose.

        y = sum over j of weights[j] * mlp(experts[j], x) + shared(x)

    Weights and experts are those of `top_k_routing` for logits gate(x), in float32 whatever the
    dtype of `x`; each block is a `GatedMLP`. No token is dropped. Source: Shazeer et al.,
    "Outrageously Large Neural Networks", 2017; the shared expert from Dai et al., "DeepSeekMoE",
    2024. The layer is the block of Mixtral and Qwen3-MoE, with a shared expert and its gate that of
    Qwen2-MoE (`normalize=False`).

    Parameters: `gate` {"weight": [experts, features]}; `experts`, with `gate_proj` and `up_proj`
    {"weight": [experts, hidden, features]} and `down_proj` {"weight": [experts, features, hidden]};
    `shared_expert`, that of a `GatedMLP`, and `shared_expert_gate` {"weight": [1, features]} where
    there are such. All are uniform in +-1 / sqrt(fan_in). Input and output [..., features].

    The layer can be called without its state. With `state=` it returns (output, state): the losses
    of the call, to be added to the model's, and its load.
    `{"balance_loss": load_balancing_loss, "z_loss": router_z_loss, "load": tokens per expert, int32
    [experts]}`.

    Args:
        features: length of the last axis of input and output.
        hidden: number of hidden features of an expert.
        experts: number of experts.
        top_k: number of experts of a token.
        shared_hidden: number of hidden features of the expert that every token has; 0 means that
            there is none.
        shared_gate: whether sigmoid(shared_expert_gate(x)) multiplies the shared expert's output.
        activation: function of the gate within experts.
        normalize: whether the weights of a token sum to 1.
        dtype: of the parameters.

    Raises:
        ArgumentError: a size is no count, `top_k` is not from 1 to `experts`, `activation` is no
            function, or there is a gate and no shared expert.

    >>> layer = nn.MoE(4, 8, experts=6, top_k=2)
    >>> params = layer.init(random.key(0))
    >>> layer(params, jnp.ones((3, 4))).shape
    (3, 4)
    >>> y, state = layer(params, jnp.ones((3, 4)), state=layer.init_state())
    >>> state["load"].sum()
    Array(6, dtype=int32)
    """

    features: int
    hidden: int
    experts: int
    top_k: int
    _: dataclasses.KW_ONLY
    shared_hidden: int = 0
    shared_gate: bool = False
    activation: Callable[[Array], Array] = silu
    normalize: bool = True
    dtype: DTypeLike = jnp.float32

    def __post_init__(self) -> None:
        check_fields(self)
        check_activation(self, self.activation)
        if not 1 <= self.top_k <= self.experts:
            raise ArgumentError(
                f"MoE: top_k is {self.top_k}, but is from 1 to experts={self.experts}"
            )
        if self.shared_gate and not self.shared_hidden:
            raise ArgumentError(
                "MoE: shared_gate=True gates a shared expert, but there is none\n"
                "  give its number of hidden features: shared_hidden="
            )

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the experts' weights."""
        up = (self.experts, self.hidden, self.features)
        return {
            "gate_proj": up,
            "up_proj": up,
            "down_proj": (self.experts, self.features, self.hidden),
        }

    def _parts(self) -> dict[str, Module]:
        """The layers that are no experts."""
        router = Linear(self.features, self.experts, False, self.dtype)
        parts: dict[str, Module] = {"gate": router}
        if self.shared_hidden:
            parts["shared_expert"] = GatedMLP(
                self.features, self.shared_hidden, self.activation, dtype=self.dtype
            )
        if self.shared_gate:
            parts["shared_expert_gate"] = Linear(self.features, 1, False, self.dtype)
        return parts

    def init(self, key: Key) -> dict[str, Any]:
        experts_key, parts_key = random.split(key)
        shapes = self._shapes()
        params = init_parts(self._parts(), parts_key)
        params["experts"] = {
            name: {"weight": uniform_fan_in(k, shape, shape[-1], self.dtype)}
            for (name, shape), k in zip(shapes.items(), random.split(experts_key, len(shapes)))
        }
        return params

    def init_state(self, **sizes: Any) -> dict[str, Array]:
        return {
            "balance_loss": jnp.zeros((), self._loss_dtype),
            "z_loss": jnp.zeros((), self._loss_dtype),
            "load": jnp.zeros((self.experts,), jnp.int32),
        }

    @property
    def _loss_dtype(self) -> DTypeLike:
        """Of the losses in the state, whatever the input's: a loop's carry keeps its dtypes."""
        return jnp.promote_types(self.dtype, jnp.float32)

    def __call__(
        self,
        params: PyTree,
        x: ArrayLike,
        *,
        state: PyTree = None,
        key: Key | None = None,
        train: bool = False,
        where: ArrayLike | None = None,
    ) -> PyTree:
        """The layer's output; (output, state) where `state` is given.

        `where`, booleans of the shape of `x` without its last axis, says which tokens count in the
        losses and the load; every token has its experts.
        """
        x = jnp.asarray(checked_input(self, x, self.features, "features"))
        tokens = jnp.reshape(x, (-1, self.features))
        router = lookup_within(self, params, ["gate", "weight"], (self.experts, self.features))
        stacked = {
            name: {"weight": lookup_within(self, params, ["experts", name, "weight"], shape)}
            for name, shape in self._shapes().items()
        }
        logits = router_logits(tokens, router)
        weights, experts, probabilities = top_k_routing(
            logits, self.top_k, normalize=self.normalize
        )
        y = expert_mlp(tokens, weights, experts, stacked, self.activation)
        if self.shared_hidden:
            y = y + self._shared(params, tokens)
        y = jnp.reshape(y, x.shape)
        if state is None:
            return y
        if where is not None:
            where = jnp.reshape(_tokens("MoE", where, x.shape[:-1]), (-1,))
        balance = load_balancing_loss(probabilities, experts, self.experts, where)
        return y, {
            "balance_loss": balance.astype(self._loss_dtype),
            "z_loss": router_z_loss(logits, where).astype(self._loss_dtype),
            "load": expert_load(experts, self.experts, where),
        }

    def _shared(self, params: PyTree, x: Array) -> Array:
        parts = self._parts()
        y = call_part(self, parts["shared_expert"], params, "shared_expert", x)
        if not self.shared_gate:
            return y
        gate = call_part(self, parts["shared_expert_gate"], params, "shared_expert_gate", x)
        return sigmoid(gate) * y
