"""A weight with a low-rank adapter beside it, as the product with it is computed."""

from __future__ import annotations

from typing import Any

import genesis_fn.numpy as jnp
import genesis_fn.random as random
from genesis_fn import Array, ArrayLike, Key, lax, tree


@tree.dataclass
class LoraWeight:
    """A frozen weight and its adapter, in the place of the weight: `nn.linear` multiplies by it.

        x @ weight.T + scaling * dropout(x) @ lora_A.T @ lora_B.T

    and with a magnitude, as DoRA has it, the weight's and the adapter's rows together have that
    norm. `nn.lora.apply` makes them.

    Source: Hu et al., "LoRA: low-rank adaptation of large language models", 2021; Liu et al.,
    "DoRA: weight-decomposed low-rank adaptation", 2024.

    Args:
        weight: floating array [out, in].
        lora_A: array [r, in].
        lora_B: array [out, r].
        magnitude: array [out]; None: no DoRA.
        key: of the dropout; None drops nothing.
        scaling: number.
        dropout: share of the adapter's inputs that is dropped, in [0, 1).

    >>> x = jnp.ones((1, 2))
    >>> weight = nn.LoraWeight(jnp.eye(2), jnp.ones((1, 2)), jnp.ones((2, 1)), scaling=0.5)
    >>> nn.linear(x, weight)
    Array([[2., 2.]], dtype=float32)
    """

    weight: Array
    lora_A: Array
    lora_B: Array
    magnitude: Array | None = None
    key: Key | None = None
    scaling: float = tree.static_field(default=1.0)
    dropout: float = tree.static_field(default=0.0)

    @property
    def shape(self) -> tuple[int, ...]:
        """That of the weight."""
        return self.weight.shape

    @property
    def ndim(self) -> int:
        """That of the weight."""
        return self.weight.ndim

    @property
    def dtype(self) -> Any:
        """That of the weight."""
        return self.weight.dtype

    def multiply(self, x: Array) -> Array:
        """The product of x [..., in] with the adapted weight, [..., out]."""
        y = _product(x, self.weight)
        dropped = x
        if self.key is not None and self.dropout:
            kept = random.bernoulli(self.key, 1 - self.dropout, x.shape)
            dropped = jnp.where(kept, x / (1 - self.dropout), 0).astype(x.dtype)
        # In the dtype of the activations: the adapter's own may be wider.
        # It is scaled where it is thin, so that the wide sum is one of products alone: the compiler
        # makes one product of it.
        low = self.scaling * _product(dropped, self.lora_A.astype(x.dtype))
        low = _product(low, self.lora_B.astype(x.dtype))
        if self.magnitude is None:
            return (y + low).astype(y.dtype)
        share = self._share().astype(y.dtype)
        if dropped is x:
            return share * (y + low)
        return y + (share - 1) * _product(dropped, self.weight) + share * low

    def _share(self) -> Array:
        """By what DoRA multiplies each row. Its norm counts as a constant in derivatives, as in the
        paper: section 4.3."""
        assert self.magnitude is not None
        total = lax.stop_gradient(self._sum())
        return self.magnitude / jnp.sqrt(jnp.sum(total * total, axis=1))

    def _sum(self) -> Array:
        """The weight and its adapter, [out, in], in float32 at least."""
        wide = jnp.promote_types(self.weight.dtype, jnp.float32)
        return self.weight.astype(wide) + self.scaling * (
            self.lora_B.astype(wide) @ self.lora_A.astype(wide)
        )

    def merged(self) -> Array:
        """One weight that multiplies as the two do, [out, in], in the dtype of the weight."""
        total = self._sum()
        if self.magnitude is not None:
            total = self._share()[:, None] * total
        return total.astype(self.weight.dtype)


def plain_weight(weight: ArrayLike | LoraWeight) -> Array:
    """A weight as one array: that of a weight with its adapter, or itself.

    Args:
        weight: array [out, in], or a `LoraWeight`.

    Returns:
        An array [out, in].

    >>> weight = nn.LoraWeight(jnp.eye(2), jnp.ones((1, 2)), jnp.ones((2, 1)))
    >>> nn.plain_weight(weight)
    Array([[2., 1.],
           [1., 2.]], dtype=float32)
    """
    return weight.merged() if isinstance(weight, LoraWeight) else jnp.asarray(weight)


def _product(x: Array, weight: Array) -> Array:
    return jnp.einsum("...i,oi->...o", x, weight)
