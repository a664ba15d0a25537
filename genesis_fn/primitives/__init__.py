"""The first-order primitives, one definition each, with all of their rules.

An elementwise primitive is the `.prim` of its function (`exp.prim`); any other is named `..._p`.
Definitions call the factories of `factories.py`; what each rule means is in the docstring of
`core.primitive.Primitive`.
"""

from genesis_fn.primitives.conv import conv_p as conv_p
from genesis_fn.primitives.dot_general import dot_general_p as dot_general_p
from genesis_fn.primitives.elementwise import (
    abs as abs,
    acos as acos,
    acosh as acosh,
    add as add,
    add_n as add_n,
    asin as asin,
    asinh as asinh,
    atan as atan,
    atan2 as atan2,
    atanh as atanh,
    bitcast_p as bitcast_p,
    bitwise_and as bitwise_and,
    bitwise_not as bitwise_not,
    bitwise_or as bitwise_or,
    bitwise_xor as bitwise_xor,
    cbrt as cbrt,
    ceil as ceil,
    clz as clz,
    complex_ as complex_,
    conj as conj,
    convert_p as convert_p,
    cos as cos,
    cosh as cosh,
    digamma as digamma,
    div as div,
    eq as eq,
    erf as erf,
    erf_inv as erf_inv,
    erfc as erfc,
    exp as exp,
    exp2 as exp2,
    expm1 as expm1,
    floor as floor,
    ge as ge,
    gt as gt,
    imag as imag,
    integer_pow_p as integer_pow_p,
    is_finite as is_finite,
    le as le,
    lgamma as lgamma,
    log as log,
    log1p as log1p,
    log2 as log2,
    logistic as logistic,
    lt as lt,
    max as max,
    min as min,
    mul as mul,
    ne as ne,
    neg as neg,
    nextafter as nextafter,
    polygamma_p as polygamma_p,
    population_count as population_count,
    pow as pow,
    power_of_integers as power_of_integers,
    real as real,
    rem as rem,
    round_even as round_even,
    rsqrt as rsqrt,
    safe_mul as safe_mul,
    select_p as select_p,
    shift_left as shift_left,
    shift_right_arithmetic as shift_right_arithmetic,
    shift_right_logical as shift_right_logical,
    sign as sign,
    sin as sin,
    sinh as sinh,
    sqrt as sqrt,
    stop_gradient as stop_gradient,
    stop_gradient_p as stop_gradient_p,
    sub as sub,
    tan as tan,
    tanh as tanh,
    trunc as trunc,
)
from genesis_fn.primitives.factories import full_p as full_p
from genesis_fn.primitives.fft import fft_p as fft_p
from genesis_fn.primitives.indexing.constants import constant_p as constant_p
from genesis_fn.primitives.indexing.gather import gather_p as gather_p, take_rows_p as take_rows_p
from genesis_fn.primitives.indexing.indexing import (
    dynamic_slice_p as dynamic_slice_p,
    dynamic_update_slice_p as dynamic_update_slice_p,
)
from genesis_fn.primitives.indexing.scatter import (
    scatter_p as scatter_p,
    segment_sum_p as segment_sum_p,
)
from genesis_fn.primitives.linalg import (
    cholesky_p as cholesky_p,
    eig_p as eig_p,
    eigh_p as eigh_p,
    lu_p as lu_p,
    qr_p as qr_p,
    solve_p as solve_p,
    svd_p as svd_p,
    triangular_solve_p as triangular_solve_p,
)
from genesis_fn.primitives.ragged_dot import (
    ragged_contraction_p as ragged_contraction_p,
    ragged_dot_p as ragged_dot_p,
)
from genesis_fn.primitives.random_bits import (
    key_hash_p as key_hash_p,
    random_bits_p as random_bits_p,
    unwrap_p as unwrap_p,
    wrap_p as wrap_p,
)
from genesis_fn.primitives.reductions.cumulative import (
    cumlogsumexp_p as cumlogsumexp_p,
    cummax_p as cummax_p,
    cummin_p as cummin_p,
    cumprod_p as cumprod_p,
    cumsum_p as cumsum_p,
    linear_recurrence_p as linear_recurrence_p,
)
from genesis_fn.primitives.reductions.reduce import (
    argmax_p as argmax_p,
    argmin_p as argmin_p,
    reduce_and_p as reduce_and_p,
    reduce_max_p as reduce_max_p,
    reduce_min_p as reduce_min_p,
    reduce_or_p as reduce_or_p,
    reduce_sum_p as reduce_sum_p,
    reduce_xor_p as reduce_xor_p,
)
from genesis_fn.primitives.reductions.reduce_generic import reduce_prod_p as reduce_prod_p
from genesis_fn.primitives.reductions.reduce_window import (
    reduce_window_max_p as reduce_window_max_p,
    reduce_window_min_p as reduce_window_min_p,
    reduce_window_sum_p as reduce_window_sum_p,
    window_offset_p as window_offset_p,
    window_put_p as window_put_p,
    window_take_p as window_take_p,
)
from genesis_fn.primitives.shape import (
    barrier_p as barrier_p,
    broadcast_in_dim_p as broadcast_in_dim_p,
    concatenate_p as concatenate_p,
    copy_p as copy_p,
    iota_p as iota_p,
    pad_p as pad_p,
    reduce_precision_p as reduce_precision_p,
    reshape_p as reshape_p,
    rev_p as rev_p,
    slice_p as slice_p,
    split_p as split_p,
    transpose_p as transpose_p,
)
from genesis_fn.primitives.sort import sort_p as sort_p, top_k_p as top_k_p
