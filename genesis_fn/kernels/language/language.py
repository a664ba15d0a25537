"""Device functions that every Triton kernel of the library uses.

Triton's interpreter (`TRITON_INTERPRET=1`) runs kernels on host memory, but its bfloat16 dot and
arithmetic give garbage, its narrowing casts truncate, and libdevice and dependent launch raise.
Each function here has one name and two bodies: a compiled one, and a NumPy one of `host` if
`INTERPRETED`.

Rules for a kernel that must run on both:

* load, then `up(x)` (bfloat16, float16 and float8 become float32) before any arithmetic;
* store with `cast(x, dtype)`, never `.to(dtype)`, when narrowing a float;
* `dot(a, b, acc, precision)` instead of `tl.dot`;
* transcendental functions from here (correctly rounded libdevice ones) or `tl.exp2`, `tl.log2`,
  `tl.exp`, `tl.log`, `tl.sqrt` (fast hardware ones), which the interpreter knows.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton import knobs
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait, libdevice

# A constexpr, so that kernels may branch on it when they are compiled.
INTERPRETED: tl.constexpr = tl.constexpr(bool(knobs.runtime.interpret))

if INTERPRETED:
    from genesis_fn.kernels.language.host import (
        acos,
        acosh,
        add_into,
        asin,
        asinh,
        atan,
        atan2,
        atanh,
        cast,
        cbrt,
        ceil,
        copysign,
        cos,
        cosh,
        dot,
        erf,
        erf_inv,
        erfc,
        exp,
        exp2,
        expm1,
        floor,
        fmod,
        hypot,
        launch_dependents,
        lgamma,
        log,
        log1p,
        log2,
        nextafter,
        popcount,
        pow,
        round_even,
        rounded_product,
        rsqrt,
        sin,
        sinh,
        sqrt,
        tan,
        tanh,
        trunc,
        up,
        wait_for_dependencies,
    )

else:
    exp, exp2, expm1 = libdevice.exp, libdevice.exp2, libdevice.expm1
    log, log2, log1p = libdevice.log, libdevice.log2, libdevice.log1p
    sin, cos, tan = libdevice.sin, libdevice.cos, libdevice.tan
    asin, acos, atan, atan2 = libdevice.asin, libdevice.acos, libdevice.atan, libdevice.atan2
    sinh, cosh, tanh = libdevice.sinh, libdevice.cosh, libdevice.tanh
    asinh, acosh, atanh = libdevice.asinh, libdevice.acosh, libdevice.atanh
    erf, erfc, erf_inv = libdevice.erf, libdevice.erfc, libdevice.erfinv
    lgamma, cbrt, hypot = libdevice.lgamma, libdevice.cbrt, libdevice.hypot
    pow, fmod, copysign = libdevice.pow, libdevice.fmod, libdevice.copysign
    nextafter, popcount = libdevice.nextafter, libdevice.popc
    floor, ceil, trunc = libdevice.floor, libdevice.ceil, libdevice.trunc
    round_even = libdevice.rint
    sqrt, rsqrt = libdevice.sqrt, libdevice.rsqrt
    wait_for_dependencies, launch_dependents = gdc_wait, gdc_launch_dependents

    @triton.jit
    def cast(x, dtype: tl.constexpr):
        """`x` as `dtype`, floats rounded to nearest even, float8 saturated, float to int cut."""
        # Triton converts float8 to and from narrow floats and float32 only.
        if x.dtype != dtype and (x.dtype.is_fp8() or dtype.is_fp8()):
            return x.to(tl.float32).to(dtype)
        else:
            return x.to(dtype)

    @triton.jit
    def up(x):
        """`x` in float32 if its type is a narrower float, else `x`."""
        if x.dtype.is_floating() and x.dtype.primitive_bitwidth < 32:
            return x.to(tl.float32)
        else:
            return x

    @triton.jit
    def dot(a, b, acc, precision: tl.constexpr):
        """`acc + a @ b`, accumulated in `acc`'s type (float32; float64; int32 for int8).

        `precision` concerns float32 operands: "ieee", "tf32x3" (three products, close to ieee) or
        "tf32"; "default" is "tf32". float8 products are promoted to float32 once per call, because
        Hopper's tensor cores otherwise keep about 14 bits.
        """
        if a.dtype == tl.float32:
            if precision == "default":
                return tl.dot(a, b, acc, input_precision="tf32")
            else:
                return tl.dot(a, b, acc, input_precision=precision)
        elif a.dtype == tl.float8e4nv or a.dtype == tl.float8e5:
            return tl.dot(a, b, acc, max_num_imprecise_acc=a.shape[1])
        else:
            return tl.dot(a, b, acc, out_dtype=acc.dtype)

    @triton.jit
    def rounded_product(x, y):
        """`x * y` of float32, rounded: not a part of a fused multiply-add.

        A sum over threads of products is one: each of two threads that exchange a term adds the
        other's, rounded, to its own, which is not, so that they go on with different sums.
        """
        return libdevice.mul_rn(x, y)

    @triton.jit
    def add_into(descriptor, offsets, value):
        """Adds `value` to the tile of `descriptor` at `offsets`, without reading it back.

        The memory system does the addition. Each element must have one writer in a launch, else the
        order of additions is not fixed.
        """
        descriptor.atomic_add(offsets, value)


@triton.jit
def zeros_of(kind: tl.constexpr, rows: tl.constexpr, columns: tl.constexpr):
    """A tile of zeros of an accumulator's type: "fp32", "fp64", "i32" or "i64"."""
    if kind == "fp64":
        return tl.zeros((rows, columns), tl.float64)
    elif kind == "fp32":
        return tl.zeros((rows, columns), tl.float32)
    elif kind == "i64":
        return tl.zeros((rows, columns), tl.int64)
    else:
        return tl.zeros((rows, columns), tl.int32)


