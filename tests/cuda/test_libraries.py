"""Fourier transforms and linear algebra by libraries' routines: layouts, failures, programs, and
the bindings of NVIDIA's libraries against a stand-in that knows their parameters."""

from __future__ import annotations

import itertools
import sys
import threading
import types
import typing
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.linalg
import torch

import genesis_fn as gf
import genesis_fn.numpy as jnp
from genesis_fn import lax
from genesis_fn.backends.cuda import libraries
from genesis_fn.backends.cuda.libraries import on_host
from genesis_fn.backends.cuda.lowerings import HostCall, linalg as lowerings_linalg, plan_for
from genesis_fn.backends.cuda.run.runtime import device_runtime
from genesis_fn.backends.cuda.run.steps import HostStep, has_host
from genesis_fn.compiler.target import H200
from genesis_fn.core import dtypes
from genesis_fn.core.aval import aval
from genesis_fn.core.dtypes import F32, F64
from genesis_fn.core.errors import BackendError
from genesis_fn.core.primitive import bind
from genesis_fn.kernels import routines
from genesis_fn.kernels.plan import LibraryCall, Plan
from genesis_fn.primitives import fft as transforms, linalg
from tests.kernels.run import TARGET as HERE, run_plan

KINDS = ("float32", "float64", "complex64", "complex128")
LEADS = ((), (3,))


