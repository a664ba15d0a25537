"""`optim.contrib`: optimizers of single papers, with optax's names; `optim` has some too."""

from genesis_fn.optim.contrib.coin_betting import (
    COCOBState as COCOBState,
    MechanicState as MechanicState,
    cocob as cocob,
    mechanize as mechanize,
    scale_by_cocob as scale_by_cocob,
)
from genesis_fn.optim.contrib.complex_parameters import (
    SplitRealAndImaginaryState as SplitRealAndImaginaryState,
    split_real_and_imaginary as split_real_and_imaginary,
)
from genesis_fn.optim.contrib.delayed_moments import (
    acprop as acprop,
    adopt as adopt,
    scale_by_acprop as scale_by_acprop,
    scale_by_adopt as scale_by_adopt,
)
from genesis_fn.optim.contrib.distance_estimates import (
    DAdaptAdamWState as DAdaptAdamWState,
    DoGState as DoGState,
    DoWGState as DoWGState,
    dadapt_adamw as dadapt_adamw,
    dog as dog,
    dowg as dowg,
)
from genesis_fn.optim.contrib.dual_averaging import (
    MadgradState as MadgradState,
    madgrad as madgrad,
    scale_by_madgrad as scale_by_madgrad,
)
from genesis_fn.optim.contrib.loss_models import (
    MomoAdamState as MomoAdamState,
    MomoState as MomoState,
    momo as momo,
    momo_adam as momo_adam,
)
from genesis_fn.optim.contrib.low_rank import (
    GaLoreDimensionNumbers as GaLoreDimensionNumbers,
    GaLoreState as GaLoreState,
    galore as galore,
    scale_by_galore as scale_by_galore,
)
from genesis_fn.optim.contrib.mixed_averages import (
    ScaleByAdemamixState as ScaleByAdemamixState,
    ScaleBySimplifiedAdEMAMixState as ScaleBySimplifiedAdEMAMixState,
    ademamix as ademamix,
    scale_by_ademamix as scale_by_ademamix,
    scale_by_simplified_ademamix as scale_by_simplified_ademamix,
    simplified_ademamix as simplified_ademamix,
)
from genesis_fn.optim.contrib.private import (
    DifferentiallyPrivateAggregateState as DifferentiallyPrivateAggregateState,
    differentially_private_aggregate as differentially_private_aggregate,
    dpsgd as dpsgd,
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
from genesis_fn.optim.optimizers.orthogonalized import (
    MuonDimensionNumbers as MuonDimensionNumbers,
    MuonState as MuonState,
    muon as muon,
    scale_by_muon as scale_by_muon,
)
from genesis_fn.optim.optimizers.second_order import (
    HutchinsonState as HutchinsonState,
    SophiaState as SophiaState,
    hutchinson_estimator_diag_hessian as hutchinson_estimator_diag_hessian,
    sophia as sophia,
)
from genesis_fn.optim.optimizers.sharpness_aware import (
    NormalizeState as NormalizeState,
    SAMState as SAMState,
    sam as sam,
)
from genesis_fn.optim.transforms.plateau import (
    ReduceLROnPlateauState as ReduceLROnPlateauState,
    reduce_on_plateau as reduce_on_plateau,
)
from genesis_fn.optim.transforms.transform import normalize as normalize
