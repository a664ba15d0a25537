"""The steps that random programs are made of.

A step is `f(m, values) -> value`, where `m` is one of the libraries of `tests.transforms.both` and
`values` are floating arrays of known shapes. `STEPS[kind](draw, i)` makes one that works on value
`i`: (description, step, shape of its result), or None where the kind does not fit. `NESTED` holds
the kinds that have programs of their own inside; a draw may bring `more` kinds.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tests.transforms.both import OURS, theirs

Shape = tuple[int, ...]
Step = Callable[[Any, list], Any]
Made = tuple[str, Step, Shape] | None

UNARY = {
    "neg": lambda m, x: -x,
    "sin": lambda m, x: m.np.sin(x),
    "cos": lambda m, x: m.np.cos(x),
    "tanh": lambda m, x: m.np.tanh(x),
    "logistic": lambda m, x: m.lax.logistic(x),
    "exp": lambda m, x: m.np.exp(m.np.sin(x)),
    "sqrt": lambda m, x: m.np.sqrt(x * x + 1),
    "log": lambda m, x: m.np.log(x * x + 1),
    "cube": lambda m, x: x**3 * 0.1,
    "erf": lambda m, x: m.lax.erf(x),
    "abs": lambda m, x: m.np.abs(x),
    "scale": lambda m, x: 0.5 - x * 1.5,
    "stop": lambda m, x: m.stop_gradient(m.np.cos(x)) * x,
    "expm1": lambda m, x: m.np.expm1(m.np.tanh(x)),
    "log1p": lambda m, x: m.np.log1p(m.np.abs(x)),
    "floor": lambda m, x: m.np.floor(x * 2) + x,
    "clip": lambda m, x: m.np.clip(x, -0.7, 0.9),
    "rsqrt": lambda m, x: m.lax.rsqrt(x * x + 0.5),
    "atan": lambda m, x: m.np.arctan(x),
    "relu": lambda m, x: m.nn.relu(x),
    "gelu": lambda m, x: m.nn.gelu(x),
    "silu": lambda m, x: m.nn.silu(x),
}
BINARY = {
    "add": lambda m, x, y: x + y,
    "sub": lambda m, x, y: x - y,
    "mul": lambda m, x, y: x * y,
    "div": lambda m, x, y: x / (y * y + 1),
    "max": lambda m, x, y: m.np.maximum(x, y),
    "min": lambda m, x, y: m.np.minimum(x, y * 0.7),
    "select": lambda m, x, y: m.np.where(x > y, x * 2, m.np.sin(y)),
    "atan2": lambda m, x, y: m.np.arctan2(x, y * y + 1),
    "logaddexp": lambda m, x, y: m.np.logaddexp(x, y),
    "pow": lambda m, x, y: (m.np.abs(x) + 0.5) ** m.np.tanh(y),
    "rem": lambda m, x, y: m.lax.rem(x, y * y + 1),
    "masks": lambda m, x, y: m.np.where((x > 0) & ~(y > x) | (x + y < -1), x - y, 0.3 * y),
}
# Of arrays of one integer type, or of booleans; `k` is 1, 2 or 3.
INTEGER = {
    "add": lambda m, x, y, k: x + y,
    "sub": lambda m, x, y, k: x - y,
    "mul": lambda m, x, y, k: x * y,
    "and": lambda m, x, y, k: x & y,
    "xor": lambda m, x, y, k: x ^ y,
    "not or": lambda m, x, y, k: ~x | y,
    "shift left": lambda m, x, y, k: x << k,
    "shift right": lambda m, x, y, k: x >> k,
    "floor_divide": lambda m, x, y, k: x // k,
    "remainder": lambda m, x, y, k: x % (k + 1),
    "max": lambda m, x, y, k: m.np.maximum(x, y),
    "min": lambda m, x, y, k: m.np.minimum(x, y),
    "where": lambda m, x, y, k: m.np.where(x > y, y, x),
    "equal": lambda m, x, y, k: (x == y).astype(x.dtype),
    "sort": lambda m, x, y, k: m.np.sort(x, axis=-1) if x.ndim else x,
    "argsort": lambda m, x, y, k: m.np.argsort(x, axis=-1).astype(x.dtype) if x.ndim else x,
    "flip": lambda m, x, y, k: m.np.flip(x),
    "cumsum": lambda m, x, y, k: m.lax.cumsum(x, 0) if x.ndim else x,
    "sum": lambda m, x, y, k: x + m.np.sum(y, dtype=y.dtype),
    "total max": lambda m, x, y, k: m.np.maximum(x, m.np.max(y) - y),
}
LOGICAL = ("and", "xor", "not or", "max", "min", "equal", "flip", "sort")
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


@dataclasses.dataclass
class Draw:
    """Where a program stands: its source of chance, the shapes of its values, what may come.

    `depth`: how deep programs may still nest. `rules`: whether custom_vjp fits, which has no
    forward mode. `looped`: whether this is the body of a loop. `more`: further kinds of steps,
    which make about a third of all.
    """

    rng: random.Random
    shapes: list[Shape]
    depth: int
    rules: bool
    looped: bool = False
    more: dict[str, Callable[[Draw, int], Made]] = dataclasses.field(default_factory=dict)

    def like(self, shape: Shape) -> list[int]:
        """The values of that shape."""
        return [j for j, t in enumerate(self.shapes) if t == shape]


def grow(d: Draw, count: int) -> tuple[list[Step], list[str]]:
    """(steps, descriptions) of `count` steps; the shapes of their results join `d.shapes`."""
    steps, names = [], []
    kinds = tuple(STEPS) + COMMON + (tuple(NESTED) if d.depth else ())
    kinds += tuple(d.more) * (len(kinds) // (2 * len(d.more))) if d.more else ()
    while len(steps) < count:
        i = d.rng.randrange(len(d.shapes))
        kind = d.rng.choice(kinds)
        made = (STEPS.get(kind) or NESTED.get(kind) or d.more[kind])(d, i)
        if made is not None and np.prod(made[2], dtype=int) <= 200:
            names.append(made[0])
            steps.append(made[1])
            d.shapes.append(made[2])
    return steps, names


def run(m: Any, steps: Sequence[Step], values: list) -> list:
    """All values of a program."""
    for f in steps:
        values.append(f(m, values))
    return values


def convert(m: Any, x: np.ndarray) -> Any:
    """A constant for either library; here an ndarray goes to the device of what it meets."""
    return x if m is OURS else theirs(x)


def axis_of(d: Draw, s: Shape) -> int:
    return d.rng.randrange(len(s))


def resized(s: Shape, axis: int, *new: int) -> Shape:
    """`s` with sizes `new` in place of one axis."""
    return (*s[:axis], *new, *s[axis + 1 :])


# ---- first-order steps ----


def unary(d: Draw, i: int) -> Made:
    name = d.rng.choice(list(UNARY))
    return name, lambda m, v: UNARY[name](m, v[i]), d.shapes[i]


def binary(d: Draw, i: int) -> Made:
    s = d.shapes[i]
    name, j = d.rng.choice(list(BINARY)), d.rng.choice(d.like(s))
    return name, lambda m, v: BINARY[name](m, v[i], v[j]), s


def broadcast(d: Draw, i: int) -> Made:
    s = d.shapes[i]
    if len(s) == 3:
        return None
    n, place = d.rng.choice([2, 3]), d.rng.randrange(len(s) + 1)
    new = (*s[:place], n, *s[place:])
    return (
        "broadcast",
        lambda m, v: m.np.broadcast_to(m.np.expand_dims(v[i], place), new) * 0.5,
        new,
    )


def integers(d: Draw, i: int) -> Made:
    """A program over arrays of one integer type or booleans, entered by rounding."""
    s, rng = d.shapes[i], d.rng
    j = rng.choice(d.like(s))
    kind = rng.choice((*INTEGERS, "bool"))
    pool = LOGICAL if kind == "bool" else tuple(INTEGER)
    plan = [
        (rng.choice(pool), rng.randrange(9), rng.randrange(9), rng.randint(1, 3))
        for _ in range(rng.randint(1, 4))
    ]

    def f(m: Any, v: list) -> Any:
        if kind == "bool":
            ints = [v[i] > v[j] * 0.5, v[j] < 0.3]
        else:
            ints = [m.np.floor(x * 3).astype("int32").astype(kind) for x in (v[i], v[j])]
        for name, a, b, k in plan:
            ints.append(INTEGER[name](m, ints[-1 - a % len(ints)], ints[-1 - b % len(ints)], k))
        last = ints[-1].astype("int32") if kind == "bool" else ints[-1] % 17
        return last.astype(v[i].dtype) * 0.1 + v[i]

    return f"{kind}({', '.join(p[0] for p in plan)})", f, s


def reduce(d: Draw, i: int) -> Made:
    s = d.shapes[i]
    if not s:
        return None
    axes = tuple(sorted(d.rng.sample(range(len(s)), d.rng.randint(1, len(s)))))
    name = d.rng.choice(["sum", "max", "mean", "prod", "min", "var", "logsumexp", "any"])
    left = tuple(n for a, n in enumerate(s) if a not in axes)
    if name == "logsumexp":
        return name, lambda m, v: m.nn.logsumexp(v[i], axis=axes), left
    if name == "any":
        return (
            name,
            lambda m, v: m.np.where(
                m.np.any(v[i] > 1, axis=axes) & ~m.np.all(v[i] > 0, axis=axes),
                m.np.sum(v[i], axis=axes),
                m.np.max(v[i], axis=axes),
            ),
            left,
        )
    return name, lambda m, v: getattr(m.np, name)(v[i], axis=axes), left


def transpose(d: Draw, i: int) -> Made:
    s = d.shapes[i]
    order = tuple(d.rng.sample(range(len(s)), len(s)))
    return "transpose", lambda m, v: m.np.transpose(v[i], order), tuple(s[a] for a in order)


def reshape(d: Draw, i: int) -> Made:
    s = d.shapes[i]
    new = (int(np.prod(s)),) if len(s) > 1 else (1, *s)
    return "reshape", lambda m, v: m.np.reshape(v[i], new), new


def slice_(d: Draw, i: int) -> Made:
    s = d.shapes[i]
    if not s:
        return None
    axis, step = axis_of(d, s), d.rng.choice([1, 2, -1])
    index = (slice(None),) * axis + (slice(None, None, step),)
    new = resized(s, axis, len(range(s[axis])[::step]))
    return "slice", lambda m, v: v[i][index], new


def concatenate(d: Draw, i: int) -> Made:
    s = d.shapes[i]
    if not s:
        return None
    axis, j = axis_of(d, s), d.rng.choice(d.like(s))
    new = resized(s, axis, 2 * s[axis])
    return "concatenate", lambda m, v: m.np.concatenate([v[i], v[j]], axis), new


def pad(d: Draw, i: int) -> Made:
    s = d.shapes[i]
    if not s:
        return None
    axis, width = axis_of(d, s), [(0, 0, 0)] * len(s)
    low, high, inside = width[axis] = d.rng.choice([(1, 0, 0), (0, 2, 1), (-1, 1, 0)])
    new = resized(s, axis, s[axis] + low + high + inside * (s[axis] - 1))
    return "pad", lambda m, v: m.lax.pad(v[i], m.np.sum(v[i]) * 0.1, width), new


def cumulate(d: Draw, i: int) -> Made:
    s = d.shapes[i]
    if not s:
        return None
    axis, back = axis_of(d, s), d.rng.random() < 0.5
    name = d.rng.choice(["cumsum", "cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"])
    return name, lambda m, v: getattr(m.lax, name)(v[i], axis, reverse=back) * 0.5, s


def take(d: Draw, i: int) -> Made:
    s = d.shapes[i]
    if not s:
        return None
    axis = axis_of(d, s)
    index = np.array([d.rng.randrange(s[axis]) for _ in range(3)])
    return ("take", lambda m, v: m.np.take(v[i], convert(m, index), axis=axis), resized(s, axis, 3))


def take_along(d: Draw, i: int) -> Made:
    """A gather at places that another value decides."""
    s = d.shapes[i]
    if not s:
        return None
    axis, j = axis_of(d, s), d.rng.choice(d.like(s))
    return (
        "take along",
        lambda m, v: m.np.take_along_axis(v[i], m.np.argsort(v[j], axis=axis), axis=axis),
        s,
    )


def update(d: Draw, i: int) -> Made:
    s = d.shapes[i]
    if not s:
        return None
    j, at = d.rng.choice(d.like(s)), d.rng.randrange(s[0])
    how = d.rng.choice(["add", "max", "min", "multiply", "set"])
    rows = np.array([d.rng.randrange(s[0]) for _ in range(2)])

    def f(m: Any, v: list) -> Any:
        if how == "set":
            return v[i].at[at].add(v[j][0]).at[0].set(v[j][at] * 0.5)
        if how == "multiply":  # JAX's has no derivative where an index comes twice
            return v[i].at[at].multiply(v[j][0])
        place = v[i].at[convert(m, rows)]
        return getattr(place, how)(v[j][:1] * 0.5 if how == "add" else v[j][:1] * 0.8)

    return f"update {how}", f, s


def dynamic_slice(d: Draw, i: int) -> Made:
    s = d.shapes[i]
    if not s:
        return None
    axis = axis_of(d, s)

    def f(m: Any, v: list) -> Any:
        start = m.np.argmax(m.np.ravel(v[i])) % s[axis]
        return m.lax.dynamic_slice_in_dim(v[i], start, 1, axis)

    return "dynamic slice", f, resized(s, axis, 1)


def dynamic_update(d: Draw, i: int) -> Made:
    s = d.shapes[i]
    if not s:
        return None
    axis, j = axis_of(d, s), d.rng.choice(d.like(s))

    def f(m: Any, v: list) -> Any:
        start = m.np.argmin(m.np.ravel(v[j])) % s[axis]
        new = m.lax.dynamic_slice_in_dim(v[j], 0, 1, axis) * 0.7
        return m.lax.dynamic_update_slice_in_dim(v[i], new, start, axis)

    return "dynamic update", f, s


def sort(d: Draw, i: int) -> Made:
    s = d.shapes[i]
    if not s:
        return None
    axis, j = axis_of(d, s), d.rng.choice(d.like(s))
    if d.rng.random() < 0.5:
        return "sort", lambda m, v: m.np.sort(v[i], axis=axis), s
    return "sort pairs", lambda m, v: m.lax.sort((v[i], v[j]), dimension=axis)[1], s


def top_k(d: Draw, i: int) -> Made:
    s = d.shapes[i]
    if not s:
        return None
    k = d.rng.randint(1, s[-1])
    return "top_k", lambda m, v: m.lax.top_k(v[i], k)[0], (*s[:-1], k)


def row_function(d: Draw, i: int) -> Made:
    s = d.shapes[i]
    if not s:
        return None
    axis = axis_of(d, s)
    name = d.rng.choice(["softmax", "log_softmax", "standardize"])
    more = {"epsilon": 0.1} if name == "standardize" else {}
    return name, lambda m, v: getattr(m.nn, name)(v[i], axis=axis, **more), s


def dot(d: Draw, i: int) -> Made:
    s, shapes = d.shapes[i], d.shapes
    fits = [
        (j, a, b)
        for j, t in enumerate(shapes)
        for a in range(len(s))
        for b in range(len(t))
        if s[a] == t[b] and len(s) + len(t) <= 5
    ]
    if not fits:
        return None
    j, a, b = d.rng.choice(fits)
    numbers: tuple = (((a,), (b,)), ((), ()))
    free = [
        (x, y)
        for x in range(len(s))
        for y in range(len(shapes[j]))
        if x != a and y != b and s[x] == shapes[j][y]
    ]
    batch: tuple = ((), ())
    if free and d.rng.random() < 0.5:
        x, y = d.rng.choice(free)
        batch = ((x,), (y,))
        numbers = (((a,), (b,)), batch)
    rest = [n for k, n in enumerate(s) if k != a and k not in batch[0]]
    rest += [n for k, n in enumerate(shapes[j]) if k != b and k not in batch[1]]
    new = (*(s[k] for k in batch[0]), *rest)
    return "dot", lambda m, v: m.lax.dot_general(v[i], v[j], numbers) * 0.3, new


def convolve(d: Draw, i: int) -> Made:
    """A one-dimensional convolution of the values in a row with two of another's."""
    s = d.shapes[i]
    others = [j for j, t in enumerate(d.shapes) if np.prod(t, dtype=int) >= 2]
    n = int(np.prod(s))
    if n < 2 or not others:
        return None
    j, stride, low = d.rng.choice(others), d.rng.randint(1, 2), d.rng.randint(0, 1)

    def f(m: Any, v: list) -> Any:
        rows, kernel = m.np.reshape(v[i], (1, 1, n)), m.np.reshape(v[j], (-1,))[:2]
        y = m.lax.conv_general_dilated(rows, kernel[None, None], (stride,), [(low, 1)])
        return m.np.reshape(y, (-1,)) * 0.5

    return "convolve", f, ((n + low + 1 - 2) // stride + 1,)


def window(d: Draw, i: int) -> Made:
    """Pooling over pairs of neighbours along one axis."""
    s = d.shapes[i]
    if not s or max(s) < 2:
        return None
    axis = s.index(max(s))
    size = tuple(2 if a == axis else 1 for a in range(len(s)))
    name, start = d.rng.choice([("max", -np.inf), ("add", 0.0), ("min", np.inf)])
    stride = d.rng.randint(1, 2)
    steps = tuple(stride if a == axis else 1 for a in range(len(s)))

    def f(m: Any, v: list) -> Any:
        return m.lax.reduce_window(v[i], start, getattr(m.lax, name), size, steps, "VALID")

    return f"window {name}", f, resized(s, axis, (s[axis] - 2) // stride + 1)


def keyed(d: Draw, i: int) -> Made:
    """Random numbers by keys that are data: split, indexed, stacked, derived by a traced number,
    scanned over, mapped over, chosen by a condition, given to a jitted function."""
    s, seed = d.shapes[i], d.rng.randrange(1000)
    way = d.rng.choice(["split", "fold in", "scan", "vmap", "cond", "jit", "words"])

    def f(m: Any, v: list) -> Any:
        draw = lambda k: m.random.uniform(k, s, "float32", -1.0, 1.0).astype(v[i].dtype)
        key = m.random.key(seed, impl="threefry2x32")
        if way == "split":
            keys = m.random.split(key, (2, 3))
            keys = m.np.stack([keys[1, ::-1], keys[0]]).reshape(-1)
            noise = draw(keys[4])
        elif way == "fold in":
            noise = draw(m.random.fold_in(key, m.np.sum(v[i] > 0)))
        elif way == "scan":
            body = lambda c, k: (m.np.tanh(c + draw(k)), None)
            noise = m.scan(body, m.np.zeros(s, v[i].dtype), m.random.split(key, 3))[0]
        elif way == "vmap":
            noise = m.np.sum(m.vmap(draw)(m.random.split(key, 2)), 0)
        elif way == "cond":
            first, second = m.random.split(key)
            which = m.cond(m.np.sum(v[i]) > 0.1, lambda a, b: a, lambda a, b: b, first, second)
            noise = draw(which)
        elif way == "jit":
            noise = m.jit(lambda state: draw(state["key"]) * state["x"])({"key": key, "x": v[i]})
        else:
            noise = draw(m.random.wrap_key_data(m.random.key_data(key)[::-1], impl="threefry2x32"))
        return v[i] * (1 + 0.3 * noise)

    return f"key({way})", f, s


COMPLEX = {
    "mul": lambda m, z, w: z * w,
    "div": lambda m, z, w: z / (w * m.np.conj(w) + 1),
    "exp": lambda m, z, w: m.np.exp(1j * m.np.real(z)) * w,
    "square": lambda m, z, w: z * m.np.conj(z) + w,
    "sin": lambda m, z, w: m.np.sin(0.5 * z) + w,
    "conj": lambda m, z, w: m.np.conj(z) - 2j * w,
    "where": lambda m, z, w: m.np.where(m.np.real(z) > 0, z, m.np.conj(w)),
    "sum": lambda m, z, w: z + m.np.sum(w),
    "flip": lambda m, z, w: m.np.flip(z) * 1j,
    "sqrt": lambda m, z, w: m.np.sqrt(z * m.np.conj(z) + 1 + 0.5j) - w,
    "log": lambda m, z, w: m.np.log(0.1 * z * z + 2) + w,
    "tanh": lambda m, z, w: m.np.tanh(0.3 * z) * w,
    "power": lambda m, z, w: (m.np.abs(z) + 1.5 + 0.3j) ** (0.5 - 0.2j) * w,
    "prod": lambda m, z, w: z + 0.3 * m.np.prod(m.np.sin(w)),
    "prefixes": lambda m, z, w: m.np.cumprod(0.8 * m.np.sin(z), -1) + w if z.ndim else z,
    "sums": lambda m, z, w: m.np.cumsum(z, 0) - w if z.ndim else z,
    "product": lambda m, z, w: (
        z @ m.np.conj(m.np.swapaxes(w, -1, -2)) @ z * 0.1 if z.ndim > 1 else w
    ),
    "taken": lambda m, z, w: z[m.np.arange(z.shape[0]) // 2] * w if z.ndim else z,
    "added": lambda m, z, w: z.at[m.np.array([0, -1, 0])].add(1j * w[0]) if z.ndim else z,
    "scan": lambda m, z, w: m.scan(lambda c, x: (0.5j * c + x, c * x), w[0], z)[1] if z.ndim else z,
}


def complex_(d: Draw, i: int) -> Made:
    """A program over complex numbers, left by a real function of them."""
    s, rng = d.shapes[i], d.rng
    j = rng.choice(d.like(s))
    plan = [rng.choice(list(COMPLEX)) for _ in range(rng.randint(1, 3))]
    leave = rng.choice(["real", "imag", "abs", "norm"])

    def f(m: Any, v: list) -> Any:
        wide = "complex128" if v[i].dtype.name == "float64" else "complex64"
        z = v[i].astype(wide) + 1j * v[j].astype(wide) * 0.5
        w = z * (0.3 - 0.2j)
        for name in plan:
            z, w = COMPLEX[name](m, z, w), z
        if leave == "norm":
            y = m.np.real(z * m.np.conj(z)) * 0.3
        else:
            y = m.np.abs(z + 3) if leave == "abs" else getattr(m.np, leave)(z)
        return m.np.tanh(y).astype(v[i].dtype)

    return f"complex({', '.join(plan)}, {leave})", f, s


SPECIAL = {
    "nan": lambda m, x: m.np.nan_to_num(m.np.where(x > 0.5, np.nan, x * 2), nan=0.25),
    "inf": lambda m, x: m.np.clip(m.np.where(m.np.abs(x) > 0.5, x * np.inf, x), -2, 2),
    "sign of zero": lambda m, x: m.np.copysign(x, m.np.sign(x) * -0.0) + m.np.sign(x * 0.0),
    "nan extremes": lambda m, x: m.np.fmax(m.np.where(x > 0, np.nan, x), -0.5) + x,
    "isnan": lambda m, x: x * m.np.where(m.np.isnan(m.np.sqrt(m.stop_gradient(x))), 0.5, 1.5),
    "nan sum": lambda m, x: x + m.np.nansum(m.np.where(x > 0.7, np.nan, x)),
    "largest": lambda m, x: x * m.np.isfinite(m.stop_gradient(m.np.exp(x * 1000))),
    "tiny": lambda m, x: x + m.np.where(m.np.abs(x) * 1e-30 == 0, 1.0, 0.5),
}


def special(d: Draw, i: int) -> Made:
    """NaNs, infinities, zeros of both signs on the way to a finite value."""
    name = d.rng.choice(list(SPECIAL))
    return f"special {name}", lambda m, v: SPECIAL[name](m, v[i]), d.shapes[i]


# Equal numbers of unlike types. (JAX takes 0.0 for -0.0, and (1, 2) for (1.0, 2).)
STATICS = (1, 1.0, True, 2, 2.0, 0.0, False, "1", None)


def static(d: Draw, i: int) -> Made:
    """A jitted function called with static values that `==` takes for one another."""
    s = d.shapes[i]
    chosen = [d.rng.choice(STATICS) for _ in range(3)]
    by_name = d.rng.random() < 0.5

    def f(m: Any, v: list) -> Any:
        def told(x: Any, mode: Any) -> Any:
            return x * (1 + 0.1 * len(repr(mode))) + (0.5 if isinstance(mode, float) else 0.0)

        g = m.jit(told, static_argnames="mode")
        y = v[i]
        for mode in chosen:
            y = m.np.sin(g(y, mode=mode) if by_name else g(y, mode))
        return y

    return f"static{tuple(chosen)}", f, s


def method(d: Draw, i: int) -> Made:
    """Transforms of a bound method whose object has an array."""
    s = d.shapes[i]
    j = d.rng.choice(d.like(s))
    kind = d.rng.choice(["grad", "vjp", "jit", "vmap", "checkpoint"] if s else ["grad", "jit"])

    def f(m: Any, v: list) -> Any:
        class Layer:
            def __init__(self, w: Any) -> None:
                self.w = w

            def apply(self, x: Any) -> Any:
                return m.np.tanh(x * self.w)

            def total(self, x: Any) -> Any:
                return m.np.sum(self.apply(x))

        layer = Layer(m.np.asarray(m.np.cos(v[j])))
        if kind == "grad":
            return m.grad(layer.total)(v[i])
        if kind == "vjp":
            return m.vjp(layer.apply, v[i])[1](v[j])[0]
        if kind == "vmap":
            layer.w = layer.w[0]
            return m.vmap(layer.apply)(v[i])
        return getattr(m, kind)(lambda x: layer.apply(x))(v[i])

    return f"method {kind}", f, s


def keywords(d: Draw, i: int) -> Made:
    """Arguments by name and by position, in any order, with a default."""
    s = d.shapes[i]
    j, way = d.rng.choice(d.like(s)), d.rng.randrange(4)
    kind = d.rng.choice(["jit", "checkpoint", "plain"])

    def f(m: Any, v: list) -> Any:
        def g(x: Any, y: Any, *, scale: Any = 0.5) -> Any:
            return m.np.sin(x) * scale - y

        h = g if kind == "plain" else getattr(m, kind)(g)
        if way == 0:
            return h(v[i], v[j])
        if way == 1:
            return h(y=v[i], x=v[j])
        if way == 2:
            return h(v[i], scale=v[j], y=v[j])
        return h(v[i], y=v[j], scale=2) + h(v[i], v[j], scale=2.0)

    return f"keywords {kind} {way}", f, s


# ---- steps with programs inside ----


def inner(
    d: Draw, shapes: list[Shape], count: int, result: Shape, looped: bool = False
) -> tuple[Callable, str]:
    """(g(m, values) -> value of shape `result`, description): a program one level down."""
    below = Draw(d.rng, list(shapes), d.depth - 1, d.rules, looped or d.looped, d.more)
    steps, names = grow(below, count)
    last = [k for k, t in enumerate(below.shapes) if t == result][-1]
    return lambda m, values: run(m, steps, list(values))[last], ", ".join(names)


def scan(d: Draw, i: int) -> Made:
    s = d.shapes[i]
    if not s:
        return None
    row = s[1:]
    below = Draw(d.rng, [row, row], d.depth - 1, d.rules, True, d.more)
    steps, names = grow(below, 3)
    last = [k for k, t in enumerate(below.shapes) if t == row]
    new, out, back = last[-1], last[len(last) // 2], d.rng.random() < 0.3
    closed = d.like(row)
    captured = d.rng.choice(closed) if closed else None

    def f(m: Any, v: list) -> Any:
        def body(c: Any, x: Any) -> Any:
            if captured is not None:
                x = x * v[captured]
            vs = run(m, steps, [c, x])
            return m.np.tanh(vs[new]), vs[out]

        c, ys = m.scan(body, m.np.sin(v[i][0]), v[i], reverse=back)
        return ys + c

    return f"scan({', '.join(names)})", f, s


def cond(d: Draw, i: int) -> Made:
    s = d.shapes[i]
    j, count = d.rng.choice(d.like(s)), d.rng.choice([2, 2, 3])
    sides = [inner(d, [s, s], 2, s) for _ in range(count)]

    def f(m: Any, v: list) -> Any:
        branches = [lambda x, y, g=g: g(m, [x, y]) for g, _ in sides]
        if count == 2:
            return m.cond(m.np.sum(v[i]) > 0.1, *branches, v[i], v[j])
        which = m.np.floor(m.np.sum(v[i])).astype("int32")  # clamped to the branches there are
        return m.switch(which, branches, v[i], v[j])

    return "cond(" + " | ".join(n for _, n in sides) + ")", f, s


def lanes(d: Draw, i: int) -> Made:
    """A branch by lane under vmap, in a loop or not: the one not taken may have no value there."""
    s = d.shapes[i]
    if not s:
        return None
    row = s[1:]
    g, names = inner(d, [row], 2, row, True)
    looped, bad = d.rng.random() < 0.5, d.rng.choice(["sqrt", "log", "reciprocal"])

    def f(m: Any, v: list) -> Any:
        function = lambda u: 1 / u if bad == "reciprocal" else getattr(m.np, bad)(u)

        def lane(x: Any) -> Any:
            safe = lambda u: function(m.np.abs(u) * 0 + m.np.sum(m.np.abs(x)) + 0.5)
            risky = lambda u: m.cond(
                m.np.sum(u) > 0.5, lambda w: function(m.np.sum(w) + 0 * w), safe, u
            )
            step = lambda c: m.np.tanh(m.cond(m.np.sum(c) > 0, risky, lambda u: g(m, [u]) * 0.5, c))
            return m.fori_loop(0, 2, lambda _, c: step(c), x) if looped else step(x)

        return m.vmap(lane)(v[i])

    return f"lanes {bad}({names})", f, s


def counted(d: Draw, i: int) -> Made:
    s = d.shapes[i]
    j, turns = d.rng.choice(d.like(s)), d.rng.randint(0, 3)
    g, names = inner(d, [s, s], 2, s, True)

    def f(m: Any, v: list) -> Any:
        return m.fori_loop(0, turns, lambda k, c: m.np.tanh(g(m, [c, v[j]]) + k), m.np.sin(v[i]))

    return f"fori({names})", f, s


def until(d: Draw, i: int) -> Made:
    """A while loop, which no tangent enters, so that every transform takes it."""
    s = d.shapes[i]
    g, names = inner(d, [s], 2, s, True)
    turns, bound = d.rng.randint(1, 4), d.rng.choice([0.5, 2.0, 10.0])

    def f(m: Any, v: list) -> Any:
        def go_on(c: tuple) -> Any:
            return (c[0] < turns) & (m.np.abs(m.np.sum(c[1])) < bound)

        def body(c: tuple) -> tuple:
            return c[0] + 1, g(m, [c[1]]) * 0.9 + 0.1

        start = m.stop_gradient(m.np.sin(v[i]))
        steps, x = m.while_loop(go_on, body, (m.np.zeros((), "int32"), start))
        return x * v[i] + steps

    return f"while({names})", f, s


def mapped(d: Draw, i: int) -> Made:
    """vmap or map over rows."""
    s = d.shapes[i]
    if not s:
        return None
    row = s[1:]
    closed = d.like(row)
    j = d.rng.choice(closed) if closed else None
    out, kind = d.rng.randint(0, len(row)), d.rng.choice(["vmap", "vmap", "map"])
    g, names = inner(d, [row] + [row] * bool(closed), 2, row, kind == "map")
    new = row[:out] + (s[0],) + row[out:] if kind == "vmap" else s

    def f(m: Any, v: list) -> Any:
        if kind == "map":
            return m.map(lambda x: g(m, [x] if j is None else [x, v[j]]), v[i])
        if j is None:
            return m.vmap(lambda x: g(m, [x]), 0, out)(v[i])
        return m.vmap(lambda x, y: g(m, [x, y]), (0, None), out)(v[i], v[j])

    return f"{kind}({names})", f, new


def called(d: Draw, i: int) -> Made:
    s = d.shapes[i]
    j = d.rng.choice(d.like(s))
    g, names = inner(d, [s, s], 3, s)
    kind = d.rng.choice(["jit", "checkpoint", "checkpoint"])

    def f(m: Any, v: list) -> Any:
        return getattr(m, kind)(lambda x, y: g(m, [x, y]) * 0.7)(v[i], v[j])

    return f"{kind}({names})", f, s


def gradient(d: Draw, i: int) -> Made:
    s = d.shapes[i]
    j = d.rng.choice(d.like(s))
    kind = d.rng.choice(["grad", "jvp", "vjp", "linearize"])
    rules = d.rules and kind in ("grad", "vjp")
    below = Draw(d.rng, d.shapes, d.depth, rules, d.looped, d.more)
    g, names = inner(below, [s, s], 2, s)

    def f(m: Any, v: list) -> Any:
        h = lambda x: m.np.tanh(g(m, [x, v[j]]))
        if kind == "grad":
            return m.grad(lambda x: m.np.sum(h(x)))(v[i])
        if kind == "jvp":
            return m.jvp(h, (v[i],), (v[j],))[1]
        if kind == "linearize":
            return m.linearize(h, v[i])[1](m.np.sin(v[i]))
        y, back = m.vjp(h, v[i])
        return back(m.np.cos(y))[0]

    return f"{kind}({names})", f, s


def custom(d: Draw, i: int) -> Made:
    """A function with a derivative rule, which is not its derivative outside of loops: the second
    derivative of a rule in a loop of JAX's forgets the rule."""
    s = d.shapes[i]
    j = d.rng.choice(d.like(s))
    g, names = inner(d, [s, s], 2, s)
    kind = d.rng.choice(["custom_jvp", "custom_vjp"]) if d.rules else "custom_jvp"
    if "custom_vjp" in names:
        # Higher derivatives of this rule would meet the inner one, which has no forward mode.
        if d.looped:
            return None
        kind = "custom_jvp"

    def f(m: Any, v: list) -> Any:
        def h(x: Any, y: Any) -> Any:
            return m.np.sin(g(m, [x, y]))

        def jvp(primals: tuple, tangents: tuple) -> tuple:
            if d.looped:
                return m.jvp(h, primals, tangents)
            (x, y), (s, t) = primals, tangents
            return rule(x, y), s * m.np.cos(x) + 0.3 * t * y

        def bwd(saved: tuple, ct: Any) -> tuple:
            x, y = saved
            if d.looped:
                return m.vjp(h, x, y)[1](ct)
            return ct * m.np.cos(x), 0.3 * ct * y

        rule = getattr(m, kind)(h)
        if kind == "custom_jvp":
            rule.defjvp(jvp)
        else:
            rule.defvjp(lambda x, y: (h(x, y), (x, y)), bwd)
        return rule(v[i], v[j])

    return f"{kind}({names})", f, s


def prefix(d: Draw, i: int) -> Made:
    """An associative scan of affine maps."""
    s = d.shapes[i]
    if not s:
        return None
    j, back = d.rng.choice(d.like(s)), d.rng.random() < 0.5

    def f(m: Any, v: list) -> Any:
        def then(a: tuple, b: tuple) -> tuple:
            return a[0] * b[0], a[1] * b[0] + b[1]

        start = (m.np.sin(v[i]), v[j])
        return m.associative_scan(then, start, axis=0, reverse=back)[1]

    return "associative_scan", f, s


STEPS = {
    "unary": unary, "binary": binary, "broadcast": broadcast, "integers": integers,
    "reduce": reduce, "transpose": transpose, "reshape": reshape, "slice": slice_,
    "concatenate": concatenate, "pad": pad, "cumulate": cumulate, "take": take,
    "take along": take_along, "update": update, "dynamic slice": dynamic_slice,
    "dynamic update": dynamic_update, "sort": sort, "top_k": top_k, "rows": row_function,
    "dot": dot, "convolve": convolve, "window": window, "key": keyed, "complex": complex_,
    "special": special, "static": static, "method": method, "keywords": keywords,
}  # fmt: skip
# Drawn more often than the others.
COMMON = (
    "unary", "unary", "unary", "unary", "binary", "binary", "binary", "binary", "broadcast",
    "reduce", "transpose", "reshape", "concatenate", "dot", "dot", "pad", "cumulate", "slice",
)  # fmt: skip
NESTED = {
    "scan": scan, "scan again": scan, "cond": cond, "fori": counted, "while": until,
    "map": mapped, "call": called, "gradient": gradient, "custom": custom, "prefix": prefix,
    "lanes": lanes,
}  # fmt: skip
