"""Methods and protocols of arrays; conversions of traced values and their errors."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch

import genesis_fn.numpy as jnp
from genesis_fn import lax
from genesis_fn.core import errors
from genesis_fn.transforms.autodiff.derivatives import grad
from genesis_fn.transforms.batching.mapped_axes import vmap
from genesis_fn.transforms.jitting import jit

X = np.arange(6.0, dtype=np.float32).reshape(2, 3)


def array() -> Any:
    return jnp.asarray(X)


@pytest.mark.parametrize("method", ["sum", "prod", "mean", "var", "std", "max", "min", "any", "all",
                                    "argmax", "argmin", "cumsum", "cumprod",
                                    "argsort"])  # fmt: skip
def test_reducing_methods(method: str) -> None:
    got, expected = getattr(array(), method)(axis=1), getattr(X, method)(axis=1)
    np.testing.assert_allclose(np.asarray(got), expected, rtol=1e-6)


def test_shape_methods() -> None:
    x = array()
    assert x.reshape(3, 2).shape == x.reshape((3, -1)).shape == (3, 2)
    assert x.reshape(-1).shape == x.ravel().shape == x.flatten().shape == (6,)
    assert x.T.shape == x.mT.shape == x.transpose().shape == x.transpose(1, 0).shape == (3, 2)
    assert x[None].squeeze(0).shape == (2, 3) and x.swapaxes(0, 1).shape == (3, 2)
    assert x.repeat(2, axis=0).shape == (4, 3)
    assert x.astype(int).dtype == np.int32 and x.astype("bfloat16").dtype == jnp.bfloat16
    assert x.view(np.int32).dtype == np.int32 and x.view(np.int16).shape == (2, 6)
    assert x.view(np.int16).view(np.float32).tolist() == X.tolist()
    assert x.copy() is not x and x.copy().tolist() == X.tolist()
    assert x.clip(1, 3).max() == 3 and x.take(jnp.array([1])).tolist() == [1.0]
    assert x.dot(jnp.ones(3)).tolist() == [3.0, 12.0] and x.trace() == 4.0
    assert x.nbytes == 24 and x.itemsize == 4 and x.size == 6 and x.ndim == 2
    assert x.real.tolist() == X.tolist() and x.imag.sum() == 0
    assert not x.is_deleted() and x.block_until_ready() is x and x.devices() == {x.device}


def test_numbers() -> None:
    x = array()
    assert x[1, 2].item() == 5.0 and x.item(1, 2) == 5.0 and x.item(4) == 4.0
    assert float(x[0, 1]) == 1.0 and int(x[1, 0]) == 3 and complex(x[0, 1]) == 1 + 0j
    assert bool(x[0, 1]) and not bool(x[0, 0]) and x.tolist() == X.tolist()
    assert list(range(4))[jnp.array(2)] == 2 and f"{x[0, 1]:.2f}" == "1.00"
    with pytest.raises(ValueError, match=r"any\(\)"):
        bool(x)
    with pytest.raises(TypeError, match="scalars"):
        float(jnp.ones(1))
    with pytest.raises(TypeError, match="one element"):
        float(x)
    with pytest.raises(TypeError, match="integer"):
        [1, 2][jnp.array(1.0)]
    with pytest.raises(TypeError, match="one element"):
        x.item()
    with pytest.raises(TypeError, match="not hashable"):
        hash(x)


def test_sequences() -> None:
    x = array()
    assert len(x) == 2 and [row.tolist() for row in x] == X.tolist() and 4.0 in x and 9.0 not in x
    a, b = x
    assert b.tolist() == X[1].tolist()
    with pytest.raises(TypeError):
        len(jnp.array(1))
    with pytest.raises(TypeError):
        iter(jnp.array(1))


def test_text() -> None:
    assert repr(jnp.arange(3)) == "Array([0, 1, 2], dtype=int32)"
    assert repr(jnp.ones(2, jnp.bfloat16)) == "Array([1., 1.], dtype=bfloat16)"
    assert repr(jnp.zeros((0, 2))) == "Array([], shape=(0, 2), dtype=float32)"
    assert str(jnp.arange(3)) == "[0 1 2]"


def test_numpy_view_is_read_only() -> None:
    view = np.asarray(array())
    assert not view.flags.writeable
    np.testing.assert_array_equal(np.array(array(), dtype=np.float64), X.astype(np.float64))
    assert np.array(array()).flags.writeable
    assert np.asarray(jnp.ones(2, jnp.bfloat16)).dtype == jnp.bfloat16


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "uint32", "bool", "complex64"])
def test_pickling_and_copying(dtype: str) -> None:
    x = jnp.array([0, 1, 2]).astype(dtype)
    y = pickle.loads(pickle.dumps(x))
    assert y.dtype == x.dtype and (y == x).all()
    assert copy.copy(x) is x and copy.deepcopy([x])[0] is x


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "uint16", "bool"])
def test_dlpack(dtype: str) -> None:
    x = jnp.array([0, 1, 2]).astype(dtype)
    t = torch.from_dlpack(x)
    assert str(t.dtype) == f"torch.{dtype}" and t.tolist() == x.tolist()
    y = jnp.from_dlpack(torch.arange(3, dtype=torch.float64))
    assert y.dtype == np.float64 and y.tolist() == [0.0, 1.0, 2.0]
    assert x.__dlpack_device__() == t.__dlpack_device__()


def test_array_api_namespace() -> None:
    xp = array().__array_namespace__(api_version="2024.12")
    assert xp is jnp
    info = xp.__array_namespace_info__()
    assert info.default_dtypes()["integral"] == np.int32
    assert "float32" in info.dtypes(kind="real floating") and info.devices()
    with pytest.raises(ValueError, match="not supported"):
        array().__array_namespace__(api_version="1999.01")


USES = [
    ("bool", lambda x: 1 if x else 0, errors.TracerBoolConversionError, "lax.cond"),
    ("int", lambda x: int(x), errors.TracerIntegerConversionError, "static_argnums"),
   
    ("index", lambda x: jnp.zeros(x.astype(int)), errors.TracerIntegerConversionError,
     "static_argnums"),
    ("float", lambda x: float(x), errors.ConcretizationTypeError, "static_argnums"),
    ("complex", lambda x: complex(x), errors.ConcretizationTypeError, "static_argnums"),
    ("item", lambda x: x.item(), errors.ConcretizationTypeError, "item"),
    ("tolist", lambda x: x.tolist(), errors.ConcretizationTypeError, "outside"),
    ("numpy", lambda x: np.asarray(x), errors.TracerArrayConversionError, "pure_callback"),
]  # fmt: skip


@pytest.mark.parametrize("use, f, kind, advice", USES, ids=[u[0] for u in USES])
def test_traced_values_are_not_numbers(use: str, f: Any, kind: type, advice: str) -> None:
    def loss(params: Any, other: Any) -> Any:
        y = params * 2
        return f(y)

    with pytest.raises(kind) as caught:
        jit(loss)(jnp.array(1.0), jnp.array(2.0))
    message = str(caught.value)
    assert advice in message and "params" in message and "other" not in message
    assert "test_methods.py" in message and "made at" in message
    assert use == "index" or "y = params * 2" in message
    assert len(message.splitlines()) <= 6


@pytest.mark.parametrize("use, f, kind, advice", USES, ids=[u[0] for u in USES])
def test_eager_derivatives_see_what_carries_none(use: str, f: Any, kind: type, advice: str) -> None:
    def loss(x: Any) -> Any:
        f(lax.stop_gradient(x))
        return x * 3

    assert grad(loss)(jnp.array(1.0)).item() == 3.0
    if use in ("bool", "index"):
        assert grad(lambda x: (f(x), x * 3)[1])(jnp.array(1.0)).item() == 3.0
        return
    with pytest.raises(kind, match="its derivative would be lost"):
        grad(f)(jnp.array(1.0))


def test_batched_values_are_not_numbers() -> None:
    with pytest.raises(errors.TracerBoolConversionError):
        vmap(lambda x: 1.0 if x > 0 else 0.0)(jnp.ones(3))


def test_python_control_flow_on_eager_derivatives() -> None:
    assert grad(lambda x: x * 2 if x > 0 else x * 3)(jnp.array(-1.0)).item() == 3.0


def test_weak_arguments_of_jit_follow_arrays() -> None:
    x = jnp.ones(2, jnp.bfloat16)
    assert jit(lambda lr, x: lr * x)(0.5, x).dtype == jnp.bfloat16
    assert jit(lambda lr, x: (lr + 1) * 2 * x)(0.5, x).dtype == jnp.bfloat16
    assert jit(lambda lr, x: lr.astype(jnp.float32) * x)(0.5, x).dtype == jnp.float32
    assert jit(lambda n, x: n * x)(2, jnp.ones(2, jnp.int8)).dtype == jnp.int8


def test_iteration_of_traced_values() -> None:
    assert jit(lambda x: sum(row for row in x))(array()).tolist() == [3.0, 5.0, 7.0]
    assert jit(lambda x: len(x) * x)(array())[0, 1].item() == 2.0


def test_formatting_of_traced_values_does_not_fail() -> None:
    texts = []
    jit(lambda x: texts.append(f"{x:.3f} {x}") or x)(jnp.array(1.0))
    assert "f32[]" in texts[0]
