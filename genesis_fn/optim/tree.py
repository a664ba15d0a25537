"""`optim.tree`: arithmetic on pytrees, and access to optimizer states by name."""

from genesis_fn.optim.state.state_access import get, get_all_with_path, map_params, set
from genesis_fn.optim.state.tree_math import (
    add,
    add_scale,
    allclose,
    batch_shape,
    bias_correction,
    cast,
    cast_like,
    clip,
    conj,
    div,
    dtype,
    full_like,
    max,
    min,
    mul,
    norm,
    ones_like,
    real,
    scale,
    size,
    sub,
    sum,
    update_infinity_moment,
    update_moment,
    update_moment_per_elem_norm,
    vdot,
    where,
    zeros_like,
)

__all__ = [
    "add", "add_scale", "allclose", "batch_shape", "bias_correction", "cast", "cast_like", "clip",
    "conj", "div", "dtype", "full_like", "get", "get_all_with_path", "map_params", "max", "min",
    "mul", "norm", "ones_like", "real", "scale", "set", "size", "sub", "sum",
    "update_infinity_moment", "update_moment", "update_moment_per_elem_norm", "vdot", "where",
    "zeros_like",
]  # fmt: skip
