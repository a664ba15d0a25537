"""Hand-written Triton kernels. Each family has entry points `plan_x(spec, target)`, which return a
`Plan`: the launches, as data, that a backend gives memory and runs.

The package exports the planners and their specs. Triton is imported when one is first used.
"""

import importlib as _importlib
import typing as _typing
from typing import Any as _Any

if _typing.TYPE_CHECKING:
    from genesis_fn.kernels.attention.select import (
        plan_attention as plan_attention,
        plan_attention_backward as plan_attention_backward,
    )
    from genesis_fn.kernels.attention.spec import AttentionSpec as AttentionSpec
    from genesis_fn.kernels.indexing.concat import (
        Concatenate as Concatenate,
        plan_concatenate as plan_concatenate,
    )
    from genesis_fn.kernels.indexing.scatter import (
        GatherRows as GatherRows,
        ScatterRows as ScatterRows,
        SortRows as SortRows,
        plan_gather_rows as plan_gather_rows,
        plan_scatter_rows as plan_scatter_rows,
        plan_sort_rows as plan_sort_rows,
    )
    from genesis_fn.kernels.linalg.matrices import (
        Addresses as Addresses,
        MatrixNumbers as MatrixNumbers,
        Transpose as Transpose,
        plan_addresses as plan_addresses,
        plan_flaws as plan_flaws,
        plan_poison as plan_poison,
        plan_transpose as plan_transpose,
    )
    from genesis_fn.kernels.linalg.medium.cholesky import (
        MediumCholesky as MediumCholesky,
        plan_medium_cholesky as plan_medium_cholesky,
    )
    from genesis_fn.kernels.linalg.medium.lu import (
        MediumLu as MediumLu,
        plan_medium_lu as plan_medium_lu,
    )
    from genesis_fn.kernels.linalg.medium.solve import (
        MediumSolve as MediumSolve,
        plan_medium_solve as plan_medium_solve,
    )
    from genesis_fn.kernels.linalg.medium.triangular import (
        MediumTriangular as MediumTriangular,
        plan_medium_triangular as plan_medium_triangular,
    )
    from genesis_fn.kernels.linalg.pivots import (
        RowSwaps as RowSwaps,
        plan_permutation as plan_permutation,
    )
    from genesis_fn.kernels.linalg.reflectors import (
        Reflectors as Reflectors,
        plan_reflectors as plan_reflectors,
    )
    from genesis_fn.kernels.linalg.small.cholesky import (
        SmallCholesky as SmallCholesky,
        plan_small_cholesky as plan_small_cholesky,
    )
    from genesis_fn.kernels.linalg.small.eigh import (
        SmallEigh as SmallEigh,
        plan_small_eigh as plan_small_eigh,
    )
    from genesis_fn.kernels.linalg.small.lu import (
        SmallLu as SmallLu,
        plan_small_lu as plan_small_lu,
    )
    from genesis_fn.kernels.linalg.small.panels import (
        PanelCholesky as PanelCholesky,
        plan_panel_cholesky as plan_panel_cholesky,
    )
    from genesis_fn.kernels.linalg.small.qr import (
        SmallQr as SmallQr,
        plan_small_qr as plan_small_qr,
    )
    from genesis_fn.kernels.linalg.small.solve import (
        SmallSolve as SmallSolve,
        plan_small_solve as plan_small_solve,
    )
    from genesis_fn.kernels.linalg.small.svd import (
        SmallSvd as SmallSvd,
        plan_small_svd as plan_small_svd,
    )
    from genesis_fn.kernels.linalg.small.triangular import (
        SmallTriangular as SmallTriangular,
        plan_small_triangular as plan_small_triangular,
    )
    from genesis_fn.kernels.linalg.vectors import (
        ComplexNumbers as ComplexNumbers,
        Signs as Signs,
        Vectors as Vectors,
        plan_align_signs as plan_align_signs,
        plan_complex_vectors as plan_complex_vectors,
        plan_conjugate as plan_conjugate,
    )
    from genesis_fn.kernels.matmul.conv import (
        Convolution as Convolution,
        plan_convolution as plan_convolution,
    )
    from genesis_fn.kernels.matmul.grouped import plan_grouped_matmul as plan_grouped_matmul
    from genesis_fn.kernels.matmul.matmul import plan_matmul as plan_matmul
    from genesis_fn.kernels.matmul.ragged import (
        RaggedSpec as RaggedSpec,
        plan_ragged_contraction as plan_ragged_contraction,
        plan_ragged_dot as plan_ragged_dot,
    )
    from genesis_fn.kernels.matmul.spec import MatmulSpec as MatmulSpec
    from genesis_fn.kernels.plan import (
        BufferArg as BufferArg,
        Descriptor as Descriptor,
        Launch as Launch,
        Memset as Memset,
        Plan as Plan,
        Scalar as Scalar,
        Workspace as Workspace,
    )
    from genesis_fn.kernels.plan_builder import PlanBuilder as PlanBuilder
    from genesis_fn.kernels.random import (
        RandomBits as RandomBits,
        plan_random_bits as plan_random_bits,
    )
    from genesis_fn.kernels.real_ends import RealEnds as RealEnds, plan_real_ends as plan_real_ends
    from genesis_fn.kernels.rows.cross_entropy import (
        CrossEntropy as CrossEntropy,
        plan_cross_entropy_backward as plan_cross_entropy_backward,
        plan_cross_entropy_forward as plan_cross_entropy_forward,
    )
    from genesis_fn.kernels.rows.linear_cross_entropy import (
        LinearCrossEntropy as LinearCrossEntropy,
        plan_linear_cross_entropy as plan_linear_cross_entropy,
    )
    from genesis_fn.kernels.rows.norm import (
        Norm as Norm,
        plan_norm_backward as plan_norm_backward,
        plan_norm_forward as plan_norm_forward,
    )
    from genesis_fn.kernels.rows.scan import Scan as Scan, plan_scan as plan_scan
    from genesis_fn.kernels.rows.softmax import (
        Softmax as Softmax,
        plan_softmax_backward as plan_softmax_backward,
        plan_softmax_forward as plan_softmax_forward,
    )
    from genesis_fn.kernels.sort.sort import Sort as Sort, plan_sort as plan_sort
    from genesis_fn.kernels.sort.top_k import TopK as TopK, plan_top_k as plan_top_k

