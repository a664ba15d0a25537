"""NumPy's functions on arrays and traced values, with JAX's names and signatures."""

import importlib as _importlib
import math as _math
import typing as _typing

import numpy as _np

from genesis_fn.core.array import Array as _Array
from genesis_fn.core.diagnostics import torch_habits as _habits
from genesis_fn.core.dtypes import (
    DTypeLike as DTypeLike,
    bfloat16 as bfloat16,
    bool_ as bool_,
    complex64 as complex64,
    complex128 as complex128,
    dtype as dtype,
    finfo as finfo,
    float8_e4m3fn as float8_e4m3fn,
    float8_e5m2 as float8_e5m2,
    float16 as float16,
    float32 as float32,
    float64 as float64,
    iinfo as iinfo,
    int8 as int8,
    int16 as int16,
    int32 as int32,
    int64 as int64,
    issubdtype as issubdtype,
    promote_types as promote_types,
    uint8 as uint8,
    uint16 as uint16,
    uint32 as uint32,
    uint64 as uint64,
)
from genesis_fn.lax.creation import (
    array as array,
    asarray as asarray,
    full as full,
    full_like as full_like,
)
from genesis_fn.lax.promotion import result_type as result_type
from genesis_fn.numpy.arrays import methods as _methods
from genesis_fn.numpy.arrays.creation import (
    ascontiguousarray as ascontiguousarray,
    astype as astype,
    copy as copy,
    empty as empty,
    empty_like as empty_like,
    from_dlpack as from_dlpack,
    frombuffer as frombuffer,
    fromfile as fromfile,
    fromiter as fromiter,
    fromstring as fromstring,
    ones as ones,
    ones_like as ones_like,
    zeros as zeros,
    zeros_like as zeros_like,
)
from genesis_fn.numpy.arrays.grids import (
    arange as arange,
    c_ as c_,
    eye as eye,
    fromfunction as fromfunction,
    geomspace as geomspace,
    identity as identity,
    index_exp as index_exp,
    indices as indices,
    ix_ as ix_,
    linspace as linspace,
    logspace as logspace,
    meshgrid as meshgrid,
    mgrid as mgrid,
    ogrid as ogrid,
    r_ as r_,
    s_ as s_,
    tri as tri,
    tril as tril,
    triu as triu,
    vander as vander,
)
from genesis_fn.numpy.arrays.inspection import (
    __array_namespace_info__ as __array_namespace_info__,
    array_repr as array_repr,
    array_str as array_str,
    can_cast as can_cast,
    iscomplexobj as iscomplexobj,
    isdtype as isdtype,
    isrealobj as isrealobj,
    isscalar as isscalar,
    iterable as iterable,
    load as load,
    save as save,
    savez as savez,
)
from genesis_fn.numpy.indexing.positions import (
    diag_indices as diag_indices,
    diag_indices_from as diag_indices_from,
    mask_indices as mask_indices,
    ravel_multi_index as ravel_multi_index,
    tril_indices as tril_indices,
    tril_indices_from as tril_indices_from,
    triu_indices as triu_indices,
    triu_indices_from as triu_indices_from,
    unravel_index as unravel_index,
)
from genesis_fn.numpy.indexing.selection import (
    choose as choose,
    compress as compress,
    extract as extract,
    fill_diagonal as fill_diagonal,
    nonzero as nonzero,
    place as place,
    put as put,
    put_along_axis as put_along_axis,
    take as take,
    take_along_axis as take_along_axis,
    where as where,
)
from genesis_fn.numpy.manipulation.bits import packbits as packbits, unpackbits as unpackbits
from genesis_fn.numpy.manipulation.histograms import (
    histogram2d as histogram2d,
    histogramdd as histogramdd,
)
from genesis_fn.numpy.manipulation.padding import pad as pad
from genesis_fn.numpy.manipulation.rearrange import (
    delete as delete,
    insert as insert,
    repeat as repeat,
    roll as roll,
    trim_zeros as trim_zeros,
)
from genesis_fn.numpy.manipulation.sets import (
    argwhere as argwhere,
    bincount as bincount,
    digitize as digitize,
    flatnonzero as flatnonzero,
    histogram as histogram,
    histogram_bin_edges as histogram_bin_edges,
    intersect1d as intersect1d,
    isin as isin,
    setdiff1d as setdiff1d,
    setxor1d as setxor1d,
    union1d as union1d,
    unique as unique,
    unique_all as unique_all,
    unique_counts as unique_counts,
    unique_inverse as unique_inverse,
    unique_values as unique_values,
)
from genesis_fn.numpy.manipulation.shapes import (
    append as append,
    array_split as array_split,
    atleast_1d as atleast_1d,
    atleast_2d as atleast_2d,
    atleast_3d as atleast_3d,
    block as block,
    broadcast_arrays as broadcast_arrays,
    broadcast_shapes as broadcast_shapes,
    broadcast_to as broadcast_to,
    column_stack as column_stack,
    concat as concat,
    concatenate as concatenate,
    dsplit as dsplit,
    dstack as dstack,
    expand_dims as expand_dims,
    flip as flip,
    fliplr as fliplr,
    flipud as flipud,
    hsplit as hsplit,
    hstack as hstack,
    matrix_transpose as matrix_transpose,
    moveaxis as moveaxis,
    ndim as ndim,
    permute_dims as permute_dims,
    ravel as ravel,
    reshape as reshape,
    resize as resize,
    rollaxis as rollaxis,
    rot90 as rot90,
    row_stack as row_stack,
    shape as shape,
    size as size,
    split as split,
    squeeze as squeeze,
    stack as stack,
    swapaxes as swapaxes,
    tile as tile,
    transpose as transpose,
    unstack as unstack,
    vsplit as vsplit,
    vstack as vstack,
)
from genesis_fn.numpy.manipulation.sorting import (
    argpartition as argpartition,
    argsort as argsort,
    lexsort as lexsort,
    partition as partition,
    searchsorted as searchsorted,
    sort as sort,
    sort_complex as sort_complex,
)
from genesis_fn.numpy.mathematics.composed import (
    allclose as allclose,
    angle as angle,
    around as around,
    array_equal as array_equal,
    array_equiv as array_equiv,
    clip as clip,
    copysign as copysign,
    deg2rad as deg2rad,
    degrees as degrees,
    divmod as divmod,
    float_power as float_power,
    floor_divide as floor_divide,
    fmax as fmax,
    fmin as fmin,
    fmod as fmod,
    frexp as frexp,
    gcd as gcd,
    heaviside as heaviside,
    hypot as hypot,
    i0 as i0,
    isclose as isclose,
    iscomplex as iscomplex,
    isinf as isinf,
    isnan as isnan,
    isneginf as isneginf,
    isposinf as isposinf,
    isreal as isreal,
    lcm as lcm,
    ldexp as ldexp,
    log10 as log10,
    mod as mod,
    modf as modf,
    nan_to_num as nan_to_num,
    piecewise as piecewise,
    pow as pow,
    power as power,
    rad2deg as rad2deg,
    radians as radians,
    remainder as remainder,
    round as round,
    select as select,
    signbit as signbit,
    sinc as sinc,
    spacing as spacing,
)
from genesis_fn.numpy.mathematics.contraction import (
    cross as cross,
    diag as diag,
    diagflat as diagflat,
    diagonal as diagonal,
    dot as dot,
    einsum as einsum,
    einsum_path as einsum_path,
    inner as inner,
    kron as kron,
    matmul as matmul,
    matvec as matvec,
    outer as outer,
    tensordot as tensordot,
    trace as trace,
    vdot as vdot,
    vecdot as vecdot,
    vecmat as vecmat,
)
from genesis_fn.numpy.mathematics.nan import (
    nanargmax as nanargmax,
    nanargmin as nanargmin,
    nancumprod as nancumprod,
    nancumsum as nancumsum,
    nanmax as nanmax,
    nanmean as nanmean,
    nanmin as nanmin,
    nanprod as nanprod,
    nanstd as nanstd,
    nansum as nansum,
    nanvar as nanvar,
)
from genesis_fn.numpy.mathematics.polynomials import (
    poly as poly,
    polyadd as polyadd,
    polyder as polyder,
    polydiv as polydiv,
    polyfit as polyfit,
    polyint as polyint,
    polymul as polymul,
    polysub as polysub,
    roots as roots,
)
from genesis_fn.numpy.mathematics.reductions import (
    all as all,
    amax as amax,
    amin as amin,
    any as any,
    argmax as argmax,
    argmin as argmin,
    average as average,
    count_nonzero as count_nonzero,
    cumprod as cumprod,
    cumsum as cumsum,
    cumulative_prod as cumulative_prod,
    cumulative_sum as cumulative_sum,
    max as max,
    mean as mean,
    min as min,
    prod as prod,
    ptp as ptp,
    std as std,
    sum as sum,
    var as var,
)
from genesis_fn.numpy.mathematics.statistics import (
    apply_along_axis as apply_along_axis,
    apply_over_axes as apply_over_axes,
    convolve as convolve,
    corrcoef as corrcoef,
    correlate as correlate,
    cov as cov,
    diff as diff,
    ediff1d as ediff1d,
    gradient as gradient,
    interp as interp,
    median as median,
    nanmedian as nanmedian,
    nanpercentile as nanpercentile,
    nanquantile as nanquantile,
    percentile as percentile,
    polyval as polyval,
    quantile as quantile,
    trapezoid as trapezoid,
    unwrap as unwrap,
)
from genesis_fn.numpy.mathematics.ufuncs import (
    abs as abs,
    absolute as absolute,
    acos as acos,
    acosh as acosh,
    arccos as arccos,
    arccosh as arccosh,
    arcsin as arcsin,
    arcsinh as arcsinh,
    arctan as arctan,
    arctan2 as arctan2,
    arctanh as arctanh,
    asin as asin,
    asinh as asinh,
    atan as atan,
    atan2 as atan2,
    atanh as atanh,
    bitwise_count as bitwise_count,
    bitwise_invert as bitwise_invert,
    bitwise_left_shift as bitwise_left_shift,
    bitwise_not as bitwise_not,
    bitwise_right_shift as bitwise_right_shift,
    cbrt as cbrt,
    ceil as ceil,
    conj as conj,
    conjugate as conjugate,
    cos as cos,
    cosh as cosh,
    divide as divide,
    equal as equal,
    exp as exp,
    exp2 as exp2,
    expm1 as expm1,
    fabs as fabs,
    floor as floor,
    greater as greater,
    greater_equal as greater_equal,
    imag as imag,
    invert as invert,
    isfinite as isfinite,
    left_shift as left_shift,
    less as less,
    less_equal as less_equal,
    log as log,
    log1p as log1p,
    log2 as log2,
    logical_not as logical_not,
    nextafter as nextafter,
    not_equal as not_equal,
    positive as positive,
    real as real,
    reciprocal as reciprocal,
    right_shift as right_shift,
    rint as rint,
    sign as sign,
    sin as sin,
    sinh as sinh,
    sqrt as sqrt,
    square as square,
    tan as tan,
    tanh as tanh,
    true_divide as true_divide,
    trunc as trunc,
)
from genesis_fn.numpy.mathematics.windows import (
    bartlett as bartlett,
    blackman as blackman,
    hamming as hamming,
    hanning as hanning,
    kaiser as kaiser,
)
from genesis_fn.numpy.universal import (
    add as add,
    bitwise_and as bitwise_and,
    bitwise_or as bitwise_or,
    bitwise_xor as bitwise_xor,
    frompyfunc as frompyfunc,
    logaddexp as logaddexp,
    logaddexp2 as logaddexp2,
    logical_and as logical_and,
    logical_or as logical_or,
    logical_xor as logical_xor,
    maximum as maximum,
    minimum as minimum,
    multiply as multiply,
    negative as negative,
    subtract as subtract,
    ufunc as ufunc,
)
from genesis_fn.numpy.vectorization import vectorize as vectorize

