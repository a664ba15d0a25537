"""The CUDA backend from the outside: transfers, devices, exchange, errors, memory limits."""

from __future__ import annotations

import gc
import os
import pickle
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch

import genesis_fn as gf
import genesis_fn.numpy as jnp
from genesis_fn.backends.cuda.driver.drivers import implementation
from genesis_fn.backends.cuda.run.runtime import device_runtime
from genesis_fn.core import dtypes
from genesis_fn.core.array import from_numpy
from genesis_fn.core.device import cpu, using_device

INTERPRETED = implementation() == "interpret"
several = pytest.mark.skipif(gf.cuda.device_count() < 2, reason="needs two GPUs")


@pytest.fixture
def gpu():
    with using_device(gf.cuda(0)) as device:
        yield device


def test_transfers_keep_every_dtype(gpu):
    rng = np.random.default_rng(0)
    for kind in dtypes.ALL:
        x = rng.integers(0, 2, (3, 5)).astype(kind)
        y = from_numpy(x, gpu)
        assert y.device is gpu and y.dtype == kind
        np.testing.assert_array_equal(np.asarray(y).view(np.uint8), x.view(np.uint8))
    for shape in ((), (0,), (2, 0, 3)):
        z = from_numpy(np.ones(shape, np.float32), gpu)
        assert np.asarray(z).shape == shape


def test_large_transfers_go_in_pieces(gpu):
    x = np.arange(5_000_000, dtype=np.int32)
    y = from_numpy(x, gpu)
    x[:] = 0  # the copy has been taken
    np.testing.assert_array_equal(np.asarray(y), np.arange(5_000_000, dtype=np.int32))


def test_a_read_that_was_begun_is_of_the_values_then_and_waits_for_nothing_behind(gpu, monkeypatch):
    step = gf.jit(lambda state: (state + 1, state[0] * 2), donate_argnums=0)
    state, losses = jnp.zeros(300), []
    for _ in range(6):
        state, loss = step(state)
        loss.copy_to_host_async()
        losses.append(loss)
    state.copy_to_host_async()
    after = state + 1

    def failing(*_):
        raise AssertionError("a read behind all that was queued")

    with monkeypatch.context() as patch:
        patch.setattr(type(device_runtime(0).staging), "to_host", failing)
        assert [float(x) for x in losses] == [0, 2, 4, 6, 8, 10]
        for _ in range(2):  # and again, each time a copy of its own
            found = np.array(state)
            np.testing.assert_array_equal(found, np.full(300, 6, np.float32))
            found[:] = 7
    assert float(after[0]) == 7
    step(state)  # which takes the memory
    with pytest.raises(gf.errors.DonatedError):
        np.asarray(state)
    with pytest.raises(gf.errors.DonatedError):
        state.copy_to_host_async()
    empty = jnp.zeros((0, 3))
    empty.copy_to_host_async()
    assert np.asarray(empty).shape == (0, 3)


def test_strided_and_transposed_values_arrive(gpu):
    x = np.arange(24.0, dtype=np.float32).reshape(4, 6)[::2, ::-1].T
    np.testing.assert_array_equal(np.asarray(from_numpy(x, gpu)), x)


def test_reshapes_share_memory_and_keep_it_alive(gpu):
    x = jnp.arange(16.0)
    y = x.reshape(4, 4)
    assert y.data.address == x.data.address
    part = jnp.split(y, 2)[1]
    assert part.data.address == x.data.address + 32
    gc.collect()  # what tests before have left
    before = gf.cuda.memory_allocated()
    del x, y
    gc.collect()
    assert gf.cuda.memory_allocated() == before
    np.testing.assert_array_equal(np.asarray(part), np.arange(8.0, 16.0).reshape(2, 4))


def test_scalars_are_given_at_run_time(gpu):
    x = jnp.ones((4,))
    for value in (0.1, -3.0, float("inf"), 1e30):
        np.testing.assert_allclose(np.asarray(x * value), np.full(4, value, np.float32))
    big = from_numpy(np.array([1], np.uint64), gpu)
    assert int((big * (2**63))[0]) == 2**63
    wide = from_numpy(np.array([1.0]), gpu)
    assert float((wide * 0.1)[0]) == 0.1


def test_default_device_is_honoured(gpu):
    assert jnp.zeros((2,)).device is gpu
    assert gf.random.normal(gf.random.key(0), (2,)).device is gpu
    assert (jnp.arange(3) + np.ones(3, np.float32)).device is gpu
    with using_device(cpu()):
        assert jnp.zeros((2,)).device is cpu()


def test_two_devices_in_one_operation_name_both():
    x, y = from_numpy(np.ones(3, np.float32), gf.cuda(0)), from_numpy(np.ones(3, np.float32), cpu())
    with pytest.raises(gf.errors.DeviceError, match=r"cuda\(0\)[\s\S]*cpu\(\)[\s\S]*device_put"):
        x + y


