"""The choices of `amp`, op by op, against the lists that torch tests torch.autocast with.

For every op of those lists, OURS says what it is called here, ABSENT that it is not here (or is no
op of its own, like addcmul), DIFFERENT that `amp` chooses otherwise on purpose, and why. As in
torch's own test, an op listed as low must give what it gives on operands in 16 bits, one listed as
float32 what it gives on float32 operands, bit for bit, in the dtype that the list says.
"""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

import genesis_fn.numpy as jnp
from genesis_fn import lax, nn, optim
from genesis_fn.core import dtypes
from genesis_fn.core.array import ArrayImpl, from_numpy
from genesis_fn.core.dtypes import BF16, F16, F32
from genesis_fn.core.primitive import typeof
from genesis_fn.lax.fused.norms import layer_norm, rms_norm
from genesis_fn.transforms.autodiff.derivatives import grad
from genesis_fn.transforms.batching.mapped_axes import vmap
from genesis_fn.transforms.jitting import jit
from genesis_fn.transforms.precision.autocast import amp, as_autocast_policy, autocast_jaxpr
from genesis_fn.transforms.staging.stage_trace import evaluate, stage

# The module of the lists asks torch's test utilities for two names, and those for a package.
UTILITIES = types.ModuleType("common_utils")
UTILITIES.__dict__.update(TEST_WITH_ROCM=False, TestCase=object)
with mock.patch.dict(sys.modules, {"torch.testing._internal.common_utils": UTILITIES}):
    torch_lists = importlib.import_module("torch.testing._internal.autocast_test_lists")


def _conv(spatial: int) -> Callable:
    return lambda x, w, *bias: lax.conv_general_dilated(x, w, (1,) * spatial, "VALID")


def _transposed(spatial: int) -> Callable:
    return lambda x, w: lax.conv_transpose(
        x,
        w,
        (1,) * spatial,
        "VALID",
        transpose_kernel=True,
        dimension_numbers=(
            ("NCH", "OIH", "NCH"),
            ("NCHW", "OIHW", "NCHW"),
            ("NCDHW", "OIDHW", "NCDHW"),
        )[spatial - 1],
    )


