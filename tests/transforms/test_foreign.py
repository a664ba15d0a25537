"""torch functions and Triton kernels in traced programs."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch

import genesis_fn.numpy as jnp
from genesis_fn.core import errors
from genesis_fn.test_util import check_grads
from genesis_fn.transforms.autodiff.derivatives import grad, jvp
from genesis_fn.transforms.autodiff.jacobians import hessian
from genesis_fn.transforms.batching.mapped_axes import vmap
from genesis_fn.transforms.control_flow.scanning import scan
from genesis_fn.transforms.custom.ffi import torch_call
from genesis_fn.transforms.jitting import jit
from tests.primitives.check import address

X = np.random.default_rng(0).normal(size=(3, 4))


def f64(x):
    return jnp.array(x, dtype="float64")


def smooth(x, y):
    return {"s": torch.sin(x) * y, "t": (x**2).sum() * y.mean()}


def test_value_and_structure():
    out = jit(lambda x, y: torch_call(smooth, x, y))(f64(X), f64(X + 1))
    np.testing.assert_allclose(np.asarray(out["s"]), np.sin(X) * (X + 1))
    assert out["t"].dtype == np.float64 and out["t"].shape == ()


def test_derivatives_of_any_order():
    def f(x, y):
        out = torch_call(smooth, x, y)
        return out["s"].sum() + jnp.sin(out["t"])

    check_grads(f, (f64(X), f64(X * 0.3)), order=2, atol=1e-4, rtol=1e-4)
    h = hessian(lambda x: torch_call(lambda v: (v**3).sum(), x))(f64(X[0]))
    np.testing.assert_allclose(np.asarray(h), np.diag(6 * X[0]), rtol=1e-12)
    third = grad(grad(grad(lambda x: torch_call(lambda v: v**4, x))))(f64(2.0))
    assert float(third) == 48.0


def test_jit_vmap_scan():
    def f(x):
        return torch_call(lambda v: torch.tanh(v).sum(), x)

    np.testing.assert_allclose(np.asarray(vmap(f)(f64(X))), np.tanh(X).sum(1))
    g = jit(vmap(grad(f)))(f64(X))
    np.testing.assert_allclose(np.asarray(g), 1 - np.tanh(X) ** 2, rtol=1e-9)
    total = jit(grad(lambda x: scan(lambda c, r: (c + f(r * c), None), f64(1.0), x)[0]))(f64(X))
    ours = grad(lambda x: scan(lambda c, r: (c + jnp.tanh(r * c).sum(), None), f64(1.0), x)[0])(
        f64(X)
    )
    np.testing.assert_allclose(np.asarray(total), np.asarray(ours), rtol=1e-9)


def test_integers_and_unused_arguments():
    def f(x, i, z):
        return x[i].sum(), i + 1

    x, i = f64(X), jnp.array([2, 0])
    out, n = torch_call(f, x, i, x)
    assert n.dtype == np.int32
    g = grad(lambda x, z: torch_call(f, x, i, z)[0], argnums=(0, 1))(x, x)
    np.testing.assert_allclose(np.asarray(g[0]), [[1] * 4, [0] * 4, [1] * 4])
    assert not np.asarray(g[1]).any()
    out, t = jvp(lambda x: torch_call(f, x, i, x)[0], (x,), (x,))
    np.testing.assert_allclose(float(t), X[[2, 0]].sum())


@pytest.mark.parametrize("dtype", ["bfloat16", "uint32", "uint16", "bool", "complex64"])
def test_dtypes(dtype):
    x = jnp.arange(3).astype(dtype)
    out = torch_call(lambda v: v.clone(), x)
    assert out.dtype == x.dtype
    np.testing.assert_array_equal(np.asarray(out), np.asarray(x))


def test_data_dependent_shapes_run_on_values():
    out = torch_call(lambda v: v * float(v.sum() > -1e9), jnp.ones(3))
    np.testing.assert_array_equal(np.asarray(out), np.ones(3))


def test_aliases_and_in_place_changes():
    x = jnp.ones(3)
    out = torch_call(lambda v: v, x)
    assert address(out) != address(x)
    with pytest.raises(errors.GenesisError, match="changed its argument 0 in place"):
        torch_call(lambda v: v.add_(1), jnp.ones(3))
    with pytest.raises(TypeError, match="must return tensors"):
        torch_call(lambda v: 3, x)


def test_a_torch_module():
    layer = torch.nn.Linear(4, 2).double()
    weights = {k: f64(v.detach().numpy()) for k, v in layer.state_dict().items()}
    x = f64(X)

    def loss(w):
        return torch_call(lambda w, v: torch.func.functional_call(layer, w, v).pow(2).sum(), w, x)

    g = jit(grad(loss))(weights)
    layer(torch.from_numpy(X)).pow(2).sum().backward()
    np.testing.assert_allclose(np.asarray(g["weight"]), layer.weight.grad.numpy(), rtol=1e-9)


KERNEL = """
import numpy as np
import pytest
import triton, triton.language as tl
import genesis_fn.numpy as jnp
from genesis_fn.core import errors
from genesis_fn.transforms.custom.ffi import triton_call
from genesis_fn.transforms.autodiff.derivatives import grad
from genesis_fn.transforms.staging.shape_dtype_struct import ShapeDtypeStruct
from genesis_fn.transforms.jitting import jit
from genesis_fn.transforms.batching.mapped_axes import vmap

@triton.jit
def scaled_sin(x, n, scale, out, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n)
    tl.store(out + i, tl.sin(v) * scale, mask=i < n)

def call(x, **options):
    return triton_call(
        scaled_sin, x, x.size, 2.0, grid=lambda meta: (triton.cdiv(x.size, meta["BLOCK"]),),
        out_shape=ShapeDtypeStruct(x.shape, x.dtype), BLOCK=4, **options,
    )

x = jnp.arange(6.0)
"""
CHECKS = """
np.testing.assert_allclose(np.asarray(jit(call)(x)), 2 * np.sin(np.arange(6)), rtol=1e-6)
rows = vmap(call)(x.reshape(2, 3))
np.testing.assert_allclose(np.asarray(rows).ravel(), 2 * np.sin(np.arange(6)), rtol=1e-6)
with pytest.raises(errors.NotDifferentiableError, match="vjp="):
    grad(lambda x: call(x).sum())(x)
rule = lambda args, out, ct: (2 * jnp.cos(args[0]) * ct,)
g = jit(grad(lambda x: call(x, vjp=rule).sum()))(x)
np.testing.assert_allclose(np.asarray(g), 2 * np.cos(np.arange(6)), rtol=1e-6)
print("ok")
"""


def run_python(tmp_path, text, **environment):
    path = tmp_path / "program.py"
    path.write_text(textwrap.dedent(text))
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | environment
    return subprocess.run([sys.executable, path], capture_output=True, text=True, env=env)


def test_triton_call_through_the_interpreter(tmp_path):
    pytest.importorskip("triton")
    done = run_python(tmp_path, KERNEL + CHECKS, TRITON_INTERPRET="1", GENESIS_DEVICE="cpu")
    assert done.stdout.endswith("ok\n"), done.stderr


def test_triton_call_without_the_interpreter_says_so(tmp_path):
    pytest.importorskip("triton")
    done = run_python(tmp_path, KERNEL + "call(x)", GENESIS_DEVICE="cpu")
    assert "TRITON_INTERPRET=1" in done.stderr and "BackendError" in done.stderr
