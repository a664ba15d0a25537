"""Second derivatives of a loss by all parameters, as one vector."""

from __future__ import annotations

from collections.abc import Callable

import genesis_fn.numpy as jnp
from genesis_fn import Array, ArrayLike, grad, jvp, vmap
from genesis_fn.flatten_util import ravel_pytree
from genesis_fn.optim.annotations import Params

LossFn = Callable[[Params, Array, Array], ArrayLike]


def hvp(loss: LossFn, v: ArrayLike, params: Params, inputs: Array, targets: Array) -> Params:
    """Multiplies the Hessian of a loss by a vector.

        H v,  H the second derivatives of loss(params, inputs, targets) by params

    Args:
        loss: function (params, inputs, targets) -> scalar.
        v: vector of as many elements as the parameters have.
        params: tree of floating arrays.
        inputs, targets: what `loss` takes.

    Returns:
        H v, a tree like `params`.

    >>> loss = lambda w, x, y: jnp.sum((w * x - y) ** 2)
    >>> w, x, y = jnp.array([1.0, 2.0]), jnp.array([3.0, 1.0]), jnp.zeros(2)
    >>> optim.second_order.hvp(loss, jnp.array([1.0, 1.0]), w, x, y)
    Array([18.,  2.], dtype=float32)
    """
    _, unravel = ravel_pytree(params)
    return jvp(grad(lambda p: loss(p, inputs, targets)), (params,), (unravel(v),))[1]


def hessian_diag(loss: LossFn, params: Params, inputs: Array, targets: Array) -> Array:
    """Computes the diagonal of the Hessian of a loss, by one product for each parameter.

        d**2 loss / d p_i**2

    Args:
        loss: function (params, inputs, targets) -> scalar.
        params: tree of floating arrays.
        inputs, targets: what `loss` takes.

    Returns:
        The diagonal, a vector of as many elements as the parameters have.

    >>> loss = lambda w, x, y: jnp.sum((w * x - y) ** 2)
    >>> w, x, y = jnp.array([1.0, 2.0]), jnp.array([3.0, 1.0]), jnp.zeros(2)
    >>> optim.second_order.hessian_diag(loss, w, x, y)
    Array([18.,  2.], dtype=float32)
    """
    flat, _ = ravel_pytree(params)

    def second_derivative(basis: Array) -> Array:
        row, _ = ravel_pytree(hvp(loss, basis, params, inputs, targets))
        return jnp.sum(basis * row)

    return vmap(second_derivative)(jnp.eye(flat.size, dtype=flat.dtype))


def fisher_diag(
    negative_log_likelihood: LossFn, params: Params, inputs: Array, targets: Array
) -> Array:
    """Computes the diagonal of the observed Fisher information of one example, or of a sum.

        (d negative_log_likelihood / d p_i)**2

    Args:
        negative_log_likelihood: function (params, inputs, targets) -> scalar.
        params: tree of floating arrays.
        inputs, targets: what the function takes.

    Returns:
        The squares, a vector of as many elements as the parameters have.

    >>> loss = lambda w, x, y: jnp.sum((w * x - y) ** 2)
    >>> w, x, y = jnp.array([1.0, 2.0]), jnp.array([3.0, 1.0]), jnp.zeros(2)
    >>> optim.second_order.fisher_diag(loss, w, x, y)
    Array([324.,  16.], dtype=float32)
    """
    gradient, _ = ravel_pytree(grad(negative_log_likelihood)(params, inputs, targets))
    return jnp.square(gradient)