# Our function for the arguments that the lists give, floating arrays only.
OURS: dict[str, Callable] = {
    "_convolution": _conv(2), "convolution": _conv(2), "conv1d": _conv(1), "conv2d": _conv(2),
    "conv3d": _conv(3), "conv_transpose1d": _transposed(1), "conv_transpose2d": _transposed(2),
    "conv_transpose3d": _transposed(3),
    "matmul": jnp.matmul, "__matmul__": lambda x, y: x @ y, "mm": jnp.matmul, "mv": jnp.matmul,
    "bmm": jnp.matmul, "chain_matmul": lambda *xs: jnp.linalg.multi_dot(xs),
    "linalg_multi_dot": lambda *xs: jnp.linalg.multi_dot(xs), "linalg_vecdot": jnp.vecdot,
    "einsum": lambda x, y: jnp.einsum("ij,jk->ik", x, y),
    "dot": jnp.dot, "vdot": jnp.vdot, "tensordot": jnp.tensordot,
    "linear": lambda x, w, *b: nn.Linear(8, 8, bias=bool(b))(
        {"weight": w, **({"bias": b[0][0]} if b else {})}, x
    ),
    "acos": jnp.acos, "asin": jnp.asin, "cosh": jnp.cosh, "erfinv": lax.erf_inv, "exp": jnp.exp,
    "expm1": jnp.expm1, "log": jnp.log, "log10": jnp.log10, "log2": jnp.log2, "log1p": jnp.log1p,
    "reciprocal": jnp.reciprocal, "rsqrt": lax.rsqrt, "sinh": jnp.sinh, "tan": jnp.tan,
    "pow": lambda x, *y: jnp.power(x, *(y or (1.7,))), "__pow__": lambda x: x**1.5,
    "softmax": lambda x: nn.softmax(x, 0), "log_softmax": lambda x: nn.log_softmax(x, 0),
    "layer_norm": lambda x: layer_norm(x, jnp.ones_like(x), jnp.zeros_like(x), eps=1e-5),
    "rms_norm": lambda x: rms_norm(x, jnp.ones_like(x), eps=1e-5),
    "norm": jnp.linalg.norm, "cosine_similarity": optim.cosine_similarity,
    "kl_div": optim.kl_divergence, "triplet_margin_loss": optim.triplet_margin_loss,
    "binary_cross_entropy_with_logits": optim.sigmoid_binary_cross_entropy,
    "hinge_embedding_loss": lambda x: optim.hinge_loss(x, jnp.ones_like(x)),
    "cumprod": lambda x: jnp.cumprod(x, 0), "cumsum": lambda x: jnp.cumsum(x, 0),
    "prod": jnp.prod, "sum": jnp.sum, "logsumexp": lambda x: nn.logsumexp(x, 1),
    "softplus": nn.softplus, "mse_loss": optim.squared_error, "huber_loss": optim.huber_loss,
    "smooth_l1_loss": optim.huber_loss,
    "nll_loss": lambda x: optim.softmax_cross_entropy_with_integer_labels(
        x, jnp.zeros(len(x), int)
    ),
    "atan2": jnp.atan2, "cross": jnp.cross, "cat": lambda *xs: jnp.concatenate(xs),
    "stack": lambda *xs: jnp.stack(xs), "index_put": lambda x, v: x.at[np.array([1])].set(v),
    "scatter_add": lambda x, v: x.at[np.zeros((2,), int)].add(v),
    "eq": jnp.equal, "ge": jnp.greater_equal, "gt": jnp.greater, "le": jnp.less_equal,
    "lt": jnp.less, "ne": jnp.not_equal, "equal": jnp.array_equal, "add": jnp.add,
    "div": jnp.divide, "mul": jnp.multiply, "__eq__": lambda x, y: x == y,
    "__ge__": lambda x, y: x >= y, "__gt__": lambda x, y: x > y, "__le__": lambda x, y: x <= y,
    "__lt__": lambda x, y: x < y, "__ne__": lambda x, y: x != y, "__add__": lambda x, y: x + y,
    "__div__": lambda x, y: x / y, "__mul__": lambda x, y: x * y,
    "reflection_pad1d": lambda x: jnp.pad(x, ((0, 0), (0, 0), (3, 3)), "reflect"),
    "addmm": lambda a, x, y: a + x @ y, "addmv": lambda a, x, y: a + x @ y,
    "addr": lambda a, x, y: a + jnp.outer(x, y), "baddbmm": lambda a, x, y: a + x @ y,
    "addbmm": lambda a, x, y: a + jnp.sum(x @ y, 0),
    "avg_pool3d": lambda x: lax.reduce_window(x, 0.0, lax.add, (1, 3, 3, 3), (1,) * 4, "VALID"),
}  # fmt: skip
ABSENT = {
    "conv_tbc", "cudnn_convolution", "cudnn_convolution_transpose", "prelu", "lstm_cell",
    "gru_cell", "rnn_tanh_cell", "rnn_relu_cell", "_addmm_activation", "bilinear", "grid_sampler",
    "_native_multi_head_attention", "group_norm", "poisson_nll_loss", "cosine_embedding_loss",
    "margin_ranking_loss", "dist", "pdist", "cdist", "renorm", "nll_loss2d", "l1_loss",
    "addcdiv", "addcmul",
    "multilabel_margin_loss", "soft_margin_loss", "multi_margin_loss", "binary_cross_entropy",
}  # fmt: skip
# What amp chooses instead ("float32", "low", "bool", or the dtype of the "first" operand), and why.
DIFFERENT = {
    # Torch lists the whole; here product and sum have classes of their own, and a bias that is
    # float32 stays exact. A low bias gives a low result.
    **dict.fromkeys(("addmm", "addmv", "addr", "baddbmm"), "float32"),
    "linear": "float32",
    # The products are low; summing them is a reduction, float32 like every other.
    "addbmm": "float32",
    # Contractions are low whatever form they are written in; torch widens these where the
    # operands differ.
    **dict.fromkeys(("dot", "vdot", "tensordot"), "low"),
    # The array that is updated keeps its dtype, as in JAX.
    **dict.fromkeys(("index_put", "scatter_add"), "first"),
    "equal": "bool",  # torch's list has float32, and its test does not look
    "reflection_pad1d": "first",  # moves values and computes nothing
}


def entries() -> list[Any]:
    """(list, device, op, floating arguments, "low", "float32" or the dtype of the result)."""
    found = []
    for device, lists in (
        ("cuda", torch_lists.AutocastTestLists("cpu")),
        ("cpu", torch_lists.AutocastCPUTestLists("cpu")),
    ):
        for name, ops in vars(lists).items():
            kind = (
                "low"
                if name.endswith("16")
                else "float32"
                if name.endswith("fp32")
                else "promote"
                if "promote" in name
                else None
            )
            if kind is None:
                assert name == "banned", name
                continue
            for n, (op, *rest) in enumerate(ops):
                groups = [a for a in rest if isinstance(a, tuple)]
                for given in groups if device == "cpu" and kind == "promote" else groups[:1]:
                    found.append(
                        pytest.param(op, _floats(given), kind, id=f"{device}-{name}-{op}-{n}")
                    )
    return found


