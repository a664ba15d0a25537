"""What authors of primitives, kernels, fused functions and backends build on.

A primitive is a `Primitive`, mostly made by `elementwise` or `linear`, that functions apply by
`bind`. Its lowering is an `Elementwise`, a `View`, a `Source` or a `Reduce`, which compilers may
fuse, or a function that `extend.cpu` and `extend.cuda` register for it. `fused` names a function
that devices may have a kernel for. A backend implements `Backend` and `Executable`, and is
registered by `register_backend`. `docs/extending.md` adds one of each. The rest are helpers of
packages that are written on top, as `nn`, `models` and `optim` are.
"""

from genesis_fn.compiler.target import Target as Target
from genesis_fn.core.array import ArrayImpl as ArrayImpl
from genesis_fn.core.aval import Aval as Aval, Signature as Signature, aval as aval, sig as sig
from genesis_fn.core.backend.backend import Backend as Backend
from genesis_fn.core.backend.executable import Executable as Executable
from genesis_fn.core.backend.lowering import (
    Elementwise as Elementwise,
    Reduce as Reduce,
    Source as Source,
    View as View,
    moved as moved,
    same as same,
)
from genesis_fn.core.convert import as_array as as_array, is_value as is_value
from genesis_fn.core.device import Device as Device, register_backend as register_backend
from genesis_fn.core.diagnostics.source_info import SourceLocation as SourceLocation, where as where
from genesis_fn.core.diagnostics.torch_habits import (
    explain_axes as explain_axes,
    unknown_names as unknown_names,
)
from genesis_fn.core.dtypes import real_of as real_of
from genesis_fn.core.files import brief as brief, read_json as read_json
from genesis_fn.core.jaxpr import Eqn as Eqn, Jaxpr as Jaxpr, Var as Var
from genesis_fn.core.primitive import (
    LinearOperand as LinearOperand,
    Primitive as Primitive,
    Tracer as Tracer,
    bind as bind,
    default_device_of as default_device_of,
    is_linear as is_linear,
    typeof as typeof,
)
from genesis_fn.core.tree import first_difference as first_difference
from genesis_fn.core.trees.printing import bytes_text as bytes_text, scaled as scaled
from genesis_fn.extend import cpu as cpu, cuda as cuda
from genesis_fn.lax.fused.cross_entropy import (
    check_same_shape as check_same_shape,
    class_labels as class_labels,
    cross_entropy_last as cross_entropy_last,
    floats as floats,
)
from genesis_fn.lax.fused.softmax import (
    log_softmax_last as log_softmax_last,
    logsumexp_last as logsumexp_last,
    softmax_last as softmax_last,
)
from genesis_fn.lax.promotion import (
    inexact_value as inexact_value,
    promoted_with_number as promoted_with_number,
    strong as strong,
)
from genesis_fn.primitives.elementwise import integer_pow as integer_pow, select as select
from genesis_fn.primitives.factories import (
    elementwise as elementwise,
    linear as linear,
    no_tangent as no_tangent,
)
from genesis_fn.primitives.indexing.gather import take_rows as take_rows
from genesis_fn.primitives.indexing.scatter import segment_sum as segment_sum
from genesis_fn.primitives.ragged_dot import ragged_contraction as ragged_contraction
from genesis_fn.primitives.shape import (
    canonical_axes as canonical_axes,
    canonical_axis as canonical_axis,
)
from genesis_fn.transforms.custom.fused_functions import Fused as Fused, fused as fused
from genesis_fn.transforms.precision.autocast import wide as wide
from genesis_fn.transforms.staging.attribution import Work as Work, attribute as attribute
from genesis_fn.transforms.staging.one_call import as_one_call as as_one_call