@several
def test_copies_between_devices():
    x = from_numpy(np.arange(6, dtype=np.float32), gf.cuda(0))
    y = gf.device_put(x * 2, gf.cuda(1))
    assert y.device is gf.cuda(1) and y.data.device == 1
    np.testing.assert_array_equal(np.asarray(y + 1), np.arange(6) * 2 + 1)
    assert gf.device_put(y, cpu()).device is cpu()


def test_pickles_through_numpy(gpu):
    x = jnp.arange(5.0)
    y = pickle.loads(pickle.dumps(x))
    np.testing.assert_array_equal(np.asarray(y), np.arange(5.0))


# ---- exchange ----


def test_dlpack_shares_memory_both_ways(gpu):
    x = jnp.arange(6.0).reshape(2, 3)
    t = torch.from_dlpack(x)
    assert t.data_ptr() == x.data.address and tuple(t.shape) == (2, 3)
    np.testing.assert_array_equal(t.cpu().numpy(), np.asarray(x))
    kind, index = x.__dlpack_device__()
    assert (kind, index) == (t.__dlpack_device__()[0], 0)


def test_imported_memory_is_aliased_or_copied_when_strided(gpu):
    place = "cpu" if INTERPRETED else "cuda"
    t = torch.arange(12.0, device=place).reshape(3, 4)
    x = gpu.backend.from_dlpack(t, gpu)
    assert x.data.address == t.data_ptr() or t.data_ptr() % 16
    np.testing.assert_array_equal(np.asarray(x * 2), t.cpu().numpy() * 2)
    turned = gpu.backend.from_dlpack(t.T, gpu)
    np.testing.assert_array_equal(np.asarray(turned), t.T.cpu().numpy())
    with pytest.raises(ValueError, match="needs a copy"):
        gpu.backend.from_dlpack(t.T, gpu, copy=False)


def test_imported_memory_is_copied_when_asked_for(gpu):
    place = "cpu" if INTERPRETED else "cuda"
    for kind in (torch.float32, torch.int8, torch.float64, torch.complex64, torch.complex128):
        t = torch.arange(12, device=place).reshape(3, 4).to(kind)
        for tensor in (t, t.T, t[1]):
            want = tensor.cpu().numpy().copy()
            x = gpu.backend.from_dlpack(tensor, gpu, copy=True)
            assert x.data.address != tensor.data_ptr()
            np.testing.assert_array_equal(np.asarray(x), want)
        x = gpu.backend.from_dlpack(t, gpu, copy=True)
        t += 1
        np.testing.assert_array_equal(np.asarray(x) + 1, t.cpu().numpy())
    none = gpu.backend.from_dlpack(torch.empty(0, 3, device=place), gpu, copy=True)
    assert np.asarray(none).shape == (0, 3)


def test_cuda_array_interface(gpu):
    x = jnp.arange(6.0).reshape(2, 3)
    facts = x.__cuda_array_interface__
    assert facts["shape"] == (2, 3) and facts["typestr"] == "<f4"
    assert facts["data"] == (x.data.address, True)
    assert not hasattr(from_numpy(np.ones(2, np.float32), cpu()), "__cuda_array_interface__")


# ---- errors ----


def test_an_index_out_of_range_raises_where_a_value_is_read(gpu):
    x = jnp.arange(12.0).reshape(3, 4)
    message = r"index 7 out of range for axis 0 of f32\[3,4\]"
    with pytest.raises(gf.errors.IndexOutOfRange, match=message) as e:
        np.asarray(x[jnp.array([0, 7])])
    assert "test_backend.py" in str(e.value)
    assert (e.value.axis, e.value.size, e.value.index) == (0, 3, 7)
    np.testing.assert_array_equal(np.asarray(x[jnp.array([1])]), np.arange(4.0, 8.0)[None])


def test_an_index_out_of_range_raises_where_one_waits(gpu):
    x = jnp.arange(12.0).reshape(3, 4)
    y = x.at[jnp.array([5])].set(1.0)
    with pytest.raises(IndexError, match="index 5"):
        y.block_until_ready()
    y.block_until_ready()  # once


def test_an_index_out_of_range_raises_where_only_the_gradient_is_left(gpu):
    x, slope = jnp.arange(12.0).reshape(3, 4), gf.jit(gf.grad(lambda x, i: x[i].sum()))
    columns = gf.jit(gf.grad(lambda x, i: x[i, i * 0].sum()))
    for f, row in ((slope, np.ones(4)), (columns, np.eye(4)[0])):
        good = np.asarray(f(x, jnp.array([0, 0, 2])))
        np.testing.assert_array_equal(good, np.outer([2.0, 0.0, 1.0], row))
        with pytest.raises(IndexError, match=r"index 7 out of range for axis 0 .*\n  at .*test_b"):
            np.asarray(f(x, jnp.array([0, 7, 1])))
        np.testing.assert_array_equal(np.asarray(f(x, jnp.array([0, 0, 2]))), good)


