"""Entries of `scipy`'s parts and of `experimental`."""

from __future__ import annotations

import numpy as np

import genesis_fn.numpy as jnp
from tests.public.agree import E, Entry, Operand
from tests.public.entries_numpy import DEFINITE, REGULAR, V, X, each

MATRIX, KERNEL = Operand((4, 5)), Operand((2, 3))
SIGNAL = Operand((16,), "s")
VECTOR = Operand((3,), "s")
INSIDE = Operand((6,), "s", 0.1, 2.9)
TIMES = Operand((4,), "s", values=lambda rng: np.cumsum(rng.uniform(0.2, 0.6, 4)))

SCIPY_FFT: dict[str, list[Entry]] = {
    **each("dct idct", E(X), E(Operand(kinds="ic")), E(X, call=lambda f, x: f(
        x, n=5, axis=0, norm="ortho")), E(X, call=lambda f, x: f(x, 4), peer=False)),
    **each("dctn idctn", E(X), E(X, call=lambda f, x: f(x, s=(5, 3), norm="ortho"))),
}  # fmt: skip
SIGNALS: dict[str, list[Entry]] = {
    **each("convolve correlate", E(V, Operand((3,))), E(Operand((3,), "i"), Operand((5,), "i")), E(
        MATRIX, KERNEL, call=lambda f, x, y: f(x, y, "same")), E(SIGNAL, Operand((4,), "s"),
        call=lambda f, x, y: f(x, y, "valid", "fft"))),
    **each("convolve2d correlate2d", E(MATRIX, KERNEL), E(MATRIX, KERNEL, call=lambda f, x, y: f(
        x, y, "same")), E(Operand((4, 5), "c"), Operand((2, 3), "c"), call=lambda f, x, y: f(
        x, y, "valid"))),
    **each("fftconvolve", E(Operand((4, 5), "sc"), Operand((2, 3), "sc"))),
    **each("detrend", E(SIGNAL), E(MATRIX, call=lambda f, x: f(x, 0, "constant")), E(
        SIGNAL, call=lambda f, x: f(x, bp=(5,)))),
    **each("csd", E(SIGNAL, SIGNAL, call=lambda f, x, y: f(x, y, nperseg=8))),
    **each("welch", E(SIGNAL, call=lambda f, x: f(x, 2.0, nperseg=8, average="median"))),
    **each("stft", E(SIGNAL, call=lambda f, x: f(x, nperseg=8, boundary="even"))),
    **each("istft", E(Operand((5, 4), "c"), call=lambda f, x: f(x, nperseg=8))),
}  # fmt: skip
SPARSE_LINALG: dict[str, list[Entry]] = {
    # What is within the tolerance differs from what is within it of another program.
    **each("cg", E(DEFINITE, VECTOR, call=lambda f, a, b: f(
        a + 3 * np.eye(3, dtype=a.dtype), b, tol=1e-6)[0], numbers=False)),
    **each("bicgstab", E(
        REGULAR, VECTOR, call=lambda f, a, b: f(a, b, tol=1e-6)[0], numbers=False)),
    **each("gmres", E(REGULAR, VECTOR, call=lambda f, a, b: f(a, b, tol=1e-6), numbers=False), E(
        REGULAR, VECTOR, call=lambda f, a, b: f(
            a, b, tol=1e-6, solve_method="incremental")[0], numbers=False)),
}  # fmt: skip
OPTIMIZE: dict[str, list[Entry]] = {
    # The way to the minimum depends on rounding, and has no reverse-mode derivative.
    **each("minimize", E(VECTOR, call=lambda f, a: jnp.round(f(
        lambda x, a: (((x - a) ** 2).sum() + ((x - a) ** 4).sum()), a + 0.5, (a,),
        method="BFGS").x * 50), grad=False, peer=False, numbers=False)),
}  # fmt: skip
NDIMAGE: dict[str, list[Entry]] = {
    **each("map_coordinates", *[
        E(MATRIX, Operand((6,), "s", -2.4, 5.3), same=False, call=lambda f, x, c, mode=mode: f(
            x, [c, c[::-1]], 1, mode), numbers=False)
        for mode in ("constant", "nearest", "wrap", "mirror", "reflect")], E(
        Operand((4, 5), "i"), INSIDE, same=False, call=lambda f, x, c: f(
            x, [c, c], 1))),
}  # fmt: skip
VQ: dict[str, list[Entry]] = {**each("vq", E(Operand((6, 3), "s"), Operand((4, 3), "s")))}
INTEGRATE: dict[str, list[Entry]] = {
    **each("trapezoid", E(X), E(X, Operand((4,)), call=lambda f, y, x: f(y, x=x))),
}  # fmt: skip
ODE: dict[str, list[Entry]] = {
    **each("odeint", E(VECTOR, TIMES, Operand((), "s", 0.2, 0.8), call=lambda f, y, t, rate: f(
        lambda y, t, rate: -rate * y + t, y, t, rate), numbers=False)),
}  # fmt: skip
