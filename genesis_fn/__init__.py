"""genesis_fn: pure functions over immutable arrays, differentiated, compiled and batched."""

import importlib as _importlib
import typing as _typing
from typing import Any as _Any

from genesis_fn.core.device import cpu as cpu, register_backend as _register_backend
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


def _load_mesh():
    from genesis_fn.backends.mesh.backend import MeshBackend

    return MeshBackend()


_register_backend("cpu", _load_cpu)
_register_backend("cuda", _load_cuda)
_register_backend("mesh", _load_mesh)

from genesis_fn import (
    debug as debug,
    dtypes as dtypes,
    errors as errors,
    lax as lax,
    numpy as numpy,
    tree as tree,
)

if not _typing.TYPE_CHECKING:
    from genesis_fn import cuda as cuda

from genesis_fn.core.array import Array as Array, Shard as Shard
from genesis_fn.core.configuration.settings import (
    check_keys as check_keys,
    debug_infs as debug_infs,
    debug_nans as debug_nans,
    default_device as default_device,
    default_matmul_precision as default_matmul_precision,
    default_prng_impl as default_prng_impl,
    deterministic as deterministic,
    disable_jit as disable_jit,
    enable_checks as enable_checks,
    enable_x64 as enable_x64,
    explain_cache_misses as explain_cache_misses,
    log_compiles as log_compiles,
    numpy_dtype_promotion as numpy_dtype_promotion,
    numpy_rank_promotion as numpy_rank_promotion,
    precise as precise,
    settings as _settings,
    transfer_guard as transfer_guard,
    transfer_guard_device_to_device as transfer_guard_device_to_device,
    transfer_guard_device_to_host as transfer_guard_device_to_host,
    transfer_guard_host_to_device as transfer_guard_host_to_device,
)
from genesis_fn.core.device import Device as Device
from genesis_fn.core.sharding.arrays import (
    make_array_from_callback as make_array_from_callback,
    make_array_from_process_local_data as make_array_from_process_local_data,
    make_array_from_single_device_arrays as make_array_from_single_device_arrays,
)
from genesis_fn.core.sharding.layout import NamedSharding as NamedSharding, P as P
from genesis_fn.core.sharding.mesh import make_mesh as make_mesh, set_mesh as set_mesh
from genesis_fn.core.train_state import TrainState as TrainState
from genesis_fn.core.types.annotations import (
    ArrayLike as ArrayLike,
    DTypeLike as DTypeLike,
    Key as Key,
    PyTree as PyTree,
)
from genesis_fn.dtypes import float0 as float0
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
from genesis_fn.transforms.batching.mapped_axes import vmap as vmap
from genesis_fn.transforms.custom.callback import (
    io_callback as io_callback,
    pure_callback as pure_callback,
)
from genesis_fn.transforms.custom.derivative_rules import (
    custom_gradient as custom_gradient,
    custom_jvp as custom_jvp,
    custom_vjp as custom_vjp,
)
from genesis_fn.transforms.custom.ffi import torch_call as torch_call, triton_call as triton_call
from genesis_fn.transforms.custom.fused_functions import fused as fused
from genesis_fn.transforms.jitting import clear_caches as clear_caches, jit as jit
from genesis_fn.transforms.sharding.constraint import reshard as reshard
from genesis_fn.transforms.sharding.shard_mapping import shard_map as shard_map
from genesis_fn.transforms.staging.device_placement import (
    block_until_ready as block_until_ready,
    default_backend as default_backend,
    device_count as device_count,
    device_get as device_get,
    device_put as device_put,
    devices as devices,
    effects_barrier as effects_barrier,
    host_count as host_count,
    host_id as host_id,
    host_ids as host_ids,
    live_arrays as live_arrays,
    local_device_count as local_device_count,
    local_devices as local_devices,
    process_count as process_count,
    process_index as process_index,
    process_indices as process_indices,
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
from genesis_fn.version import __version__ as __version__

config = _settings

if _typing.TYPE_CHECKING:
    # Checkers know no modules that can be called: these two are classes to them, which make what
    # the modules do.
    import genesis_fn.amp as _amp
    import genesis_fn.cuda as _cuda
    from genesis_fn import (
        ad_checkpoint as ad_checkpoint,
        core as core,
        custom_batching as custom_batching,
        custom_derivatives as custom_derivatives,
        data as data,
        distributed as distributed,
        dlpack as dlpack,
        experimental as experimental,
        extend as extend,
        flatten_util as flatten_util,
        image as image,
        io as io,
        kernels as kernels,
        models as models,
        nn as nn,
        ops as ops,
        optim as optim,
        parallel as parallel,
        profiler as profiler,
        random as random,
        scipy as scipy,
        sharding as sharding,
        stages as stages,
        test_util as test_util,
        tree_util as tree_util,
        typing as typing,
        version as version,
    )
    from genesis_fn.benchmarking import bench as bench
    from genesis_fn.cli.info import print_environment_info as print_environment_info
    from genesis_fn.profiler import profile as profile

    class cuda:
        """`cuda(1)` is the second GPU."""

        Event = _cuda.Event
        OutOfMemoryError = _cuda.OutOfMemoryError
        Stream = _cuda.Stream
        current_stream = staticmethod(_cuda.current_stream)
        device_count = staticmethod(_cuda.device_count)
        empty_cache = staticmethod(_cuda.empty_cache)
        get_device_capability = staticmethod(_cuda.get_device_capability)
        get_device_name = staticmethod(_cuda.get_device_name)
        is_available = staticmethod(_cuda.is_available)
        max_memory_allocated = staticmethod(_cuda.max_memory_allocated)
        mem_get_info = staticmethod(_cuda.mem_get_info)
        memory_allocated = staticmethod(_cuda.memory_allocated)
        memory_reserved = staticmethod(_cuda.memory_reserved)
        memory_snapshot = staticmethod(_cuda.memory_snapshot)
        memory_stats = staticmethod(_cuda.memory_stats)
        memory_summary = staticmethod(_cuda.memory_summary)
        reset_peak = staticmethod(_cuda.reset_peak)
        set_memory_fraction = staticmethod(_cuda.set_memory_fraction)
        synchronize = staticmethod(_cuda.synchronize)

        def __new__(cls, index: int = 0) -> Device: ...

    class _Amp(type):
        """Makes `amp(f)` what `autocast` returns."""

        __call__ = staticmethod(_amp.autocast)  # pyright: ignore[reportAssignmentType]

    class amp(metaclass=_Amp):
        """`amp(f, policy)` is `amp.autocast(f, policy)`."""

        DynamicLossScale = _amp.DynamicLossScale
        LossScale = _amp.LossScale
        NoOpLossScale = _amp.NoOpLossScale
        Policy = _amp.Policy
        StaticLossScale = _amp.StaticLossScale
        all_finite = staticmethod(_amp.all_finite)
        autocast = staticmethod(_amp.autocast)
        cast_to_full = staticmethod(_amp.cast_to_full)
        cast_to_half = staticmethod(_amp.cast_to_half)
        get_policy = staticmethod(_amp.get_policy)
        half_dtype = staticmethod(_amp.half_dtype)
        scaled_value_and_grad = staticmethod(_amp.scaled_value_and_grad)
        select_tree = staticmethod(_amp.select_tree)


# Imported when they are first used, so that `import genesis_fn` stays quick.
_LAZY = frozenset((
    "ad_checkpoint", "amp", "core", "custom_batching", "custom_derivatives", "data", "distributed",
    "dlpack", "experimental", "extend", "flatten_util", "image", "io", "kernels", "models", "nn",
    "ops", "optim", "parallel", "profiler", "random", "scipy", "sharding", "stages", "test_util",
    "tree_util", "typing", "version",
))  # fmt: skip
_LAZY_FUNCTIONS = {
    "bench": "genesis_fn.benchmarking",
    "print_environment_info": "genesis_fn.cli.info",
    "profile": "genesis_fn.profiler",
}


def load_ipython_extension(ipython: _Any) -> None:
    """Let a notebook show dicts, lists and tuples that hold arrays as `tree.show` does:
    `%load_ext genesis_fn`."""
    from genesis_fn.core.trees.html import register_formatters

    register_formatters(ipython)


if not _typing.TYPE_CHECKING:  # checkers report unknown names themselves

    def __getattr__(name: str) -> _Any:
        if name in _LAZY:
            return _importlib.import_module(f"genesis_fn.{name}")
        if name in _LAZY_FUNCTIONS:
            return getattr(_importlib.import_module(_LAZY_FUNCTIONS[name]), name)
        raise _habits.of_module(__name__, name)


def __dir__() -> list[str]:
    return sorted({n for n in globals() if n[0] != "_"} | _LAZY | {*_LAZY_FUNCTIONS})