ndarray = _Array
generic, number, inexact = _np.generic, _np.number, _np.inexact
floating, complexfloating = _np.floating, _np.complexfloating
character, flexible, object_ = _np.character, _np.flexible, _np.object_
ComplexWarning = _np.exceptions.ComplexWarning
printoptions, set_printoptions = _np.printoptions, _np.set_printoptions
get_printoptions = _np.get_printoptions
integer, signedinteger, unsignedinteger = _np.integer, _np.signedinteger, _np.unsignedinteger
bool = bool_
float_, int_, uint, complex_ = float32, int32, uint32, complex64
single, double, csingle, cdouble = float32, float64, complex64, complex128

pi, e, euler_gamma = _math.pi, _math.e, 0.5772156649015329
inf, nan, newaxis = _math.inf, _math.nan, None

__array_api_version__ = "2024.12"


_habits.explain_axes(globals(), __name__)
_methods.install_missing_name_errors()
# Imported when they are first used, so that `import genesis_fn` stays quick.
_LAZY = frozenset(("fft", "linalg"))

if _typing.TYPE_CHECKING:
    from genesis_fn.numpy import fft as fft, linalg as linalg
else:  # checkers report unknown names themselves

    def __getattr__(name: str) -> _typing.Any:
        if name in _LAZY:
            return _importlib.import_module(f"{__name__}.{name}")
        raise _habits.of_module(__name__, name)


def __dir__() -> list[str]:
    return sorted({n for n in globals() if n[0] != "_"} | _LAZY)
