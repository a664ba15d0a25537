"""Steps of random programs that transform and factorize, whose results are unique and steady.

Matrices are made of the values in rows: dominated by a diagonal of 1, 3, 5, ..., so that singular
and eigenvalues are apart and every pivot is the largest of its column by far. Factors come back as
products of theirs, or as what has no sign to choose. 16-bit floats are computed in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.support.fuzz_steps import Draw, Made, Shape

_MOST = 5  # rows of a matrix


def _wide(x: Any) -> str:
    return "float64" if x.dtype.name == "float64" else "float32"


# ---- transforms ----


def _parts(m: Any, z: Any) -> Any:
    return m.np.real(z) + 0.7 * m.np.imag(z)


TRANSFORMS: dict[str, Callable[[Any, Any, int, str | None], Any]] = {
    "fft": lambda m, x, axis, norm: _parts(m, m.np.fft.fft(x, axis=axis, norm=norm)),
    "ifft": lambda m, x, axis, norm: _parts(m, m.np.fft.ifft(x + 0.5j * m.np.sin(x), axis=axis)),
    "padded": lambda m, x, axis, norm: m.np.abs(
        m.np.fft.fft(x, n=x.shape[axis] + 3, axis=axis, norm=norm) + 3.0
    ),
    "filtered": lambda m, x, axis, norm: m.np.fft.irfft(
        m.np.fft.rfft(x, axis=axis, norm=norm) * (0.5 - 0.2j), n=x.shape[axis], axis=axis, norm=norm
    ),
    "rfft": lambda m, x, axis, norm: _parts(m, m.np.fft.rfft(x, axis=axis, norm=norm)),
    "convolved": lambda m, x, axis, norm: m.np.real(
        m.np.fft.ifft(m.np.fft.fft(x, axis=axis) ** 2, axis=axis)
    ),
    "fft2": lambda m, x, axis, norm: _parts(m, m.np.fft.fft2(x, norm=norm)),
    "irfft2": lambda m, x, axis, norm: m.np.fft.irfft2(
        m.np.fft.rfft2(x) * (0.4 + 0.3j), s=x.shape[-2:]
    ),
}


def transformed(d: Draw, i: int) -> Made:
    """A Fourier transform along one axis or two."""
    s = d.shapes[i]
    name, norm = d.rng.choice(list(TRANSFORMS)), d.rng.choice([None, "ortho", "forward"])
    if len(s) < (2 if name.endswith("2") else 1):
        return None
    axis = d.rng.randrange(len(s))
    n = {"rfft": s[axis] // 2 + 1, "padded": s[axis] + 3}.get(name, s[axis])

    def f(m: Any, v: list) -> Any:
        y = TRANSFORMS[name](m, v[i].astype(_wide(v[i])), axis, norm)
        return (m.np.tanh(0.5 * y)).astype(v[i].dtype)

    return f"{name} along {axis}", f, (*s[:axis], n, *s[axis + 1 :])


# ---- matrices ----


def general(m: Any, x: Any) -> Any:
    """[..., n] -> [..., n, n], its rows dominated by the diagonal."""
    n = x.shape[-1]
    y, place = m.np.tanh(x), m.np.arange(n).astype(x.dtype)
    mixed = y[..., :, None] * m.np.cos(y[..., None, :] + place[:, None] * place)
    return 0.2 * mixed + m.np.diag(2 * place + 1)


def symmetric(m: Any, x: Any) -> Any:
    """A symmetric matrix whose eigenvalues are apart."""
    a = general(m, x)
    return 0.5 * (a + m.np.swapaxes(a, -1, -2))


def positive(m: Any, x: Any) -> Any:
    """A A^T + n I"""
    a = general(m, x)
    return a @ m.np.swapaxes(a, -1, -2) + x.shape[-1] * m.np.eye(x.shape[-1], dtype=x.dtype)


def _rows(m: Any, a: Any) -> Any:
    """What a matrix adds up to in each row, unlike columns weighing unlike."""
    return m.np.sum(a * m.np.cos(m.np.arange(a.shape[-1]).astype(a.dtype)), -1)


def _cholesky(m: Any, x: Any) -> Any:
    return _rows(m, m.np.linalg.cholesky(positive(m, x)))


def _solve(m: Any, x: Any) -> Any:
    right = m.np.stack([x, m.np.sin(x)], -1)
    return _rows(m, m.np.linalg.solve(general(m, x), right))


def _triangular(m: Any, x: Any) -> Any:
    lower, upper = general(m, x), m.np.cos(x)[..., None]
    y = m.lax.linalg.triangular_solve(lower, upper, left_side=True, lower=True)
    z = m.lax.linalg.triangular_solve(lower, y, left_side=True, lower=False, transpose_a=True)
    return y[..., 0] + z[..., 0]


def _qr(m: Any, x: Any) -> Any:
    a = general(m, x)
    q, r = m.np.linalg.qr(a[..., : max(1, x.shape[-1] - 1)])
    diagonal = m.np.abs(m.np.diagonal(r, axis1=-2, axis2=-1))
    return _rows(m, q @ r) + m.np.sum(diagonal, -1, keepdims=True)


def _svd_values(m: Any, x: Any) -> Any:
    return m.np.linalg.svd(general(m, x), compute_uv=False)


def _svd(m: Any, x: Any) -> Any:
    a = general(m, x)[..., : max(1, x.shape[-1] - 1), :]
    u, s, vh = m.np.linalg.svd(a, full_matrices=False)
    return _rows(m, m.np.swapaxes((u * s[..., None, :] ** 2) @ vh, -1, -2))


def _eigh(m: Any, x: Any) -> Any:
    w, v = m.np.linalg.eigh(symmetric(m, x))
    return w + _rows(m, (v * m.np.sin(w)[..., None, :]) @ m.np.swapaxes(v, -1, -2))


def _lu(m: Any, x: Any) -> Any:
    packed, _, order = m.lax.linalg.lu(m.np.flip(general(m, x), -2))
    lower = m.np.tril(packed, -1) + m.np.eye(x.shape[-1], dtype=x.dtype)
    upper = m.np.triu(packed)
    return _rows(m, lower) + _rows(m, lower @ upper) + 0.1 * order.astype(x.dtype)


def _det(m: Any, x: Any) -> Any:
    return m.np.linalg.det(0.5 * general(m, x))[..., None] * 0.01 + x


def _slogdet(m: Any, x: Any) -> Any:
    sign, size = m.np.linalg.slogdet(m.np.flip(general(m, x), -1))
    return (sign * size)[..., None] * m.np.cos(x)


def _inv(m: Any, x: Any) -> Any:
    return _rows(m, m.np.linalg.inv(general(m, x)))


def _complex_solve(m: Any, x: Any) -> Any:
    a = general(m, x) + 0.2j * m.np.swapaxes(general(m, m.np.sin(x)), -1, -2)
    y = m.np.linalg.solve(a, (x + 0.5j)[..., None])[..., 0]
    return m.np.real(y) - m.np.imag(y)


FACTORS: dict[str, Callable[[Any, Any], Any]] = {
    "cholesky": _cholesky, "solve": _solve, "triangular solve": _triangular, "qr": _qr,
    "singular values": _svd_values, "svd": _svd, "eigh": _eigh, "lu": _lu, "det": _det,
    "slogdet": _slogdet, "inv": _inv, "complex solve": _complex_solve,
}  # fmt: skip


def factorized(d: Draw, i: int) -> Made:
    """A factorization or a solve of a matrix for each row of values."""
    s = d.shapes[i]
    if not s:
        return None
    name, n = d.rng.choice(list(FACTORS)), min(s[-1], _MOST)
    shape: Shape = (*s[:-1], n)

    def f(m: Any, v: list) -> Any:
        x = v[i].astype(_wide(v[i]))[..., :n]
        return m.np.tanh(0.2 * FACTORS[name](m, x)).astype(v[i].dtype)

    return name, f, shape


MATRICES = {"transform": transformed, "factors": factorized}
