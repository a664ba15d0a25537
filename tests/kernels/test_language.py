"""The interpreted bodies of the device functions against torch."""

from __future__ import annotations

import pytest
import torch

from genesis_fn.kernels.language.source import kernel_from_source
from genesis_fn.kernels.plan import BufferArg, Launch, Plan
from tests.kernels.run import run_plan

N = 64
DTYPES = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp8e4nv": torch.float8_e4m3fn,
    "fp8e5": torch.float8_e5m2,
}
REFERENCES = {
    "exp": torch.exp,
    "exp2": torch.exp2,
    "expm1": torch.expm1,
    "sin": torch.sin,
    "cos": torch.cos,
    "tan": torch.tan,
    "atan": torch.atan,
    "sinh": torch.sinh,
    "cosh": torch.cosh,
    "tanh": torch.tanh,
    "asinh": torch.asinh,
    "erf": torch.erf,
    "erfc": torch.erfc,
    "lgamma": torch.lgamma,
    "floor": torch.floor,
    "ceil": torch.ceil,
    "trunc": torch.trunc,
    "round_even": torch.round,
    "cbrt": lambda x: torch.sign(x) * x.abs() ** (1 / 3),
}


def elementwise(expression: str, source: str, target: str, x: torch.Tensor) -> torch.Tensor:
    text = (
        f"def elementwise(x_in, out):\n    i = tl.arange(0, {N})\n    x = tl.load(x_in + i)\n"
        f"    tl.store(out + i, {expression})\n"
    )
    launch = Launch(
        kernel_from_source(text),
        (1, 1, 1),
        {"x_in": BufferArg(0, source), "out": BufferArg(1, target)},
    )
    out = torch.empty(N, dtype=DTYPES[target])
    run_plan(Plan(1, 1, (launch,)), [x], [out])
    return out


@pytest.mark.parametrize("name", list(REFERENCES))
def test_functions_of_one_number(name):
    x = torch.linspace(-3.3, 4.1, N)
    want = REFERENCES[name](x.double()).float()
    torch.testing.assert_close(
        elementwise(f"{name}(x)", "fp32", "fp32", x), want, rtol=3e-6, atol=1e-6
    )


@pytest.mark.parametrize("name", ["log", "log2", "log1p", "sqrt", "rsqrt", "acosh"])
def test_functions_of_a_positive_number(name):
    x = torch.linspace(1.01, 40.0, N)
    want = getattr(torch, name)(x.double()).float()
    torch.testing.assert_close(
        elementwise(f"{name}(x)", "fp32", "fp32", x), want, rtol=2e-6, atol=1e-6
    )


@pytest.mark.parametrize("name", ["asin", "acos", "atanh", "erf_inv"])
def test_functions_of_a_fraction(name):
    x = torch.linspace(-0.95, 0.95, N)
    want = getattr(torch, name.replace("_", ""))(x.double()).float()
    torch.testing.assert_close(
        elementwise(f"{name}(x)", "fp32", "fp32", x), want, rtol=2e-6, atol=1e-6
    )


@pytest.mark.parametrize("name", ["pow", "atan2", "fmod", "copysign", "hypot", "nextafter"])
def test_functions_of_two_numbers(name):
    x = torch.linspace(0.1, 7.0, N)
    y = torch.tensor(2.5)
    got = elementwise(f"{name}(x, 2.5)", "fp32", "fp32", x)
    torch.testing.assert_close(got, getattr(torch, name)(x, y.expand(N)))


def test_bfloat16_rounds_to_nearest_even_and_widens_exactly():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(N, generator=generator) * 10.0 ** torch.arange(-32, 32)
    x[:4] = torch.tensor([1.00390625, 1.01171875, float("inf"), -0.0])  # two ties
    narrow = elementwise("cast(x, tl.bfloat16)", "fp32", "bf16", x)
    assert torch.equal(narrow, x.bfloat16())
    assert torch.equal(elementwise("up(x)", "bf16", "fp32", narrow), narrow.float())


@pytest.mark.parametrize(
    ("name", "triton_name", "top"),
    [("fp8e4nv", "tl.float8e4nv", 448.0), ("fp8e5", "tl.float8e5", 57344.0)],
)
def test_float8_rounds_and_saturates(name, triton_name, top):
    x = torch.randn(N, generator=torch.Generator().manual_seed(1)) * 100
    x[:3] = torch.tensor([1e9, -1e9, 0.0])
    got = elementwise(f"cast(x, {triton_name})", "fp32", name, x)
    assert torch.equal(got.float(), x.clamp(-top, top).to(DTYPES[name]).float())


def test_the_last_bits_are_dropped_in_tf32():
    text = (
        "def products(a, b, out, precision: tl.constexpr):\n    i = tl.arange(0, 16)\n"
        "    at = i[:, None] * 16 + i[None, :]\n    acc = tl.zeros((16, 16), tl.float32)\n"
        "    acc = dot(tl.load(a + at), tl.load(b + at), acc, precision)\n"
        "    tl.store(out + at, acc)\n"
    )
    a = torch.full((16, 16), 1 + 2.0**-12)
    b = torch.eye(16)
    for precision, want in [("tf32", 1.0), ("default", 1.0), ("ieee", 1 + 2.0**-12)]:
        arguments = {
            "a": BufferArg(0, "fp32"),
            "b": BufferArg(1, "fp32"),
            "out": BufferArg(2, "fp32"),
        }
        launch = Launch(kernel_from_source(text), (1, 1, 1), arguments, {"precision": precision})
        out = torch.empty(16, 16)
        run_plan(Plan(2, 1, (launch,)), [a, b], [out])
        assert torch.equal(out, torch.full((16, 16), want))


def test_equal_texts_give_one_kernel():
    text = "def nothing(x):\n    return\n"
    assert kernel_from_source(text) is kernel_from_source(str(bytes(text, "ascii"), "ascii"))
