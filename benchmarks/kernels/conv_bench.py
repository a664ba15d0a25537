"""Convolutions and their gradients under jit, by a library and by our kernels, against torch's.

    python benchmarks/kernels/conv_bench.py --out conv.json [--only unet] [--always] [--budget 110]

Shapes of ResNet-50, of U-Nets and of networks of audio, most with channels last. A row has the
microseconds of what the library chooses (`ours_us`), with `--always` of cuDNN wherever it has the
routine, which is what choices are made by; of that with `deterministic=False` (`unordered_us`, of
gradients), as torch's default is: cuDNN's engines that add by atomics are used then; of kernels
alone (`kernel_us`: without cuDNN, and without products in place of convolutions of one tap); and of
torch, which calls cuDNN by its heuristics on tensors of the same layout. `ratio` is that of torch's
time to ours, `unordered_ratio` that to `unordered_us`. Every result is compared with torch's in
float64.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch
import triton
from jitted import Tensors, difference, free, our_time, results, sets_of, their_time
from torch_launch import rehearse

import genesis_fn as gf
from genesis_fn import lax
from genesis_fn.compiler.options import without
from genesis_fn.compiler.target import Target
from genesis_fn.kernels.matmul.library_conv import LibraryConvolution

F32, BF16 = torch.float32, torch.bfloat16
ERRORS = {F32: 3e-3, BF16: 1e-2}  # of TF32, and of results in bfloat16, to the largest result
KERNELS_ALONE = ("library_convolutions", "pointwise_convolutions")


@dataclass(frozen=True)
class Case:
    """A convolution of images with kernels of `taps`, in these layouts."""

    name: str
    batch: int
    spatial: tuple[int, int]
    channels: int
    outputs: int
    taps: tuple[int, int]
    steps: tuple[int, int] = (1, 1)
    gaps: tuple[int, int] = (1, 1)
    groups: int = 1
    dtype: torch.dtype = BF16
    gradient: bool = True  # of the image, too
    precision: str = "tf32"
    layouts: tuple[str, str] = ("NHWC", "OHWI")  # in which programs lay others

    @property
    def padding(self) -> tuple[int, int]:
        """Before and behind each axis, so that lengths are divided by the steps."""
        height, width = [d * (k - 1) // 2 for k, d in zip(self.taps, self.gaps)]
        return height, width

    @property
    def result(self) -> tuple[int, ...]:
        """The shape of the convolution's result."""
        sizes = zip(self.spatial, self.padding, self.taps, self.gaps, self.steps)
        spatial = [(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, p, k, d, s in sizes]
        return self.batch, *spatial, self.outputs

    @property
    def flops(self) -> float:
        """Operations of the convolution, and of each gradient."""
        return 2 * math.prod(self.result) * math.prod(self.taps) * self.channels / self.groups

    def inputs(self) -> Tensors:
        """Image, kernel and cotangent."""
        image, kernel = self.layouts
        inside = self.channels // self.groups
        sizes = (
            (image, "NHWC", (self.batch, *self.spatial, self.channels)),
            (kernel, "HWIO", (*self.taps, inside, self.outputs)),
            (image, "NHWC", self.result),
        )
        shapes = [[shape[of.index(axis)] for axis in layout] for layout, of, shape in sizes]
        return [torch.randn(shape, device="cuda", dtype=self.dtype) for shape in shapes]

    def ours(self, what: str) -> Callable[..., Any]:
        """The convolution ("forward"), or a gradient, of these inputs."""
        padding = [(p, p) for p in self.padding]

        def conv(x: Any, w: Any) -> Any:
            return lax.conv_general_dilated(
                x, w, self.steps, padding, rhs_dilation=self.gaps,
                dimension_numbers=(*self.layouts, self.layouts[0]), precision=self.precision,
                feature_group_count=self.groups,
            )  # fmt: skip

        return {
            "forward": lambda x, w, dy: conv(x, w),
            "image": lambda x, w, dy: gf.vjp(lambda x: conv(x, w), x)[1](dy),
            "kernel": lambda x, w, dy: gf.vjp(lambda w: conv(x, w), w)[1](dy),
        }[what]

    def torchs(self, what: str, x: Any, w: Any, dy: Any) -> torch.Tensor:
        """torch's, of an image and a cotangent [N, C, H, W] and a kernel [O, I, H, W]."""
        steps, padding, gaps = list(self.steps), list(self.padding), list(self.gaps)
        if what == "forward":
            return torch.conv2d(x, w, None, steps, padding, gaps, self.groups)
        mask = [what == "image", what == "kernel", False]
        found = torch.ops.aten.convolution_backward(
            dy, x, w, None, steps, padding, gaps, False, [0, 0], self.groups, mask
        )
        return found[mask.index(True)]

    def views(self, x: torch.Tensor, w: torch.Tensor, dy: torch.Tensor) -> Tensors:
        """The inputs as torch's convolutions take them; images in place, the kernel copied."""
        image, kernel = [
            [layout.index(axis) for axis in of]
            for layout, of in zip(self.layouts, ("NCHW", "OIHW"))
        ]
        last = torch.channels_last if self.layouts[0] == "NHWC" else torch.contiguous_format
        w = w.permute(kernel).contiguous(memory_format=last)
        return [x.permute(image), w, dy.permute(image)]

    def laid(self, what: str, found: torch.Tensor) -> torch.Tensor:
        """A result of torch's in the layout of ours."""
        layout, of = (self.layouts[1], "OIHW") if what == "kernel" else (self.layouts[0], "NCHW")
        return found.permute([of.index(axis) for axis in layout])


def cases() -> list[Case]:
    """Every convolution of the table."""
    found = [Case("resnet stem 7x7/2", 64, (224, 224), 3, 64, (7, 7), (2, 2), gradient=False)]
    for size, width in ((56, 64), (28, 128), (14, 256), (7, 512)):
        name = f"resnet {size}^2"
        found.append(Case(f"{name} 3x3 {width}", 64, (size, size), width, width, (3, 3)))
        for c, o in ((4 * width, width), (width, 4 * width)):
            found.append(Case(f"{name} 1x1 {c} to {o}", 64, (size, size), c, o, (1, 1)))
        if size > 7:
            half, twice = (2, 2), 2 * width
            whole = (size, size)
            found.append(Case(f"{name} 3x3/2 {twice}", 64, whole, twice, twice, (3, 3), half))
            into, out = 4 * width, 8 * width
            found.append(Case(f"{name} 1x1/2 {into}", 64, whole, into, out, (1, 1), half))
    for dtype, name in ((BF16, "bf16"), (F32, "tf32")):
        block = Case(f"unet {name} 64^2 256", 16, (64, 64), 256, 256, (3, 3), dtype=dtype)
        first = replace(block, name=f"{block.name} NCHW", layouts=("NCHW", "OIHW"))
        found += [block, first]
    for size, c, o in (
        (32, 3, 64), (32, 64, 64), (16, 64, 128), (8, 128, 128), (16, 256, 64), (32, 128, 64),
        (32, 64, 3),
    ):  # fmt: skip
        name = f"diffusion tf32 {size}^2 {c} to {o}"
        found.append(Case(name, 64, (size, size), c, o, (3, 3), dtype=F32, gradient=c > 3))
    for n, c in ((998, 80), (499, 256), (250, 256)):
        name = f"mel tf32 {n} {c} to 256, 3/2"
        found.append(Case(name, 32, (1, n), c, 256, (1, 3), (1, 2), dtype=F32))
    for gap in (1, 64):
        name = f"wavenet tf32 16384 64 to 128, 3, gaps of {gap}"
        found.append(Case(name, 8, (1, 16384), 64, 128, (1, 3), gaps=(1, gap), dtype=F32))
    found.append(Case("images tf32 14^2 32 to 64, 3x3/2", 1024, (14, 14), 32, 64, (3, 3), (2, 2),
                      dtype=F32))  # fmt: skip
    for groups in (2, 32, 256):
        name = f"{groups} groups of 256 channels"
        found.append(Case(name, 64, (28, 28), 256, 256, (3, 3), groups=groups))
    exact = Case("float32 32^2 64", 64, (32, 32), 64, 64, (3, 3), dtype=F32, precision="highest")
    return [*found, exact]


WHATS = ("forward", "image", "kernel")


def rows() -> list[tuple[str, str]]:
    """(name of a case, what of it is computed) of every row."""
    return [(c.name, what) for c in cases() for what in WHATS if c.gradient or what != "image"]


def of_name(name: str) -> Case:
    """The case of this name."""
    return next(c for c in cases() if c.name == name)


def always(self: LibraryConvolution, target: Target) -> bool:
    """In place of what was measured: the library, wherever it has a routine."""
    return True


def check(name: str, what: str, whole: bool) -> tuple[float, float]:
    """The errors of what is chosen and of our kernels; what they need is compiled after this."""
    torch.manual_seed(0)
    if whole:
        LibraryConvolution.pays = always
    case = of_name(name)
    inputs, function = case.inputs(), case.ours(what)
    want = case.laid(what, case.torchs(what, *[x.double() for x in case.views(*inputs)]))
    errors = [difference(results(lambda *xs: function(*xs), inputs), [want])]
    our_time(lambda *xs: function(*xs), [inputs])
    with gf.deterministic(False):
        our_time(lambda *xs: function(*xs), [inputs])
    with without(*KERNELS_ALONE):
        errors.append(difference(results(lambda *xs: function(*xs), inputs), [want]))
        our_time(lambda *xs: function(*xs), [inputs])
    free()
    return errors[0], errors[1]


def measure(case: Case, what: str) -> dict[str, Any]:
    """The row's times and rate."""
    sets, function = sets_of(case.inputs, 8), case.ours(what)
    row: dict[str, Any] = {"name": case.name, "what": what, "flops": case.flops}
    row["ours_us"] = 1e6 * our_time(lambda *xs: function(*xs), sets)
    if what != "forward":
        with gf.deterministic(False):
            row["unordered_us"] = 1e6 * our_time(lambda *xs: function(*xs), sets)
    with without(*KERNELS_ALONE):
        row["kernel_us"] = 1e6 * our_time(lambda *xs: function(*xs), sets)
    torch.backends.cudnn.allow_tf32 = case.precision == "tf32"
    row["torch_us"] = 1e6 * their_time(
        lambda *xs: case.torchs(what, *xs), [case.views(*xs) for xs in sets]
    )
    row["ratio"] = row["torch_us"] / row["ours_us"]
    if "unordered_us" in row:
        row["unordered_ratio"] = row["torch_us"] / row["unordered_us"]
    row["tflops"] = case.flops / row["ours_us"] / 1e6
    return row


def line(row: dict[str, Any]) -> str:
    """A row of the printed table."""
    if "failed" in row:
        return f"{row['name']:44s} {row['what']:8s} FAILED {row['failed'][-200:]}"
    columns = ("ours_us", "unordered_us", "kernel_us", "torch_us")
    times = [f"{row[k]:8.1f}" if k in row else " " * 8 for k in columns]
    errors = " ".join([f"{e:.0e}" for e in row["errors"]])
    ratios = f"{row['ratio']:5.2f} {row.get('unordered_ratio', row['ratio']):5.2f}"
    return (
        f"{row['name']:44s} {row['what']:8s} {' '.join(times)} {ratios} "
        f"{row['tflops']:5.0f} {errors} {'ok' if row['ok'] else 'WRONG'}"
    )


def main() -> None:
    """Measure the chosen rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("conv.json"))
    parser.add_argument("--only", default="", help="comma-separated parts of names")
    parser.add_argument("--always", action="store_true", help="cuDNN wherever it has the routine")
    parser.add_argument("--budget", type=float, default=110, help="seconds, about, in all")
    arguments = parser.parse_args()
    report: dict[str, Any] = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "cudnn": torch.backends.cudnn.version(),
        "triton": triton.__version__,
        "commit": os.environ.get("KERNEL_COMMIT"),
        "always": arguments.always,
        "rows": [],
    }
    if arguments.always:
        LibraryConvolution.pays = always
    wanted = [part for part in arguments.only.split(",") if part]
    chosen = [
        (*r, arguments.always) for r in rows() if not wanted or any(part in r[0] for part in wanted)
    ]
    start = time.time()
    checked = rehearse(check, chosen, 0.6 * arguments.budget)
    print(f"{len(checked)} of {len(chosen)} rows checked in {time.time() - start:.0f} s")
    for name, what, whole in chosen:
        if time.time() - start > arguments.budget:
            print("out of time before", name, what)
            break
        case, errors = of_name(name), checked.get((name, what, whole), "not rehearsed")
        try:
            if isinstance(errors, str):
                raise RuntimeError(errors)
            row = measure(case, what) | {"errors": errors}
            bound = 1e-5 if case.precision == "highest" else ERRORS[case.dtype]
            row["ok"] = max(errors) <= bound
        except Exception as problem:
            failed = f"{type(problem).__name__}: {problem}"[:600]
            row = {"name": name, "what": what, "failed": failed}
        free()
        report["rows"].append(row)
        arguments.out.write_text(json.dumps(report, indent=1) + "\n")
        print(line(row), flush=True)


if __name__ == "__main__":
    main()
