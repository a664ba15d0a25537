"""A pytree as one vector."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import genesis_fn.numpy as np
from genesis_fn.core import dtypes, errors, tree
from genesis_fn.core.convert import as_array
from genesis_fn.core.diagnostics.source_info import where


def ravel_pytree(pytree: Any) -> tuple[Any, Callable[[Any], Any]]:
    """(all leaves as one vector of their common dtype, the function back to the pytree)."""
    leaves, treedef = tree.flatten(pytree)
    arrays = [as_array(x) for x in leaves]
    kinds = [x.aval for x in arrays]
    sizes = [k.size for k in kinds]
    common = dtypes.F32
    if kinds:
        common = kinds[0].dtype
        for k in kinds[1:]:
            common = dtypes.promote_types(common, k.dtype)
    parts = [np.ravel(x).astype(common) for x in arrays]
    vector = np.concatenate(parts) if parts else np.zeros(0, common)

    def unravel(flat: Any) -> Any:
        flat = as_array(flat)
        if flat.shape != (sum(sizes),):
            raise errors.ShapeError(
                f"unravel takes a vector of {sum(sizes)} elements, got {flat.aval}\n"
                f"  at {where().describe()}"
            )
        result, at = [], 0
        for k, n in zip(kinds, sizes):
            result.append(flat[at : at + n].reshape(k.shape).astype(k.dtype))
            at += n
        return tree.unflatten(treedef, result)

    return vector, unravel
