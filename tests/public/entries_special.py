"""Entries of `scipy.special` and `numpy`: special functions, polynomials, windows, histograms."""

from __future__ import annotations

import numpy as np

from tests.public.agree import E, Entry, Operand
from tests.public.entries_numpy import X, each

S = Operand(kinds="s")
SP = Operand(kinds="s", low=0.3, high=3.0)
UNIT = Operand(kinds="s", low=0.1, high=0.9)
COMPLEX = Operand(kinds="c")
DEGREE = Operand((4,), "i", values=lambda rng: rng.integers(0, 5, 4))
ANGLES = Operand((4,), "s", 0.1, 3.0)

SPECIAL_MORE: dict[str, list[Entry]] = {
    **each("erfcx dawsn fresnel sici", E(S)), **each("exp1 expi spence", E(SP)),
    **each("wofz", E(COMPLEX)), **each("loggamma", E(SP), E(COMPLEX)),
    **each("gammasgn", E(S)), **each("multigammaln", E(SP, call=lambda f, x: f(x + 1.0, 3))),
    **each("poch", E(SP, SP)), **each("boxcox boxcox1p", E(SP, S)), **each("owens_t", E(S, S)),
    **each("comb", E(SP, UNIT, call=lambda f, n, k: f(n + k + 1, k))),
    **each("expn", E(SP, call=lambda f, x: f(3, x), peer=False)),
    **each("hyp1f1", E(Operand((), "s", 0.5, 3.0), Operand((), "s", 0.5, 3.0),
                       Operand((), "s", -2.0, 2.0))),
    **each("hyp2f1", E(Operand((), "s", 0.5, 3.0), Operand((), "s", 0.5, 3.0),
                       Operand((), "s", 3.5, 5.0), Operand((), "s", -0.9, 0.6), peer=False)),
    **each("bernoulli", E(call=lambda f: f(12))),
    **each("bessel_jn", E(SP, call=lambda f, x: f(x, v=3), peer=False)),
    **each("sph_harm_y", E(DEGREE, ANGLES, ANGLES, same=False,
                           call=lambda f, n, t, p: f(n, n // 2, t, p, n_max=5))),
}  # fmt: skip

V4, V3 = Operand((4,)), Operand((3,))
BYTES = Operand((3, 2), "u", values=lambda rng: rng.integers(0, 256, (3, 2)))
COUNTS = Operand((7,), "iub", low=-2, high=3)
POINTS = Operand((9, 2), "s", values=lambda rng: (rng.permutation(18).reshape(9, 2) - 8.7) / 5)
LINE = Operand((6,), "s", values=lambda rng: np.arange(6.0) / 4 + rng.uniform(0, 0.1, 6))
GRID = [(-2.0, 2.0), (-2.0, 2.0)]

NUMPY_MORE: dict[str, list[Entry]] = {
    **each("bartlett blackman hamming hanning", E(call=lambda f: f(7)), E(call=lambda f: f(1))),
    **each("kaiser", E(Operand((), "s", 1.0, 9.0), call=lambda f, beta: f(7, beta), peer=False)),
    **each("polyadd polysub", E(V4, V3), E(Operand((3,), "iuc"), Operand((4,), "iuc"))),
    **each("polymul", E(V4, V3)), **each("polyder polyint", E(V4, call=lambda f, p: f(p, 2))),
    **each("polydiv", E(V4, Operand((2,), low=0.5, high=2.0))),
    **each("poly", E(V4), E(Operand((3,), "c"))),
    **each("roots", E(Operand((3,), "s", values=lambda rng: np.array([1.0, -3.5, 3.0])
                              + rng.uniform(-0.1, 0.1, 3)), peer=False,
                      call=lambda f, p: f(p, strip_zeros=False))),
    **each("polyfit", E(LINE, Operand((6,), "s"), call=lambda f, x, y: f(x, y, 2))),
    **each("packbits", E(COUNTS), E(COUNTS, call=lambda f, x: f(x, 0, "little"))),
    **each("unpackbits", E(BYTES, call=lambda f, x: f(x.astype("uint8"), 0, 20), numbers=False),
           E(BYTES, call=lambda f, x: f(x.astype("uint8"), bitorder="little"),
             numbers=False)),
    **each("histogramdd", E(POINTS, grad=False, call=lambda f, x: f(x, 4, GRID))),
    **each("histogram2d", E(POINTS, grad=False,
                            call=lambda f, x: f(x[:, 0], x[:, 1], [3, 4], GRID, density=True))),
    **each("einsum_path", E(X, call=lambda f, x: np.array(f("ij,kj,kl->il", x, x, x)[0], "int32"))),
    **each("fromstring", E(call=lambda f: f("1 2 3", int, sep=" "))),
    "fromfile": [], "printoptions": [], "set_printoptions": [], "get_printoptions": [],
}  # fmt: skip

LAX_MORE: dict[str, list[Entry]] = {**each("igamma_grad_a", E(SP, SP, grad=False))}