def test_eager_operations_that_fail_late_name_their_own_lines(gpu):
    x, bad = jnp.arange(3.0), jnp.array([5])
    lines = []
    for i in (jnp.array([0]), bad):
        lines.append(x[i])  # the first that fails
    lines.append(x[bad - 9])
    with pytest.raises(IndexError) as error:
        np.asarray(lines[0])
    notes = " ".join(getattr(error.value, "__notes__", ()))
    first, second = sorted((str(error.value), notes), key=lambda text: "-4" in text)
    assert "index 5 out of range" in first and "# the first that fails" in first
    assert "index -4 out of range" in second and "x[bad - 9]" in second
    gf.block_until_ready(x)


def test_lines_without_end_take_few_error_words(gpu):
    names = {"x": jnp.arange(3.0), "i": jnp.array([1]), "bad": jnp.array([9])}
    words = device_runtime(0).errors._describe
    before = len(words)
    for k in range(200):
        exec(compile("\n" * k + "x[i]", "notebook.py", "exec"), names)
    assert len(words) <= before + 130
    with pytest.raises(IndexError, match=r"index 9 out of range(.|\n)*notebook.py:8"):
        exec(compile("\n" * 7 + "x[bad].tolist()", "notebook.py", "exec"), names)


@pytest.mark.parametrize("jitted", [False, True])
def test_failed_assertions_raise_with_element_and_line(gpu, jitted):
    def positive(x):
        gf.debug.assert_(x > 0, "not positive")
        return x * 2

    f = gf.jit(positive) if jitted else positive
    np.testing.assert_array_equal(np.asarray(f(jnp.ones(4))), np.full(4, 2.0))
    with pytest.raises(gf.errors.AssertionFailed, match="not positive.*element .2,") as e:
        np.asarray(f(jnp.array([1.0, 2.0, -1.0, 0.0])))
    assert "gf.debug.assert_(x > 0" in str(e.value)
    np.testing.assert_array_equal(np.asarray(f(jnp.ones(4))), np.full(4, 2.0))


def test_errors_of_shapes_are_those_of_the_cpu(gpu):
    with pytest.raises(gf.errors.ShapeError):
        jnp.ones((2, 3)) @ jnp.ones((2, 3))


def test_a_deleted_array_says_so(gpu):
    x = jnp.ones(3)
    x.delete()
    with pytest.raises(gf.errors.DonatedError):
        x + 1


def test_out_of_memory_names_the_holders_and_passes(gpu):
    total = gf.cuda.mem_get_info()[1]
    # Room for about a dozen blocks of 4 MiB beside what is held now.
    values = np.ones(1 << 20, np.float32)
    gf.cuda.empty_cache()
    wanted = gf.cuda.memory_reserved() + (48 << 20)
    gf.cuda.set_memory_fraction(wanted / total)
    try:
        held = []
        with pytest.raises(gf.errors.OutOfMemoryError) as caught:
            for _ in range(200):
                held.append(from_numpy(values, gpu))
        text = str(caught.value)
        assert "requested" in text and "cached" in text and "test_backend.py" in text
        assert len(text.splitlines()) <= 6
        count = len(held)
        assert 1 <= count < 200
        held.clear()
        gc.collect()
        again = [from_numpy(values, gpu) for _ in range(count)]
        np.testing.assert_array_equal(np.asarray(again[-1]), values)
    finally:
        gf.cuda.set_memory_fraction(1.0)


# ---- programs ----


def test_calls_and_control_flow_run_eagerly(gpu):
    def step(c, x):
        return c + x, c * 2

    with gf.disable_jit():
        carry, ys = gf.lax.scan(step, jnp.zeros(()), jnp.arange(4.0))
    assert float(carry) == 6.0
    np.testing.assert_array_equal(np.asarray(ys), [0, 0, 2, 6])
    chosen = gf.lax.cond(jnp.array(True), lambda x: x + 1, lambda x: x - 1, jnp.ones(()))
    assert float(chosen) == 2.0
    total = gf.lax.while_loop(lambda x: x < 10, lambda x: x * 2, jnp.ones(()))
    assert float(total) == 16.0


def test_jitted_gradients_agree_with_the_cpu():
    def loss(w, x):
        return jnp.sum(gf.nn.silu(x @ w) ** 2)

    rng = np.random.default_rng(0)
    w, x = rng.normal(size=(6, 5)).astype("f4"), rng.normal(size=(4, 6)).astype("f4")
    results = []
    for device in (cpu(), gf.cuda(0)):
        with using_device(device), gf.default_matmul_precision("highest"):
            g = gf.jit(gf.grad(loss))(from_numpy(w, device), from_numpy(x, device))
            assert g.device is device
            results.append(np.asarray(g))
    np.testing.assert_allclose(results[1], results[0], rtol=2e-5, atol=2e-5)


