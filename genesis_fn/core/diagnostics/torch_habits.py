"""What people who come from torch write, and what this library calls it: one table, which the
errors for unknown attributes and arguments read."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, Never

from genesis_fn.core.diagnostics.source_info import where

if TYPE_CHECKING:
    from genesis_fn.core.array import Array

_CAST = "x.astype({!r})".format
_PLACE = "genesis_fn.device_put(x, genesis_fn.{}())".format
_AXIS = "axis= says which dimension"
_DERIVATIVE = "derivatives are of functions: grads = genesis_fn.grad(loss)(params)"

# Attributes of tensors.
ARRAYS = {
    "cuda": _PLACE("cuda"), "cpu": _PLACE("cpu"),
    "to": "genesis_fn.device_put(x, device) moves, x.astype(dtype) casts",
    "is_cuda": 'x.device.kind == "cuda"', "pin_memory": "arrays are copied when a call needs them",
    "get_device": "x.device",
    "float": _CAST("float32"), "double": _CAST("float64"), "half": _CAST("float16"),
    "bfloat16": _CAST("bfloat16"), "long": _CAST("int64"), "int": _CAST("int32"),
    "short": _CAST("int16"), "byte": _CAST("uint8"), "bool": _CAST("bool"),
    "type": "x.astype(dtype), or x.dtype", "type_as": "x.astype(y.dtype)",
    "detach": "lax.stop_gradient(x)", "requires_grad": _DERIVATIVE, "requires_grad_": _DERIVATIVE,
    "backward": _DERIVATIVE, "grad": _DERIVATIVE, "grad_fn": _DERIVATIVE, "is_leaf": _DERIVATIVE,
    "retain_grad": _DERIVATIVE, "zero_grad": "gradients are new values; nothing is to be zeroed",
    "register_hook": "genesis_fn.custom_vjp gives a function a backward rule",
    "numpy": "numpy.asarray(x)", "clone": "x.copy(); arrays are immutable, so rarely needed",
    "data": "lax.stop_gradient(x)", "contiguous": "x; layouts are the library's affair",
    "is_contiguous": "x; layouts are the library's affair", "stride": "arrays have no strides",
    "dim": "x.ndim", "ndimension": "x.ndim", "numel": "x.size", "nelement": "x.size",
    "element_size": "x.itemsize",
    "unsqueeze": "x[None], or jnp.expand_dims(x, axis)", "permute": "x.transpose(axes)",
    "t": "x.T", "H": "x.mT.conj()", "mH": "x.mT.conj()",
    "expand": "jnp.broadcast_to(x, shape)", "expand_as": "jnp.broadcast_to(x, y.shape)",
    "view_as": "x.reshape(y.shape)", "reshape_as": "x.reshape(y.shape)",
    "unbind": "jnp.unstack(x)", "chunk": "jnp.split(x, sections, axis)",
    "unfold": "lax.dynamic_slice, or an index array", "narrow": "x[start : start + length]",
    "select": "x[i]", "index_select": "jnp.take(x, indices, axis)",
    "gather": "jnp.take_along_axis(x, indices, axis)", "scatter": "x.at[indices].set(values)",
    "scatter_add": "x.at[indices].add(values)", "index_add": "x.at[indices].add(values)",
    "index_copy": "x.at[indices].set(values)", "masked_fill": "jnp.where(mask, value, x)",
    "masked_select": "x[mask]", "index_put": "x.at[indices].set(values)",
    "clamp": "x.clip(min, max)", "clamp_min": "x.clip(min)", "clamp_max": "x.clip(max=...)",
    "topk": "lax.top_k(x, k)", "mm": "x @ y", "bmm": "x @ y", "mv": "x @ y",
    "matmul": "x @ y", "norm": "jnp.linalg.norm(x)", "logsumexp": "nn.logsumexp(x)",
    "softmax": "nn.softmax(x)", "log_softmax": "nn.log_softmax(x)", "relu": "nn.relu(x)",
    "sigmoid": "nn.sigmoid(x)", "neg": "-x", "mul": "x * y", "add": "x + y", "sub": "x - y",
    "div": "x / y", "eq": "x == y", "ne": "x != y", "lt": "x < y", "le": "x <= y", "gt": "x > y",
    "ge": "x >= y", "rsqrt": "lax.rsqrt(x)", "amax": "x.max(axis)", "amin": "x.min(axis)",
    "new_zeros": "jnp.zeros(shape, x.dtype)", "new_ones": "jnp.ones(shape, x.dtype)",
    "new_full": "jnp.full(shape, value, x.dtype)", "new_empty": "jnp.empty(shape, x.dtype)",
    "new_tensor": "jnp.asarray(values, x.dtype)", "apply": "genesis_fn.vmap(f)(x)",
}  # fmt: skip

# Further tensor methods with an in-place form, whose name ends in "_".
IN_PLACE = (
    "addbmm", "addcdiv", "addcmul", "addmm", "addmv", "addr", "as_strided", "baddbmm", "bernoulli",
    "cauchy", "conj_physical", "digamma", "erf", "erfc", "erfinv", "exponential", "fill", "fix",
    "frac", "geometric", "igamma", "igammac", "index_fill", "index_reduce", "lerp", "lgamma",
    "log_normal", "logit", "map", "map2", "masked_scatter", "mvlgamma", "normal", "polygamma",
    "random", "renorm", "resize_as", "resize_as_sparse", "scatter_reduce", "set", "sgn",
    "share_memory", "sparse_resize", "sparse_resize_and_clear", "swapdims", "uniform", "xlogy",
    "zero",
)  # fmt: skip

# Arguments by keyword.
ARGUMENTS = {
    "dim": _AXIS, "dims": _AXIS, "dim0": _AXIS, "dim1": _AXIS, "keepdim": "it is keepdims=",
    "unbiased": "it is ddof=1 or ddof=0", "requires_grad": _DERIVATIVE,
    "inplace": "arrays are immutable: use the result", "descending": "x[::-1] of the sorted",
    "other": "pass it by position", "input": "pass it by position",
}  # fmt: skip

# Names in the library's modules.
MODULES = {
    "genesis_fn": {
        "tensor": "numpy.asarray", "Tensor": "Array", "from_numpy": "numpy.asarray",
        "no_grad": "nothing: derivatives are only taken by grad; lax.stop_gradient(x) for a value",
        "enable_grad": "grad(f)", "manual_seed": "random.key(seed), which functions take",
        "autograd": "grad, vjp, jvp, custom_vjp", "compile": "jit", "func": "grad, vmap, vjp, jvp",
        "save": "io.save", "load": "io.restore", "device": "cpu() and cuda()",
        "autocast": "amp(f, policy)", "nograd": "lax.stop_gradient(x)",
        "export": "jit(f).lower(...)",
    },
    "genesis_fn.numpy": {
        "tensor": "asarray", "from_numpy": "asarray", "as_tensor": "asarray", "cat": "concatenate",
        "unsqueeze": "x[None] or expand_dims", "permute": "transpose", "clamp": "clip",
        "bmm": "matmul", "mm": "matmul", "mv": "matmul", "mul": "multiply", "div": "divide",
        "sub": "subtract", "neg": "negative", "ger": "outer", "topk": "lax.top_k",
        "gather": "take_along_axis", "index_select": "take", "masked_fill": "where",
        "masked_select": "x[mask]", "unbind": "unstack", "chunk": "split", "numel": "size",
        "sigmoid": "nn.sigmoid", "softmax": "nn.softmax", "relu": "nn.relu", "randn":
        "random.normal(key, shape)", "rand": "random.uniform(key, shape)", "randint":
        "random.randint(key, shape, minval, maxval)", "randperm": "random.permutation(key, n)",
        "manual_seed": "random.key(seed)", "rsqrt": "lax.rsqrt", "erf": "lax.erf", "pow_": "power",
        "logsumexp": "nn.logsumexp", "norm": "linalg.norm", "no_grad": "lax.stop_gradient(x)",
    },
    "genesis_fn.nn": {
        "Dense": "Linear(inputs, outputs)", "functional": "its functions are here: nn.relu",
        "Parameter": "parameters are plain arrays: layer.init(key)",
        "ModuleList": "a list of layers, or Sequential", "ModuleDict": "a dict of layers",
        "ReLU": "relu, or Activation(relu)",
        "GELU": "gelu, or Activation(gelu); torch's is gelu(x, approximate=False)",
        "Identity": "identity, or Activation(identity)",
        "SiLU": "silu, or Activation(silu)", "Tanh": "tanh, or Activation(tanh)",
        "Sigmoid": "sigmoid, or Activation(sigmoid)", "Softmax": "softmax, or Activation(softmax)",
        "LogSoftmax": "log_softmax", "LeakyReLU": "leaky_relu", "ELU": "elu", "SELU": "selu",
        "Softplus": "softplus", "Embed": "Embedding", "Conv1D": "Conv1d", "Conv2D": "Conv2d",
        **{f"{kind}{n}d": kind for n in "123" for kind in (
            "BatchNorm", "InstanceNorm", "MaxPool", "AvgPool", "AdaptiveAvgPool",
            "AdaptiveMaxPool")},
        **{f"Dropout{n}d": "ChannelDropout" for n in "123"},
        "MultiheadAttention": "MultiHeadAttention(features, heads)",
        "MultiHeadDotProductAttention": "MultiHeadAttention(features, heads)",
        "TransformerEncoderLayer": "Residual of a Sequential of RMSNorm and MultiHeadAttention",
        "CrossEntropyLoss": "cross_entropy(logits, labels)", "MSELoss": "mse_loss",
        "L1Loss": "l1_loss", "SmoothL1Loss": "smooth_l1_loss", "HuberLoss": "huber_loss",
        "BCELoss": "binary_cross_entropy", "BCEWithLogitsLoss": "binary_cross_entropy_with_logits",
        "NLLLoss": "nll_loss", "KLDivLoss": "kl_div", "CTCLoss": "ctc_loss",
        "CosineEmbeddingLoss": "cosine_embedding_loss", "TripletMarginLoss": "triplet_margin_loss",
        "init": "initializers", "utils": "WeightNorm and SpectralNorm; optim for clipping",
        "scaled_dot_product_attention": "dot_product_attention",
        "max_pool2d": "max_pool(x, (2, 2))", "avg_pool2d": "avg_pool(x, (2, 2))",
        "weight_norm": "WeightNorm(layer)",
        "spectral_norm": "SpectralNorm(layer)",
        "dropout": "Dropout(rate)", "layer_norm": "LayerNorm(size)",
        "normalize": "x / jnp.linalg.norm(x, axis=-1, keepdims=True)",
        "softsign": "soft_sign", "logsigmoid": "log_sigmoid", "hardswish": "hard_swish",
        "hardsigmoid": "hard_sigmoid", "hardtanh": "hard_tanh, or jnp.clip(x, low, high)",
        "prelu": "leaky_relu(x, weight)", "softmin": "softmax(-x)", "tanhshrink": "x - tanh(x)",
        "threshold": "jnp.where(x > threshold, x, value)",
        "hardshrink": "jnp.where(abs(x) > lambd, x, 0)",
        "softshrink": "jnp.sign(x) * relu(abs(x) - lambd)",
        "gumbel_softmax": "softmax((logits + random.gumbel(key, logits.shape)) / tau)",
        "cosine_similarity": "optim.losses.cosine_similarity(x, y)",
        "pairwise_distance": "jnp.linalg.norm(x - y, axis=-1)",
        "multi_margin_loss": (
            "(relu(1 + x - jnp.take_along_axis(x, target[:, None], 1)).sum(1) - 1).mean()"
            " / x.shape[1]"
        ),
        "hinge_embedding_loss": "jnp.where(target == 1, x, relu(margin - x)).mean()",
    },
    "genesis_fn.optim": {
        "Adam": "adam", "AdamW": "adamw", "SGD": "sgd", "RMSprop": "rmsprop", "Adagrad": "adagrad",
        "Adadelta": "adadelta", "Adamax": "adamax", "NAdam": "nadam", "RAdam": "radam",
        "Muon": "muon", "Optimizer": "GradientTransformation",
        "lr_scheduler": "schedules are functions of the step: cosine_decay_schedule",
        "clip_grad_norm_": "clip_by_global_norm in a chain",
        "zero_grad": "gradients are new values; nothing is to be zeroed",
        "step": "updates, state = tx.update(grads, state, params); apply_updates(params, updates)",
    },
}  # fmt: skip


def of_array(x: Array, name: str, functions: ModuleType) -> AttributeError:
    """The error for an attribute that arrays lack. `functions` is the module of functions of
    arrays, one of which may be meant."""
    plain = f"{type(x).__name__!r} object has no attribute {name!r}"
    instead = None if name.startswith("_") else ARRAYS.get(name)
    if instead is None and name.endswith("_") and not name.startswith("_"):
        instead = "arrays are immutable: use what an operation returns, or x.at[i].set(value)"
    if instead is None and callable(vars(functions).get(name)):
        instead = f"jnp.{name}(x)"
    if instead is None:
        return AttributeError(plain, name=name, obj=x)
    return AttributeError(f"{plain}\n  at {where().describe()}\n  in this library: {instead}")


def of_module(module: str, name: str) -> AttributeError:
    """The error for a name that a module of the library lacks."""
    plain = f"module {module!r} has no attribute {name!r}"
    instead = MODULES.get(module, {}).get(name)
    if instead is None:
        # With these two Python's traceback says which name may be meant.
        return AttributeError(plain, name=name, obj=sys.modules[module])
    return AttributeError(f"{plain}\n  at {where().describe()}\n  in this library: {instead}")


def unknown_names(module: str) -> Callable[[str], Never]:
    """`__getattr__` of a module."""

    def lacking(name: str) -> Never:
        raise of_module(module, name)

    return lacking


def of_arguments(name: str, error: TypeError, given: dict[str, Any]) -> TypeError | None:
    """A better error than `error`, of a call of the function `name` with the keywords `given`, if
    one of them is a habit that it does not know."""
    for argument, instead in ARGUMENTS.items():
        if argument in given and f"{name}() got an unexpected keyword" in str(error):
            return TypeError(f"{name} has no {argument}=: {instead}\n  at {where().describe()}")
    return None


def explained(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, whose unknown keywords are explained."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except TypeError as error:
            better = of_arguments(function.__name__, error, kwargs)
            if better is None:
                raise
        raise better

    return call


def explain_axes(names: dict[str, Any], module: str) -> None:
    """Explain the unknown keywords of those functions among `names` that take axes; the package
    `module` hands them out."""
    for name, f in list(names.items()):
        if type(f) is not FunctionType or name.startswith("_"):
            continue
        code = inspect.unwrap(f).__code__
        taken = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        if "axis" in taken or "axes" in taken:
            names[name] = call = explained(f)
            call.__module__ = module  # pickles look there
