"""scipy.cluster.vq: codes of vectors."""

from __future__ import annotations

import genesis_fn.numpy as np
from genesis_fn.core import errors
from genesis_fn.core.diagnostics.source_info import where
from genesis_fn.core.types.annotations import Array, ArrayLike
from genesis_fn.lax.promotion import promote_arrays


def vq(obs: ArrayLike, code_book: ArrayLike, check_finite: bool = True) -> tuple[Array, Array]:
    """The nearest code of each observation, by Euclidean distance.

    Args:
        obs: observations, [M, N], or [M] for numbers.
        code_book: codes, [K, N], or [K] for numbers.
        check_finite: SciPy's; of no effect, as in JAX: values are not looked at.

    Returns:
        (codes [M] of int32, the first of equally near ones; distances [M] to them).

    Raises:
        ShapeError: the operands have not one or two dimensions each, or not the same N.

    >>> from genesis_fn.scipy.cluster.vq import vq
    >>> vq(jnp.array([[1.0, 2.0], [5.0, 4.0]]), jnp.array([[1.0, 1.0], [5.0, 5.0]]))
    (Array([0, 1], dtype=int32), Array([1., 1.], dtype=float32))
    """
    obs, code_book = promote_arrays("vq", (obs, code_book), inexact=True)
    if obs.ndim == code_book.ndim == 1:
        obs, code_book = obs[:, None], code_book[:, None]
    if obs.ndim != 2 or code_book.ndim != 2 or obs.shape[1] != code_book.shape[1]:
        raise errors.ShapeError(
            f"vq takes observations [M, N] and codes [K, N], or [M] and [K], got {obs.aval} and "
            f"{code_book.aval}\n  at {where().describe()}"
        )
    distances = np.linalg.norm(obs[:, None] - code_book[None], axis=-1)
    codes = np.argmin(distances, axis=-1)
    return codes, np.take_along_axis(distances, codes[:, None], axis=-1)[:, 0]
