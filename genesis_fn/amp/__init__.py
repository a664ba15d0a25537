"""Mixed precision: policies, loss scaling, and `autocast`, which is `genesis_fn.amp` called.

The module itself can be called: `amp(f, "bfloat16")`.
"""

import sys
import types

from genesis_fn.amp.loss_scale import (
    DynamicLossScale as DynamicLossScale,
    LossScale as LossScale,
    NoOpLossScale as NoOpLossScale,
    StaticLossScale as StaticLossScale,
    all_finite as all_finite,
    scaled_value_and_grad as scaled_value_and_grad,
    select_tree as select_tree,
)
from genesis_fn.amp.policy import (
    Policy as Policy,
    cast_to_full as cast_to_full,
    cast_to_half as cast_to_half,
    get_policy as get_policy,
    half_dtype as half_dtype,
)
from genesis_fn.transforms.precision.autocast import amp as _autocast

autocast = _autocast


class _Callable(types.ModuleType):
    """`genesis_fn.amp(f, policy)` is `genesis_fn.amp.autocast(f, policy)`."""

    __call__ = staticmethod(autocast)


sys.modules[__name__].__class__ = _Callable
