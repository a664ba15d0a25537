"""Names of `jax.example_libraries.stax`, which the library does not have yet."""

from __future__ import annotations

from genesis_fn.as_jax.stubs import stub

_NAMES = (
    "AvgPool", "BatchNorm", "Conv", "Conv1DTranspose", "ConvTranspose", "Dense", "Dropout", "Elu",
    "Exp", "FanInConcat", "FanInSum", "FanOut", "Flatten", "Gelu", "GeneralConv",
    "GeneralConvTranspose", "Identity", "LeakyRelu", "LogSoftmax", "MaxPool", "Relu", "Selu",
    "Sigmoid", "Softmax", "Softplus", "SumPool", "Tanh", "elementwise", "parallel", "serial",
    "shape_dependent",
)  # fmt: skip
globals().update({n: stub(f"jax.example_libraries.stax.{n}", "genesis_fn.nn") for n in _NAMES})