def normal(shape: tuple[int, ...], kind: str, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng([seed, *shape])
    x = rng.standard_normal(shape)
    return (x + 1j * rng.standard_normal(shape) if kind[0] == "c" else x).astype(kind)


def adjoint(x: np.ndarray) -> np.ndarray:
    return np.conj(np.swapaxes(x, -1, -2))


def positive(lead: tuple[int, ...], n: int, kind: str) -> np.ndarray:
    x = normal((*lead, n, n), kind)
    return (x @ adjoint(x) + n * np.eye(n)).astype(kind)


def on_gpu(f: Any, *xs: np.ndarray) -> list[np.ndarray]:
    """The results of `f`, which are the same eagerly and compiled."""
    arrays = [jnp.asarray(x, dtype=x.dtype) for x in xs]
    flat = lambda y: [np.asarray(v) for v in (y if isinstance(y, (tuple, list)) else [y])]
    eager, compiled = flat(f(*arrays)), flat(gf.jit(f)(*arrays))
    for x, y in zip(eager, compiled, strict=True):
        np.testing.assert_array_equal(x, y)
    return compiled


def close(x: np.ndarray, y: np.ndarray, kind: str) -> None:
    bound = 2e-5 if np.dtype(kind).itemsize // (1 + (kind[0] == "c")) == 4 else 1e-12
    assert x.shape == y.shape
    assert np.abs(x - y).max() <= bound * max(1.0, np.abs(y).max())


def identity(x: np.ndarray, kind: str) -> None:
    close(x, np.broadcast_to(np.eye(x.shape[-1]), x.shape), kind)


@pytest.fixture(autouse=True)
def _on_gpu():
    with gf.default_device(gf.cuda()):
        yield


# ---- results ----


@pytest.mark.parametrize("lead", LEADS)
@pytest.mark.parametrize("kind", KINDS)
def test_cholesky(kind, lead):
    x = positive(lead, 5, kind)
    (lower,) = on_gpu(linalg.cholesky, x)
    close(lower, np.linalg.cholesky(x), kind)


@pytest.mark.parametrize("columns", [1, 3])
@pytest.mark.parametrize("lead", LEADS)
@pytest.mark.parametrize("kind", KINDS)
def test_solve(kind, lead, columns):
    a, b = positive(lead, 5, kind), normal((*lead, 5, columns), kind, 1)
    for transposed in (False, True):
        f = lambda a, b: bind(linalg.solve_p, a, b, transpose_a=transposed)
        given = np.swapaxes(a, -1, -2) if transposed else a
        close(on_gpu(f, a, b)[0], np.linalg.solve(given, b), kind)


@pytest.mark.parametrize("lead", LEADS)
@pytest.mark.parametrize("kind", ["float64", "complex64"])
@pytest.mark.parametrize("lower", [False, True])
def test_triangular_solve(kind, lead, lower):
    """Of every side, triangle and operation, with something else in the other triangle."""
    n = 4
    whole = normal((*lead, n, n), kind) + 3 * np.eye(n).astype(kind)
    for left, transposed, conjugated, unit in itertools.product((False, True), repeat=4):
        triangle = np.tril(whole) if lower else np.triu(whole)
        if unit:
            triangle = triangle * (1 - np.eye(n)) + np.eye(n)
        op = np.conj(triangle) if conjugated else triangle
        op = np.swapaxes(op, -1, -2) if transposed else op
        for columns in (1, 3):
            b = normal((*lead, *((n, columns) if left else (columns, n))), kind, 2)
            f = lambda a, b: linalg.triangular_solve(
                a,
                b,
                left_side=left,
                lower=lower,
                transpose_a=transposed,
                conjugate_a=conjugated,
                unit_diagonal=unit,
            )
            turn = lambda x: np.swapaxes(x, -1, -2)
            want = np.linalg.solve(op, b) if left else turn(np.linalg.solve(turn(op), turn(b)))
            arrays = [jnp.asarray(x, dtype=x.dtype) for x in (whole, b)]
            close(np.asarray(f(*arrays)), want, kind)


@pytest.mark.parametrize("shape", [(5, 3), (3, 5), (4, 4), (2, 4, 4), (2, 5, 3)])
@pytest.mark.parametrize("kind", KINDS)
def test_lu(kind, shape):
    x = normal(shape, kind)
    factors, pivots, order = on_gpu(linalg.lu, x)
    m, n = shape[-2:]
    k = min(m, n)
    lower = np.tril(factors[..., :, :k], -1) + np.eye(m, k)
    close(lower @ np.triu(factors[..., :k, :]), np.take_along_axis(x, order[..., None], -2), kind)
    for swaps, found in zip(pivots.reshape(-1, k), order.reshape(-1, m)):
        rows = list(range(m))
        for i, j in enumerate(swaps):
            rows[i], rows[j] = rows[j], rows[i]
        assert rows == found.tolist()


@pytest.mark.parametrize("shape", [(5, 3), (3, 5), (2, 4, 4), (2, 5, 3), (2, 3, 5)])
@pytest.mark.parametrize("kind", KINDS)
def test_qr(kind, shape):
    x = normal(shape, kind)
    for full in (False, True):
        q, r = on_gpu(lambda x: linalg.qr(x, full_matrices=full), x)
        close(q @ r, x, kind)
        identity(adjoint(q) @ q, kind)
        assert q.shape[-1] == (shape[-2] if full else min(shape[-2:]))
        np.testing.assert_array_equal(np.tril(r, -1), 0)


@pytest.mark.parametrize("lead", LEADS)
@pytest.mark.parametrize("kind", KINDS)
def test_eigh(kind, lead):
    x = positive(lead, 5, kind)
    lower = np.tril(x) + np.triu(normal(x.shape, kind, 3), 1)  # the other triangle is not read
    v, w = on_gpu(lambda x: linalg.eigh(x, symmetrize_input=False), lower)
    close(w, np.linalg.eigvalsh(x), kind)
    close((v * w[..., None, :]) @ adjoint(v), x, kind)


def holds_svd(given: np.ndarray, found: list[np.ndarray], full: bool) -> None:
    """Values by LAPACK's, vectors by their definition."""
    kind, (m, n) = given.dtype.name, given.shape[-2:]
    s, u, vh = found
    k = min(m, n)
    close(s, np.linalg.svd(given, compute_uv=False), kind)
    close((u[..., :, :k] * s[..., None, :]) @ vh[..., :k, :], given, kind)
    identity(adjoint(u) @ u, kind)
    identity(vh @ adjoint(vh), kind)
    assert (u.shape[-1], vh.shape[-2]) == ((m, n) if full else (k, k))


@pytest.mark.parametrize("shape", [(5, 3), (3, 5), (2, 4, 4)])
@pytest.mark.parametrize("kind", KINDS)
def test_svd(kind, shape):
    x = normal(shape, kind)
    for full in (False, True):
        u, s, vh = on_gpu(lambda x: linalg.svd(x, full_matrices=full), x)
        holds_svd(x, [s, u, vh], full)
    close(on_gpu(linalg.svdvals, x)[0], np.linalg.svd(x, compute_uv=False), kind)


@pytest.mark.parametrize("kind", ["float32", "complex128"])
def test_functions_of_decompositions(kind):
    """Determinants, and what singular values decide of matrices of lower rank."""
    x, b = normal((5, 3), kind), normal((5,), kind, 6)
    x[:, 2] = x[:, 0] - x[:, 1]
    inverse, solution, rank, determinant = on_gpu(
        lambda x, b: (
            jnp.linalg.pinv(x), jnp.linalg.lstsq(x, b)[0], jnp.linalg.matrix_rank(x),
            jnp.linalg.det(x[:2, :2]),
        ),
        x, b,
    )  # fmt: skip
    close(inverse, np.linalg.pinv(x, rcond=1e-5), kind)
    close(solution, np.linalg.lstsq(x, b, rcond=1e-5)[0], kind)
    close(determinant, np.linalg.det(x[:2, :2]), kind)
    assert rank == 2


@pytest.mark.parametrize("lead", LEADS)
@pytest.mark.parametrize("kind", KINDS)
def test_eig(kind, lead):
    x = normal((*lead, 5, 5), kind)
    w, v = on_gpu(linalg.eig, x)
    close(x @ v, v * w[..., None, :], kind)
    close(np.linalg.norm(v, axis=-2), np.ones(w.shape), kind)
    (values,) = on_gpu(lambda x: linalg.eig(x, compute_vectors=False), x)
    close(np.sort_complex(values), np.sort_complex(w), kind)


SHAPES = [  # and how many of the last dimensions are transformed
    ((8,), 1), ((3, 7), 1), ((2, 5, 6), 2), ((2, 4, 3, 5), 3), ((2, 3, 4, 3, 5), 4),
    ((2, 3, 2, 3, 2, 3), 6), ((40, 3, 5), 2), ((3, 1), 1), ((8200,), 1),
]  # fmt: skip


@pytest.mark.parametrize("shape, count", SHAPES)
@pytest.mark.parametrize("kind", ["float32", "float64"])
def test_transforms(kind, shape, count):
    wide = {"float32": "complex64", "float64": "complex128"}[kind]
    axes, lengths = tuple(range(-count, 0)), shape[-count:]
    x, real = normal(shape, wide), normal(shape, kind, 4)
    fft = lambda name, n=lengths: lambda x: transforms.fft(x, name, n)
    close(on_gpu(fft("fft"), x)[0], np.fft.fftn(x, axes=axes), wide)
    close(on_gpu(fft("ifft"), x)[0], np.fft.ifftn(x, axes=axes), wide)
    close(on_gpu(fft("rfft"), real)[0], np.fft.rfftn(real, axes=axes), wide)
    for last in (2 * (lengths[-1] - 1), 2 * lengths[-1] - 1):
        if last:
            n = (*lengths[:-1], last)
            close(on_gpu(fft("irfft", n), x)[0], np.fft.irfftn(x, n, axes=axes), kind)


@pytest.mark.parametrize("shape", [(3, 7), (2, 5, 6), (2, 3, 4, 3, 5)])
def test_transforms_whose_factor_is_a_pass(monkeypatch, shape):
    """Those that a library does not multiply as it stores them."""
    monkeypatch.setattr(libraries, "scales", lambda *_: False)
    lengths, axes = shape[1:], tuple(range(1, len(shape)))
    x = normal(shape, "complex64")
    params = {"fft_type": transforms.FftType.IFFT, "fft_lengths": lengths}
    (result,) = by_plan(transforms.fft_p, [x], **params)
    close(result, np.fft.ifftn(x, axes=axes), "complex64")


@pytest.mark.parametrize("n", [1, 2, 5, 6])
def test_imaginary_parts_that_no_real_signal_has_are_ignored(n):
    """As NumPy ignores them, infinities, too."""
    x = normal((3, n // 2 + 1), "complex64")
    want = np.fft.irfft(x, n)
    x.imag[:, 0] = np.inf
    if n % 2 == 0:
        x.imag[:, -1] = -np.inf
    close(on_gpu(lambda x: transforms.fft(x, "irfft", (n,)), x)[0], want, "float32")


@pytest.fixture
def by_routines(monkeypatch):
    """Small matrices go to libraries, as larger ones do: those that no kernel of ours takes."""
    monkeypatch.setattr(lowerings_linalg, "_IN_REGISTERS", 0)
    monkeypatch.setattr(lowerings_linalg, "_CHOLESKY_IN_PANELS", 0)
    monkeypatch.setattr(lowerings_linalg._Solver, "fits_program", lambda *sizes: False)


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_small_matrices_by_routines(kind, count, by_routines):
    x, b = positive((count,), 4, kind), normal((count, 4, 2), kind, 5)
    close(by_plan(linalg.cholesky_p, [x])[0], np.tril(np.linalg.cholesky(x)), kind)
    for transposed in (False, True):
        (found,) = by_plan(linalg.solve_p, [x, b], transpose_a=transposed)
        close(found, np.linalg.solve(np.swapaxes(x, -1, -2) if transposed else x, b), kind)
    vectors, values = by_plan(linalg.eigh_p, [x])
    close((vectors * values[:, None]) @ adjoint(vectors), x, kind)
    for matrices in (b, adjoint(b).copy()):
        q, r = by_plan(linalg.qr_p, [matrices], full_matrices=True)
        close(q @ r, matrices, kind)
        identity(adjoint(q) @ q, kind)
    for left, transposed, conjugated in itertools.product((False, True), repeat=3):
        op = np.conj(np.tril(x)) if conjugated else np.tril(x)
        op = np.swapaxes(op, -1, -2) if transposed else op
        for columns in (1, 2):
            given = b[..., :columns] if left else np.swapaxes(b, -1, -2)[:, :columns]
            (found,) = by_plan(
                linalg.triangular_solve_p,
                [x, np.ascontiguousarray(given)],
                left_side=left,
                lower=True,
                transpose_a=transposed,
                conjugate_a=conjugated,
                unit_diagonal=False,
            )
            close(op @ found if left else found @ op, given, kind)
    factors, pivots, order = by_plan(linalg.lu_p, [x])
    for m in range(count):
        want, swaps = scipy.linalg.lu_factor(x[m])
        close(factors[m], want, kind)
        assert pivots[m].tolist() == swaps.tolist()
    close(
        (np.tril(factors, -1) + np.eye(4)) @ np.triu(factors),
        np.take_along_axis(x, order[..., None], -2),
        kind,
    )


@pytest.mark.parametrize("shape", [(5, 3), (3, 5), (2, 4, 4), (2, 5, 3), (2, 3, 5)])
@pytest.mark.parametrize("kind", KINDS)
def test_svd_by_routines(kind, shape, by_routines):
    """Of matrices of full rank, and of one whose left vectors a library leaves undefined."""
    x = normal(shape, kind)
    singular = (x * (np.arange(shape[-1]) > 0)).astype(kind)
    for given, full in ((x, False), (x, True), (singular, True)):
        found = by_plan(linalg.svd_p, [given], full_matrices=full, compute_uv=True)
        holds_svd(given, found, full)
    (values,) = by_plan(linalg.svd_p, [x], full_matrices=False, compute_uv=False)
    close(values, np.linalg.svd(x, compute_uv=False), kind)
    x[..., 1, 1] = np.nan
    for found in by_plan(linalg.svd_p, [x], full_matrices=True, compute_uv=True):
        assert np.isnan(found).all()


def by_plan(prim: Any, xs: list[np.ndarray], **params: Any) -> list[np.ndarray]:
    """The results of a primitive by the plan that is made of it now."""
    kinds = tuple([aval(x.shape, dtypes.NAMES[x.dtype.name]) for x in xs])
    plan = plan_for(prim, kinds, params, HERE)
    assert type(plan) is Plan and any(isinstance(s, LibraryCall) for s in plan.steps)
    made = prim.abstract(kinds, params)
    outs = [np.zeros(y.shape, y.dtype) for y in (made if prim.multi else [made])]
    tensors = [torch.from_numpy(y.reshape(-1).view(np.uint8)) for y in (*xs, *outs)]
    run_plan(plan, tensors[: len(xs)], tensors[len(xs) :])
    return outs


# ---- failures ----


@pytest.mark.parametrize("kind", ["float32", "complex128"])
def test_failures_are_nan(kind):
    """Of the matrix that fails, not of its neighbours."""
    x = np.stack([np.zeros((3, 3)), np.eye(3)]).astype(kind)
    ones = np.ones((2, 3, 1), kind)
    (solved,) = on_gpu(linalg.solve, x, ones)
    assert np.isnan(solved[0]).all() and (solved[1] == 1).all()
    x[0] = -np.eye(3)
    (lower,) = on_gpu(linalg.cholesky, x)
    assert np.isnan(lower[0][np.tril_indices(3)]).all() and (lower[1] == np.eye(3)).all()
    (alone,) = on_gpu(linalg.cholesky, x[0])
    assert np.isnan(alone[np.tril_indices(3)]).all()


@pytest.mark.parametrize("flaw", [np.nan, np.inf])
@pytest.mark.parametrize("f", [linalg.eigh, linalg.svd, linalg.eig, linalg.lu, linalg.qr])
def test_what_is_not_finite_is_nan(f, flaw):
    if f in (linalg.lu, linalg.qr) and flaw == np.inf:
        pytest.skip("arithmetic says what becomes of it")
    x = np.stack([np.eye(3, dtype=np.float32)] * 2)
    x[0, 1, 1] = flaw
    for device in (on_gpu, lambda f, x: _on_cpu(f, x)):
        results = device(f, x)
        for y in [y for y in results if y.dtype.kind in "fc"]:
            assert np.isfinite(y[1]).all()
            assert np.isnan(y[0]).all() or f in (linalg.lu, linalg.qr) and np.isnan(y[0]).any()


def _on_cpu(f: Any, x: np.ndarray) -> list[np.ndarray]:
    with gf.default_device(gf.cpu()):
        return [np.asarray(y) for y in f(jnp.asarray(x))]


# ---- programs ----


def steps_of(f: Any, *xs: np.ndarray) -> Any:
    arrays = [jnp.asarray(x, dtype=x.dtype) for x in xs]
    executable = gf.jit(f).lower(*arrays).compile().executable
    executable(*arrays)
    return executable


def segments(executable: Any) -> int:
    (program,) = executable.io.graphs.values()
    return program.segments


def test_routines_are_captured():
    """A program of transforms and solves is one graph; what no graph may contain runs between
    graphs, on memory of the device. Of matrices that no kernel of ours takes."""
    x = positive((), 34, "float32")

    def posterior(a, b):
        lower = jnp.linalg.cholesky(a)
        y = lax.linalg.triangular_solve(lower, b, left_side=True, lower=True)
        return jnp.linalg.solve(a, b) + jnp.abs(jnp.sum(y)), jnp.linalg.qr(a), jnp.linalg.eigh(a)

    captured = steps_of(posterior, x, normal((34, 2), "float32"))
    assert segments(captured) == 1 and not any(map(has_host, captured.schedule.steps))
    apart = steps_of(lambda a: jnp.linalg.svd(a * 2)[1] + 1, x.astype(np.float64))
    assert segments(apart) == 3
    assert not any(isinstance(s, HostStep) for s in apart.schedule.steps)


def test_loops_of_routines():
    """In bodies of conditional nodes where a graph may contain them, else by the host."""
    x = positive((), 34, "float64")

    def again(f):
        return lambda a: lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, f(c[1])), (0, a))[
            1
        ]

    factors = lambda a: (lambda m: m @ m.T)(jnp.linalg.cholesky(a))
    values = lambda a: a + 0 * jnp.linalg.svd(a, compute_uv=False)
    array = jnp.asarray(x, dtype=np.float64)
    for f in (factors, values):
        np.testing.assert_allclose(np.asarray(gf.jit(again(f))(array)), x, rtol=1e-12)


def test_threads_compile_while_others_capture():
    """Plans of transforms, sizes and handles are made while other threads capture routines that
    have streams of their own."""
    failures: list[str] = []

    def work(n: int) -> None:
        try:
            with gf.default_device(gf.cuda()):
                for m in (33 + n, 40 + n, 60 + n):
                    x = positive((), m, "float32")
                    given = jnp.asarray(x)
                    lower = np.asarray(gf.jit(jnp.linalg.cholesky)(given))
                    assert np.abs(lower @ lower.T - x).max() < 1e-3
                    solved = np.asarray(gf.jit(jnp.linalg.solve)(given, given))
                    assert np.abs(solved - np.eye(m)).max() < 1e-3
                    back = np.asarray(gf.jit(lambda x: jnp.fft.irfft(jnp.fft.rfft(x), m))(given))
                    assert np.abs(back - x).max() < 1e-4
                    values = np.asarray(gf.jit(jnp.linalg.eigvalsh)(given))
                    np.testing.assert_allclose(values, np.linalg.eigvalsh(x), rtol=1e-3, atol=1e-4)
        except Exception as error:
            failures.append(f"{n}: {error!r}")

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures


def test_without_libraries_the_host_computes():
    for target in (H200, replace(H200, interpreted=True)):
        lowered = plan_for(linalg.eigh_p, [aval((4, 4), F32)], {}, target)
        assert type(lowered) is HostCall
    params = {"full_matrices": True, "compute_uv": True}
    empty = plan_for(linalg.svd_p, [aval((4, 0), F64)], params, H200)
    assert type(empty) is Plan  # which needs no library


# ---- NVIDIA's bindings ----

TARGET = replace(H200, interpreted=True)
PARAMETERS = {  # how many follow the handle, as cuFFT, cuSOLVER and cuBLAS document them
    "xpotrf": 12, "xgetrf": 13, "xgetrs": 12, "xgeqrf": 14, "xsyevd": 15, "xsyev_batched": 16,
    "xgeev": 21, "potrf_batched": 6, "getrf_batched": 6, "getrs_batched": 10, "geqrf_batched": 7,
    "trsm": 11, "trsm_batched": 12, "orgqr": 9, "ungqr": 9, "gesvda_strided_batched": 20,
    "gesvdj": 15, "syevj_batched": 11, "heevj_batched": 11, "gemm_strided_batched": 17,
    "xpotrf_buffer_size": 7, "xgetrf_buffer_size": 7, "xgeqrf_buffer_size": 9,
    "xsyevd_buffer_size": 10, "xsyev_batched_buffer_size": 11, "xgeev_buffer_size": 16,
    "orgqr_buffer_size": 6, "ungqr_buffer_size": 6, "gesvda_strided_batched_buffer_size": 16,
    "gesvdj_buffer_size": 12, "syevj_batched_buffer_size": 8, "heevj_batched_buffer_size": 8,
}  # fmt: skip


class Bindings(types.ModuleType):
    """Notes what is called, and holds calls to the number of their parameters."""

    def __init__(self, name: str, version: int = 12000) -> None:
        super().__init__(name)
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.version = version

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)

        def call(*arguments: Any) -> Any:
            self.calls.append((name, arguments))
            plain = name[1:] if name[1:] in PARAMETERS and name not in PARAMETERS else name
            if plain in PARAMETERS:
                assert len(arguments) == 1 + PARAMETERS[plain], name
            if name == "get_version":
                return self.version
            if name.startswith("create"):
                return len(self.calls)
            if name.startswith("x") and name.endswith("_buffer_size"):
                return 1000, 10
            return 100 if name.endswith("_buffer_size") else 5000 if "make_plan" in name else None

        return call