_HOME = {
    "plan_attention": "attention.select",
    "plan_attention_backward": "attention.select",
    "AttentionSpec": "attention.spec",
    "Concatenate": "indexing.concat",
    "plan_concatenate": "indexing.concat",
    "GatherRows": "indexing.scatter",
    "ScatterRows": "indexing.scatter",
    "plan_gather_rows": "indexing.scatter",
    "plan_scatter_rows": "indexing.scatter",
    "SortRows": "indexing.scatter",
    "plan_sort_rows": "indexing.scatter",
    "Addresses": "linalg.matrices",
    "MatrixNumbers": "linalg.matrices",
    "Transpose": "linalg.matrices",
    "plan_addresses": "linalg.matrices",
    "plan_flaws": "linalg.matrices",
    "plan_poison": "linalg.matrices",
    "plan_transpose": "linalg.matrices",
    "MediumCholesky": "linalg.medium.cholesky",
    "plan_medium_cholesky": "linalg.medium.cholesky",
    "MediumLu": "linalg.medium.lu",
    "plan_medium_lu": "linalg.medium.lu",
    "MediumSolve": "linalg.medium.solve",
    "plan_medium_solve": "linalg.medium.solve",
    "MediumTriangular": "linalg.medium.triangular",
    "plan_medium_triangular": "linalg.medium.triangular",
    "PanelCholesky": "linalg.small.panels",
    "plan_panel_cholesky": "linalg.small.panels",
    "RowSwaps": "linalg.pivots",
    "plan_permutation": "linalg.pivots",
    "Reflectors": "linalg.reflectors",
    "plan_reflectors": "linalg.reflectors",
    "ComplexNumbers": "linalg.vectors",
    "Signs": "linalg.vectors",
    "Vectors": "linalg.vectors",
    "plan_align_signs": "linalg.vectors",
    "plan_complex_vectors": "linalg.vectors",
    "plan_conjugate": "linalg.vectors",
    "SmallCholesky": "linalg.small.cholesky",
    "plan_small_cholesky": "linalg.small.cholesky",
    "SmallEigh": "linalg.small.eigh",
    "plan_small_eigh": "linalg.small.eigh",
    "SmallLu": "linalg.small.lu",
    "plan_small_lu": "linalg.small.lu",
    "SmallQr": "linalg.small.qr",
    "plan_small_qr": "linalg.small.qr",
    "SmallSolve": "linalg.small.solve",
    "plan_small_solve": "linalg.small.solve",
    "SmallSvd": "linalg.small.svd",
    "plan_small_svd": "linalg.small.svd",
    "SmallTriangular": "linalg.small.triangular",
    "plan_small_triangular": "linalg.small.triangular",
    "Convolution": "matmul.conv",
    "plan_convolution": "matmul.conv",
    "plan_grouped_matmul": "matmul.grouped",
    "plan_matmul": "matmul.matmul",
    "RaggedSpec": "matmul.ragged",
    "plan_ragged_contraction": "matmul.ragged",
    "plan_ragged_dot": "matmul.ragged",
    "MatmulSpec": "matmul.spec",
    "BufferArg": "plan",
    "Descriptor": "plan",
    "Launch": "plan",
    "Memset": "plan",
    "Plan": "plan",
    "Scalar": "plan",
    "Workspace": "plan",
    "PlanBuilder": "plan_builder",
    "RandomBits": "random",
    "plan_random_bits": "random",
    "RealEnds": "real_ends",
    "plan_real_ends": "real_ends",
    "CrossEntropy": "rows.cross_entropy",
    "plan_cross_entropy_backward": "rows.cross_entropy",
    "plan_cross_entropy_forward": "rows.cross_entropy",
    "LinearCrossEntropy": "rows.linear_cross_entropy",
    "plan_linear_cross_entropy": "rows.linear_cross_entropy",
    "Norm": "rows.norm",
    "plan_norm_backward": "rows.norm",
    "plan_norm_forward": "rows.norm",
    "Scan": "rows.scan",
    "plan_scan": "rows.scan",
    "Softmax": "rows.softmax",
    "plan_softmax_backward": "rows.softmax",
    "plan_softmax_forward": "rows.softmax",
    "Sort": "sort.sort",
    "plan_sort": "sort.sort",
    "TopK": "sort.top_k",
    "plan_top_k": "sort.top_k",
}


if not _typing.TYPE_CHECKING:  # checkers report unknown names themselves

    def __getattr__(name: str) -> _Any:
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(_importlib.import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(_HOME)
