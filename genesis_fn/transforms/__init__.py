"""Transforms of functions and programs, and the higher-order primitives that contain programs.

`staging` records functions as programs, `autodiff` differentiates them, `batching` is vmap,
`jitting` compiles; then control flow, functions with rules of their own, precision and debugging.
The names exported here are for users; the rest is internal.
"""

from genesis_fn.transforms.autodiff.checkpointing import (
    checkpoint as checkpoint,
    checkpoint_name as checkpoint_name,
    checkpoint_policies as checkpoint_policies,
    remat as remat,
)
from genesis_fn.transforms.autodiff.derivatives import (
    fwd_and_bwd as fwd_and_bwd,
    grad as grad,
    jvp as jvp,
    linear_transpose as linear_transpose,
    linearize as linearize,
    value_and_grad as value_and_grad,
    vjp as vjp,
)
from genesis_fn.transforms.autodiff.jacobians import (
    hessian as hessian,
    jacfwd as jacfwd,
    jacobian as jacobian,
    jacrev as jacrev,
)
from genesis_fn.transforms.batching.collectives import (
    all_gather as all_gather,
    all_gather_invariant as all_gather_invariant,
    axis_index as axis_index,
    axis_size as axis_size,
    pcast as pcast,
    pmax as pmax,
    pmean as pmean,
    pmin as pmin,
    psum as psum,
    psum_scatter as psum_scatter,
    pvary as pvary,
)
from genesis_fn.transforms.batching.exchanges import (
    all_to_all as all_to_all,
    ppermute as ppermute,
    pshuffle as pshuffle,
    pswapaxes as pswapaxes,
)
from genesis_fn.transforms.batching.mapped_axes import vmap as vmap
from genesis_fn.transforms.control_flow.associative import associative_scan as associative_scan
from genesis_fn.transforms.control_flow.conditionals import cond as cond, switch as switch
from genesis_fn.transforms.control_flow.loops import (
    fori_loop as fori_loop,
    map as map,
    while_loop as while_loop,
)
from genesis_fn.transforms.control_flow.scanning import scan as scan
from genesis_fn.transforms.custom.batching import (
    custom_vmap as custom_vmap,
    sequential_vmap as sequential_vmap,
)
from genesis_fn.transforms.custom.callback import (
    debug_callback as debug_callback,
    debug_print as debug_print,
    io_callback as io_callback,
    pure_callback as pure_callback,
)
from genesis_fn.transforms.custom.derivative_rules import (
    CustomVJPPrimal as CustomVJPPrimal,
    SymbolicZero as SymbolicZero,
    custom_gradient as custom_gradient,
    custom_jvp as custom_jvp,
    custom_vjp as custom_vjp,
    zero_from_primal as zero_from_primal,
)
from genesis_fn.transforms.custom.ffi import torch_call as torch_call, triton_call as triton_call
from genesis_fn.transforms.custom.fused_functions import fused as fused
from genesis_fn.transforms.debugging.assertions import assert_ as assert_
from genesis_fn.transforms.debugging.breakpoints import breakpoint as breakpoint
from genesis_fn.transforms.debugging.nan_tracing import nan_trace as nan_trace
from genesis_fn.transforms.jitting.aot import Compiled as Compiled, Traced as Traced
from genesis_fn.transforms.jitting.function import (
    JitFunction as JitFunction,
    clear_caches as clear_caches,
    jit as jit,
)
from genesis_fn.transforms.precision.autocast import amp as amp
from genesis_fn.transforms.staging.device_placement import (
    block_until_ready as block_until_ready,
    device_get as device_get,
    device_put as device_put,
    live_arrays as live_arrays,
)
from genesis_fn.transforms.staging.shape_dtype_struct import ShapeDtypeStruct as ShapeDtypeStruct
from genesis_fn.transforms.staging.tracing import (
    checking_leaks as checking_leaks,
    closure_convert as closure_convert,
    ensure_compile_time_eval as ensure_compile_time_eval,
    eval_shape as eval_shape,
    make_jaxpr as make_jaxpr,
    named_call as named_call,
    named_scope as named_scope,
    no_tracing as no_tracing,
    typeof as typeof,
)