@triton.jit
def add_products(a, b, acc):
    """`acc + a @ b` in `acc`'s type, without tensor cores: products written out, then summed."""
    products = cast(a, acc.dtype)[:, :, None] * cast(b, acc.dtype)[None, :, :]
    return acc + tl.sum(products, 1)


@triton.jit
def tile_of(tile, tiles_m, tiles_n, group: tl.constexpr):
    """(row, column) of a tile in an order that walks `group` rows of tiles at a time.

    Consecutive tiles then share operands in the L2 cache.
    """
    # The last group may have fewer rows than the others.
    per_group = group * tiles_n
    first = (tile // per_group) * group
    rows = min(tiles_m - first, group)
    inside = tile % per_group
    return first + inside % rows, inside // rows


@triton.jit
def halves(x):
    """The left and right halves of a tile's columns, [m, n] -> two [m, n / 2], in registers."""
    # Columns j and j + n / 2 become the pair that `tl.split` takes apart.
    m: tl.constexpr = x.shape[0]
    n: tl.constexpr = x.shape[1]
    left, right = tl.split(tl.permute(tl.reshape(x, (m, 2, n // 2)), (0, 2, 1)))
    return left, right


__all__ = [
    "INTERPRETED",
    "acos",
    "acosh",
    "add_into",
    "add_products",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
    "cast",
    "cbrt",
    "ceil",
    "copysign",
    "cos",
    "cosh",
    "dot",
    "erf",
    "erf_inv",
    "erfc",
    "exp",
    "exp2",
    "expm1",
    "floor",
    "fmod",
    "halves",
    "hypot",
    "launch_dependents",
    "lgamma",
    "log",
    "log1p",
    "log2",
    "nextafter",
    "popcount",
    "pow",
    "round_even",
    "rounded_product",
    "rsqrt",
    "sin",
    "sinh",
    "sqrt",
    "tan",
    "tanh",
    "tile_of",
    "trunc",
    "up",
    "wait_for_dependencies",
    "zeros_of",
]
