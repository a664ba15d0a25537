"""Convolutions by a library: as which routine, in which layouts, with which results; and cuDNN's
module against a stand-in that computes with torch."""

from __future__ import annotations

import gc
import sys
import threading
import types
from dataclasses import replace
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest
import torch

import genesis_fn as gf
from genesis_fn import lax, numpy as gnp
from genesis_fn.backends.cuda import libraries, pipeline
from genesis_fn.backends.cuda.libraries import on_host
from genesis_fn.backends.cuda.lowerings import plan_for
from genesis_fn.compiler.options import without
from genesis_fn.compiler.simplify.convolutions import laid_convolutions
from genesis_fn.compiler.simplify.simplify import simplify_jaxpr
from genesis_fn.compiler.target import H200, OF_ARCHITECTURE
from genesis_fn.core import dtypes
from genesis_fn.core.aval import aval
from genesis_fn.core.errors import BackendError
from genesis_fn.kernels.matmul.library_conv import LibraryConvolution
from genesis_fn.kernels.plan import Launch, LibraryCall, Plan
from genesis_fn.kernels.routines import ConvolutionRoutine, Laid
from genesis_fn.primitives.conv import conv_dimension_numbers, conv_p
from genesis_fn.transforms.staging.stage_trace import stage
from tests.kernels.run import TARGET as HERE

LAST, OUT_FIRST = ("NHWC", "HWIO", "NHWC"), ("NHWC", "OHWI", "NHWC")
FIRST = ("NCHW", "OIHW", "NCHW")
TF32 = 1e-4 if HERE.interpreted else 5e-2  # which the host has not


@pytest.fixture
def always(monkeypatch):
    """Every convolution that the library has is the library's: the forms that it is called in."""
    forms: list[str] = []
    made = LibraryConvolution.of.__func__

    def of(cls: Any, spec: Any, repeatable: bool = True, turned: bool = False) -> Any:
        found = made(cls, spec, repeatable, turned)
        forms.append("none" if found is None else found.routine.form)
        return found

    monkeypatch.setattr(LibraryConvolution, "of", classmethod(of))
    monkeypatch.setattr(LibraryConvolution, "pays", lambda self, target: True)
    return forms


CASES = {
    # sizes, taps, channels in and out, groups, strides, padding, dilation of both sides, and what
    # the convolution and the gradients of kernel and image are.
    "same": ((7, 8), (3, 3), 4, 6, 1, (1, 1), ((1, 1), (1, 1)), (1, 1), (1, 1), "image"),
    "point": ((3, 4), (1, 1), 4, 6, 1, (1, 1), ((0, 0), (0, 0)), (1, 1), (1, 1), "image"),
    "thin": ((1, 9), (1, 3), 4, 6, 1, (1, 1), ((0, 0), (2, 1)), (1, 1), (1, 1), "image"),
    "more padding": ((7, 8), (2, 2), 4, 6, 1, (1, 1), ((3, 0), (0, 1)), (1, 1), (1, 1), "image"),
    "steps": ((9, 8), (3, 2), 4, 6, 2, (2, 3), ((1, 0), (0, 1)), (1, 1), (2, 1), "image"),
    "cut": ((8, 8), (1, 1), 4, 6, 1, (2, 2), ((0, 0), (0, 0)), (1, 1), (1, 1), "image"),
    "line": ((9,), (3,), 4, 6, 1, (2,), ((1, 2),), (1,), (1,), "image"),
    "groups": ((8,), (3,), 4, 6, 2, (1,), ((1, 2),), (1,), (3,), "output"),
    "volume": ((4, 5, 6), (2, 3, 2), 2, 4, 1, (1, 2, 1), ((1, 0), (1, 1), (0, 1)), (1, 1, 1),
               (1, 1, 2), "image"),
}  # fmt: skip


def layouts_of(layouts: tuple[str, ...], rank: int) -> tuple[str, ...]:
    return tuple([x.replace("HW", {1: "W", 2: "HW", 3: "DHW"}[rank]) for x in layouts])


