"""Fourier transforms and linear algebra on a GPU: this library, JAX and torch in one run.

    python benchmarks/linear_algebra.py --out benchmarks/results --budget 200 [--only svd]

Times are medians of streams of calls, what a caller pays per call. Beside them stands what
cuFFT's, cuSOLVER's and cuBLAS's own routines take of a call of ours, each measured alone, and the
kernels around them (layouts, scales, NaN). Every result is held to its definition: A = Q R, and so
on. Rows are written as they come, and those already in the file are skipped; `--redo` starts over.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"

import jax
import numpy as np
import torch
from operators import per_call
from results_file import Results, parser, short

import genesis_fn as gf
from genesis_fn.core.array import from_numpy

SYSTEMS = ("genesis_fn", "jax", "torch")
FLOATS = ("float32", "float64", "complex64", "complex128")


@dataclass(frozen=True)
class Row:
    """`call` is a function of (numpy module, arrays), for JAX and this library alike; `off` says
    how far NumPy results are from what they must be, given NumPy operands."""

    name: str
    operands: Callable[[np.random.Generator], Sequence[np.ndarray]]
    call: Callable[..., Any]
    torch: Callable[..., Any]
    off: Callable[[Sequence[np.ndarray], Sequence[np.ndarray]], float]


def adjoint(x: np.ndarray) -> np.ndarray:
    """The conjugate transposes."""
    return np.conj(np.swapaxes(x, -1, -2))


def normal(rng: np.random.Generator, shape: tuple[int, ...], kind: str) -> np.ndarray:
    """Random numbers of a dtype."""
    x = rng.standard_normal(shape, np.float32)
    return (x + 1j * rng.standard_normal(shape, np.float32) if kind[0] == "c" else x).astype(kind)


def positive(rng: np.random.Generator, shape: tuple[int, ...], kind: str) -> np.ndarray:
    """Well conditioned Hermitian positive definite matrices."""
    x, n = normal(rng, shape, kind), shape[-1]
    return (x @ adjoint(x) / n + 2 * np.eye(n)).astype(kind)


def apart(x: np.ndarray, y: np.ndarray) -> float:
    """The largest difference over the largest number, of the first few matrices of a stack."""
    x, y = [v.reshape(-1, *v.shape[-2:])[:8] if v.ndim > 2 else v for v in (x, y)]
    return float(np.abs(x - y).max(initial=0) / max(np.abs(y).max(initial=0), 1e-30))


def few(x: np.ndarray) -> np.ndarray:
    """The first few matrices of a stack, in a wider format."""
    wide = np.complex128 if x.dtype.kind == "c" else np.float64
    return (x.reshape(-1, *x.shape[-2:])[:8] if x.ndim > 2 else x).astype(wide)


def rows() -> list[Row]:
    """Transforms first, then decompositions and solves: small, large and batched."""
    found: list[Row] = []

    def transforms(name: str, shape: tuple[int, ...], axes: tuple[int, ...], kind: str) -> None:
        real = {"complex64": "float32", "complex128": "float64"}[kind]
        drawn = real if name == "rfftn" else kind
        lengths = tuple([shape[a] for a in axes])
        if name == "irfftn":
            shape = (*shape[:-1], shape[-1] // 2 + 1)
        given = (lengths, axes) if name == "irfftn" else (None, axes)
        # NumPy's over the first of a batch, in double precision.
        off = lambda xs, ys: apart(
            ys[0][:1] if ys[0].ndim > len(axes) else ys[0],
            getattr(np.fft, name)(xs[0][:1] if xs[0].ndim > len(axes) else xs[0], *given),
        )
        found.append(
            Row(
                f"{name[:-1]} {'x'.join(map(str, shape))} over {len(axes)} {kind}",
                lambda rng: [normal(rng, shape, drawn)],
                lambda np, x: getattr(np.fft, name)(x, *given),
                lambda x: getattr(torch.fft, name)(x, given[0], axes),
                off,
            )
        )

    square = ((8, 2048, 2048), (-2, -1))
    for name in ("fftn", "ifftn", "rfftn", "irfftn"):
        transforms(name, *square, "complex64")
    transforms("fftn", (4096, 1024), (-1,), "complex64")
    transforms("fftn", (64, 1009), (-1,), "complex64")
    transforms("fftn", (1 << 22,), (-1,), "complex64")
    transforms("fftn", (64, 64, 64), (-3, -2, -1), "complex64")
    transforms("fftn", (8, 1024, 1024), (-2, -1), "complex128")

    def row(name: str, shape: Any, kind: str, make: Callable, *rest: Any) -> None:
        label = " ".join(["x".join(map(str, s)) for s in shape])
        found.append(
            Row(
                f"{name} {label} {kind}",
                lambda rng: [f(rng, s, kind) for f, s in zip((make, normal, normal), shape)],
                *rest,
            )
        )

    def cholesky(*shape: int, kind: str = "float32") -> None:
        row(
            "cholesky", (shape,), kind, positive,
            lambda np, x: np.linalg.cholesky(x), torch.linalg.cholesky,
            lambda xs, ys: apart(few(ys[0]) @ adjoint(few(ys[0])), few(xs[0])),
        )  # fmt: skip

    for shape in ((32, 32), (512, 512), (2048, 2048), (4096, 32, 32), (256, 128, 128)):
        cholesky(*shape)
    cholesky(2048, 2048, kind="float64")
    cholesky(512, 512, kind="complex64")

    def solve(a: tuple[int, ...], columns: int, kind: str = "float32") -> None:
        row(
            "solve", (a, (*a[:-1], columns)), kind, positive,
            lambda np, x, y: np.linalg.solve(x, y), torch.linalg.solve,
            lambda xs, ys: apart(few(xs[0]) @ few(ys[0]), few(xs[1])),
        )  # fmt: skip

    for shape, columns in (
        ((32, 32), 1), ((512, 512), 512), ((1024, 1024), 1), ((2048, 2048), 2048),
        ((4096, 8, 8), 1), ((4096, 32, 32), 1), ((256, 128, 128), 1),
    ):  # fmt: skip
        solve(shape, columns)
    solve((1024, 1024), 1, "float64")
    solve((4096, 32, 32), 1, "complex64")

    def triangular(a: tuple[int, ...], columns: int, kind: str = "float32") -> None:
        def call(np: Any, x: Any, y: Any) -> Any:
            linalg = gf.lax.linalg if np is gf.numpy else jax.lax.linalg
            return linalg.triangular_solve(x, y, left_side=True, lower=True)

        row(
            "triangular solve", (a, (*a[:-1], columns)), kind, positive, call,
            lambda x, y: torch.linalg.solve_triangular(x, y, upper=False),
            lambda xs, ys: apart(np.tril(few(xs[0])) @ few(ys[0]), few(xs[1])),
        )  # fmt: skip

    for shape, columns in (((2048, 2048), 1), ((2048, 2048), 2048), ((4096, 32, 32), 32)):
        triangular(shape, columns)

    def lu(*shape: int, kind: str = "float32") -> None:
        def call(np: Any, x: Any) -> Any:
            return (gf.lax if np is gf.numpy else jax.lax).linalg.lu(x)

        def off(xs: Any, ys: Any) -> float:
            factors, order = few(ys[0]), ys[2].reshape(-1, shape[-2])
            below, above = np.tril(factors, -1) + np.eye(shape[-1]), np.triu(factors)
            rows = np.take_along_axis(
                few(xs[0]).reshape(-1, *shape[-2:]), order[:8][..., None].astype(int), -2
            )
            return apart((below @ above).reshape(rows.shape), rows)

        row("lu", (shape,), kind, normal, call, torch.linalg.lu_factor, off)

    for shape in ((512, 512), (1024, 1024), (4096, 32, 32)):
        lu(*shape)

    def qr(*shape: int, kind: str = "float32") -> None:
        row(
            "qr", (shape,), kind, normal, lambda np, x: np.linalg.qr(x), torch.linalg.qr,
            lambda xs, ys: max(
                apart(few(ys[0]) @ few(ys[1]), few(xs[0])),
                apart(adjoint(few(ys[0])) @ few(ys[0]), np.eye(ys[0].shape[-1])),
            ),
        )  # fmt: skip

    for shape in ((32, 32), (512, 512), (2048, 2048), (4096, 32, 32), (64, 128, 128)):
        qr(*shape)
    qr(512, 512, kind="float64")

    def eigh(*shape: int, kind: str = "float32") -> None:
        row(
            "eigh", (shape,), kind, positive, lambda np, x: np.linalg.eigh(x), torch.linalg.eigh,
            lambda xs, ys: apart(
                (few(ys[1]) * ys[0].reshape(-1, 1, shape[-1])[:8]) @ adjoint(few(ys[1])),
                few(xs[0]).reshape(-1, *shape[-2:]),
            ),
        )  # fmt: skip

    for shape in (
        (32, 32), (128, 128), (512, 512), (1024, 1024), (4096, 8, 8), (4096, 32, 32), (64, 128, 128)
    ):  # fmt: skip
        eigh(*shape)
    eigh(512, 512, kind="float64")
    eigh(256, 256, kind="complex64")

    def svd(*shape: int, kind: str = "float32") -> None:
        row(
            "svd", (shape,), kind, normal,
            lambda np, x: np.linalg.svd(x, full_matrices=False),
            lambda x: torch.linalg.svd(x, full_matrices=False),
            lambda xs, ys: max(
                apart((few(ys[0]) * ys[1].reshape(-1, 1, ys[1].shape[-1])[:8]) @ few(ys[2]),
                      few(xs[0]).reshape(-1, *shape[-2:])),
                apart(adjoint(few(ys[0])) @ few(ys[0]), np.eye(ys[0].shape[-1])),
                apart(few(ys[2]) @ adjoint(few(ys[2])), np.eye(ys[2].shape[-2])),
            ),
        )  # fmt: skip

    for shape in (
        (32, 32), (128, 128), (512, 512), (1024, 1024), (2048, 256), (4096, 8, 8), (1024, 32, 32),
        (256, 64, 64),
    ):  # fmt: skip
        svd(*shape)
    svd(256, 256, kind="float64")
    svd(256, 256, kind="complex64")

    def eig(*shape: int, kind: str = "float32") -> None:
        row(
            "eig", (shape,), kind, normal, lambda np, x: np.linalg.eig(x), torch.linalg.eig,
            lambda xs, ys: apart(
                few(xs[0]) @ few(ys[1]), few(ys[1]) * ys[0].reshape(-1, 1, shape[-1])[:8]
            ),
        )  # fmt: skip

    def inv(*shape: int, kind: str = "float32") -> None:
        row(
            "inv", (shape,), kind, positive, lambda np, x: np.linalg.inv(x), torch.linalg.inv,
            lambda xs, ys: apart(few(xs[0]) @ few(ys[0]), np.eye(shape[-1])),
        )  # fmt: skip

    def det(*shape: int, kind: str = "float32") -> None:
        row(
            "det", (shape,), kind, positive, lambda np, x: np.linalg.det(x), torch.linalg.det,
            lambda xs, ys: apart(ys[0].reshape(-1)[:8], np.linalg.det(few(xs[0])).reshape(-1)),
        )  # fmt: skip

    def slogdet(*shape: int, kind: str = "float32") -> None:
        row(
            "slogdet", (shape,), kind, positive,
            lambda np, x: tuple(np.linalg.slogdet(x)), torch.linalg.slogdet,
            lambda xs, ys: apart(
                ys[1].reshape(-1)[:8], np.linalg.slogdet(few(xs[0]))[1].reshape(-1)
            ),
        )  # fmt: skip

    def pinv(*shape: int, kind: str = "float32") -> None:
        row(
            "pinv", (shape,), kind, normal, lambda np, x: np.linalg.pinv(x), torch.linalg.pinv,
            lambda xs, ys: apart(few(ys[0]) @ few(xs[0]), np.eye(shape[-1])),
        )  # fmt: skip

    def lstsq(m: int, n: int, kind: str = "float32") -> None:
        row(
            "lstsq", ((m, n), (m, 1)), kind, normal,
            lambda np, x, y: np.linalg.lstsq(x, y)[0], lambda x, y: torch.linalg.lstsq(x, y)[0],
            lambda xs, ys: apart(ys[0], np.linalg.lstsq(few(xs[0]), few(xs[1]), rcond=None)[0]),
        )  # fmt: skip

    eig(256, 256)
    inv(512, 512)
    det(4096, 32, 32)
    pinv(512, 256)
    lstsq(2048, 64)

    # Every operation, small, large and of many matrices, in every dtype.
    for name in ("ifftn", "rfftn", "irfftn"):
        transforms(name, (8, 1024, 1024), (-2, -1), "complex128")
        for kind in ("complex64", "complex128"):
            transforms(name, (64, 64), (-2, -1), kind)
    for kind in ("float32", "float64", "complex64", "complex128"):
        for shape in ((32, 32), (512, 512), (1024, 32, 32), (128, 64, 64)):
            for operation in (cholesky, lu, qr, eigh, svd, inv, slogdet):
                operation(*shape, kind=kind)
            solve(shape, 1, kind)
            triangular(shape, shape[-1], kind)
            pinv(*shape[:-1], shape[-1] // 2, kind=kind)
        det(32, 32, kind=kind)
        det(1024, 32, 32, kind=kind)
        eig(64, 64, kind=kind)
        eig(8, 32, 32, kind=kind)
        lstsq(64, 16, kind=kind)
        lstsq(2048, 64, kind=kind)
    return list({row.name: row for row in found}.values())


def flat(tree: Any) -> list[Any]:
    """The arrays of a result."""
    return list(tree) if isinstance(tree, (tuple, list)) else [tree]


def shares(values: Sequence[Any], call: Callable) -> tuple[float, float]:
    """(seconds in libraries' routines, seconds in the kernels around them) of a call of ours."""
    times = {"library": 0.0, "around": 0.0}
    for span in gf.profiler.profile(gf.jit(call), repeats=10)(*values).spans:
        times["library" if span.name in ROUTINES else "around"] += span.seconds
    return times["library"], times["around"]


ROUTINES = frozenset(
    "fft cholesky lufactor lusolve triangularsolve qrfactor qrvectors eigh jacobieigh gramsvd "
    "jacobisvd eig product".split()
)


def measure(row: Row) -> dict[str, Any]:
    """One row of the table."""
    values = row.operands(np.random.default_rng(0))
    wide = any(v.dtype.itemsize // (1 + (v.dtype.kind == "c")) == 8 for v in values)
    here = [from_numpy(v) for v in values]
    ours = lambda *xs: row.call(gf.numpy, *xs)
    compiled = gf.jit(ours)
    results = [np.asarray(y) for y in flat(compiled(*here))]
    result: dict[str, Any] = {"off": row.off(values, results), "seconds": {}, "problems": {}}
    result["agrees"] = result["off"] < (1e-10 if wide else 2e-4)
    library, around = shares(here, ours)
    result |= {"library": library, "around": around}
    on_torch = [torch.from_numpy(v).cuda() for v in values]
    with jax.enable_x64(wide):
        on_jax = [jax.device_put(v) for v in values]
        by_jax = jax.jit(lambda *xs: row.call(jax.numpy, *xs))
        runs = {
            "genesis_fn": (lambda: compiled(*here), lambda out: flat(out)[0].block_until_ready()),
            "jax": (lambda: by_jax(*on_jax), jax.block_until_ready),
            "torch": (lambda: row.torch(*on_torch), lambda out: torch.cuda.synchronize()),
        }
        for name, (run, wait) in runs.items():
            try:
                result["seconds"][name] = per_call(run, wait)
            except Exception as error:
                result["problems"][name] = f"{type(error).__name__}: {error}"[:300]
    gf.clear_caches()
    jax.clear_caches()
    return result


def table(found: dict[str, Any]) -> str:
    """The rows as Markdown: milliseconds and ratios. Nothing of what kernels of our own compute is
    in a library."""
    lines = [
        "| operation | genesis_fn | of it in the library | over the library | JAX | torch | "
        "over JAX |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, row in found.items():
        t = row["seconds"]
        ms = lambda s: f"{t[s] * 1e3:.3f}" if s in t else "-"
        library, around = row["library"], row["around"]
        shares = f"{library * 1e3:.3f} | {1 + around / library:.3f}" if library else "- | -"
        ratio = f"{t['jax'] / t['genesis_fn']:.2f}" if {"jax", "genesis_fn"} <= set(t) else "-"
        wrong = "" if row["agrees"] else f" (WRONG by {row['off']:.1e})"
        lines.append(
            f"| {name}{wrong} | {ms('genesis_fn')} | {shares} | "
            f"{ms('jax')} | {ms('torch')} | {ratio} |"
        )
    return "\n".join(lines)


def main() -> int:
    """Measure what is missing, write and print the table; 1 if a result was wrong."""
    options = parser(__doc__)
    options.add_argument("--budget", type=float, default=200, help="seconds")
    options.add_argument("--only", default="", help="rows whose names contain this")
    args = options.parse_args()
    began = time.monotonic()
    name = torch.cuda.get_device_name()
    results = Results(Path(args.out) / f"linear-algebra-{short(name)}", args.redo)
    every = rows()
    for row in [r for r in every if args.only in r.name]:
        if row.name not in results.rows and time.monotonic() - began < args.budget:
            results.measure(row.name, lambda row=row: measure(row))
    found = results.in_order([r.name for r in every])
    results.write_table(
        f"Fourier transforms and linear algebra, {name}; milliseconds", table(found)
    )
    return int(not all(r["agrees"] for r in found.values()))


if __name__ == "__main__":
    sys.exit(main())
