"""`optim.transforms`: what chains are made of: clipping, masking, noise, accumulation, wrappers."""

from genesis_fn.optim.annotations import (
    ConditionFn as ConditionFn,
    ShouldSkipUpdateFunction as ShouldSkipUpdateFunction,
)
from genesis_fn.optim.transforms.clipping import (
    adaptive_grad_clip as adaptive_grad_clip,
    clip as clip,
    clip_by_block_rms as clip_by_block_rms,
    clip_by_global_norm as clip_by_global_norm,
    per_example_global_norm_clip as per_example_global_norm_clip,
    per_example_layer_norm_clip as per_example_layer_norm_clip,
    unitwise_clip as unitwise_clip,
    unitwise_norm as unitwise_norm,
)
from genesis_fn.optim.transforms.combine import chain as chain, named_chain as named_chain
from genesis_fn.optim.transforms.masking import (
    MaskedNode as MaskedNode,
    MaskedState as MaskedState,
    PartitionState as PartitionState,
    freeze as freeze,
    masked as masked,
    partition as partition,
    selective_transform as selective_transform,
)
from genesis_fn.optim.transforms.noise import AddNoiseState as AddNoiseState, add_noise as add_noise
from genesis_fn.optim.transforms.transform import (
    EmaState as EmaState,
    MonitorState as MonitorState,
    NonNegativeParamsState as NonNegativeParamsState,
    SnapshotState as SnapshotState,
    TraceState as TraceState,
    ZeroNansState as ZeroNansState,
    add_decayed_weights as add_decayed_weights,
    ema as ema,
    keep_params_nonnegative as keep_params_nonnegative,
    measure_with_ema as measure_with_ema,
    monitor as monitor,
    snapshot as snapshot,
    trace as trace,
    zero_nans as zero_nans,
)
from genesis_fn.optim.transforms.wrappers import (
    ApplyIfFiniteState as ApplyIfFiniteState,
    ConditionallyMaskState as ConditionallyMaskState,
    ConditionallyTransformState as ConditionallyTransformState,
    MultiSteps as MultiSteps,
    MultiStepsState as MultiStepsState,
    apply_if_finite as apply_if_finite,
    conditionally_mask as conditionally_mask,
    conditionally_transform as conditionally_transform,
    flatten as flatten,
    skip_large_updates as skip_large_updates,
    skip_not_finite as skip_not_finite,
)