def _floats(given: Any) -> list[torch.Tensor]:
    """The floating tensors among arguments, at any depth."""
    if isinstance(given, torch.Tensor):
        return [given] if given.is_floating_point() else []
    return [t for g in given for t in _floats(g)] if isinstance(given, (tuple, list)) else []


def _array(x: torch.Tensor) -> ArrayImpl:
    if x.dtype == torch.bfloat16:
        return from_numpy(x.float().numpy()).astype(BF16)
    return from_numpy(np.array(x.numpy()))


def test_every_listed_op_is_accounted_for():
    listed = {e.values[0] for e in entries()}
    assert not set(OURS) & ABSENT and set(DIFFERENT) <= set(OURS)
    assert listed - set(OURS) - ABSENT == set()
    # Releases of torch before 2.13 do not list rms_norm.
    assert (set(OURS) | ABSENT) - listed <= {"binary_cross_entropy", "rms_norm"}


def run(f: Callable, xs: list, low: Any) -> list[ArrayImpl]:
    """The results of `amp(f)` in the dtypes that they have inside."""
    program, captured = stage(lambda *ys: [f(*ys)], [typeof(x) for x in xs])
    keep = (False,) * len(program.outs)
    inside = autocast_jaxpr(program, as_autocast_policy(low), tuple(program.in_avals), keep)
    return evaluate(inside, *captured, *xs)


@pytest.mark.parametrize(("op", "given", "kind"), entries())
def test_choice(op, given, kind):
    if op in ABSENT:
        return
    xs = [_array(t) for t in given]
    f = OURS[op]
    narrow = {x.dtype for x in xs} & {BF16, F16}
    low = narrow.pop() if narrow else BF16
    (got,) = run(f, xs, low)
    wanted = {"low": low, "float32": F32, "promote": F32}[kind]
    run_as = [x.astype(wanted) for x in xs]
    control = f(*run_as)
    if op in DIFFERENT and (op != "linear" or len(xs) == 3):
        choice = {"low": low, "float32": F32, "first": xs[0].dtype, "bool": dtypes.BOOL}
        assert got.dtype == choice[DIFFERENT[op]]
        return
    assert got.dtype == (dtypes.BOOL if control.dtype == dtypes.BOOL else wanted)
    assert _equal(got, control), "computed in another precision than torch.autocast's choice"


def _equal(x: ArrayImpl, y: ArrayImpl) -> bool:
    a, b = (np.asarray(v).astype(np.float64) for v in (x, y))
    return a.shape == b.shape and np.array_equal(a, b, equal_nan=True)


def _ctc(x: Any) -> Any:
    logits = jnp.stack([x, x * 0.5])
    labels = np.array([[1, 2], [2, 3]])
    return optim.ctc_loss(logits, jnp.zeros((2, len(x))), labels, jnp.zeros((2, 2))).sum()


LOSSES = {
    "ctc": _ctc,
    "huber": lambda x: optim.huber_loss(x, x[::-1]).mean(),
    "ntxent": lambda x: optim.ntxent(x, np.array([0, 0, 1, 1])),
    "kl": lambda x: optim.kl_divergence(x, nn.softmax(x), where=x > -9).sum(),
}


@pytest.mark.parametrize("name", LOSSES)
def test_losses_are_float32_as_a_whole(name):
    """Values and gradients of a loss of low logits are those without amp, in float32."""
    f, x = LOSSES[name], jnp.asarray(np.random.default_rng(0).normal(size=(4, 8)))
    (value,) = run(f, [x], BF16)
    assert value.dtype == F32 and _equal(value, f(x))
    for g in (grad(amp(f)), amp(grad(f)), jit(amp(grad(f))), amp(jit(grad(f)))):
        np.testing.assert_allclose(np.asarray(g(x)), np.asarray(grad(f)(x)), rtol=2e-6, atol=1e-7)
    stacked = jnp.stack([x, -x])
    np.testing.assert_allclose(
        np.asarray(amp(vmap(f))(stacked)), [float(f(x)), float(f(-x))], rtol=2e-6
    )
