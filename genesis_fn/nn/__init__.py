"""Neural networks: layers, activations, losses and initializers."""

import typing as _typing

from genesis_fn.extend import explain_axes as _explain_axes, unknown_names as _unknown_names
from genesis_fn.lax import (
    dot_product_attention as dot_product_attention,
    linear_cross_entropy as linear_cross_entropy,
)
from genesis_fn.nn import initializers as initializers, lora as lora
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
    scaled_matmul as scaled_matmul,
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
from genesis_fn.nn.inspection.model_summary import summary as summary
from genesis_fn.nn.layers.attention import (
    MultiHeadAttention as MultiHeadAttention,
    write_cache as write_cache,
)
from genesis_fn.nn.layers.convolution import (
    Conv as Conv,
    Conv1d as Conv1d,
    Conv2d as Conv2d,
    Conv3d as Conv3d,
    ConvTranspose as ConvTranspose,
    ConvTranspose1d as ConvTranspose1d,
    ConvTranspose2d as ConvTranspose2d,
    ConvTranspose3d as ConvTranspose3d,
)
from genesis_fn.nn.layers.dense import (
    Embedding as Embedding,
    Flatten as Flatten,
    Linear as Linear,
    linear as linear,
)
from genesis_fn.nn.layers.dropout import (
    AlphaDropout as AlphaDropout,
    ChannelDropout as ChannelDropout,
    Dropout as Dropout,
    DropPath as DropPath,
    FeatureAlphaDropout as FeatureAlphaDropout,
)
from genesis_fn.nn.layers.experts import (
    MoE as MoE,
    expert_load as expert_load,
    expert_mlp as expert_mlp,
    load_balancing_loss as load_balancing_loss,
    router_logits as router_logits,
    router_z_loss as router_z_loss,
    top_k_routing as top_k_routing,
)
from genesis_fn.nn.layers.feed_forward import MLP as MLP, GatedMLP as GatedMLP, SwiGLU as SwiGLU
from genesis_fn.nn.layers.normalization import (
    BatchNorm as BatchNorm,
    GroupNorm as GroupNorm,
    InstanceNorm as InstanceNorm,
    LayerNorm as LayerNorm,
    RMSNorm as RMSNorm,
)
from genesis_fn.nn.layers.patches import PatchEmbedding as PatchEmbedding
from genesis_fn.nn.layers.pooling import (
    AdaptiveAvgPool as AdaptiveAvgPool,
    AdaptiveMaxPool as AdaptiveMaxPool,
    AvgPool as AvgPool,
    MaxPool as MaxPool,
    avg_pool as avg_pool,
    max_pool as max_pool,
)
from genesis_fn.nn.layers.recurrent import (
    GRU as GRU,
    LSTM as LSTM,
    RNN as RNN,
    GRUCell as GRUCell,
    LSTMCell as LSTMCell,
    RNNCell as RNNCell,
)
from genesis_fn.nn.layers.rotary import (
    DynamicScaling as DynamicScaling,
    LinearScaling as LinearScaling,
    Llama3Scaling as Llama3Scaling,
    NTKScaling as NTKScaling,
    RotaryEmbedding as RotaryEmbedding,
    RotaryScaling as RotaryScaling,
    YarnScaling as YarnScaling,
    apply_rotary as apply_rotary,
)
from genesis_fn.nn.layers.state_space import SelectiveSSM as SelectiveSSM
from genesis_fn.nn.losses import (
    binary_cross_entropy as binary_cross_entropy,
    binary_cross_entropy_with_logits as binary_cross_entropy_with_logits,
    cosine_embedding_loss as cosine_embedding_loss,
    cross_entropy as cross_entropy,
    ctc_loss as ctc_loss,
    gaussian_nll_loss as gaussian_nll_loss,
    huber_loss as huber_loss,
    info_nce as info_nce,
    kl_div as kl_div,
    l1_loss as l1_loss,
    margin_ranking_loss as margin_ranking_loss,
    mse_loss as mse_loss,
    nll_loss as nll_loss,
    poisson_nll_loss as poisson_nll_loss,
    smooth_l1_loss as smooth_l1_loss,
    triplet_margin_loss as triplet_margin_loss,
)
from genesis_fn.nn.low_rank import LoraWeight as LoraWeight, plain_weight as plain_weight
from genesis_fn.nn.module import Module as Module
from genesis_fn.nn.reparametrization import (
    SpectralNorm as SpectralNorm,
    Tied as Tied,
    WeightNorm as WeightNorm,
)

_explain_axes(globals(), __name__)
if not _typing.TYPE_CHECKING:  # checkers report unknown names themselves
    __getattr__ = _unknown_names(__name__)
