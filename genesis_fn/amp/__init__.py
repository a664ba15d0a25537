"""Mixed precision. The namespace is the transform: `amp(f, "bfloat16")`; beside it are policies and
loss scaling."""

import sys
import types

from genesis_fn.amp.loss_scale import (
    DynamicLossScale,
    LossScale,
    NoOpLossScale,
    StaticLossScale,
    all_finite,
    scaled_value_and_grad,
    select_tree,
)
from genesis_fn.amp.policy import Policy, cast_to_full, cast_to_half, get_policy, half_dtype
from genesis_fn.transforms.precision.autocast import amp as autocast


class _Callable(types.ModuleType):
    """`genesis_fn.amp(f, policy)` is `genesis_fn.amp.autocast(f, policy)`."""

    __call__ = staticmethod(autocast)


sys.modules[__name__].__class__ = _Callable

__all__ = [
    "DynamicLossScale",
    "LossScale",
    "NoOpLossScale",
    "Policy",
    "StaticLossScale",
    "all_finite",
    "autocast",
    "cast_to_full",
    "cast_to_half",
    "get_policy",
    "half_dtype",
    "scaled_value_and_grad",
    "select_tree",
]