def with_gradients(library: Any, f: Any) -> Any:
    def run(x: Any, w: Any) -> Any:
        y, pull = library.vjp(f, x, w)
        return (y, *pull(y * 0.5 + 1))

    return run


def drawn(case: str, layouts: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
    """(images, filter, options) of a case."""
    sizes, taps, c, o, groups, strides, padding, lhs_gaps, rhs_gaps, _ = CASES[case]
    layouts, axes = layouts_of(layouts, len(sizes)), "DHW"[-len(sizes) :]
    rng = np.random.default_rng(len(case))
    of_x = dict(zip(axes if len(sizes) > 1 else "W", sizes)) | {"N": 2, "C": c}
    of_w = dict(zip(axes if len(sizes) > 1 else "W", taps)) | {"O": o, "I": c // groups}
    x = rng.standard_normal([of_x[a] for a in layouts[0]], np.float32)
    w = rng.standard_normal([of_w[a] for a in layouts[1]], np.float32)
    options = {
        "window_strides": strides, "padding": padding, "lhs_dilation": lhs_gaps,
        "rhs_dilation": rhs_gaps, "dimension_numbers": layouts, "feature_group_count": groups,
    }  # fmt: skip
    return x, w, options


@pytest.mark.parametrize("layouts", [LAST, FIRST, OUT_FIRST], ids=lambda x: "-".join(x[:2]))
@pytest.mark.parametrize("case", CASES)
def test_convolutions_and_gradients(always, case, layouts):
    x, w, options = drawn(case, layouts)
    ours = with_gradients(
        gf, lambda x, w: lax.conv_general_dilated(x, w, precision="tf32", **options)
    )
    theirs = with_gradients(
        jax, lambda x, w: jax.lax.conv_general_dilated(x, w, precision="highest", **options)
    )
    arrays = [gf.device_put(v, gf.cuda(0)) for v in (x, w)]
    compiled = gf.jit(ours)(*arrays)
    assert set(always) == {"output", "filter", CASES[case][-1]}
    # Outside of a program images stay where they lie, which may be a kernel's, and filters are
    # copied.
    for got, bound in ((compiled, TF32), (ours(*arrays), 5e-2)):
        for mine, want in zip(got, theirs(x, w), strict=True):
            np.testing.assert_allclose(np.asarray(mine), np.asarray(want), rtol=bound, atol=bound)


@pytest.mark.parametrize("layouts", [LAST, OUT_FIRST], ids=lambda x: "-".join(x[:2]))
@pytest.mark.parametrize("choice", ["library", "filter"])
@pytest.mark.parametrize("case", ["steps", "line", "volume", "groups"])
def test_kernels_read_what_is_laid_for_others(monkeypatch, choice, case, layouts):
    """What is laid for a library that has no engine in the end, and filters as kernels want them:
    these are too small for either."""
    monkeypatch.setattr(pipeline, "convolution_layout", lambda target, e: choice)
    x, w, options = drawn(case, layouts)
    f = lambda library, lax: with_gradients(
        library, lambda x, w: lax.conv_general_dilated(x, w, precision="highest", **options)
    )
    arrays = [gf.device_put(v, gf.cuda(0)) for v in (x, w)]
    for mine, want in zip(gf.jit(f(gf, lax))(*arrays), f(jax, jax.lax)(x, w), strict=True):
        np.testing.assert_allclose(np.asarray(mine), np.asarray(want), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("steps, taps", [((2, 2), (3, 3)), ((1, 1), (3, 3)), ((1, 1), (1, 1))])
def test_a_filter_that_lies_right_is_not_copied_for_the_gradient_of_an_image(always, steps, taps):
    rng = np.random.default_rng(4)
    dy = rng.standard_normal((2, 8 // steps[0], 8 // steps[1], 8), np.float32)
    w = rng.standard_normal((8, *taps, 8))

    def f(dy, w):
        conv = lambda x: lax.conv_general_dilated(
            x, w, steps, "SAME", dimension_numbers=OUT_FIRST, precision="tf32"
        )
        return gf.vjp(conv, gnp.zeros((2, 8, 8, 8), np.float32))[1](dy)[0]

    arrays = [gf.device_put(v.astype(np.float32), gf.cuda(0)) for v in (dy, w)]
    made = gf.jit(f).lower(*arrays).compile()
    assert "image" in always
    assert "turned_conv" in made.as_text() and "tiles" not in made.as_text()


def test_no_gradient_of_an_image_pads_as_much(always):
    """A filter that is turned, with more padding than a gradient has: the convolution itself."""
    rng = np.random.default_rng(5)
    x, w = rng.standard_normal((2, 6, 6, 4), np.float32), rng.standard_normal((8, 3, 3, 4))

    def f(library: Any, precision: str) -> Any:
        return lambda x, w: library.lax.conv_general_dilated(
            x, library.numpy.flip(w, (1, 2)), (1, 1), ((3, 1), (2, 4)),
            dimension_numbers=OUT_FIRST, precision=precision,
        )  # fmt: skip

    w = w.astype(np.float32)
    got = gf.jit(f(gf, "tf32"))(*[gf.device_put(v, gf.cuda(0)) for v in (x, w)])
    want = np.asarray(f(jax, "highest")(x, w))
    np.testing.assert_allclose(np.asarray(got), want, rtol=TF32, atol=TF32)
    assert always == ["none", "output", "output"]


@pytest.mark.parametrize("kind, bound", [("bfloat16", 2e-2), ("float16", 3e-3)])
def test_narrow_floats_are_added_in_float32(always, kind, bound):
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((2, 6, 6, 8)), rng.standard_normal((3, 3, 8, 8))
    arrays = [gf.device_put(v.astype(kind), gf.cuda(0)) for v in (x, w)]
    exact = [torch.from_numpy(np.asarray(v).astype(np.float64)) for v in arrays]
    want = torch.conv2d(exact[0].permute(0, 3, 1, 2), exact[1].permute(3, 2, 0, 1), padding=1)
    want = want.permute(0, 2, 3, 1).numpy()
    for wide, limit in ((None, bound), (np.float32, 1e-5)):
        f = lambda x, w: lax.conv_general_dilated(
            x, w, (1, 1), "SAME", dimension_numbers=LAST, preferred_element_type=wide
        )
        got = np.asarray(gf.jit(f)(*arrays)).astype(np.float64)
        assert np.abs(got - want).max() / np.abs(want).max() < limit
    assert set(always) == {"output"}


def conv_params(layouts: tuple[str, ...] = LAST, **changes: Any) -> dict[str, Any]:
    numbers = conv_dimension_numbers((1,) * 4, (1,) * 4, layouts)
    return {
        "window_strides": (1, 1), "padding": ((1, 1), (1, 1)), "lhs_dilation": (1, 1),
        "rhs_dilation": (1, 1), "dimension_numbers": numbers, "feature_group_count": 1,
        "batch_group_count": 1, "precision": "default", "preferred_element_type": None, **changes,
    }  # fmt: skip


def planned(
    image: tuple[int, ...], filter_: tuple[int, ...], kind: Any, target: Any, **changes: Any
) -> list[Any]:
    plan = plan_for(
        conv_p, [aval(image, kind), aval(filter_, kind)], conv_params(**changes), target
    )
    assert isinstance(plan, Plan)
    return [s.routine.form if isinstance(s, LibraryCall) else "kernel" for s in plan.steps]


BIG = (64, 28, 28, 128), (3, 3, 128, 128)
BIG_OUT_FIRST = (64, 28, 28, 128), (128, 3, 3, 128)


@pytest.mark.interpreted
def test_who_computes_what():
    """The choices that were measured; the copy of a filter is a kernel."""
    called = ["kernel", "output"]
    assert planned(*BIG, dtypes.BF16, HERE) == called
    assert planned(*BIG, dtypes.F32, HERE) == called
    assert planned(*BIG_OUT_FIRST, dtypes.BF16, HERE, layouts=OUT_FIRST) == ["output"]
    assert planned(*BIG, dtypes.BF16, replace(HERE, libraries=False)) == ["kernel"]
    assert planned((2, 6, 6, 8), (3, 3, 8, 8), dtypes.BF16, HERE) == ["kernel"]  # too small
    assert planned((64, 56, 56, 3), (7, 7, 3, 64), dtypes.BF16, HERE) == ["kernel"]
    for kind in (dtypes.F64, dtypes.I8):
        assert planned(*BIG, kind, HERE) == ["kernel"]
    for precision in ("highest", "tf32x3"):
        assert planned(*BIG, dtypes.F32, HERE, precision=precision) == ["kernel"]
        assert planned(*BIG, dtypes.BF16, HERE, precision=precision) == called
    gaps = {"rhs_dilation": (2, 2), "padding": ((2, 2), (2, 2))}
    assert planned(*BIG, dtypes.BF16, HERE, **gaps) == ["kernel"]
    groups = (64, 28, 28, 256), (3, 3, 1, 256)
    assert planned(*groups, dtypes.BF16, HERE, feature_group_count=256) == called
    # What a library's padding cannot say, and images with channels first.
    assert planned(*BIG, dtypes.BF16, HERE, padding=((-1, 1), (1, 1))) == ["kernel"]
    first = planned((64, 128, 28, 28), (128, 128, 3, 3), dtypes.BF16, HERE, layouts=FIRST)
    assert first == ["kernel"]
    with without("library_convolutions"):
        assert planned(*BIG, dtypes.BF16, HERE) == ["kernel"]


@pytest.mark.interpreted
def test_repeatable_unless_the_setting_says_otherwise():
    kinds = [aval(s, dtypes.BF16) for s in BIG]

    def repeatable() -> bool:
        plan = plan_for(conv_p, kinds, conv_params(), HERE)
        assert isinstance(plan, Plan) and isinstance(plan.steps[-1], LibraryCall)
        return plan.steps[-1].routine.repeatable

    assert repeatable()
    with gf.deterministic(False):
        assert not repeatable()


# ---- layouts of programs ----


def equations(f: Any, shapes: Any, choice: str, kind: Any = dtypes.F32) -> list[str]:
    """The primitives of the program of `f`, whose convolutions are laid for what is chosen."""
    jaxpr, _ = stage(lambda *xs: list(f(*xs)), [aval(s, kind) for s in shapes])
    choose: Any = lambda e: choice
    laid = laid_convolutions(simplify_jaxpr(jaxpr), choose, lambda e: False)
    return [e.prim.name for e in laid.eqns]


def of_layouts(layouts: tuple[str, ...], strides: Any = (1, 1)) -> Any:
    return lambda x, w: (
        lax.conv_general_dilated(x, w, strides, "SAME", dimension_numbers=layouts),
    )


def test_only_what_lies_otherwise_is_transposed():
    conv, turn = "conv_general_dilated", "transpose"
    x, w = (2, 6, 6, 4), (3, 3, 4, 8)
    assert equations(of_layouts(LAST), (x, w), "library") == [turn, conv]
    assert equations(of_layouts(LAST), (x, w), "filter") == [turn, conv]
    assert equations(of_layouts(LAST), (x, w), "as it is") == [conv]
    assert equations(of_layouts(OUT_FIRST), (x, (8, 3, 3, 4)), "library") == [conv]
    first = ((2, 4, 6, 6), (8, 4, 3, 3))
    assert equations(of_layouts(FIRST), first, "library") == [turn, turn, conv, turn]
    assert equations(of_layouts(FIRST), first, "filter") == [conv]


POINTS = [
    # layouts, taps, strides, padding, products and convolutions among the result and gradients
    (LAST, (1, 1), (1, 1), 0, 3, 0),
    (OUT_FIRST, (1, 1), (1, 1), 0, 3, 0),
    (("HWNC", "HWIO", "HWNC"), (1, 1), (1, 1), 0, 3, 0),
    (("CNHW", "IOHW", "CNHW"), (1, 1), (1, 1), 0, 3, 0),
    (FIRST, (1, 1), (1, 1), 0, 0, 3),  # whose products would copy the images
    (LAST, (5, 6), (1, 1), 0, 2, 1),
    (FIRST, (5, 6), (1, 1), 0, 2, 1),
    (LAST, (1, 1), (2, 2), 0, 0, 3),
    (LAST, (1, 1), (1, 1), 1, 0, 3),
]


@pytest.mark.parametrize("layouts, taps, strides, padding, products, left", POINTS)
def test_convolutions_of_one_tap_are_products(layouts, taps, strides, padding, products, left):
    rng = np.random.default_rng(sum(taps))
    of_x, of_w = dict(zip("HWNC", (5, 6, 2, 4))), dict(zip("HWIO", (*taps, 4, 3)))
    x = rng.standard_normal([of_x[a] for a in layouts[0]], np.float32)
    w = rng.standard_normal([of_w[a] for a in layouts[1]], np.float32)
    pads = ((padding, padding),) * 2
    options = {"dimension_numbers": layouts, "precision": "highest"}
    f = lambda m: lambda x, w: m.lax.conv_general_dilated(x, w, strides, pads, **options)
    ours, theirs = with_gradients(gf, f(gf)), with_gradients(jax, f(jax))
    names = equations(ours, (x.shape, w.shape), "as it is")
    assert names.count("dot_general") == products
    assert names.count("conv_general_dilated") == left
    got = gf.jit(ours)(*[gf.device_put(v, gf.cuda(0)) for v in (x, w)])
    for mine, want in zip(got, theirs(x, w), strict=True):
        np.testing.assert_allclose(np.asarray(mine), np.asarray(want), rtol=1e-4, atol=1e-4)
    with without("pointwise_convolutions"):
        names = equations(ours, (x.shape, w.shape), "as it is")
        assert names.count("conv_general_dilated") == 3


# ---- cuDNN ----


class Written:
    """An array that a graph of the stand-in computes."""

    def __init__(self) -> None:
        self.said: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        assert name in ("set_output", "set_uid", "set_dim", "set_stride", "set_data_type"), name
        return lambda value: self.said.__setitem__(name[4:], value)


class Graph:
    """cuDNN's graph of one convolution, which torch computes."""

    def __init__(self, module: Any, handle: Any, **types_: Any) -> None:
        self.module, self.handle, self.types = module, handle, types_
        self.calls: list[Any] = []
        self.built = False

    def tensor(self, *, dim: Any, stride: Any, data_type: Any, name: str, uid: int) -> Any:
        return uid, data_type, Laid(tuple(dim), tuple(stride))

    def _convolved(self, form: str, first: Any, second: Any, **common: Any) -> Written:
        assert set(common) == {
            "pre_padding", "post_padding", "stride", "dilation", "compute_data_type"
        }  # fmt: skip
        assert (first[0], second[0]) == (1, 2)
        self.form, self.read, self.common, self.written = form, (first, second), common, Written()
        return self.written

    def conv_fprop(self, *, image: Any, weight: Any, **common: Any) -> Written:
        return self._convolved("output", image, weight, **common)

    def conv_dgrad(self, *, loss: Any, filter: Any, **common: Any) -> Written:
        return self._convolved("image", loss, filter, **common)

    def conv_wgrad(self, *, image: Any, loss: Any, **common: Any) -> Written:
        return self._convolved("filter", image, loss, **common)

    def __getattr__(self, name: str) -> Any:
        known = (
            "validate", "build_operation_graph", "create_execution_plans", "deselect_numeric_notes",
            "deselect_workspace_greater_than", "check_support",
        )  # fmt: skip
        if name not in known:
            raise AttributeError(name)
        return lambda *given: self.calls.append((name, *given))

    def build_plans(self) -> None:
        if self.module.refuses:
            raise self.module.cudnnGraphNotSupportedError("no engine")
        self.built = True

    def get_workspace_size(self) -> int:
        return 96

    def execute(self, arrays: dict[int, int], scratch: int, handle: Any) -> None:
        assert self.built and scratch == 40 and handle in self.module.handles
        self.module.streams_of_runs.append(self.module.handles[handle])
        names = {"FLOAT": "float32", "BFLOAT16": "bfloat16", "HALF": "float16"}
        (_, kind, a), (_, _, b) = self.read
        said, common = self.written.said, self.common
        c = Laid(tuple(said["dim"]), tuple(said["stride"]))
        image, filter_, output = {
            "output": (a, b, c), "image": (c, b, a), "filter": (a, c, b)
        }[self.form]  # fmt: skip
        pads = tuple(common["pre_padding"]), tuple(common["post_padding"])
        steps = tuple(common["stride"]), tuple(common["dilation"])
        routine = ConvolutionRoutine(
            names[kind], names[said["data_type"]], self.form, image, filter_, output, *steps, *pads
        )
        on_host._RUNS[ConvolutionRoutine](routine, arrays[1], arrays[2], arrays[said["uid"]])


@pytest.fixture
def cudnn(monkeypatch):
    """The module that calls cuDNN, over a stand-in of its package and of the driver's context."""
    module: Any = types.ModuleType("cudnn")
    module.graphs, module.handles, module.streams_of_runs, module.refuses = [], {}, [], False
    module.cudnnGraphNotSupportedError = type("cudnnGraphNotSupportedError", (Exception,), {})
    module.backend_version = lambda: 91900
    named = lambda *names: types.SimpleNamespace(**{n: n for n in names})
    module.data_type = named("FLOAT", "HALF", "BFLOAT16")
    module.heur_mode = named("A", "FALLBACK")
    module.numerical_note = named("NONDETERMINISTIC", "REDUCED_PRECISION_REDUCTION")

    def create_handle() -> int:
        module.handles[len(module.handles) + 1] = 0
        return len(module.handles)

    def graph(**given: Any) -> Graph:
        module.graphs.append(made := Graph(module, **given))
        return made

    module.create_handle, module.pygraph = create_handle, graph
    module.destroy_handle = module.handles.pop
    module.set_stream = lambda handle, stream: module.handles.__setitem__(handle, stream)
    monkeypatch.setitem(sys.modules, "cudnn", module)
    from genesis_fn.backends.cuda.libraries import convolutions, loading

    monkeypatch.setattr(loading, "context", lambda: 7)
    monkeypatch.setattr(loading, "retired", type(loading.retired)())
    monkeypatch.setattr(convolutions, "_thread", convolutions._Thread())
    monkeypatch.setattr(convolutions, "_plans", type(convolutions._plans)())
    convolutions.loaded.cache_clear()
    yield convolutions, module
    convolutions.loaded.cache_clear()


REAL = replace(H200, libraries=True)


def routine(form: str, kind: str = "float32", width: int = 5) -> ConvolutionRoutine:
    image = Laid((2, 4, 6, width), (24 * width, 1, 4 * width, 4))
    filter_, output = Laid((3, 4, 3, 3), (36, 1, 12, 4)), Laid((2, 3, 3, 3), (27, 1, 9, 3))
    output = replace(output, sizes=(2, 3, 3, (width + 1) // 2))
    step = 3 * output.sizes[3]
    output = replace(output, strides=(3 * step, 1, step, 3))
    after = (1, 1 if width % 2 else 0)
    arrays: Any = (form, image, filter_, output)
    return ConvolutionRoutine(kind, kind, *arrays, (2, 2), (1, 1), (1, 1), after)


@pytest.mark.parametrize("kind", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("form", ["output", "image", "filter"])
def test_routines_run_on_their_stream_and_memory(cudnn, form, kind):
    convolutions, module = cudnn
    one = routine(form, kind)
    assert libraries.convolves(one, REAL) and libraries.scratch(one, REAL) == 96
    rng = np.random.default_rng(1)
    size = lambda x: 1 + sum([(n - 1) * s for n, s in zip(x.sizes, x.strides)])
    wide = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}[kind]
    first, second = [rng.standard_normal(size(x)).astype(wide) for x in one.read]
    written, want = [np.zeros(size(one.written), wide) for _ in range(2)]
    prepared = convolutions.CudnnConvolution(one)
    prepared.run([v.ctypes.data for v in (first, second, written)] + [40], 99)
    on_host._RUNS[ConvolutionRoutine](one, *[v.ctypes.data for v in (first, second, want)])
    assert np.array_equal(written, want) and np.any(want.astype(np.float32))
    assert module.streams_of_runs == [99]
    assert set(module.handles.values()) == {0}  # a stream of a capture ends with it
    (graph,) = module.graphs
    notes = [note for name, *given in graph.calls if name[-5:] == "notes" for note in given[0]]
    assert ("REDUCED_PRECISION_REDUCTION" in notes) == (kind == "float16")
    assert "NONDETERMINISTIC" in notes
    assert ("create_execution_plans", ["A", "FALLBACK"]) in graph.calls
    limited = any(name == "deselect_workspace_greater_than" for name, *_ in graph.calls)
    assert limited == (form == "output" and kind == "float32")


def test_other_engines_where_runs_may_differ(cudnn):
    _, module = cudnn
    assert libraries.convolves(replace(routine("filter"), repeatable=False), REAL)
    assert not any("notes" in name for name, *_ in module.graphs[0].calls)


def test_what_cudnn_refuses_is_asked_once(cudnn):
    convolutions, module = cudnn
    module.refuses = True
    for _ in range(2):
        assert not libraries.convolves(routine("output"), REAL)
    assert len(module.graphs) == 1
    with pytest.raises(BackendError, match="NOT_SUPPORTED"):
        convolutions.CudnnConvolution(routine("output"))
    target = replace(REAL, interpreted=False)
    plan = plan_for(conv_p, [aval(s, dtypes.BF16) for s in BIG], conv_params(), target)
    assert isinstance(plan, Plan) and all(isinstance(s, Launch) for s in plan.steps)


def test_plans_and_handles_live_as_long_as_graphs_need_them(cudnn):
    convolutions, module = cudnn
    kept = convolutions.CudnnConvolution(routine("output"))
    for width in range(6, 6 + convolutions.MOST_PLANS):
        assert libraries.convolves(routine("output", width=width), REAL)
    assert len(convolutions._plans) == convolutions.MOST_PLANS
    assert (7, routine("output")) not in convolutions._plans
    arrays = [np.zeros(size, np.float32) for size in (240, 108, 54)]
    kept.run([v.ctypes.data for v in arrays] + [40], 5)
    handles = len(module.handles)
    other = threading.Thread(target=kept.run, args=([v.ctypes.data for v in arrays] + [40], 6))
    other.start()
    other.join()
    gc.collect()
    libraries.forget_plans()
    assert not convolutions._plans and len(module.handles) == handles + 1  # the routine keeps both
    del kept, other
    gc.collect()
    libraries.forget_plans()
    assert len(module.handles) == handles


def test_a_missing_package_leaves_our_kernels(cudnn, monkeypatch):
    convolutions, _ = cudnn
    monkeypatch.setitem(sys.modules, "cudnn", None)
    convolutions.loaded.cache_clear()
    assert not libraries.convolves(routine("output"), REAL)


def test_errors_name_the_routine(cudnn, monkeypatch):
    convolutions, _ = cudnn

    def failing(*_: Any) -> None:
        raise RuntimeError("CUDNN_STATUS_EXECUTION_FAILED")

    prepared = convolutions.CudnnConvolution(routine("filter"))
    monkeypatch.setattr(Graph, "execute", failing)
    with pytest.raises(BackendError, match=r"form='filter'.*EXECUTION_FAILED"):
        prepared.run([1, 2, 3, 40], 9)


@pytest.mark.interpreted
def test_old_gpus_keep_our_kernels():
    old = replace(OF_ARCHITECTURE[80], architecture=75, libraries=True, interpreted=True)
    assert planned(*BIG, dtypes.BF16, old) == ["kernel"]