@pytest.fixture
def bindings(monkeypatch):
    """The module that calls the bindings, over stand-ins of them and of the driver's."""
    package = types.ModuleType("nvmath.bindings")
    for name in ("cufft", "cusolver", "cusolverDn", "cublas"):
        setattr(package, name, Bindings(name))
        monkeypatch.setitem(sys.modules, f"nvmath.bindings.{name}", getattr(package, name))
    monkeypatch.setitem(sys.modules, "nvmath", types.ModuleType("nvmath"))
    monkeypatch.setitem(sys.modules, "nvmath.bindings", package)
    from genesis_fn.backends.cuda.libraries import loading, nvidia, transforms

    monkeypatch.setattr(loading, "context", lambda: 7)
    monkeypatch.setattr(loading, "retired", type(loading.retired)())
    monkeypatch.setattr(nvidia, "_thread", nvidia._Thread())
    monkeypatch.setattr(transforms, "_plans", type(transforms._plans)())
    known = (
        loading.loaded, transforms.scales, nvidia.scratch, nvidia._factor_sizes,
        nvidia._eigh_sizes, nvidia._eig_sizes,
    )  # fmt: skip
    for function in known:
        function.cache_clear()
    yield nvidia, package
    for function in known:
        function.cache_clear()


def examples(kind: str) -> list[Any]:
    """A routine of every class, of one matrix and of several."""
    r = routines
    found = [
        r.Fft(kind, "c2c", (4, 6), 3), r.Fft(kind, "c2c", (4,), 3, True, interleaved=True),
        r.Fft(kind, "r2c", (6,), 2), r.Fft(kind, "c2r", (6,), 2),
        r.QrVectors(kind, 5, 3, 3), r.Eigh(kind, 600), r.Eigh(kind, 6, 2), r.JacobiEigh(kind, 6, 2),
        r.GramSvd(kind, 5, 3, 2), r.GramSvd(kind, 5, 3, 1, False), r.JacobiSvd(kind, 5, 3),
        r.Eig(kind, 5), r.Product(kind, 5, 4, 3, 2),
    ]  # fmt: skip
    for batch in (1, 3):
        found += [
            r.Cholesky(kind, 5, batch), r.LuFactor(kind, 5, 5, batch),
            r.LuSolve(kind, 5, 2, "T", batch), r.QrFactor(kind, 5, 3, batch),
            r.TriangularSolve(kind, True, True, "C", False, 5, 2, batch),
            r.TriangularSolve(kind, False, False, "N", True, 5, 2, batch),
        ]  # fmt: skip
    return found


