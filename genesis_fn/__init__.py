"""genesis_fn: pure functions over immutable arrays, differentiated, compiled and batched."""

import importlib as _importlib
from typing import TYPE_CHECKING as _TYPE_CHECKING, Any as _Any

from genesis_fn.core.device import cpu, register_backend as _register_backend
from genesis_fn.core.diagnostics import torch_habits as _habits


def _load_cpu():
    from genesis_fn.backends.cpu import CpuBackend

    return CpuBackend()


def _load_cuda():
    from importlib.util import find_spec

    from genesis_fn.core.errors import BackendError

    if find_spec("triton") is None:
        raise BackendError("CUDA needs Triton, which is missing: pip install genesis-fn[cuda]")
    from genesis_fn.backends.cuda.backend import CudaBackend

    return CudaBackend()


_register_backend("cpu", _load_cpu)
_register_backend("cuda", _load_cuda)

from genesis_fn import cuda, debug, dtypes, errors, lax, numpy, random, tree, tree_util
from genesis_fn.core.array import Array
from genesis_fn.core.configuration.settings import (
    check_keys,
    debug_infs,
    debug_nans,
    default_device,
    default_matmul_precision,
    default_prng_impl,
    disable_jit,
    enable_checks,
    enable_x64,
    explain_cache_misses,
    log_compiles,
    numpy_dtype_promotion,
    numpy_rank_promotion,
    settings as config,
    transfer_guard,
    transfer_guard_device_to_device,
    transfer_guard_device_to_host,
    transfer_guard_host_to_device,
)
from genesis_fn.core.device import Device
from genesis_fn.core.train_state import TrainState
from genesis_fn.dtypes import float0
from genesis_fn.transforms.autodiff.checkpointing import (
    checkpoint,
    checkpoint_name,
    checkpoint_policies,
    remat,
)
from genesis_fn.transforms.autodiff.derivatives import (
    fwd_and_bwd,
    grad,
    hessian,
    jacfwd,
    jacobian,
    jacrev,
    jvp,
    linear_transpose,
    linearize,
    value_and_grad,
    vjp,
)
from genesis_fn.transforms.batching.mapped_axes import vmap
from genesis_fn.transforms.custom.callback import io_callback, pure_callback
from genesis_fn.transforms.custom.derivative_rules import custom_gradient, custom_jvp, custom_vjp
from genesis_fn.transforms.custom.ffi import torch_call, triton_call
from genesis_fn.transforms.custom.fused_functions import fused
from genesis_fn.transforms.jitting import clear_caches, jit
from genesis_fn.transforms.staging.devices import (
    block_until_ready,
    default_backend,
    device_count,
    device_get,
    device_put,
    devices,
    live_arrays,
    local_device_count,
    local_devices,
    process_count,
    process_index,
)
from genesis_fn.transforms.staging.shape_dtype_struct import Abstract as ShapeDtypeStruct
from genesis_fn.transforms.staging.tracing import (
    checking_leaks,
    closure_convert,
    ensure_compile_time_eval,
    eval_shape,
    make_jaxpr,
    named_call,
    named_scope,
    no_tracing,
    typeof,
)

__version__ = "0.1.0"

if _TYPE_CHECKING:
    from genesis_fn import (
        amp as amp,
        custom_batching as custom_batching,
        custom_derivatives as custom_derivatives,
        dlpack as dlpack,
        flatten_util as flatten_util,
        io as io,
        models as models,
        nn as nn,
        ops as ops,
        optim as optim,
        profiler as profiler,
        stages as stages,
        test_util as test_util,
    )
    from genesis_fn.benchmarking import bench as bench
    from genesis_fn.profiler import profile as profile

# Imported when they are first used, so that `import genesis_fn` stays quick.
_LAZY = frozenset((
    "amp", "custom_batching", "custom_derivatives", "data", "dlpack",
    "flatten_util", "image", "io", "models", "nn", "ops", "optim", "profiler", "scipy", "stages",
    "test_util",
))  # fmt: skip
_LAZY_FUNCTIONS = {"bench": "genesis_fn.benchmarking", "profile": "genesis_fn.profiler"}


def __getattr__(name: str) -> _Any:
    if name in _LAZY:
        return _importlib.import_module(f"genesis_fn.{name}")
    if name in _LAZY_FUNCTIONS:
        return getattr(_importlib.import_module(_LAZY_FUNCTIONS[name]), name)
    raise _habits.of_module(__name__, name)


def __dir__() -> list[str]:
    return sorted({*__all__, *_LAZY, *_LAZY_FUNCTIONS})


__all__ = [
    "Array", "Device", "ShapeDtypeStruct", "TrainState", "block_until_ready", "check_keys",
    "checking_leaks", "checkpoint", "checkpoint_name", "checkpoint_policies", "clear_caches",
    "closure_convert", "config", "cpu", "cuda", "custom_gradient", "custom_jvp", "custom_vjp",
    "debug", "debug_infs", "debug_nans", "default_backend", "default_device",
    "default_matmul_precision", "default_prng_impl", "device_count", "device_get", "device_put",
    "devices", "disable_jit", "dtypes", "enable_checks", "enable_x64", "ensure_compile_time_eval",
    "errors", "eval_shape", "explain_cache_misses", "float0", "fused", "fwd_and_bwd", "grad",
    "hessian", "io_callback", "jacfwd", "jacobian", "jacrev", "jit", "jvp", "lax",
    "linear_transpose", "linearize", "live_arrays", "local_device_count", "local_devices",
    "log_compiles", "make_jaxpr", "named_call", "named_scope", "no_tracing", "numpy",
    "numpy_dtype_promotion", "numpy_rank_promotion", "process_count", "process_index",
    "pure_callback", "random", "remat", "torch_call", "transfer_guard",
    "transfer_guard_device_to_device", "transfer_guard_device_to_host",
    "transfer_guard_host_to_device", "tree", "tree_util",
    "triton_call", "typeof", "value_and_grad", "vjp", "vmap",
]  # fmt: skip
