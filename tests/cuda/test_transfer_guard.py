"""transfer_guard: copies between host and device are allowed, logged or refused, by direction."""

from __future__ import annotations

import logging
import threading

import numpy as np
import pytest

import genesis_fn as gf
import genesis_fn.numpy as jnp
from genesis_fn.core.device import cuda

HOST_TO_DEVICE = {
    "asarray": lambda x: jnp.asarray(np.ones(2, np.float32), device=cuda()),
    "operand": lambda x: x + np.ones(4, np.float32),
    "jitted argument": lambda x: gf.jit(lambda a, b: a * b)(x, np.ones(4, np.float32)),
    "scalar array": lambda x: jnp.asarray(2.0, device=cuda()),
}
DEVICE_TO_HOST = {
    "float": lambda x: float(x[0]),
    "ndarray": np.asarray,
    "repr": repr,
    "bool": lambda x: bool(x[0] > 0),
    "item": lambda x: x[0].item(),
}
EXPLICIT = {
    "host_to_device": lambda x: gf.device_put(np.ones(2), cuda()),
    "device_to_host": gf.device_get,
    "to the CPU": lambda x: gf.device_put(x, gf.cpu()),
}


@pytest.fixture
def x():
    return gf.device_put(np.arange(4.0), cuda())


@pytest.mark.parametrize("name", [*HOST_TO_DEVICE, *DEVICE_TO_HOST])
def test_an_implicit_copy_is_refused_by_its_direction_only(x, name):
    run = {**HOST_TO_DEVICE, **DEVICE_TO_HOST}[name]
    into = name in HOST_TO_DEVICE
    run(x)
    mine = gf.transfer_guard_host_to_device if into else gf.transfer_guard_device_to_host
    other = gf.transfer_guard_device_to_host if into else gf.transfer_guard_host_to_device
    words = "host-to-device" if into else "device-to-host"
    for guard in (mine, gf.transfer_guard):
        for level in ("disallow", "disallow_explicit"):
            with guard(level), pytest.raises(gf.errors.TransferError, match=f"implicit {words}"):
                run(x)
    with other("disallow_explicit"), gf.transfer_guard_device_to_device("disallow_explicit"):
        run(x)
    with gf.transfer_guard("disallow"), mine("allow"):
        run(x)


@pytest.mark.parametrize("name", EXPLICIT)
def test_an_explicit_copy_is_refused_only_by_the_explicit_level(x, name):
    run = EXPLICIT[name]
    with gf.transfer_guard("disallow"):
        run(x)
    with (
        gf.transfer_guard("disallow_explicit"),
        pytest.raises(RuntimeError, match=r"explicit .* forbids\n  at tests/cuda/test_transfer"),
    ):
        run(x)


def test_copies_between_devices_have_a_direction_of_their_own(x):
    if len(gf.devices("cuda")) < 2:
        pytest.skip("one device")
    with gf.transfer_guard_device_to_device("disallow_explicit"):
        with pytest.raises(gf.errors.TransferError, match="device-to-device"):
            gf.device_put(x, cuda(1))
        gf.device_get(x)
    assert gf.device_put(x, cuda(1)).device is cuda(1)


def test_logging(x, caplog):
    with caplog.at_level(logging.WARNING, "genesis_fn"), gf.transfer_guard("log"):
        gf.device_get(x)
        assert not caplog.records
        float(x[1])
        assert "implicit device-to-host transfer of f32[] from cuda(0) at tests/" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.WARNING, "genesis_fn"), gf.transfer_guard("log_explicit"):
        gf.device_put(np.ones(3), cuda())
    assert "explicit host-to-device transfer of f32[3] to cuda(0)" in caplog.text


def test_what_needs_no_copy_is_never_refused(x):
    f = gf.jit(lambda a, s: jnp.sum(a * s))
    f(x, x)
    with gf.transfer_guard("disallow_explicit"):
        y = f(x, x) + 1.0
        gf.block_until_ready((y, y * 2.0))
        # The CPU's arrays are in the host's memory.
        a = jnp.asarray(np.ones(2), device=gf.cpu())
        assert float(a[0]) == 1.0 and "Array" in repr(a)


def test_the_setting_is_for_the_process_and_contexts_for_a_thread(x):
    found = []

    def look():
        try:
            found.append(float(x[1]))
        except gf.errors.TransferError:
            found.append("refused")

    def elsewhere():
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()

    with gf.transfer_guard("disallow"):
        look()
        elsewhere()
    gf.config.update("jax_transfer_guard", "disallow")
    try:
        elsewhere()
    finally:
        gf.config.update("transfer_guard", "allow")
    elsewhere()
    assert found == ["refused", 1.0, "refused", 1.0]
