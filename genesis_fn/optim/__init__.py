"""Gradient transformations, optimizers, schedules and losses, with optax's names and semantics."""

import typing as _typing

from genesis_fn import PyTree as PyTree
from genesis_fn.extend import unknown_names as _unknown_names
from genesis_fn.optim import (
    assignment as assignment,
    contrib as contrib,
    losses as losses,
    microbatching as microbatching,
    perturbations as perturbations,
    projections as projections,
    schedules as schedules,
    second_order as second_order,
    transforms as transforms,
    tree as tree,
    tree_utils as tree_utils,
)
from genesis_fn.optim.annotations import (
    ArrayTree as ArrayTree,
    MaskOrFn as MaskOrFn,
    OptState as OptState,
    Params as Params,
    ScalarOrSchedule as ScalarOrSchedule,
    Schedule as Schedule,
    ShouldSkipUpdateFunction as ShouldSkipUpdateFunction,
    TransformInitFn as TransformInitFn,
    TransformUpdateExtraArgsFn as TransformUpdateExtraArgsFn,
    TransformUpdateFn as TransformUpdateFn,
    Updates as Updates,
)
from genesis_fn.optim.base import (
    EmptyState as EmptyState,
    GradientTransformation as GradientTransformation,
    GradientTransformationExtraArgs as GradientTransformationExtraArgs,
    apply_updates as apply_updates,
    identity as identity,
    incremental_update as incremental_update,
    init_empty_state as init_empty_state,
    periodic_update as periodic_update,
    set_to_zero as set_to_zero,
    stateless as stateless,
    stateless_with_tree_map as stateless_with_tree_map,
    with_extra_args_support as with_extra_args_support,
)
from genesis_fn.optim.contrib.private import (
    DifferentiallyPrivateAggregateState as DifferentiallyPrivateAggregateState,
    differentially_private_aggregate as differentially_private_aggregate,
    dpsgd as dpsgd,
)
from genesis_fn.optim.linesearch.backtracking import (
    ScaleByBacktrackingLinesearchState as ScaleByBacktrackingLinesearchState,
    scale_by_backtracking_linesearch as scale_by_backtracking_linesearch,
)
from genesis_fn.optim.linesearch.objective import (
    value_and_grad_from_state as value_and_grad_from_state,
)
from genesis_fn.optim.linesearch.zoom import (
    ScaleByZoomLinesearchState as ScaleByZoomLinesearchState,
    ZoomLinesearchInfo as ZoomLinesearchInfo,
    scale_by_zoom_linesearch as scale_by_zoom_linesearch,
)
from genesis_fn.optim.losses import (
    binary_dice_loss as binary_dice_loss,
    convex_kl_divergence as convex_kl_divergence,
    cosine_distance as cosine_distance,
    cosine_similarity as cosine_similarity,
    ctc_loss as ctc_loss,
    ctc_loss_with_forward_probs as ctc_loss_with_forward_probs,
    dice_loss as dice_loss,
    generalized_kl_divergence as generalized_kl_divergence,
    hinge_loss as hinge_loss,
    huber_loss as huber_loss,
    kl_divergence as kl_divergence,
    kl_divergence_with_log_targets as kl_divergence_with_log_targets,
    l2_loss as l2_loss,
    log_cosh as log_cosh,
    make_fenchel_young_loss as make_fenchel_young_loss,
    multiclass_generalized_dice_loss as multiclass_generalized_dice_loss,
    multiclass_hinge_loss as multiclass_hinge_loss,
    multiclass_perceptron_loss as multiclass_perceptron_loss,
    multiclass_sparsemax_loss as multiclass_sparsemax_loss,
    ntxent as ntxent,
    perceptron_loss as perceptron_loss,
    poly_loss_cross_entropy as poly_loss_cross_entropy,
    ranking_softmax_loss as ranking_softmax_loss,
    safe_softmax_cross_entropy as safe_softmax_cross_entropy,
    sigmoid_binary_cross_entropy as sigmoid_binary_cross_entropy,
    sigmoid_focal_loss as sigmoid_focal_loss,
    smooth_labels as smooth_labels,
    softmax_cross_entropy as softmax_cross_entropy,
    softmax_cross_entropy_with_integer_labels as softmax_cross_entropy_with_integer_labels,
    sparsemax_loss as sparsemax_loss,
    squared_error as squared_error,
    triplet_margin_loss as triplet_margin_loss,
)
from genesis_fn.optim.microbatching import microbatch as microbatch
from genesis_fn.optim.numerics import (
    abs_sq as abs_sq,
    safe_increment as safe_increment,
    safe_int32_increment as safe_int32_increment,
    safe_norm as safe_norm,
    safe_root_mean_squares as safe_root_mean_squares,
)
from genesis_fn.optim.optimizers.adam_family import (
    adabelief as adabelief,
    adam as adam,
    adamax as adamax,
    adamaxw as adamaxw,
    adamw as adamw,
    adan as adan,
    amsgrad as amsgrad,
    lamb as lamb,
    nadam as nadam,
    nadamw as nadamw,
    novograd as novograd,
    optimistic_adam as optimistic_adam,
    optimistic_adam_v2 as optimistic_adam_v2,
    radam as radam,
    yogi as yogi,
)
from genesis_fn.optim.optimizers.adaptive import (
    ScaleByAdaDeltaState as ScaleByAdaDeltaState,
    ScaleByDistanceOverGradientsState as ScaleByDistanceOverGradientsState,
    ScaleByOptimisticGradientState as ScaleByOptimisticGradientState,
    ScaleByRmsState as ScaleByRmsState,
    ScaleByRmsWithCountState as ScaleByRmsWithCountState,
    ScaleByRpropState as ScaleByRpropState,
    ScaleByRssState as ScaleByRssState,
    ScaleByRStdDevState as ScaleByRStdDevState,
    ScaleByRStdDevWithCountState as ScaleByRStdDevWithCountState,
    scale_by_adadelta as scale_by_adadelta,
    scale_by_distance_over_gradients as scale_by_distance_over_gradients,
    scale_by_optimistic_gradient as scale_by_optimistic_gradient,
    scale_by_rms as scale_by_rms,
    scale_by_rprop as scale_by_rprop,
    scale_by_rss as scale_by_rss,
    scale_by_stddev as scale_by_stddev,
)
from genesis_fn.optim.optimizers.alias import (
    adadelta as adadelta,
    adafactor as adafactor,
    adagrad as adagrad,
    fromage as fromage,
    lars as lars,
    lion as lion,
    noisy_sgd as noisy_sgd,
    optimistic_gradient_descent as optimistic_gradient_descent,
    polyak_sgd as polyak_sgd,
    rmsprop as rmsprop,
    rprop as rprop,
    sgd as sgd,
    sign_sgd as sign_sgd,
    signum as signum,
    sm3 as sm3,
)
from genesis_fn.optim.optimizers.factored import (
    FactoredState as FactoredState,
    ScaleBySM3State as ScaleBySM3State,
    scale_by_factored_rms as scale_by_factored_rms,
    scale_by_sm3 as scale_by_sm3,
)
from genesis_fn.optim.optimizers.iterate_averaging import (
    ScheduleFreeState as ScheduleFreeState,
    schedule_free as schedule_free,
    schedule_free_adamw as schedule_free_adamw,
    schedule_free_eval_params as schedule_free_eval_params,
    schedule_free_sgd as schedule_free_sgd,
)
from genesis_fn.optim.optimizers.learning_rate_free import (
    ProdigyState as ProdigyState,
    prodigy as prodigy,
)
from genesis_fn.optim.optimizers.moments import (
    ScaleByAdamState as ScaleByAdamState,
    ScaleByAdanState as ScaleByAdanState,
    ScaleByAmsgradState as ScaleByAmsgradState,
    ScaleByBeliefState as ScaleByBeliefState,
    ScaleByLionState as ScaleByLionState,
    ScaleByNovogradState as ScaleByNovogradState,
    scale_by_adam as scale_by_adam,
    scale_by_adamax as scale_by_adamax,
    scale_by_adan as scale_by_adan,
    scale_by_amsgrad as scale_by_amsgrad,
    scale_by_belief as scale_by_belief,
    scale_by_lion as scale_by_lion,
    scale_by_novograd as scale_by_novograd,
    scale_by_radam as scale_by_radam,
    scale_by_yogi as scale_by_yogi,
)
from genesis_fn.optim.optimizers.orthogonalized import (
    MuonDimensionNumbers as MuonDimensionNumbers,
    MuonState as MuonState,
    muon as muon,
    orthogonalize_via_newton_schulz as orthogonalize_via_newton_schulz,
    scale_by_muon as scale_by_muon,
    scale_by_shape as scale_by_shape,
)
from genesis_fn.optim.optimizers.quasi_newton import (
    ScaleByLBFGSState as ScaleByLBFGSState,
    lbfgs as lbfgs,
    scale_by_lbfgs as scale_by_lbfgs,
)
from genesis_fn.optim.optimizers.second_order import (
    HutchinsonState as HutchinsonState,
    SophiaState as SophiaState,
    hutchinson_estimator_diag_hessian as hutchinson_estimator_diag_hessian,
    scale_by_sophia as scale_by_sophia,
    sophia as sophia,
)
from genesis_fn.optim.optimizers.sharpness_aware import SAMState as SAMState, sam as sam
from genesis_fn.optim.schedules import (
    constant_schedule as constant_schedule,
    cosine_annealing_schedule as cosine_annealing_schedule,
    cosine_decay_schedule as cosine_decay_schedule,
    cosine_onecycle_schedule as cosine_onecycle_schedule,
    exponential_decay as exponential_decay,
    exponential_schedule as exponential_schedule,
    join_schedules as join_schedules,
    lambda_schedule as lambda_schedule,
    linear_onecycle_schedule as linear_onecycle_schedule,
    linear_schedule as linear_schedule,
    piecewise_constant_schedule as piecewise_constant_schedule,
    piecewise_interpolate_schedule as piecewise_interpolate_schedule,
    polynomial_schedule as polynomial_schedule,
    sgdr_schedule as sgdr_schedule,
    step_schedule as step_schedule,
    warmup_constant_schedule as warmup_constant_schedule,
    warmup_cosine_decay_schedule as warmup_cosine_decay_schedule,
    warmup_exponential_decay_schedule as warmup_exponential_decay_schedule,
)
from genesis_fn.optim.solvers.linear_algebra import (
    matrix_inverse_pth_root as matrix_inverse_pth_root,
    nnls as nnls,
    power_iteration as power_iteration,
)
from genesis_fn.optim.state.state_access import NamedTupleKey as NamedTupleKey
from genesis_fn.optim.state.summary import describe as describe
from genesis_fn.optim.state.tree_math import (
    bias_correction as bias_correction,
    global_norm as global_norm,
    update_infinity_moment as update_infinity_moment,
    update_moment as update_moment,
    update_moment_per_elem_norm as update_moment_per_elem_norm,
)
from genesis_fn.optim.transforms.clipping import (
    AdaptiveGradClipState as AdaptiveGradClipState,
    ClipByGlobalNormState as ClipByGlobalNormState,
    ClipState as ClipState,
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
from genesis_fn.optim.transforms.distributions import multi_normal as multi_normal
from genesis_fn.optim.transforms.gradient_scaling import scale_gradient as scale_gradient
from genesis_fn.optim.transforms.hyperparameters import (
    InjectHyperparamsState as InjectHyperparamsState,
    InjectStatefulHyperparamsState as InjectStatefulHyperparamsState,
    WrappedSchedule as WrappedSchedule,
    WrappedScheduleState as WrappedScheduleState,
    inject_hyperparams as inject_hyperparams,
    inject_stateful_hyperparams as inject_stateful_hyperparams,
)
from genesis_fn.optim.transforms.masking import (
    MaskedNode as MaskedNode,
    MaskedState as MaskedState,
    MultiTransformState as MultiTransformState,
    PartitionState as PartitionState,
    freeze as freeze,
    masked as masked,
    multi_transform as multi_transform,
    partition as partition,
    selective_transform as selective_transform,
)
from genesis_fn.optim.transforms.noise import AddNoiseState as AddNoiseState, add_noise as add_noise
from genesis_fn.optim.transforms.plateau import (
    ReduceLROnPlateauState as ReduceLROnPlateauState,
    reduce_on_plateau as reduce_on_plateau,
)
from genesis_fn.optim.transforms.rounding import (
    LostStepsState as LostStepsState,
    LostStepsWarning as LostStepsWarning,
    StochasticRoundState as StochasticRoundState,
    stochastic_round as stochastic_round,
    warn_of_lost_steps as warn_of_lost_steps,
)
from genesis_fn.optim.transforms.transform import (
    AddDecayedWeightsState as AddDecayedWeightsState,
    ApplyEvery as ApplyEvery,
    EmaState as EmaState,
    MonitorState as MonitorState,
    NonNegativeParamsState as NonNegativeParamsState,
    ScaleByLearningRateState as ScaleByLearningRateState,
    ScaleByScheduleState as ScaleByScheduleState,
    ScaleByTrustRatioState as ScaleByTrustRatioState,
    ScaleState as ScaleState,
    SnapshotState as SnapshotState,
    TraceState as TraceState,
    WeightDecaySchedule as WeightDecaySchedule,
    ZeroNansState as ZeroNansState,
    add_decayed_weights as add_decayed_weights,
    apply_every as apply_every,
    centralize as centralize,
    ema as ema,
    keep_params_nonnegative as keep_params_nonnegative,
    measure_with_ema as measure_with_ema,
    monitor as monitor,
    normalize as normalize,
    normalize_by_update_norm as normalize_by_update_norm,
    scale as scale,
    scale_by_learning_rate as scale_by_learning_rate,
    scale_by_param_block_norm as scale_by_param_block_norm,
    scale_by_param_block_rms as scale_by_param_block_rms,
    scale_by_polyak as scale_by_polyak,
    scale_by_schedule as scale_by_schedule,
    scale_by_sign as scale_by_sign,
    scale_by_trust_ratio as scale_by_trust_ratio,
    snapshot as snapshot,
    trace as trace,
    zero_nans as zero_nans,
)
from genesis_fn.optim.transforms.wrappers import (
    ApplyIfFiniteState as ApplyIfFiniteState,
    ConditionallyMaskState as ConditionallyMaskState,
    ConditionallyTransformState as ConditionallyTransformState,
    LookaheadParams as LookaheadParams,
    LookaheadState as LookaheadState,
    MultiSteps as MultiSteps,
    MultiStepsState as MultiStepsState,
    WithMasterState as WithMasterState,
    apply_if_finite as apply_if_finite,
    conditionally_mask as conditionally_mask,
    conditionally_transform as conditionally_transform,
    flatten as flatten,
    lookahead as lookahead,
    maybe_update as maybe_update,
    skip_large_updates as skip_large_updates,
    skip_not_finite as skip_not_finite,
    with_master as with_master,
    with_update_dtype as with_update_dtype,
)

tree_map_params = tree.map_params

if not _typing.TYPE_CHECKING:  # checkers report unknown names themselves
    __getattr__ = _unknown_names(__name__)