BUFFERS = {
    "Fft": 2, "Cholesky": 2, "LuFactor": 3, "LuSolve": 4, "TriangularSolve": 2, "QrFactor": 3,
    "QrVectors": 3, "Eigh": 3, "JacobiEigh": 3, "GramSvd": 5, "JacobiSvd": 5, "Eig": 4,
    "Product": 3,
}  # fmt: skip


def test_every_routine_has_both_sides(bindings):
    nvidia, _ = bindings
    every = set(typing.get_args(routines.Routine))
    assert every == set(on_host._RUNS)
    every -= {routines.ConvolutionRoutine}  # of another package: test_library_convolutions.py
    assert every == set(map(type, examples("float32")))
    assert every - {routines.Fft} == set(nvidia._RUNS)
    assert every == set(nvidia._SCRATCH) and {k.__name__ for k in every} == set(BUFFERS)


@pytest.mark.parametrize("kind", KINDS)
def test_routines_call_the_bindings(bindings, kind):
    """With as many parameters as documented, on the stream and the memory that they are given."""
    nvidia, package = bindings
    for routine in examples(kind):
        if type(routine) is routines.Fft and kind[0] == "c":
            continue
        size = nvidia.scratch(routine)
        assert size > 0
        modules = package.cufft, package.cusolverDn, package.cublas
        for module in modules:
            module.calls.clear()
        addresses = [4096 * (i + 1) for i in range(BUFFERS[type(routine).__name__] + 1)]
        nvidia.LibraryRoutine(routine).run(addresses, 99)
        calls = [c for module in modules for c in module.calls]
        assert any("set_stream" in name and given[1] == 99 for name, given in calls)
        given = {a for name, arguments in calls for a in arguments if isinstance(a, int)}
        info = {addresses[-2]} if "batched" in str(calls) or "Product" in str(routine) else set()
        assert set(addresses[:-1]) - info <= given | {addresses[-2]}, routine


