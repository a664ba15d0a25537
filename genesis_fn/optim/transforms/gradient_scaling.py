"""`scale_gradient`: values as they are, with derivatives that are multiplied."""

from __future__ import annotations

from genesis_fn import Array, ArrayLike, PyTree, custom_jvp, dtypes, tree
from genesis_fn.extend import as_array, real_of


def scale_gradient(inputs: PyTree, scale: ArrayLike) -> PyTree:
    """Returns a tree unchanged, through which derivatives are multiplied by a number.

        y = x, but dy/dx = scale

    Args:
        inputs: tree of arrays.
        scale: scalar; 1 changes nothing, 0 stops derivatives, a negative one turns their sign. It
            has no derivative itself.

    Returns:
        A tree of the values of `inputs`.

    >>> gf.value_and_grad(lambda x: jnp.sum(optim.scale_gradient(x, 0.5) ** 2))(jnp.array([3.0]))
    (Array(9., dtype=float32), Array([3.], dtype=float32))
    """

    def at(x: ArrayLike) -> Array:
        x = as_array(x)
        return _scaled(x, as_array(scale)) if dtypes.is_inexact(x.dtype) else x

    return tree.map(at, inputs)


@custom_jvp
def _scaled(x: Array, scale: Array) -> Array:
    return x


@_scaled.defjvp
def _scaled_jvp(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    x, scale = primals
    return x, tangents[0] * scale.astype(real_of(x.dtype))
