"""`optim.tree_utils`: the functions of `optim.tree` under their longer names."""

from genesis_fn.optim.state import (
    state_access as _state_access,
    tree_math as _tree_math,
    tree_random as _tree_random,
)
from genesis_fn.optim.state.state_access import NamedTupleKey as NamedTupleKey

tree_add = _tree_math.add
tree_add_scale = _tree_math.add_scale
tree_allclose = _tree_math.allclose
tree_batch_shape = _tree_math.batch_shape
tree_bias_correction = _tree_math.bias_correction
tree_cast = _tree_math.cast
tree_cast_like = _tree_math.cast_like
tree_clip = _tree_math.clip
tree_conj = _tree_math.conj
tree_div = _tree_math.div
tree_dtype = _tree_math.dtype
tree_full_like = _tree_math.full_like
tree_max = _tree_math.max
tree_min = _tree_math.min
tree_mul = _tree_math.mul
tree_norm = _tree_math.norm
tree_ones_like = _tree_math.ones_like
tree_real = _tree_math.real
tree_scale = _tree_math.scale
tree_size = _tree_math.size
tree_sub = _tree_math.sub
tree_sum = _tree_math.sum
tree_update_infinity_moment = _tree_math.update_infinity_moment
tree_update_moment = _tree_math.update_moment
tree_update_moment_per_elem_norm = _tree_math.update_moment_per_elem_norm
tree_vdot = _tree_math.vdot
tree_where = _tree_math.where
tree_zeros_like = _tree_math.zeros_like

tree_get = _state_access.get
tree_get_all_with_path = _state_access.get_all_with_path
tree_map_params = _state_access.map_params
tree_set = _state_access.set

tree_random_like = _tree_random.random_like
tree_split_key_like = _tree_random.split_key_like
tree_unwrap_random_key_data = _tree_random.unwrap_random_key_data
