"""Every layer of `jax.example_libraries.stax`: shapes, parameters, outputs and derivatives.

A program of its own: `test_stax.py` runs it on JAX and on the library.
"""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
from jax import random
from jax.example_libraries import stax

KEY = random.PRNGKey(3)
IMAGE, SERIES, ROW = (2, 7, 6, 3), (2, 5, 3), (4, 6)
BLOCK = stax.serial(
    stax.FanOut(3),
    stax.parallel(
        stax.serial(stax.Conv(4, (3, 3), padding="SAME"), stax.BatchNorm(), stax.Relu),
        stax.serial(stax.Conv(4, (1, 1)), stax.Dropout(0.7)),
        stax.shape_dependent(lambda s: stax.Dense(s[-1] + 1)),
    ),
    stax.FanInSum,
)
LAYERS = {
    "Dense": (ROW, stax.Dense(5)),
    "Conv": (IMAGE, stax.Conv(4, (3, 2), strides=(2, 1), padding="SAME")),
    "GeneralConv": (
        (2, 3, 7, 6),
        stax.GeneralConv(("NCHW", "OIHW", "NHWC"), 4, (3, 3), strides=(1, 2)),
    ),
    "ConvTranspose": (IMAGE, stax.ConvTranspose(4, (3, 2), strides=(2, 1), padding="SAME")),
    "Conv1DTranspose": (SERIES, stax.Conv1DTranspose(4, (3,), strides=(2,))),
    "BatchNorm": (IMAGE, stax.BatchNorm()),
    "BatchNorm, no center": (ROW, stax.BatchNorm(axis=0, center=False)),
    "BatchNorm, no scale": (ROW, stax.BatchNorm(axis=(0,), scale=False, epsilon=0.1)),
    "MaxPool": (IMAGE, stax.MaxPool((2, 3), strides=(2, 1))),
    "SumPool": (IMAGE, stax.SumPool((3, 2), padding="SAME", spec="NHWC")),
    "AvgPool": (IMAGE, stax.AvgPool((2, 2), strides=(2, 2), padding="SAME")),
    "Flatten": (IMAGE, stax.Flatten),
    "Dropout": (ROW, stax.Dropout(0.6)),
    "Dropout, test": (ROW, stax.Dropout(0.6, mode="test")),
    "FanInConcat": (ROW, stax.serial(stax.FanOut(2), stax.FanInConcat(0))),
    "block": (IMAGE, stax.serial(BLOCK, stax.Flatten, stax.Dense(3), stax.LogSoftmax)),
    **{
        name: (ROW, getattr(stax, name))
        for name in (
            "Tanh", "Relu", "Exp", "LogSoftmax", "Softmax", "Softplus", "Sigmoid", "Elu",
            "LeakyRelu", "Selu", "Gelu", "Identity",
        )
    },
}  # fmt: skip
BATCHLESS = ("Dense", "Conv", "ConvTranspose", "Flatten", "block")


def flat(tree):
    return [v for x in jax.tree.leaves(tree) for v in jnp.ravel(x).tolist()]


found = {}
for name, (shape, (init, apply)) in LAYERS.items():
    out_shape, params = init(KEY, shape)
    x = random.normal(KEY, shape)

    def total(params, x):
        return jnp.sum(jnp.sin(apply(params, x, rng=KEY)))

    grads = jax.jit(jax.grad(total, (0, 1)))(params, x)
    found[f"{name}: shape"] = [int(n) for n in out_shape]
    found[f"{name}: params"] = flat(params)
    found[f"{name}: outputs"] = flat(apply(params, x, rng=KEY))
    found[f"{name}: derivatives"] = flat(grads)
    if name in BATCHLESS:
        found[f"{name}: any batch"] = [int(n) for n in init(KEY, (-1, *shape[1:]))[0]]
print(json.dumps(found))