@pytest.mark.skipif(INTERPRETED, reason="kernels with specialised warps have no interpreter")
@pytest.mark.parametrize("shape, heads", [((2, 1024, 8, 128), 2), ((1, 777, 4, 64), 4)])
def test_attention_with_specialised_warps_agrees_with_float64(gpu, shape, heads):
    rng = np.random.default_rng(0)
    kv = (shape[0], shape[1], heads, shape[3])
    values = [rng.normal(size=s).astype(dtypes.BF16) for s in (shape, kv, kv)]

    def loss(q, k, v):
        out = gf.nn.dot_product_attention(q, k, v, is_causal=True)
        return (out.astype(jnp.float32) ** 2).sum(), out

    on_gpu = [from_numpy(x, gpu) for x in values]
    grads, out = gf.grad(loss, argnums=(0, 1, 2), has_aux=True)(*on_gpu)
    exact = [torch.tensor(x.astype(np.float64), requires_grad=True) for x in values]
    repeat = shape[2] // heads
    q, k, v = exact[0], *[x.repeat_interleave(repeat, 2) for x in exact[1:]]
    want = torch.nn.functional.scaled_dot_product_attention(
        *[x.transpose(1, 2) for x in (q, k, v)], is_causal=True
    ).transpose(1, 2)
    (want**2).sum().backward()
    for got, expected in zip((out, *grads), (want, *[x.grad for x in exact])):
        expected = expected.detach().numpy()
        error = np.abs(np.asarray(got).astype(np.float64) - expected).max()
        assert error < 1e-2 * np.abs(expected).max()


def test_callbacks_reach_the_host(gpu):
    x = jnp.arange(3.0)
    out = gf.pure_callback(lambda v: np.asarray(v) * 2, gf.ShapeDtypeStruct((3,), jnp.float32), x)
    np.testing.assert_array_equal(np.asarray(out), [0, 2, 4])
    jitted = gf.jit(lambda v: gf.pure_callback(lambda u: np.asarray(u) * 3, v.aval, v * 2) + 1)
    np.testing.assert_array_equal(np.asarray(jitted(x)), [1, 7, 13])


def test_threads_share_operations(gpu):
    x = jnp.arange(64.0)
    wrong = []

    def work(k):
        with using_device(gpu):
            for i in range(10):
                y = np.asarray(x * k + i)
                if not np.array_equal(y, np.arange(64.0, dtype="f4") * k + i):
                    wrong.append((k, i))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


# ---- the namespace ----


def test_the_namespace_reports_memory(gpu):
    assert gf.cuda.is_available() and gf.cuda.device_count() >= 1
    gc.collect()
    before = gf.cuda.memory_allocated()
    gf.cuda.reset_peak()
    x = jnp.zeros((1 << 18,), jnp.float32)
    assert gf.cuda.memory_allocated() - before >= 1 << 20
    assert gf.cuda.max_memory_allocated() >= before + (1 << 20)
    assert gf.cuda.memory_reserved() >= gf.cuda.memory_allocated()
    live = [p for p in gf.cuda.memory_snapshot() if p["state"] == "live"]
    assert any("test_backend.py" in (p["site"] or "") for p in live)
    assert "in use" in gf.cuda.memory_summary()
    del x
    gf.cuda.synchronize()
    start, end = gf.cuda.Event(), gf.cuda.Event()
    start.record()
    end.record()
    end.synchronize()
    assert end.query() and start.elapsed_time(end) >= 0
    assert isinstance(gf.cuda.current_stream().handle, int)


@pytest.mark.parametrize("missing", ["triton", "cuda"])
def test_the_package_runs_without_its_optional_packages(missing):
    program = f"""
import importlib.abc, sys
class Block(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == {missing!r}:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Block())
import importlib.util
found = importlib.util.find_spec
def find_spec(name, *rest):
    return None if name.split(".")[0] == {missing!r} else found(name, *rest)
importlib.util.find_spec = find_spec
import genesis_fn as gf, genesis_fn.numpy as jnp
assert not gf.cuda.is_available() and gf.cuda.device_count() == 0
assert float(gf.jit(lambda x: x * 2)(jnp.ones(()))) == 2.0
try:
    gf.cuda(0)
except gf.errors.BackendError as error:
    print(error)
"""
    environment = {
        k: v
        for k, v in os.environ.items()
        if k not in ("GENESIS_CUDA_DRIVER", "GENESIS_DEVICE", "TRITON_INTERPRET")
    }
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert "cuda" in done.stdout.lower()
