"""Neural networks: layers, activations and initializers."""

import typing as _typing

from genesis_fn.extend import explain_axes as _explain_axes, unknown_names as _unknown_names
from genesis_fn.lax import (
    dot_product_attention as dot_product_attention,
    linear_cross_entropy as linear_cross_entropy,
)
from genesis_fn.nn import initializers as initializers
from genesis_fn.nn.containers import (
    Activation as Activation,
    Residual as Residual,
    Sequential as Sequential,
)
from genesis_fn.nn.functions import (
    celu as celu,
    elu as elu,
    gelu as gelu,
    glu as glu,
    hard_sigmoid as hard_sigmoid,
    hard_silu as hard_silu,
    hard_swish as hard_swish,
    hard_tanh as hard_tanh,
    identity as identity,
    leaky_relu as leaky_relu,
    log1mexp as log1mexp,
    log_sigmoid as log_sigmoid,
    log_softmax as log_softmax,
    logmeanexp as logmeanexp,
    logsumexp as logsumexp,
    mish as mish,
    one_hot as one_hot,
    relu as relu,
    relu6 as relu6,
    selu as selu,
    sigmoid as sigmoid,
    silu as silu,
    soft_sign as soft_sign,
    softmax as softmax,
    softplus as softplus,
    sparse_plus as sparse_plus,
    sparse_sigmoid as sparse_sigmoid,
    squareplus as squareplus,
    standardize as standardize,
    swish as swish,
    tanh as tanh,
)
from genesis_fn.nn.layers import (
    BatchNorm as BatchNorm,
    Conv as Conv,
    Dropout as Dropout,
    Embedding as Embedding,
    Flatten as Flatten,
    LayerNorm as LayerNorm,
    Linear as Linear,
    RMSNorm as RMSNorm,
    linear as linear,
)
from genesis_fn.nn.module import Module as Module

_explain_axes(globals(), __name__)
if not _typing.TYPE_CHECKING:  # checkers report unknown names themselves
    __getattr__ = _unknown_names(__name__)
