"""Rows in the order of their experts: [T, k] rows, one for each choice of each of T tokens.

Each of these is one operation that takes tokens by themselves, so that tokens divided among devices
stay so: a device orders the rows of its own tokens. That nothing else reads the order of rows makes
this right.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import genesis_fn.numpy as jnp
from genesis_fn import Array
from genesis_fn.extend import fused, ragged_contraction, segment_sum, take_rows
from genesis_fn.lax import ragged_dot

# Tokens times rows up to which rows are added by comparing each with every token: one launch, where
# `segment_sum` sorts in five. A step of decoding has few.
_MOST_COMPARED = 512


@fused("expert_order", static=("count",), dims="T k -> T k")
def expert_order(chosen: Array, *, count: int) -> Array:
    """The order of rows by expert, from 0 to `count`: which choice, counted over all tokens, is the
    first row, the second, ...: int32 [T, k]."""
    # The fewer bits, the fewer passes a sort takes.
    narrow = jnp.uint8 if count < 2**8 else jnp.int32
    order = jnp.argsort(jnp.reshape(chosen, (-1,)).astype(narrow), stable=True)
    return jnp.reshape(order, chosen.shape)


def _tokens(order: Array) -> Array:
    """The token of each row."""
    return jnp.reshape(order, (-1,)) // order.shape[1]


def _flat(rows: Array) -> Array:
    return jnp.reshape(rows, (-1, rows.shape[-1]))


def _like(rows: Array, order: Array) -> Array:
    return jnp.reshape(rows, (*order.shape, rows.shape[-1]))


# ---- tokens to rows, and back ----


@fused("rows_of_tokens", dims="T D, T k -> T k D")
def rows_of_tokens(x: Array, order: Array) -> Array:
    """The rows [T, k, features] of tokens [T, features]."""
    return _like(take_rows(x, _tokens(order), mode="clip"), order)


@fused("rows_of_tokens_forward", dims="T D, T k -> T k D, =T k")
def _rows_forward(x: Array, order: Array) -> tuple[Any, ...]:
    return (_like(take_rows(x, _tokens(order), mode="clip"), order),), (order,)


@fused("rows_of_tokens_backward", dims="T k, ~T k D -> T D")
def _rows_backward(residuals: Any, ct: Array, *, needs: Sequence[bool]) -> tuple[Any, ...]:
    (order,) = residuals
    return (_summed(ct, order),)


@fused("tokens_of_rows", dims="~T k D, T k -> T D")
def tokens_of_rows(rows: Array, order: Array) -> Array:
    """The sums [T, features] of the rows of each token, 16-bit floats added in float32."""
    return _summed(rows, order)


def _summed(rows: Array, order: Array) -> Array:
    token, count = _tokens(order), order.shape[0]
    rows = _flat(rows)
    if count * rows.shape[0] > _MOST_COMPARED:
        return segment_sum(rows, token, count)
    mine = token == jnp.arange(count, dtype=token.dtype)[:, None]
    return jnp.sum(jnp.where(mine[..., None], rows, 0), 1)


@fused("tokens_of_rows_forward", dims="~T k D, T k -> T D, =T k")
def _sums_forward(rows: Array, order: Array) -> tuple[Any, ...]:
    return (_summed(rows, order),), (order,)


@fused("tokens_of_rows_backward", dims="T k, T D -> T k D")
def _sums_backward(residuals: Any, ct: Array, *, needs: Sequence[bool]) -> tuple[Any, ...]:
    (order,) = residuals
    return (_like(take_rows(ct, _tokens(order), mode="clip"), order),)


rows_of_tokens.defvjp(_rows_forward, _rows_backward)
tokens_of_rows.defvjp(_sums_forward, _sums_backward)


# ---- what belongs to a choice ----


@fused("rows_of_choices", dims="T k, T k -> T k")
def rows_of_choices(values: Array, order: Array) -> Array:
    """A number of each choice [T, k], in the order of rows."""
    return _permuted(values, order)


def _permuted(values: Array, order: Array) -> Array:
    flat = take_rows(jnp.reshape(values, (-1,)), jnp.reshape(order, (-1,)), mode="clip")
    return jnp.reshape(flat, order.shape)


@fused("rows_of_choices_forward", dims="T k, T k -> T k, =T k")
def _choices_forward(values: Array, order: Array) -> tuple[Any, ...]:
    return (_permuted(values, order),), (order,)


@fused("rows_of_choices_backward", dims="T k, ~T k -> T k")
def _choices_backward(residuals: Any, ct: Array, *, needs: Sequence[bool]) -> tuple[Any, ...]:
    (order,) = residuals
    flat = jnp.reshape(order, (-1,))
    back = segment_sum(jnp.reshape(ct, (-1,)), flat, flat.shape[0])
    return (jnp.reshape(back, order.shape),)


rows_of_choices.defvjp(_choices_forward, _choices_backward)


# ---- products ----


@fused("expert_product", dims="T k D, e H D, T k -> T k H", precision="low")
def expert_product(rows: Array, weight: Array, chosen: Array) -> Array:
    """Rows [T, k, n] times weight[expert].T, of weights [E, m, n]: [T, k, m]. `chosen` [T, k] are
    the experts of the tokens, E for none, whose rows give zeros."""
    return _product(rows, weight, chosen)


def _product(rows: Array, weight: Array, chosen: Array) -> Array:
    sizes = _sizes(chosen, weight.shape[0])
    return _like(ragged_dot(_flat(rows), jnp.swapaxes(weight, 1, 2), sizes), chosen)


def _sizes(chosen: Array, count: int) -> Array:
    """The number of rows of each expert."""
    mine = jnp.reshape(chosen, (-1, 1)) == jnp.arange(count, dtype=chosen.dtype)
    return jnp.sum(mine, 0, dtype=jnp.int32)


@fused("expert_product_forward", dims="T k D, e H D, T k -> T k H, =T k D, =e H D, =T k")
def _product_forward(rows: Array, weight: Array, chosen: Array) -> tuple[Any, ...]:
    return (_product(rows, weight, chosen),), (rows, weight, chosen)


@fused("expert_product_backward", dims="T k D, e H D, T k, T k H -> T k D, e H D")
def _product_backward(residuals: Any, ct: Array, *, needs: Sequence[bool]) -> tuple[Any, ...]:
    rows, weight, chosen = residuals
    sizes = _sizes(chosen, weight.shape[0])
    of_rows = _like(ragged_dot(_flat(ct), weight, sizes), chosen)
    return of_rows, ragged_contraction(_flat(ct), _flat(rows), sizes)


expert_product.defvjp(_product_forward, _product_backward)
