"""Routines of libraries, as data: what a step of a plan calls instead of a kernel of ours.

A `Routine` says what is computed and of which size; a driver knows which library does it
(`backends/cuda/libraries`). Each class names its buffers in order; scratch memory follows them.

Matrices of linear algebra are column-major and dense, as LAPACK has them: a row-major matrix of
ours is its own transpose. With `batch` matrices, buffers that are marked with * are tables of the
addresses of the matrices (int64), others have one matrix after another. `info` is an int32 for each
matrix, zero where the routine succeeded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

Kind: TypeAlias = str
"""float32, float64, complex64 or complex128."""
Operation: TypeAlias = Literal["N", "T", "C"]
"""A matrix as it is, its transpose, or its conjugate transpose."""

CAPTURED_EIGH = 512
"""Larger eigenproblems wait for the host in between, and are no part of a graph (cuSOLVER 12.0)."""
JACOBI_EIGH = 32
"""The largest eigenproblems of the batched routine that rotates."""


@dataclass(frozen=True, slots=True)
class Fft:
    """The transform over the last dimensions, unscaled but for a `factor` that a complex one may
    have. Buffers: source, result.

    `form`: complex to complex, real to half a spectrum, or half a spectrum to real; the last one
    takes spectra of real signals, and overwrites them. `lengths` are those of the real side.
    `batch` transforms lie one after the other, or, `interleaved`, along a last dimension (of
    complex to complex).
    """

    captured: ClassVar[bool] = True
    kind: Kind
    form: Literal["c2c", "r2c", "c2r"]
    lengths: tuple[int, ...]
    batch: int
    inverse: bool = False
    interleaved: bool = False
    factor: float = 1.0


@dataclass(frozen=True, slots=True)
class Cholesky:
    """The lower triangle becomes its Cholesky factor. Buffers: matrix (* of several), info."""

    captured: ClassVar[bool] = True
    kind: Kind
    n: int
    batch: int = 1


@dataclass(frozen=True, slots=True)
class LuFactor:
    """P A = L U in place; pivots count from 1, int64 of one matrix, int32 of several, which are
    square. Buffers: matrix (* of several), pivots, info."""

    captured: ClassVar[bool] = True
    kind: Kind
    rows: int
    columns: int
    batch: int = 1


@dataclass(frozen=True, slots=True)
class LuSolve:
    """op(A) X = B in place of B, from the factors. Buffers: factors (* of several), pivots, right
    sides (* of several), info."""

    captured: ClassVar[bool] = True
    kind: Kind
    n: int
    columns: int
    operation: Operation
    batch: int = 1


@dataclass(frozen=True, slots=True)
class TriangularSolve:
    """op(A) X = B, or X op(A) = B, in place of B [rows, columns]. Buffers: triangle (* of several),
    right sides (* of several)."""

    captured: ClassVar[bool] = True
    kind: Kind
    left: bool
    lower: bool
    operation: Operation
    unit: bool
    rows: int
    columns: int
    batch: int = 1


@dataclass(frozen=True, slots=True)
class QrFactor:
    """A becomes R and, below it, the reflectors of Q. Buffers: matrix (* of several), their scales
    (* of several), info of one matrix."""

    captured: ClassVar[bool] = True
    kind: Kind
    rows: int
    columns: int
    batch: int = 1


@dataclass(frozen=True, slots=True)
class QrVectors:
    """The first `columns` columns of the product of `reflectors` reflectors, in place. Buffers:
    reflectors, their scales, info."""

    captured: ClassVar[bool] = True
    kind: Kind
    rows: int
    columns: int
    reflectors: int


@dataclass(frozen=True, slots=True)
class Eigh:
    """Eigenvalues, ascending, and eigenvectors in place of a Hermitian matrix, of which the lower
    triangle is read. Buffers: matrices, eigenvalues, info."""

    kind: Kind
    n: int
    batch: int = 1

    @property
    def captured(self) -> bool:
        """Whether a graph may contain it."""
        return self.n <= CAPTURED_EIGH


@dataclass(frozen=True, slots=True)
class JacobiEigh:
    """The same of many small matrices, by Jacobi's rotations. Buffers: matrices, eigenvalues,
    info."""

    captured: ClassVar[bool] = True
    kind: Kind
    n: int
    batch: int


@dataclass(frozen=True, slots=True)
class GramSvd:
    """Singular values, descending, and right singular vectors V of matrices with rows >= columns,
    from the eigenvectors of A^H A, which the library forms in a wider format. Left vectors U are
    garbage where singular values are zero. Without `vectors` the values alone. Buffers: matrices,
    values, U, V, info."""

    kind: Kind
    rows: int
    columns: int
    batch: int = 1
    vectors: bool = True

    @property
    def captured(self) -> bool:
        """Whether a graph may contain it."""
        return self.columns <= CAPTURED_EIGH


@dataclass(frozen=True, slots=True)
class JacobiSvd:
    """Singular values, descending, U [rows, columns] and V of a matrix with rows >= columns, by
    Jacobi's rotations; without `vectors` the values alone. Buffers: matrix (overwritten), values,
    U, V, info."""

    captured: ClassVar[bool] = False
    kind: Kind
    rows: int
    columns: int
    vectors: bool = True


@dataclass(frozen=True, slots=True)
class Eig:
    """Eigenvalues, complex, and right eigenvectors of a square matrix (overwritten). Vectors of a
    real matrix are real and imaginary parts in columns j and j + 1 of each pair. Without `vectors`
    the values alone. Buffers: matrix, values, vectors, info."""

    captured: ClassVar[bool] = False
    kind: Kind
    n: int
    vectors: bool = True


@dataclass(frozen=True, slots=True)
class Laid:
    """The sizes and element strides of an array: (batch, channels, *spatial) of an image, (channels
    out, channels in, *taps) of a filter."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ConvolutionRoutine:
    """output[n, o, p] = sum over c, k of image[n, c, p * steps + k * dilation - before] *
    filter[o, c, k], or one of its gradients, along two or three spatial axes. Buffers: the two
    arrays of `read`, and the one that is `written`.

    `form`: "output" is written, or the gradient of the "image" or of the "filter". `kind` is the
    dtype of what is read (float32, float16, bfloat16), `result` of what is written. Channels are in
    as many groups as the filter's inputs go into the image's. Products of float32 are in TF32.
    `repeatable`: every run gives the same bits.
    """

    captured: ClassVar[bool] = True
    kind: str
    result: str
    form: Literal["output", "image", "filter"]
    image: Laid
    filter: Laid
    output: Laid
    steps: tuple[int, ...]
    dilation: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    repeatable: bool = True

    @property
    def written(self) -> Laid:
        """The array that is computed."""
        return {"output": self.output, "image": self.image, "filter": self.filter}[self.form]

    @property
    def read(self) -> tuple[Laid, Laid]:
        """The arrays that are read, in the order of the buffers."""
        first = self.output if self.form == "image" else self.image
        return first, self.output if self.form == "filter" else self.filter

    @property
    def groups(self) -> int:
        """Groups of channels."""
        return self.image.sizes[1] // self.filter.sizes[1]


@dataclass(frozen=True, slots=True)
class Product:
    """C = A B. Buffers: A [rows, depth], B [depth, columns], C."""

    captured: ClassVar[bool] = True
    kind: Kind
    rows: int
    columns: int
    depth: int
    batch: int = 1


Routine: TypeAlias = (
    Fft
    | Cholesky
    | LuFactor
    | LuSolve
    | TriangularSolve
    | QrFactor
    | QrVectors
    | Eigh
    | JacobiEigh
    | GramSvd
    | JacobiSvd
    | Eig
    | ConvolutionRoutine
    | Product
)
