"""A pytree as one vector."""

from __future__ import annotations

from collections.abc import Callable

import genesis_fn.numpy as np
from genesis_fn.core import dtypes, errors, tree
from genesis_fn.core.convert import as_array
from genesis_fn.core.diagnostics.source_info import where
from genesis_fn.core.types.annotations import Array, ArrayLike, PyTree


def ravel_pytree(pytree: PyTree) -> tuple[Array, Callable[[ArrayLike], PyTree]]:
    """(all leaves as one vector of their common dtype, the function back to the pytree).

    Where all leaves have that dtype, the function takes vectors of any, which it keeps.
    """
    leaves, treedef = tree.flatten(pytree)
    arrays = [as_array(x) for x in leaves]
    avals = [x.aval for x in arrays]
    sizes = [a.size for a in avals]
    common = dtypes.default_float()
    if avals:
        common = avals[0].dtype
        for a in avals[1:]:
            common = dtypes.promote_types(common, a.dtype)
    flat_leaves = [np.ravel(x).astype(common) for x in arrays]
    mixed = any(a.dtype != common for a in avals)
    vector = np.concatenate(flat_leaves) if flat_leaves else np.zeros(0, common)

    def unravel(flat: ArrayLike) -> PyTree:
        flat = as_array(flat)
        if flat.shape != (sum(sizes),):
            raise errors.ShapeError(
                f"unravel takes a vector of {sum(sizes)} elements, got {flat.aval}\n"
                f"  at {where().describe()}"
            )
        if mixed and flat.dtype != common:
            raise errors.DTypeError(
                f"unravel takes a vector of {common.name}, the common dtype of leaves of several, "
                f"got {flat.aval}\n  at {where().describe()}"
            )
        result, start = [], 0
        for a, n in zip(avals, sizes):
            part = flat[start : start + n].reshape(a.shape)
            result.append(part.astype(a.dtype) if mixed else part)
            start += n
        return tree.unflatten(treedef, result)

    return vector, unravel
