"""dtypes: promotion is JAX's lattice in its 64-bit form, Python scalars are weak."""

from __future__ import annotations

import itertools
from typing import get_type_hints

import jax
import jax.numpy as jax_numpy
import ml_dtypes
import numpy as np
import pytest

import genesis_fn as gf
import genesis_fn.numpy as jnp
from genesis_fn.core import dtypes, errors
from genesis_fn.core.array import from_numpy
from genesis_fn.core.convert import as_array, is_value


@pytest.mark.parametrize("a", dtypes.ALL, ids=lambda d: d.name)
def test_promotion_of_all_pairs(a):
    with jax.enable_x64(True):
        for b in dtypes.ALL:
            try:
                expected = jax_numpy.promote_types(a, b)
            except jax.dtypes.TypePromotionError:
                with pytest.raises(errors.DTypeError, match="no common type"):
                    dtypes.promote_types(a, b)
                continue
            assert dtypes.promote_types(a, b) == expected, (a, b)


@pytest.mark.parametrize("a", dtypes.ALL, ids=lambda d: d.name)
def test_python_scalars(a):
    x = jnp.ones((2,), a)
    with jax.enable_x64(True):
        theirs = jax_numpy.ones((2,), a)
        for scalar in (True, 2, 2.0, 2j):
            if scalar == 2j and a in (dtypes.F8E4, dtypes.F8E5):
                continue
            expected = (theirs * scalar).dtype
            got = (x * scalar).dtype
            # A number of a higher kind than the array takes the 32-bit default, not the 64-bit one.
            narrow = {dtypes.F64: dtypes.F32, dtypes.I64: dtypes.I32, dtypes.C128: dtypes.C64}
            if dtypes.kind_rank(expected) > dtypes.kind_rank(a) and a != dtypes.F64:
                expected = narrow.get(expected, expected)
            assert got == expected, (a, scalar)


def test_join_is_commutative_and_associative():
    safe = [d for d in dtypes.ALL if d not in (dtypes.F8E4, dtypes.F8E5)]
    for a, b, c in itertools.product(safe, repeat=3):
        left = dtypes.promote(frozenset((a, b, c)))
        assert left[0] == dtypes.promote(frozenset((c, a, b)))[0]
    for a, b in itertools.product(safe, repeat=2):
        assert dtypes.promote_types(a, b) == dtypes.promote_types(b, a)


@pytest.mark.parametrize("spec, name", [
    (float, "float32"), (int, "int32"), (complex, "complex64"), (bool, "bool"),
    ("bf16", "bfloat16"),
    ("f8e5m2", "float8_e5m2"), ("float64", "float64"), (np.uint16, "uint16"),
    (ml_dtypes.bfloat16, "bfloat16"), (np.dtype("i8"), "int64"), (np.zeros(2), "float64"),
])  # fmt: skip
def test_names(spec, name):
    assert dtypes.dtype(spec).name == name


@pytest.mark.parametrize("spec", ["float33", "datetime64[s]", object, "U3", np.longdouble])
def test_unknown_dtypes(spec):
    with pytest.raises(errors.DTypeError, match="is not a data type of this library") as error:
        dtypes.dtype(spec)
    assert "bfloat16" in str(error.value)


