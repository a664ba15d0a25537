"""How exactly float32 is computed: errors of every function in both modes, `precise` wherever it
is said, and precisions that are set inside of programs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import genesis_fn as gf
import genesis_fn.numpy as jnp
from benchmarks.numerics import FUNCTIONS, Function, errors
from genesis_fn import lax, nn
from genesis_fn.backends.cuda.driver.drivers import implementation
from genesis_fn.backends.cuda.lowerings import elementwise
from genesis_fn.core.device import cuda
from genesis_fn.nn import linear_cross_entropy
from genesis_fn.transforms.staging.stage_trace import inlined

ROOT = Path(__file__).parents[2]
INTERPRETED = implementation() == "interpret"
# The interpreter has torch's and NumPy's functions in place of the device's; these of them err more
# than CUDA's: the first where x is subnormal, the others where the result is near infinity.
HOSTS = ("cbrt", "sinh", "cosh", "lgamma")


def numbers(each: int) -> np.ndarray:
    """Floats of every sign and exponent, `each` of them, NaN and infinities among them."""
    rng = np.random.default_rng(3)
    mantissas = rng.integers(0, 1 << 23, (512, each), dtype=np.uint32)
    mantissas[:, :3] = [0, 1, 0x7FFFFF]
    return ((np.arange(512, dtype=np.uint32)[:, None] << 23) | mantissas).ravel().view(np.float32)


def off(f: Function, got: np.ndarray, *operands: np.ndarray) -> int:
    """The largest error, in units in the last place."""
    given = [torch.from_numpy(x) for x in operands]
    return int(errors(f, torch.from_numpy(np.array(got)), given).max())


@pytest.mark.parametrize("precise", [False, True])
def test_errors_are_within_the_bounds(precise: bool) -> None:
    x = numbers(8)
    y = np.random.default_rng(4).permutation(x)

    @gf.jit(precise=precise)
    def all_of(x: Any, y: Any) -> dict[str, Any]:
        return {n: f.ours(*(x, y)[: f.operands]) for n, f in FUNCTIONS.items()}

    got = all_of(jnp.array(x, device=cuda(0)), jnp.array(y, device=cuda(0)))
    for name, f in FUNCTIONS.items():
        if not (INTERPRETED and name in HOSTS):
            bound = f.precise if precise else f.bound
            assert off(f, np.asarray(got[name]), *(x, y)[: f.operands]) <= bound, name


def test_compiled_code_is_within_the_bounds() -> None:
    """What the compiler makes of CUDA's functions, subnormal numbers included, on a model of the
    machine in which its approximations are rounded correctly."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    script = Path(__file__).with_name("compile_numerics.py")
    run = subprocess.run(
        [sys.executable, str(script), "16"],
        capture_output=True,
        text=True,
        env=environment | {"PYTHONPATH": path, "GENESIS_DEVICE": "cpu"},
        check=False,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    found = json.loads(run.stdout.splitlines()[-1])
    assert found.keys() == FUNCTIONS.keys()
    for name, most in found.items():
        assert most <= FUNCTIONS[name].bound, (name, most)


def test_precise_division_and_roots_have_numpys_bits() -> None:
    x = numbers(6)
    y = np.random.default_rng(5).permutation(x)
    f = gf.jit(lambda x, y: (x / y, 1 / x, lax.reciprocal(x), jnp.sqrt(x)), precise=True)
    got = f(jnp.array(x, device=cuda(0)), jnp.array(y, device=cuda(0)))
    with np.errstate(all="ignore"):
        wanted = (x / y, 1 / x, 1 / x, np.sqrt(x))
    for g, w in zip(got, wanted, strict=True):
        np.testing.assert_array_equal(np.asarray(g), w)


# ---- where `precise` is said ----


def divisions(f: Callable[..., Any], *args: Any) -> tuple[int, int]:
    """How many divisions of the compiled function are correctly rounded, and how many close."""
    on_gpu = [jnp.array(a, device=cuda(0)) for a in args]
    text = gf.jit(f).trace(*on_gpu).compile().as_text()
    kernels = text[text.index("\ndef ") :]
    return kernels.count("= div("), kernels.count("= div_close(")


def third(x: Any) -> Any:
    return x / (x + 3.0)


X = np.linspace(0.5, 2.0, 7, dtype=np.float32)


def test_the_default_is_close_and_the_setting_exact() -> None:
    assert divisions(third, X) == (0, 1)
    with gf.precise():
        assert gf.config.precise
        assert divisions(third, X) == (1, 0)
        with gf.precise(False):
            assert divisions(third, X) == (0, 1)
    assert not gf.config.precise
    narrow = X.astype(jnp.bfloat16)
    with gf.precise():  # narrow floats keep what their rounding hides
        assert divisions(third, narrow) == (0, 1)


def test_inner_functions_follow_unless_they_say_otherwise() -> None:
    follows, exact, close = [gf.jit(third, precise=p) for p in (None, True, False)]
    both = lambda x: exact(x) + close(x + 1.0)
    assert divisions(both, X) == (1, 1)
    assert divisions(lambda x: follows(x) + exact(x), X) == (1, 1)  # no common subexpression
    with gf.precise():
        assert divisions(both, X) == (1, 1)
        assert divisions(follows, X) == (1, 0)

    def partly(x: Any) -> Any:
        with gf.precise():
            y = third(x)
        return third(y)

    assert divisions(partly, X) == (1, 1)


def test_derivatives_are_as_exact_as_what_they_differentiate() -> None:
    exact = gf.jit(third, precise=True)
    whole = lambda x: jnp.sum(exact(x))
    for f in (gf.grad(whole), gf.grad(gf.checkpoint(whole)), gf.vmap(gf.grad(exact))):
        correctly, close = divisions(f, X)
        assert correctly >= 1 and close == 0
    # A pullback that is called when the setting is another one.
    with gf.precise():
        _, pull = gf.vjp(lambda x: x / 3.0 + 1.0 / x, jnp.array(X))
    back = inlined(gf.make_jaxpr(pull)(jnp.ones_like(X)).jaxpr)
    assert [e.numerics.precise for e in back.eqns if e.prim.name == "div"]
    assert all(e.numerics.precise for e in back.eqns if e.prim.name == "div")


def test_loops_and_branches_keep_it() -> None:
    exact = gf.jit(third, precise=True)
    loop = lambda x: lax.fori_loop(0, 3, lambda _, y: exact(y), x)
    assert divisions(loop, X) == (1, 0)
    branch = lambda x: lax.cond(x[0] > 1.0, exact, third, x)
    assert divisions(branch, X) == (1, 1)


def test_ahead_of_time_the_trace_decides() -> None:
    x = jnp.array(X, device=cuda(0))
    with gf.precise():
        traced = gf.jit(third).trace(x)
    assert "= div(" in traced.compile().as_text()


def test_it_is_part_of_the_key() -> None:
    f = gf.jit(third)
    f(jnp.array(X))
    with gf.precise():
        f(jnp.array(X))
        f(jnp.array(X))
    f(jnp.array(X))
    assert len(f.traces) == 2
    # Functions of equal code share programs, but not with another `precise`.
    other = gf.jit(third, precise=True)
    other(jnp.array(X))
    (program,) = other.cache.programs
    assert all(e.numerics.precise for e in program.jaxpr.eqns)


def test_eager_operations_follow_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    plain = elementwise.expression

    def noted(prim: Any, names: Any, operands: Any, params: Any, precise: bool) -> str:
        seen.append((prim.name, precise))
        return plain(prim, names, operands, params, precise)

    monkeypatch.setattr(elementwise, "expression", noted)
    x, y = [jnp.array(np.full((3, 5, 11), v, np.float32), device=cuda(0)) for v in (1.0, 3.0)]
    for wanted in (False, True, False):
        with gf.precise(wanted):
            assert np.asarray(x / y).max() == np.float32(1) / np.float32(3)
    assert seen.count(("div", True)) == seen.count(("div", False)) == 1


def test_without_jit_the_function_still_says_so() -> None:
    seen = []

    @gf.jit(precise=True)
    def f(x: Any) -> Any:
        seen.append(gf.config.precise)
        return x / 3.0

    with gf.disable_jit():
        f(jnp.ones(2))
    f(jnp.ones(2))
    assert seen == [True, True]


def test_what_is_no_truth_value_is_refused() -> None:
    with pytest.raises(TypeError, match="precise is True, False or None"):
        gf.jit(third, precise="yes")  # pyright: ignore
    with pytest.raises(TypeError, match="takes a bool"):
        gf.config.update("precise", "yes")


def test_quotients_that_are_to_be_exact_are() -> None:
    """49 / 49 may be less than 1 where 2 units in the last place are good enough."""
    for f in (
        lambda x: jnp.round(x, 2),
        lambda x: jnp.linspace(x, x + 1.0, 50),
        lambda x: gf.optim.schedules.step_schedule(1.0, 49)(x[0]),
    ):
        assert divisions(f, X)[0] >= 1
    x = jnp.array(np.arange(1.0, 200.0, dtype=np.float32), device=cuda(0))
    np.testing.assert_array_equal(np.asarray(gf.jit(jnp.floor_divide)(x, x)), 1.0)
    ends = gf.jit(lambda x: jnp.linspace(x, x + 1.0, 50))(x)
    np.testing.assert_array_equal(np.asarray(ends[-1]), np.asarray(x) + 1.0)
    # The derivative of a remainder by its divisor is the whole quotient.
    slopes = gf.vmap(gf.grad(lax.rem, argnums=1))(3.0 * x, x)
    np.testing.assert_array_equal(np.asarray(slopes), -3.0)


# ---- the precision of products, set inside of a program ----


def _attention(x: Any) -> Any:
    q = x.reshape(1, 16, 1, 32)
    return nn.dot_product_attention(q, q * 0.5, q + 1.0)


def _loss(x: Any) -> Any:
    labels = jnp.astype(x[:, 0] * 0, jnp.int32) + 3
    return linear_cross_entropy(x, x * 0.3, labels)


@pytest.mark.parametrize("f", [_attention, _loss], ids=["attention", "linear_cross_entropy"])
def test_a_precision_set_inside_reaches_the_kernels_of_fused_functions(f: Any) -> None:
    x = np.random.default_rng(6).standard_normal((16, 32)).astype(np.float32)
    on_gpu = jnp.array(x, device=cuda(0))
    reference = np.asarray(f(jnp.array(x, device=gf.cpu())))
    slope = np.asarray(gf.grad(lambda x: jnp.sum(f(x) ** 2))(jnp.array(x, device=gf.cpu())))

    def inside(x: Any) -> Any:
        with gf.default_matmul_precision("highest"):
            return f(x)

    def error(got: Any, want: np.ndarray) -> float:
        return float(np.abs(np.asarray(got) - want).max() / np.abs(want).max())

    # TF32 keeps ten bits of the operands.
    with gf.default_matmul_precision("default"):
        assert error(gf.jit(f)(on_gpu), reference) > 1e-5
        assert error(gf.jit(inside)(on_gpu), reference) < 2e-6
        # The derivative follows, also of a function whose calls come back after the block.
        grad = gf.jit(gf.grad(lambda x: jnp.sum(inside(x) ** 2)))
        assert error(grad(on_gpu), slope) < 5e-6
        assert error(gf.grad(lambda x: jnp.sum(inside(x) ** 2))(on_gpu), slope) < 5e-6
        # And so does an eager call.
        assert error(inside(on_gpu), reference) < 2e-6
    # The other way round: what is said inside holds, not what is said around the call.
    lower = gf.jit(gf.default_matmul_precision("default")(f))
    with gf.default_matmul_precision("highest"):
        assert error(lower(on_gpu), reference) > 1e-5
        assert error(gf.jit(f)(on_gpu), reference) < 2e-6