def test_transforms_are_planned_once(bindings):
    nvidia, package = bindings
    transforms = nvidia.transforms
    many = [routines.Fft("float32", "c2c", (n,), 1) for n in range(1, transforms.MOST_PLANS + 3)]
    kept = nvidia.LibraryRoutine(many[0])
    for routine in many * 2:
        nvidia.LibraryRoutine(routine).run([1, 2, 3], 4)
    names = [name for name, _ in package.cufft.calls]
    assert len(transforms._plans) == transforms.MOST_PLANS
    assert names.count("destroy") > 0
    kept.run([1, 2, 3], 4)  # what a graph refers to stays
    libraries.forget_plans()
    destroyed = {given for name, given in package.cufft.calls if name == "destroy"}
    assert not transforms._plans and len(destroyed) >= transforms.MOST_PLANS
    assert (kept._plan.handle,) not in destroyed


@pytest.mark.parametrize("kind, number", [("float32", 4), ("float64", 5)])
def test_factors_at_stores(bindings, monkeypatch, kind, number):
    """A function that stores results is given before planning, and used where that needs no
    intermediate results."""
    transforms, fft = bindings[0].transforms, bindings[1].cufft
    texts = []
    monkeypatch.setattr(transforms, "_scaled_stores", lambda *given: texts.append(given) or b"code")
    routine = routines.Fft(kind, "c2c", (8,), 2, True, factor=0.125)
    assert not transforms.scales(routine)  # with intermediate results
    assert not transforms._plans  # nothing runs it
    names = [name for name, _ in fft.calls]
    assert names.index("xt_set_jit_callback") < names.index("xt_make_plan_many")
    given = dict(fft.calls)["xt_set_jit_callback"]
    assert given[2:5] == (b"code", 4, number) and texts == [(kind, 0.125)]
    monkeypatch.setattr(fft, "xt_make_plan_many", lambda *_: 0, raising=False)
    assert transforms.scales(replace(routine, batch=3))

    def refused(*_: Any) -> None:
        raise RuntimeError("NOT_SUPPORTED (16)")

    monkeypatch.setattr(fft, "xt_make_plan_many", refused, raising=False)
    assert not transforms.scales(replace(routine, batch=4))


