"""Entries of `genesis_fn.lax` and `lax.linalg`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import genesis_fn as gf
import genesis_fn.numpy as jnp
from genesis_fn import lax
from tests.public.agree import E, Entry, Operand
from tests.public.entries_numpy import (
    ANY,
    APART,
    BITS,
    BOOL,
    DEFINITE,
    INDEX,
    INT,
    NUM,
    REAL,
    REGULAR,
    P,
    S,
    U,
    V,
    X,
    each,
)

IMAGE, FILTER = Operand((1, 2, 6, 6)), Operand((3, 2, 3, 3))
HEADS = Operand((2, 3, 2, 4), "s")
LABELS = Operand((3,), "i", 0, 4)
UNIT = Operand(low=0.1, high=0.9)
PUT = lax.ScatterDimensionNumbers(
    update_window_dims=(1,), inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,)
)
PLACES = Operand((2, 1), "i", values=lambda rng: rng.permutation(3)[:2].reshape(2, 1))

PRODUCT = (((1,), (0,)), ((), ()))


def _of(f: Any) -> Any:
    """The namespace that `f` belongs to."""
    return lax if str(getattr(f, "__module__", "")).startswith("genesis_fn") else jax.lax


def _scatter(f: Any, x: Any, i: Any, u: Any) -> Any:
    return f(
        x,
        i,
        u,
        _of(f).ScatterDimensionNumbers(
            update_window_dims=(1,), inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,)
        ),
    )


def _gather(f: Any, x: Any, i: Any) -> Any:
    numbers = _of(f).GatherDimensionNumbers(
        offset_dims=(1,), collapsed_slice_dims=(0,), start_index_map=(0,)
    )
    return f(x, i, numbers, (1, 4))


def _named(call: Callable) -> Callable:
    """The call under a vmap with a named axis."""
    return lambda f, x: gf.vmap(lambda v: call(f, v), axis_name="i")(x)


def _on_mesh(call: Callable) -> Callable:
    """The call on the devices of a mesh: one of them."""

    def run(f, x):
        mesh, spec = gf.make_mesh((1,), ("i",)), gf.P("i")
        return gf.shard_map(lambda v: call(f, v), mesh=mesh, in_specs=spec, out_specs=spec)(x)

    return run


LAX: dict[str, list[Entry]] = {
    **each("abs neg sign square", E(NUM)),
    **each("exp sin cos sinh cosh tan tanh atan asinh logistic", E(X), E(Operand(kinds="c"))),
    **each("exp2 expm1 cbrt erf erfc bessel_i0e bessel_i1e", E(X)),
    **each("sqrt rsqrt log log1p", E(P), E(Operand(kinds="c", low=0.3))),
    **each("asin acos atanh erf_inv", E(U)), **each("acosh", E(Operand(low=1.1, high=4.0))),
    **each("lgamma digamma", E(P)),
    **each("floor ceil round", E(X, grad=False)), **each("is_finite", E(X)),
    **each("reciprocal", E(P)), **each("real imag conj", E(Operand(kinds="c"))),
    **each("integer_pow", E(X, call=lambda f, x: f(x, 3))),
    **each("bitwise_not", E(BITS)), **each("clz population_count", E(INT)),
    **each("add sub mul", E(NUM, NUM)),
    **each("div", E(X, P), E(Operand(kinds="c"), Operand(kinds="c", low=0.3)), E(
        Operand(kinds="iu"), Operand(kinds="iu", low=1, high=5))),
    **each("rem", E(X, P, grad=False), E(Operand(kinds="iu"), Operand(kinds="iu", low=1, high=5))),
    **each("max min", E(REAL, REAL)), **each("pow", E(P, X)), **each("atan2", E(X, P)),
    **each("nextafter", E(X, X, grad=False)), **each("complex", E(
        Operand(kinds="s"), Operand(kinds="s"))),
    **each("eq ne", E(ANY, ANY)), **each("ge gt le lt", E(REAL, REAL)),
    **each("bitwise_and bitwise_or bitwise_xor", E(BITS, BITS)),
    **each("shift_left shift_right_arithmetic shift_right_logical",
           E(INT, Operand(kinds="iu", low=0, high=3))),
    **each("mulhi", E(INT, INT)),
    **each("igamma igammac", E(P, P, grad=False)), **each("random_gamma_grad", E(P, P, grad=False)),
    **each("betainc", E(P, P, UNIT, grad=False)), **each("zeta", E(
        Operand(low=1.5, high=4.0), P, grad=False)),
    **each("polygamma", E(P, call=lambda f, x: f(1, x), grad=False, peer=False)),
    **each("clamp", E(X, call=lambda f, x: f(jnp.asarray(-1, x.dtype), x, jnp.asarray(
        1, x.dtype)), peer=False)),
    **each("select", E(BOOL, NUM, NUM)),
    # reductions and scans
    **each("reduce_sum reduce_prod", E(NUM, call=lambda f, x: f(x, (1,)))),
    **each("reduce_max reduce_min", E(APART, call=lambda f, x: f(x, (0,)))),
    **each("reduce_and reduce_or reduce_xor", E(BITS, call=lambda f, x: f(x, (1,)))),
    **each("argmax argmin", E(APART, call=lambda f, x: f(x, 1, "int32"))),
    **each("cumsum cumprod", E(NUM, call=lambda f, x: f(x, axis=1))),
    **each("cummax cummin", E(APART, call=lambda f, x: f(x, axis=0, reverse=True))),
    **each("cumlogsumexp", E(X, call=lambda f, x: f(x, axis=1))),
    **each("sort", E(APART), E(REAL, grad=False)),
    **each("sort_key_val", E(Operand((6,), values=lambda rng: rng.permutation(6) / 2), Operand(
        (6,)))),
    **each("top_k approx_max_k", E(APART, call=lambda f, x: f(x, 2))),
    **each("approx_min_k", E(APART, call=lambda f, x: f(x, 2))),
    # shapes
    **each("reshape", E(ANY, call=lambda f, x: f(x, (2, 6)))),
    **each("transpose", E(ANY, call=lambda f, x: f(x, (1, 0)))),
    **each("broadcast", E(X, call=lambda f, x: f(x, (2,)))),
    **each("broadcast_in_dim", E(X, call=lambda f, x: f(x, (2, 3, 4), (1, 2)))),
    **each("broadcast_to_rank", E(X, call=lambda f, x: f(x, 3))),
    **each("expand_dims", E(X, call=lambda f, x: f(x, (1,)))),
    **each("squeeze", E(Operand((3, 1)), call=lambda f, x: f(x, (1,)))),
    **each("collapse", E(X, call=lambda f, x: f(x, 0, 2))),
    **each("rev", E(ANY, call=lambda f, x: f(x, (0,)))),
    **each("concatenate", E(ANY, ANY, call=lambda f, x, y: f([x, y], 1))),
    **each("stack", E(X, X, call=lambda f, x, y: f([x, y]), peer=False)),
    **each("unstack", E(X, peer=False)),
    **each("tile", E(X, call=lambda f, x: f(x, (2, 1)))),
    **each("split", E(X, call=lambda f, x: f(x, (1, 2)))),
    **each("pad", E(X, call=lambda f, x: f(x, np.float32(0), ((1, 1, 0), (0, 1, 1))), peer=False)),
    **each("slice", E(ANY, call=lambda f, x: f(x, (0, 1), (2, 4), (1, 2)))),
    **each("slice_in_dim", E(X, call=lambda f, x: f(x, 1, 3, axis=1))),
    **each("index_in_dim dynamic_index_in_dim", E(X, call=lambda f, x: f(x, 1))),
    **each("index_take", E(X, INDEX, same=False, call=lambda f, x, i: f(x, (i,), (0,)))),
    **each("dynamic_slice", E(X, call=lambda f, x: f(x, (1, 0), (2, 2)))),
    **each("dynamic_slice_in_dim", E(X, call=lambda f, x: f(x, 1, 2))),
    **each("dynamic_update_slice", E(X, Operand((2, 2)), call=lambda f, x, u: f(x, u, (1, 1)))),
    **each("dynamic_update_slice_in_dim dynamic_update_index_in_dim",
           E(X, Operand((1, 4)), call=lambda f, x, u: f(x, u, 1, 0))),
    **each("gather", E(X, PLACES, same=False, call=_gather)),
    **each("scatter scatter_add scatter_sub scatter_mul scatter_max scatter_min",
           E(X, PLACES, Operand((2, 4)), call=_scatter)),
    **each("convert_element_type", E(REAL, call=lambda f, x: f(x, "float32"))),
    **each("bitcast_convert_type", E(Operand(kinds="f"), call=lambda f, x: f(x, {
        2: "int16", 4: "int32", 8: "int64"}[x.dtype.itemsize]), grad=False)),
    **each("reduce_precision", E(X, call=lambda f, x: f(x, 5, 7), grad=False)),
    # products
    **each("dot", E(S, S)), **each("batch_matmul", E(
        Operand((2, 3, 4)), Operand((2, 4, 3)))),
    **each("dot_general", E(S, S, call=lambda f, x, y: f(x, y, PRODUCT))),
    **each("scaled_dot", E(S, S, peer=False)),
    **each("ragged_dot", E(Operand((4, 3), "s"), Operand((2, 3, 5), "s"), call=lambda f, x, y: f(
        x, y, jnp.array([1, 3])), peer=False)),
    **each("conv", E(IMAGE, FILTER, call=lambda f, x, w: f(x, w, (1, 1), "SAME"))),
    **each("conv_general_dilated", E(IMAGE, FILTER, call=lambda f, x, w: f(x, w, (2, 1), "VALID"))),
    **each("conv_with_general_padding", E(IMAGE, FILTER, call=lambda f, x, w: f(
        x, w, (1, 1), ((1, 0), (0, 1)), (1, 1), (1, 1)))),
    **each("conv_transpose", E(Operand((1, 4, 2)), Operand((3, 2, 3)), call=lambda f, x, w: f(
        x, w, (2,), "SAME"))),
    **each("conv_general_dilated_patches", E(
        IMAGE, call=lambda f, x: f(x, (2, 2), (1, 1), "VALID"))),
    **each("conv_general_dilated_local", E(
        Operand((1, 2, 5)), Operand((3, 4, 4)), call=lambda f, x, w: f(x, w, (1,), "VALID", (2,)))),
    **each("reduce_window", E(X, call=lambda f, x: f(
        x, np.float32(0), lax.add, (2, 2)), peer=False)),
    **each("reduce", E(X, call=lambda f, x: f(x, jnp.zeros((), x.dtype), lax.add, (0,)),
                       peer=False, numbers=False)),
    **each("linear_recurrence", E(U, X, peer=False)),
    **each("fft", E(Operand((4,), "c"), call=lambda f, x: f(x, "FFT", (4,)), peer=False)),
    # control flow and derivatives of one's own
    **each("cond", E(X, call=lambda f, x: f(x.sum() > 0, lambda v: v * 2, lambda v: v - 1, x),
                     numbers=False)),
    **each("switch", E(X, call=lambda f, x: f(1, [lambda v: v, lambda v: v * v], x))),
    **each("select_n", E(BOOL, X, X)),
    **each("scan", E(V, call=lambda f, x: f(lambda c, v: (c * 0.5 + v, c), jnp.zeros(
        (), x.dtype), x), peer=False, numbers=False)),
    **each("map", E(V, call=lambda f, x: f(lambda v: v * v, x))),
    **each("fori_loop", E(V, call=lambda f, x: f(0, 3, lambda i, v: v * 0.5 + 1, x))),
    **each("while_loop", E(V, call=lambda f, x: f(
        lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] * 0.5), (0, x))[1], grad=False)),
    **each("associative_scan", E(V, call=lambda f, x: f(lambda a, b: a + b, x))),
    **each("custom_root", E(Operand((), "s", 1.0, 4.0), call=lambda f, a: f(
        lambda x: x * x - a, a, lambda g, x0: lax.fori_loop(
            0, 20, lambda _, x: x - g(x) / (2 * x), x0), lambda g, y: y / g(1.0)),
        peer=False, numbers=False)),
    **each("custom_linear_solve", E(Operand((3,), "s"), call=lambda f, b: f(
        lambda x: 2 * x, b, lambda mv, b: b / 2, symmetric=True), numbers=False, peer=False)),
    **each("composite", E(X, call=lambda f, x: f(lambda v: v * 2, name="my.double")(x))),
    **each("platform_dependent", E(
        X, call=lambda f, x: f(x, default=lambda v: v + 1), numbers=False)),
    **each("stop_gradient", E(X, grad=False, numbers=False)), **each("stage", E(X, peer=False)),
    **each("optimization_barrier", E(X)), **each("dce_sink", E(
        X, call=lambda f, x: f(x) or x, peer=False, numbers=False)),
    **each("with_sharding_constraint", E(
        X, call=lambda f, x: f(x, None), peer=False, numbers=False)),
    # named axes
    **each("psum pmean pmax pmin", E(X, call=_named(lambda f, v: f(v, "i")), peer=False)),
    **each("all_gather psum_scatter", E(Operand((3, 3)), call=_named(lambda f, v: f(v, "i")),
                                        peer=False)),
    **each("all_gather_invariant", E(
        X, call=_on_mesh(lambda f, v: f(v, "i", tiled=True)), peer=False)),
    **each("pvary", E(X, call=_on_mesh(lambda f, v: f(v, "i")), peer=False)),
    **each("pcast", E(X, call=_on_mesh(lambda f, v: f(v, "i", to="varying")), peer=False)),
    **each("all_to_all", E(Operand((3, 3)), call=_named(lambda f, v: f(v, "i", 0, 0)), peer=False)),
    **each("ppermute", E(X, call=_named(lambda f, v: f(v, "i", [(0, 1), (1, 2), (2, 0)])),
                         peer=False)),
    **each("pshuffle", E(X, call=_named(lambda f, v: f(v, "i", [1, 2, 0])), peer=False)),
    **each("pswapaxes", E(Operand((3, 3)), call=_named(lambda f, v: f(v, "i", 0)), peer=False)),
    **each("axis_index", E(X, call=_named(lambda f, v: f("i") + v), peer=False)),
    **each("axis_size", E(X, call=_named(lambda f, v: f("i") + v), peer=False)),
    # fused functions
    **each("layer_norm", E(X, Operand((4,)), Operand((4,)), call=lambda f, x, w, b: f(
        x, w, b, eps=1e-5), same=False, peer=False)),
    **each("rms_norm", E(X, Operand((4,)), call=lambda f, x, w: f(
        x, w, eps=1e-5), same=False, peer=False)),
    **each("dot_product_attention", E(HEADS, HEADS, HEADS, call=lambda f, q, k, v: f(
        q, k, v, is_causal=True), peer=False)),
    **each("linear_cross_entropy", E(
        Operand((3, 4), "s"), Operand((5, 4), "s"), LABELS, same=False, peer=False)),
    # creation, and questions about shapes
    **each("full", E(call=lambda f: f((2, 3), 7, "int8"))),
    **each("full_like", E(ANY, call=lambda f, x: f(x, 1))),
    **each("empty", E(call=lambda f: f((2, 3), "int8"))),
    **each("iota", E(call=lambda f: f("int8", 5))),
    **each("broadcasted_iota", E(call=lambda f: f("int8", (2, 3), 1))),
    **each("rng_uniform", E(call=lambda f: f(
        jnp.float32(0), jnp.float32(1), (3,)).shape, peer=False)),
    **each("rng_bit_generator", E(call=lambda f: f(
        np.arange(4, dtype=np.uint32), (3,)), peer=False)),
    **each("dtype", E(ANY, call=lambda f, x: [
        str(f(y)) for y in (x, x.dtype, "int8", float)], numbers=False, jit=False)),
    **each("broadcast_shapes", E(call=lambda f: f((3, 1), (1, 4)))),
    **each("shape_as_value", E(call=lambda f: f((3, 1)))),
    **each("padtype_to_pads", E(call=lambda f: [
        tuple(map(int, p)) for p in f((6, 6), (3, 3), (2, 2), "SAME")])),
    **each("conv_shape_tuple", E(call=lambda f: f((1, 2, 6), (3, 2, 3), (1,), ((0, 0),)))),
    **each("conv_general_shape_tuple", E(call=lambda f: f(
        (1, 2, 6), (3, 2, 3), (1,), "SAME", ("NCH", "OIH", "NCH")))),
    **each("conv_transpose_shape_tuple", E(call=lambda f: f(
        (1, 2, 6), (2, 3, 3), (2,), "SAME", ("NCH", "IOH", "NCH")))),
    **each("conv_general_permutations", E(call=lambda f: f(("NCH", "OIH", "NCH")))),
    **each("conv_dimension_numbers", E(call=lambda f: tuple(f(
        (1, 2, 6), (3, 2, 3), ("NCH", "OIH", "NCH"))))),
    **each("reduce_window_shape_tuple", E(call=lambda f: tuple(f(
        (6, 6), (2, 2), (1, 1), ((0, 0), (0, 0)))))),
    **each("scatter_apply", E(X, call=lambda f, x: f(
        x, jnp.array([[0], [2]]), jnp.exp, PUT, update_shape=(2, 4)), peer=False)),
    **each("ragged_dot_general", E(
        Operand((4, 3), "s"), Operand((2, 3, 5), "s"), peer=False,
        call=lambda f, x, y: f(x, y, jnp.array([1, 3]), lax.RaggedDotDimensionNumbers(
            (((1,), (1,)), ((), ())), [0], [0])))),
}  # fmt: skip

LAX_LINALG: dict[str, list[Entry]] = {
    **each("cholesky", E(DEFINITE, peer=False)),
    **each("eigh", E(DEFINITE, call=lambda f, a: f(a)[1], peer=False)),
    **each("qr", E(REGULAR, call=lambda f, a: f(a)[1], peer=False)),
    **each("svd", E(REGULAR, call=lambda f, a: f(a, compute_uv=False))),
    **each("lu", E(REGULAR, call=lambda f, a: f(a)[0])),
    **each("triangular_solve", E(DEFINITE, Operand((3, 2), "s"), call=lambda f, a, b: f(
        a, b, left_side=True, lower=True))),
}  # fmt: skip