def test_kinds():
    for d in dtypes.ALL:
        assert dtypes.is_float(d) == bool(jax_numpy.issubdtype(d, np.floating))
        assert dtypes.is_integer(d) == bool(jax_numpy.issubdtype(d, np.integer))
        assert dtypes.is_unsigned(d) == bool(jax_numpy.issubdtype(d, np.unsignedinteger))
        assert dtypes.is_complex(d) == bool(jax_numpy.issubdtype(d, np.complexfloating))
        assert dtypes.is_inexact(d) == bool(jax_numpy.issubdtype(d, np.inexact))
        for abstract in (
            np.generic,
            np.number,
            np.integer,
            np.signedinteger,
            np.inexact,
            np.floating,
        ):
            ours = dtypes.issubdtype(d, abstract)
            assert ours == bool(jax_numpy.issubdtype(d, abstract)), (d, abstract)
        assert dtypes.issubdtype(d, d)
    assert dtypes.issubdtype(np.floating, np.inexact) and not dtypes.issubdtype(np.floating, "f32")
    assert dtypes.real_of(dtypes.C128) == dtypes.F64 and dtypes.complex_of(dtypes.F32) == dtypes.C64
    assert dtypes.complex_of(dtypes.F64) == dtypes.C128 and dtypes.real_of(dtypes.F32) == dtypes.F32


def test_limits():
    for d in dtypes.ALL:
        if dtypes.is_float(d):
            assert float(dtypes.finfo(d).max) == float(jax_numpy.finfo(d).max)
        elif dtypes.is_integer(d):
            assert int(dtypes.iinfo(d).max) == int(jax_numpy.iinfo(d).max)


def test_limits_are_python_numbers():
    for d in dtypes.ALL:
        if dtypes.is_inexact(d):
            mine, theirs = dtypes.finfo(d), ml_dtypes.finfo(d)
            assert mine.dtype == dtypes.real_of(d) and mine.bits == theirs.bits
            for name in ("eps", "max", "min", "smallest_normal", "tiny", "resolution"):
                assert type(getattr(mine, name)) is float
                assert getattr(mine, name) == float(getattr(theirs, name))
            assert type(mine.nmant) is int and mine.nmant == theirs.nmant
    assert "eps=1.19" in repr(dtypes.finfo("float32"))


def test_names_of_types():
    for d in ("float64", np.int64, "bfloat16", bool, float):
        assert gf.dtypes.canonicalize_dtype(d) == dtypes.dtype(d)
    for x in (True, 3, 2.5, 1j, jnp.ones(2, "bfloat16"), jnp.ones(2, "uint8"), np.float64(1)):
        assert gf.dtypes.scalar_type_of(x) is jax.dtypes.scalar_type_of(
            x if type(x) is int else np.asarray(x)
        )


def test_dtype_like_is_a_type_at_run_time():
    # Not a string: annotations are evaluated where `from __future__ import annotations` is missing.
    assert get_type_hints(takes_dtype)["d"] == gf.DTypeLike | None


def takes_dtype(d: gf.DTypeLike | None = None) -> gf.Array:
    return jnp.zeros((), d)


def test_conversion():
    assert as_array(np.zeros(2)).dtype == np.float32
    assert as_array(np.arange(3)).dtype == np.int32
    assert as_array(np.zeros(2), dtypes.F64).dtype == np.float64
    assert as_array(3, dtypes.U8).dtype == np.uint8
    for value, match in ((2**40, "does not fit int32"), (np.array([2**40]), "do not fit int32")):
        with pytest.raises(OverflowError, match=match):
            as_array(value)
    with pytest.raises(OverflowError, match="does not fit uint8"):
        as_array(-1, dtypes.U8)
    with pytest.raises(errors.DTypeError, match="cannot become an array"):
        as_array(np.array(["a"]))
    with pytest.raises(TypeError, match="expected an array or a number, got 'a'"):
        as_array("a")
    assert is_value(1.0) and is_value(np.ones(2)) and not is_value("a") and not is_value([1])

    class Wrapped:
        def __genesis_array__(self):
            return from_numpy(np.ones(2))

    assert is_value(Wrapped()) and as_array(Wrapped()).shape == (2,)


def test_numbers_of_an_iterable_are_32_bit_unless_asked_for():
    assert jnp.fromiter(iter([1, 2])).dtype == dtypes.F32
    assert jnp.fromiter(iter([1, 2]), float).dtype == dtypes.F32
    assert jnp.fromiter(iter([1, 2]), "float64").dtype == dtypes.F64