def test_missing_libraries_warn_once(monkeypatch):
    from genesis_fn.backends.cuda.libraries import loading

    monkeypatch.setitem(sys.modules, "nvmath.bindings", None)
    loading.loaded.cache_clear()
    try:
        real = replace(H200, libraries=True)
        with pytest.warns(UserWarning, match="pip install nvmath-python"):
            assert not libraries.usable(real)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert type(plan_for(linalg.eigh_p, [aval((4, 4), F32)], {}, real)) is HostCall
    finally:
        loading.loaded.cache_clear()


def test_old_libraries_are_refused(bindings):
    nvidia, package = bindings
    package.cusolver.version = 11600
    with pytest.raises(BackendError, match=r"cuSOLVER is of 11600; it needs cuSOLVER 11705"):
        libraries.usable(replace(H200, libraries=True))


def test_errors_of_libraries_name_the_routine(bindings, monkeypatch):
    nvidia, package = bindings

    def failing(*_: Any) -> None:
        raise RuntimeError("EXECUTION_FAILED (6)")

    monkeypatch.setattr(package.cusolverDn, "xgetrs", failing, raising=False)
    prepared = nvidia.LibraryRoutine(routines.LuSolve("float32", 5, 1, "N"))
    with pytest.raises(Exception, match=r"LuSolve\(.*n=5.*EXECUTION_FAILED"):
        prepared.run([1, 2, 3, 4, 5], 9)


def test_the_interpreting_driver_has_libraries():
    assert libraries.usable(device_runtime(0).driver.info.target)
