"""`optim.tree`: arithmetic on pytrees, and access to optimizer states by name."""

from genesis_fn.optim.state.state_access import (
    get as get,
    get_all_with_path as get_all_with_path,
    map_params as map_params,
    set as set,
)
from genesis_fn.optim.state.tree_math import (
    add as add,
    add_scale as add_scale,
    allclose as allclose,
    batch_shape as batch_shape,
    bias_correction as bias_correction,
    cast as cast,
    cast_like as cast_like,
    clip as clip,
    conj as conj,
    div as div,
    dtype as dtype,
    full_like as full_like,
    max as max,
    min as min,
    mul as mul,
    norm as norm,
    ones_like as ones_like,
    real as real,
    scale as scale,
    size as size,
    sub as sub,
    sum as sum,
    update_infinity_moment as update_infinity_moment,
    update_moment as update_moment,
    update_moment_per_elem_norm as update_moment_per_elem_norm,
    vdot as vdot,
    where as where,
    zeros_like as zeros_like,
)
from genesis_fn.optim.state.tree_random import (
    random_like as random_like,
    split_key_like as split_key_like,
    unwrap_random_key_data as unwrap_random_key_data,
)
