"""Settings, tracing tools, placement, costs, profiles, tracebacks and custom batching."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import traceback

import jax
import numpy as np
import pytest

import genesis_fn as gf
import genesis_fn.numpy as jnp
from genesis_fn import custom_batching, lax, profiler
from genesis_fn.core.configuration import config


@pytest.fixture(autouse=True)
def fresh_programs():
    gf.clear_caches()


# ---- settings ----


def test_an_update_reaches_blocks_that_set_something_else():
    """And a block that sets the same keeps its own value, until it ends."""
    try:
        with gf.numpy_rank_promotion("raise"):
            gf.config.update("numpy_dtype_promotion", "strict")
            assert gf.config.numpy_dtype_promotion == "strict"
            with gf.numpy_dtype_promotion("standard"):
                gf.config.update("debug_infs", True)
                assert gf.config.numpy_dtype_promotion == "standard" and gf.config.debug_infs
            assert gf.config.debug_infs and gf.config.numpy_rank_promotion == "raise"
            gf.config.update("numpy_rank_promotion", "warn")
            assert gf.config.numpy_rank_promotion == "raise"
        assert gf.config.numpy_rank_promotion == "warn"
        assert gf.config.numpy_dtype_promotion == "strict"
    finally:
        gf.config.update("numpy_dtype_promotion", "standard")
        gf.config.update("numpy_rank_promotion", "allow")
        gf.config.update("debug_infs", False)


def test_config_reads_and_updates_under_jax_names():
    assert gf.config.debug_nans is False and gf.config.jax_debug_nans is False
    gf.config.update("jax_debug_nans", True)
    try:
        assert gf.config.debug_nans
        with pytest.raises(FloatingPointError):
            jnp.log(-jnp.ones(()))
    finally:
        gf.config.update("debug_nans", False)
    with pytest.raises(AttributeError, match="no setting 'nothing'"):
        gf.config.update("nothing", 1)
    with pytest.raises(AttributeError, match="there are matmul_precision"):
        _ = gf.config.nothing
    with pytest.raises(TypeError, match="'enable_x64' takes a bool"):
        gf.config.update("jax_enable_x64", 1)


def test_contexts():
    before = gf.config.matmul_precision
    with gf.debug_nans(True), pytest.raises(gf.errors.NanError):
        gf.jit(jnp.log)(-jnp.ones(2))
    with gf.default_matmul_precision("float32"):
        assert gf.config.matmul_precision == "highest"
    with (
        pytest.raises(ValueError, match="matmul precision 'odd'"),
        gf.default_matmul_precision("odd"),
    ):
        pass
    with gf.numpy_dtype_promotion("strict"), pytest.raises(gf.errors.DTypeError):
        jnp.ones(2) + jnp.arange(2)
    with gf.numpy_rank_promotion("raise"), pytest.raises(ValueError):
        jnp.ones((2, 2)) + jnp.ones(2)
    with gf.default_device("cpu"):
        assert jnp.ones(1).device is gf.cpu()
    with gf.transfer_guard("disallow"):
        assert gf.config.transfer_guard == "disallow"
    with pytest.raises(ValueError, match="transfer_guard is one of"), gf.transfer_guard("maybe"):
        pass
    assert gf.config.matmul_precision == before


def test_disable_jit_runs_python():
    seen = []
    with gf.disable_jit():
        gf.jit(lambda x: seen.append(type(x).__name__))(jnp.ones(2))
    assert seen == ["Array"]


def test_log_compiles(caplog):
    with gf.log_compiles():
        gf.jit(lambda x: x + 1)(jnp.ones(2))
    assert "compiling <lambda>" in caplog.text


# ---- tracing ----


def test_make_jaxpr_and_eval_shape():
    y = jnp.arange(3.0)
    closed, shape = gf.make_jaxpr(lambda x, n: x**n + y, static_argnums=1, return_shape=True)(y, 3)
    assert "integer_pow" in str(closed) and closed.consts == [y] and len(closed.in_avals) == 1
    assert shape == gf.ShapeDtypeStruct((3,), "float32")
    np.testing.assert_array_equal(np.asarray(closed(y)[0]), [0, 2, 10])
    out = gf.eval_shape(
        lambda p: {"s": p["w"] @ p["w"].T}, {"w": gf.ShapeDtypeStruct((2, 3), "f4")}
    )
    assert out["s"].shape == (2, 2)
    axes = gf.make_jaxpr(lambda x: lax.psum(x, "i"), axis_env=[("i", 4)])(1.0)
    assert "psum" in str(axes)
    assert str(gf.typeof(jnp.ones((2, 3)))) == "f32[2,3]"


def test_eval_shape_of_what_captures_traced_values():
    """Shapes ask for no device: what a function closes over may be on none that is known."""

    def f(x):
        shape = gf.eval_shape(lambda v: v @ x, jnp.ones(3)).shape
        return jnp.zeros(shape) + x.sum()

    x = jnp.ones((3, 2))
    np.testing.assert_array_equal(np.asarray(gf.jit(f)(x)), [6, 6])
    np.testing.assert_array_equal(np.asarray(gf.grad(lambda x: f(x).sum())(x)), np.full((3, 2), 2))


def test_tracers_are_arrays():
    def f(x):
        assert isinstance(x, gf.Array) and isinstance(x, jnp.ndarray)
        return x

    gf.jit(gf.vmap(gf.grad(lambda x: f(x).sum())))(jnp.ones((2, 3)))
    assert isinstance(jnp.ones(1), gf.Array) and not isinstance(np.ones(1), gf.Array)


def test_compile_time_eval():
    @gf.jit
    def f(x):
        with gf.ensure_compile_time_eval():
            n = int(jnp.sum(jnp.arange(4)))
            later = x + jnp.ones(()) * n
        return later * n

    assert float(f(jnp.array(1.0))) == 42.0
    assert "arange" not in str(gf.make_jaxpr(f)(1.0))


def test_no_tracing():
    f = gf.jit(lambda x: x + 1)
    f(jnp.ones(2))
    with gf.no_tracing():
        f(jnp.ones(2))
        with pytest.raises(gf.errors.GenesisError, match="would have to be traced"):
            f(jnp.ones(3))


def test_checking_leaks():
    kept = []
    with gf.checking_leaks():
        gf.jit(gf.grad(lambda x: jnp.sin(x).sum()))(jnp.ones(2))
    with pytest.raises(
        gf.errors.UnexpectedTracerError, match="(?s)leaked tracer.*test_surroundings"
    ):
        with gf.checking_leaks():
            gf.jit(lambda x: kept.append(x * 2))(jnp.ones(2))


def test_closure_convert():
    def outer(a, x):
        f, consts = gf.closure_convert(lambda v: jnp.sin(v * a), x)
        assert len(consts) == 1
        return f(x * 2, *consts)

    g = gf.grad(outer, argnums=(0, 1))(jnp.array(0.3), jnp.array(0.5))
    r = jax.grad(lambda a, x: jax.numpy.sin(2 * x * a), argnums=(0, 1))(0.3, 0.5)
    np.testing.assert_allclose([float(v) for v in g], r, rtol=1e-6)


def test_named_scopes_reach_the_equations():
    @gf.named_scope("layer")
    def layer(x):
        with gf.named_scope("inner"):
            return x + 1

    def whole(x):
        return gf.named_call(layer, name="call")(x) * 2

    jaxpr = gf.make_jaxpr(whole)(1.0).jaxpr
    assert [e.where.scope for e in jaxpr.eqns] == ["call/layer/inner", ""]


# ---- placement ----


def test_devices_and_copies():
    assert gf.devices("cpu") == [gf.cpu()] and gf.device_count("cpu") == 1
    x = gf.device_put({"a": np.arange(3.0), "b": 1}, gf.cpu())
    assert x["a"].dtype == np.float32 and x["b"].device is gf.cpu()
    again = gf.device_put(x, {"a": gf.cpu(), "b": None})
    assert again["a"] is x["a"]
    host = gf.device_get(x)
    assert type(host["a"]) is np.ndarray and host["a"].tolist() == [0, 1, 2]
    assert gf.block_until_ready(x) is x
    assert float(gf.jit(lambda v: gf.device_put(v, gf.cpu()) * 2)(3.0)) == 6.0
    assert float(gf.grad(lambda v: gf.device_put(v) ** 2)(3.0)) == 6.0
    with pytest.raises(TypeError, match="expected a device"):
        gf.device_put(1.0, 7)


def test_live_arrays():
    x = jnp.ones(17)
    assert any(a is x for a in gf.live_arrays())
    x.delete()
    assert not any(a is x for a in gf.live_arrays())


# ---- costs, benchmarks, profiles ----


def test_cost():
    def f(x, w):
        return jnp.exp(x @ w).sum()

    found = gf.jit(f).lower(jnp.ones((8, 16)), jnp.ones((16, 4))).cost_analysis()
    assert found["flops"] == 2 * 8 * 16 * 4 + 32 + 32
    assert found["transcendentals"] == 32
    assert found["bytes accessed"] == 4 * (8 * 16 + 16 * 4 + 1)

    def loop(x):
        return lax.scan(lambda c, _: (c @ c, None), x, None, length=5)[0]

    assert gf.jit(loop).lower(jnp.ones((4, 4))).cost_analysis()["flops"] == 5 * 2 * 64
    while_ = gf.jit(lambda n: lax.while_loop(lambda i: i < n, lambda i: i + 1, 0))
    assert while_.lower(3).cost_analysis()["while loops"] == 1
    conv = gf.jit(lambda x, w: lax.conv(x, w, (1, 1), "VALID"))
    cost = conv.lower(jnp.ones((2, 3, 8, 8)), jnp.ones((5, 3, 3, 3))).cost_analysis()
    assert cost["flops"] == 2 * (2 * 5 * 6 * 6) * (3 * 3 * 3)
    rows = gf.jit(jnp.sort).lower(jnp.ones((3, 7))).cost_analysis()
    assert rows["flops"] == 3 * 7 * 3


@pytest.mark.parametrize(
    ("f", "shape", "flops"),
    [
        (jnp.linalg.cholesky, (2, 60, 60), 2 * 60**3 / 3),
        (lambda x: jnp.linalg.solve(x, jnp.ones((6, 1)))[0], (6, 6), 2 / 3 * 6**3),
        (lambda x: jnp.fft.fft(x.astype("complex64")).real, (4, 8), 5 * 4 * 8 * 3),
        (lambda x: lax.cumsum(x, 0), (5, 3), 15),
        (lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (2, 2), (1, 1), "VALID"), (4, 4), 36),
        (lambda x: x.at[jnp.array([0, 0])].add(x[:2]), (4, 3), 6),
        (lambda x: lax.cond(True, lambda y: y * y + y, lambda y: y, x), (7,), 14),
        (lambda x: gf.random.bits(gf.random.key(0), (100,)), (1,), 0),
    ],
    ids=["cholesky", "solve", "fft", "cumsum", "window", "scatter", "cond", "bits"],
)
def test_operations_counted_for(f, shape, flops):
    """By hand; what a function does besides is moves, casts and comparisons of few elements."""
    found = gf.jit(f).lower(jnp.ones(shape)).cost_analysis()["flops"]
    assert flops <= found <= 1.2 * flops + 40


def test_settings_refuse_what_they_do_not_know():
    for name, value, message in (
        ("matmul_precision", "exact", "matmul precision 'exact' is not known"),
        ("transfer_guard", "sometimes", "transfer_guard is one of allow"),
        ("numpy_dtype_promotion", "loose", '"standard" or "strict"'),
        ("numpy_rank_promotion", "never", '"allow", "warn" or "raise"'),
        ("random_impl", "mersenne", "'philox', 'threefry2x32'"),
        ("jax_default_prng_impl", "mt19937", "'philox', 'threefry2x32'"),
    ):
        before = getattr(gf.config, name)
        with pytest.raises(ValueError, match=message):
            gf.config.update(name, value)
        assert getattr(gf.config, name) == before
    assert gf.config.jax_enable_x64 is False and "update" in dir(gf.config)
    assert "matmul_precision" in repr(gf.config) and not hasattr(gf.config, "__nothing__")
    with pytest.raises(TypeError, match="expected a device"):
        gf.config.update("default_device", 3)


@pytest.mark.parametrize("variable", ["GENESIS_DEBUG_NANS", "GENESIS_CHECK"])
def test_flags_of_the_environment_are_yes_or_no(variable, monkeypatch):
    for text, value in (("yes", True), ("1", True), ("off", False), ("", False)):
        monkeypatch.setenv(variable, text)
        found = config._from_environment()
        assert (found.debug_nans, found.check_types) == (
            (value, False) if variable == "GENESIS_DEBUG_NANS" else (False, value)
        )
    monkeypatch.setenv(variable, "ture")
    with pytest.raises(ValueError, match=f"{variable} is 1, true, .* 'ture'"):
        config._from_environment()


def test_jaxs_short_name_of_threefry_is_one_implementation():
    with gf.default_prng_impl("threefry"):
        assert gf.random.PRNGKey(3).tolist() == [0, 3]
        assert gf.config.random_impl == "threefry2x32"


def test_memory():
    def f(x):
        y = jnp.exp(x)
        z = jnp.sin(y)
        return z.reshape(2, 50).T.sum()

    found = gf.jit(f).lower(jnp.ones(100)).memory_analysis()
    assert found["argument_size_in_bytes"] == 400 and found["output_size_in_bytes"] == 4
    assert found["temp_size_in_bytes"] == 800
    assert found["peak_memory_in_bytes"] == 1204


def test_bench():
    result = gf.bench(lambda x: x @ x, jnp.ones((32, 32)), min_time=0.01)
    assert result.flops == 2 * 32**3 and result.fastest <= result.median <= result.slowest
    assert result.flop_rate > 0 and "GFLOP/s" in str(result) and result.calls >= 5
    with pytest.raises(ValueError, match="donates"):
        gf.bench(gf.jit(lambda x: x + 1, donate_argnums=0), jnp.ones(2))


@pytest.mark.cpu  # tests/cuda/test_profile.py is about the other
def test_profile_names_lines():
    def f(x, name):
        y = jnp.exp(x)  # a line
        return (y * y).sum()

    table = gf.profile(f)(jnp.ones(1000), "static")
    names = {x.primitive: x for x in table.lines}
    assert set(names) == {"exp", "mul", "reduce_sum"} and "# a line" in names["exp"].source
    assert abs(float(table.result) - 1000 * np.e**2) < 1 and "test_surroundings.py" in str(table)


def test_trace_file(tmp_path):
    @profiler.annotate_function
    def work(x):
        return x @ x

    with profiler.trace(tmp_path):
        with profiler.TraceAnnotation("my step", n=3):
            work(jnp.ones((8, 8)))
    names = {
        e.get("name") for e in json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    }
    assert {"my step n=3", "work"} <= names
    assert "aten::mm" in names or jnp.ones(1).device.kind != "cpu"
    with pytest.raises(RuntimeError, match="no trace"):
        profiler.stop_trace()


# ---- tracebacks ----


def bad(x):
    return jnp.ones(3) @ x


@pytest.mark.parametrize("wrap", [gf.jit, gf.vmap, lambda f: gf.grad(lambda x: f(x).sum())])
def test_library_frames_are_hidden(wrap):
    try:
        wrap(bad)(jnp.ones((2, 2)))
    except TypeError as error:
        frames = traceback.extract_tb(error.__traceback__)
    inner = [f for f in frames if "genesis_fn" in f.filename and "tests" not in f.filename]
    assert len(inner) == 1  # the door itself
    assert frames[-1].name == "bad"


def test_full_tracebacks(tmp_path):
    program = tmp_path / "p.py"
    program.write_text(
        "import genesis_fn as gf\ngf.jit(lambda x: gf.numpy.ones(3) @ x)(gf.numpy.ones(2))"
    )
    lines = {}
    for mode in ("", "full"):
        done = subprocess.run(
            [sys.executable, program],
            capture_output=True,
            text=True,
            env=os.environ | {"GENESIS_TRACEBACK": mode, "GENESIS_DEVICE": "cpu"},
        )
        lines[mode] = done.stderr.count("  File ")
    assert lines[""] <= 3 < lines["full"]


# ---- custom batching ----


def test_custom_vmap():
    calls = []

    @custom_batching.custom_vmap
    def f(x, y):
        return jnp.sin(x) * y

    @f.def_vmap
    def rule(size, in_batched, x, y):
        calls.append((size, tuple(in_batched)))
        return jnp.sin(x) * y, in_batched[0] or in_batched[1]

    x = jnp.arange(3.0)
    np.testing.assert_allclose(
        np.asarray(gf.jit(gf.vmap(f, in_axes=(0, None)))(x, jnp.array(2.0))),
        2 * np.sin(x),
        rtol=1e-6,
    )
    assert calls == [(3, (True, False))]
    g = gf.vmap(gf.grad(f), in_axes=(0, None))(x, jnp.array(2.0))
    np.testing.assert_allclose(np.asarray(g), 2 * np.cos(np.arange(3.0)), rtol=1e-6)
    np.testing.assert_allclose(float(f(jnp.array(1.0), 2.0)), 2 * np.sin(1.0), rtol=1e-6)


def test_sequential_vmap():
    f = custom_batching.sequential_vmap(lambda x: lax.scan(lambda c, v: (c + v, c), 0.0, x)[0])
    out = gf.vmap(f)(jnp.arange(6.0).reshape(2, 3))
    np.testing.assert_array_equal(np.asarray(out), [3, 12])


# ---- check_grads ----


def test_check_grads_catches_a_wrong_rule():
    gf.test_util.check_grads(lambda x: jnp.sin(x) * x, (jnp.arange(3.0),), order=2)

    @gf.custom_jvp
    def wrong(x):
        return jnp.sin(x)

    wrong.defjvp(lambda p, t: (jnp.sin(p[0]), t[0] * 1.1 * jnp.cos(p[0])))
    for modes in (["fwd"], ["rev"]):
        with pytest.raises(AssertionError):
            gf.test_util.check_grads(wrong, (jnp.arange(3.0),), order=1, modes=modes)
    with pytest.raises(ValueError, match="modes are"):
        gf.test_util.check_grads(wrong, (1.0,), 1, modes=["sideways"])


def test_amp_is_a_transform_and_a_namespace():
    y = gf.amp(lambda x: x @ x, gf.amp.get_policy("p=f32,c=bf16,o=f32"))(jnp.ones((2, 2)))
    assert y.dtype == np.float32 and float(y[0, 0]) == 2.0
