"""Shows that barriers order all that the warps of specialised attention kernels share.

    python -m benchmarks.kernels.race_delays --out benchmarks/results/race-delays-h200.json

compute-sanitizer's racecheck does not follow mbarriers, bulk copies and barriers that warps reach
from different places. So every kernel, as compiled for the GPU, gets a delay of pseudo-random
length before and after each instruction that waits, arrives, fences, copies, or starts or awaits
products, those that the compiler added among them. A delay depends on the launch's seed, the
instruction, the program and the warp, some of it on the clock, which makes it another in each
round of a loop. 10^4 launches must give the bits of the kernel as it ships.

What the delays would show is shown by mutants: for each barrier, one kernel without it. It is
caught if a result differs or a wait outlasts its limit, which the waits of mutants have so that
they end. Of every kind of `MUST_SHOW` one must be caught in each kernel; the table holds them all.
"""

from __future__ import annotations

import argparse
import collections
import ctypes
import json
import os
import queue
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from triton.backends.nvidia.compiler import get_ptxas

from benchmarks.results_file import surroundings
from genesis_fn.backends.cuda.binaries.compile import request
from genesis_fn.backends.cuda.binaries.triton_compile import compiled_by_triton
from genesis_fn.compiler.target import H200
from genesis_fn.kernels.attention.select import plan_attention, plan_attention_backward
from genesis_fn.kernels.attention.spec import AttentionSpec
from genesis_fn.kernels.plan import Launch, Plan

LAUNCHES = 10_000
MUTANT_LAUNCHES = 300
SILENCE = 8.0  # seconds without a result after which a process hangs; START before its first one
START = 60.0
CASES = {
    "causal": AttentionSpec(2, 16, 8, 768, 768, 128, causal=True),
    "full": AttentionSpec(2, 8, 8, 500, 700, 128),
}
KERNELS = ("forward", "dkdv", "dq")
MUST_SHOW = ("mbarrier.wait", "mbarrier.arrive", "mbarrier.expect", "barrier.sync")
# (mask of the short delays, the long one) in nanoseconds; a long one is at one place in 16.
AMPLITUDES = ((0, 0), (255, 0), (1023, 0), (127, 4000), (0, 20000), (4095, 1000))

# ---- delays and mutants, as text ----

_WAIT = re.compile(r"^\{\n(?:[^{}]*\n)?\s*mbarrier\.try_wait[^{}]*\n\}$", re.M)
_SINGLE = re.compile(
    r"^[ \t]*(?:@!?%p\d+[ \t]+)?"
    r"(mbarrier\.(?:init|arrive)|bar\.sync|barrier\.sync|bar\.warp\.sync|fence\.proxy"
    r"|cp\.async\.bulk|wgmma\.(?:fence|commit_group|wait_group))[^\n;]*;[^\n]*$",
    re.M,
)
_WORDS = ".visible .global .align 16 .b32 delay_words[4];\n"
_DELAY = """{
	.reg .b32 dla, dlb, dlc, dld, dle;
	.reg .pred dlp;
	ld.global.b32 dla, [delay_words];
	ld.global.b32 dlb, [delay_words+4];
	ld.global.b32 dlc, [delay_words+8];
	mov.u32 dld, %tid.x;
	shr.u32 dld, dld, 5;
	add.u32 dld, dld, PLACE;
	mad.lo.u32 dld, dld, 2654435761, dla;
	mov.u32 dle, %ctaid.x;
	mad.lo.u32 dld, dle, 2246822519, dld;
	shr.u32 dle, dld, 15;
	xor.b32 dld, dld, dle;
	mul.lo.u32 dld, dld, 739982445;
	shr.u32 dle, dld, 12;
	xor.b32 dld, dld, dle;
	mul.lo.u32 dld, dld, 695872825;
	shr.u32 dle, dld, 28;
	setp.eq.u32 dlp, dle, 0;
	selp.b32 dlc, dlc, 0, dlp;
	mov.u32 dle, %clock;
	xor.b32 dld, dld, dle;
	mul.lo.u32 dld, dld, 739982445;
	shr.u32 dle, dld, 15;
	xor.b32 dld, dld, dle;
	shr.u32 dle, dld, 30;
	setp.eq.u32 dlp, dle, 0;
	and.b32 dld, dld, dlb;
	selp.b32 dld, dld, 0, dlp;
	add.u32 dld, dld, dlc;
	shfl.sync.idx.b32 dld, dld, 0, 31, 0xffffffff;
	nanosleep.u32 dld;
	bar.warp.sync 0xffffffff;
}
"""
_BOUNDED = """{
	.reg .pred complete, patient;
	.reg .b32 count;
	.reg .b64 start, now;
	mov.u64 start, %globaltimer;
	waitLoop:
	TRY
	@complete bra done;
	mov.u64 now, %globaltimer;
	sub.u64 now, now, start;
	ld.volatile.global.b32 count, [delay_words+12];
	setp.eq.u32 patient, count, 0;
	setp.lt.and.u64 patient, now, 10000000, patient;
	@patient bra waitLoop;
	red.global.add.u32 [delay_words+12], 1;
	done:
	bar.warp.sync 0xffffffff;
}"""


@dataclass(frozen=True)
class Site:
    """One instruction of a kernel's PTX, or the loop around a wait, and which kind it is."""

    start: int
    end: int
    kind: str


def sites(ptx: str) -> list[Site]:
    """Every place where a kernel waits, arrives, fences, copies or multiplies, in order."""
    found = [Site(m.start(), m.end(), "mbarrier.wait") for m in _WAIT.finditer(ptx)]
    found += [Site(m.start(), m.end(), _kind(m)) for m in _SINGLE.finditer(ptx)]
    if ptx.count("mbarrier.try_wait") != sum(s.kind == "mbarrier.wait" for s in found):
        raise ValueError("a wait of the kernel is written in another way than expected")
    return sorted(found, key=lambda site: site.start)


def _kind(match: re.Match[str]) -> str:
    expects = ".expect_tx" in match[0]
    return match[1].replace("arrive", "expect") if expects else match[1]


def delayed(ptx: str, without: tuple[int, ...] | None = None) -> str:
    """`ptx` with a delay around every site; as a mutant, without the sites of these numbers and
    with waits that end."""
    pieces, last = [], 0
    for number, site in enumerate(sites(ptx)):
        pieces.append(ptx[last : site.start])
        text = ptx[site.start : site.end]
        if without is not None:
            if number in without:
                text = ""
            elif site.kind == "mbarrier.wait":
                attempt = re.search(r"mbarrier\.try_wait[^\n]*", text)
                assert attempt is not None
                text = _BOUNDED.replace("TRY", attempt[0])
        delays = [_DELAY.replace("PLACE", str(32 * number + 16 * side)) for side in (0, 1)]
        pieces.append(f"{delays[0]}{text}\n{delays[1]}")
        last = site.end
    return with_words("".join([*pieces, ptx[last:]]))


def with_words(ptx: str) -> str:
    """`ptx` with what delays read: a seed, the mask of the short ones, the long one; late waits."""
    return re.sub(r"^(\.address_size 64\n)", r"\1" + _WORDS, ptx, count=1, flags=re.M)


def mutants(ptx: str) -> dict[str, tuple[int, ...]]:
    """The sites that a mutant lacks, by its name: one barrier, or the whole handing-out of work."""
    found: dict[str, tuple[int, ...]] = {}
    counts: collections.Counter[str] = collections.Counter()
    handing_out = []
    for number, site in enumerate(sites(ptx)):
        if site.kind == "barrier.sync":
            handing_out.append(number)  # one alone would be waited for by the rest for ever
        elif site.kind in ("mbarrier.wait", "mbarrier.arrive", "mbarrier.expect", "bar.sync"):
            found[f"{site.kind} {counts[site.kind]}"] = (number,)
            counts[site.kind] += 1
    return found | {"barrier.sync, all": tuple(handing_out)}


# ---- compiling ----


def launches(plan: Plan) -> list[Launch]:
    """A plan's launches, in order."""
    return [step for step in plan.steps if isinstance(step, Launch)]


def launch_of(case: str, kernel: str) -> Launch:
    """The launch of this kernel in the shipped plan of a case."""
    if kernel == "forward":
        return launches(plan_attention(CASES[case], H200))[0]
    backward = launches(plan_attention_backward(CASES[case], H200))
    return next(s for s in backward if kernel in s.kernel.__name__)


def assemble(ptx: str, target: Path) -> str:
    """Writes the binary of `ptx`; what the assembler said of it, in one line."""
    source = target.with_suffix(".ptx")
    source.write_text(ptx)
    command = [get_ptxas(90).path, "-v", "--gpu-name=sm_90a", source, "-o", target]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"ptxas: {done.stderr[-2000:]}")
    lines = [x for x in done.stderr.splitlines() if "spill" in x or "serialized" in x]
    return " ".join(x.strip() for x in lines)


def compile_all(folder: Path, cases: list[str]) -> list[dict[str, Any]]:
    """Compiles every variant into `folder`; the jobs that run them."""
    jobs: list[dict[str, Any]] = []
    texts: list[tuple[str, Path]] = []
    for case in cases:
        for kernel in KERNELS:
            ptx = compiled_by_triton(request(launch_of(case, kernel), H200)).asm["ptx"]
            variants: dict[str, tuple[int, ...] | None] = {"assembled": None, "delayed": None}
            if case == "causal":
                variants |= mutants(ptx)
            for name, without in variants.items():
                path = folder / f"{case}-{kernel}-{len(jobs)}.cubin"
                kinds = collections.Counter(s.kind for s in sites(ptx))
                jobs.append(
                    {
                        "case": case,
                        "kernel": kernel,
                        "variant": name,
                        "binary": str(path),
                        "mutant": without is not None,
                        "sites": dict(kinds),
                    }
                )
                text = with_words(ptx) if name == "assembled" else delayed(ptx, without)
                texts.append((text, path))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        said = pool.map(lambda x: assemble(*x), texts)
        for job, text in zip(jobs, said, strict=True):
            job["assembler"] = text
    order = ("assembled", "delayed")
    return sorted(
        jobs,
        key=lambda job: (
            job["mutant"],
            job["variant"] not in order[:1],
            job["variant"].startswith("barrier"),
        ),
    )


# ---- running ----


class Device:
    """One GPU: the cases' arrays, and kernels launched from given binaries."""

    def __init__(self) -> None:
        from genesis_fn.backends.cuda.driver.cuda import CudaDriver

        torch.cuda.init()
        self.driver = CudaDriver(0)
        self.stream = torch.cuda.Stream()
        torch.cuda.set_stream(self.stream)
        self.handle = self.driver.foreign_stream(self.stream.cuda_stream)
        self.arrays: dict[str, list[torch.Tensor]] = {}
        for case in CASES:
            self._compute(case)

    def tensors(self, case: str, kernel: str) -> list[torch.Tensor]:
        """Inputs, outputs and scratch of the plan that holds the kernel, computed as it ships."""
        arrays = self.arrays[case]
        return arrays[:5] if kernel == "forward" else arrays

    def _compute(self, case: str) -> None:
        spec = CASES[case]
        generator = torch.Generator("cuda").manual_seed(0)

        def random(length: int, heads: int) -> torch.Tensor:
            shape = (spec.batch, length, heads, spec.head_dim)
            return torch.randn(shape, generator=generator, device="cuda").bfloat16()

        q = random(spec.q_len, spec.q_heads)
        k, v = (random(spec.kv_len, spec.kv_heads) for _ in range(2))
        lse = torch.empty(spec.batch, spec.q_heads, spec.q_len, device="cuda")
        dout = random(spec.q_len, spec.q_heads)
        outs = [torch.empty_like(x) for x in (q, q, k, v)]
        self.arrays[case] = [q, k, v, outs[0], lse, dout, *outs[1:], torch.empty_like(lse)]
        for plan in (plan_attention(spec, H200), plan_attention_backward(spec, H200)):
            arrays = self.arrays[case][: plan.inputs + plan.outputs + len(plan.workspaces)]
            steps = self.driver.prepare(launches(plan))
            for step in steps:
                step.bind([x.data_ptr() for x in arrays])
                step.launch(self.handle)
            self.stream.synchronize()  # before the steps' modules are unloaded

    def run(self, job: dict[str, Any], count: int, seed: int) -> dict[str, Any]:
        """Launches a variant; how many launches, and what was seen: differences, late waits."""
        from cuda.bindings import driver as cu

        from genesis_fn.backends.cuda.binaries.compile import compile_launches
        from genesis_fn.backends.cuda.driver.cuda import CudaLaunch, _Module

        launch = launch_of(job["case"], job["kernel"])
        (shipped,) = compile_launches([launch], self.driver.info.target)
        binary = Path(job["binary"]).read_bytes()
        compiled = replace(shipped, binary=binary, key=job["binary"])
        module = _Module(self.driver, compiled)
        prepared = CudaLaunch(self.driver, launch, compiled, module)
        arrays = self.tensors(job["case"], job["kernel"])
        prepared.bind([x.data_ptr() for x in arrays])
        code, words, _ = cu.cuModuleGetGlobal(module.handle, b"delay_words")
        if int(code):
            raise RuntimeError(f"cuModuleGetGlobal: {code}")
        words = int(words)
        outputs = {"forward": [3, 4], "dkdv": [7, 8], "dq": [6]}[job["kernel"]]
        wanted = [arrays[i].clone() for i in outputs]
        differing = torch.zeros((), dtype=torch.int64, device="cuda")
        self.driver.fill_words(words, 0, 4, self.handle)
        start, done, late = time.perf_counter(), 0, 0
        step = 2 if job["mutant"] else 100
        while done < count and not (late or int(differing)):
            print(json.dumps({"progress": done}), flush=True)
            for _ in range(min(step, count - done)):
                done += 1
                mask, long = AMPLITUDES[done % len(AMPLITUDES)]
                for place, word in enumerate((2 * (seed + done) + 1, mask, long)):
                    self.driver.fill_words(words + 4 * place, word, 1, self.handle)
                for i in outputs:
                    arrays[i].fill_(7.0)
                prepared.launch(self.handle)
                wrong = [_bits(arrays[i]) != _bits(w) for i, w in zip(outputs, wanted, strict=True)]
                differing += torch.stack([x.any() for x in wrong]).any()
            self.stream.synchronize()
            late = self._word(words + 12)
        for i, value in zip(outputs, wanted, strict=True):
            arrays[i].copy_(value)
        self.stream.synchronize()
        return {
            "launches": done,
            "differing": int(differing),
            "late": late,
            "seconds": round(time.perf_counter() - start, 2),
        }

    def _word(self, address: int) -> int:
        from cuda.bindings import driver as cu

        value = ctypes.c_uint32()
        (code,) = cu.cuMemcpyDtoH(ctypes.addressof(value), address, 4)
        if int(code):
            raise RuntimeError(f"cuMemcpyDtoH: {code}")
        return value.value


def _bits(x: torch.Tensor) -> torch.Tensor:
    return x.view(torch.int16 if x.dtype == torch.bfloat16 else torch.int32)


def child(path: Path) -> None:
    """Runs the jobs of a file, one line of JSON for each."""
    given = json.loads(path.read_text())
    device = Device()
    print(json.dumps({"ready": True}), flush=True)
    for number, (job, launches) in enumerate(given):
        try:
            result = device.run(job, launches, 1 << (number % 20))
        except Exception as error:  # a fault of the kernel ends the context, hence the process
            print(json.dumps({"fault": f"{type(error).__name__}: {error}"[:300]}), flush=True)
            return
        print(json.dumps(result), flush=True)


def run_all(
    jobs: list[dict[str, Any]], launches: int, folder: Path, deadline: float, save: Callable
) -> None:
    """Adds each job's result to it; a process that hangs or faults is replaced by another."""
    counts = {"assembled": 10, "delayed": launches}
    work = [(job, counts.get(job["variant"], MUTANT_LAUNCHES)) for job in jobs]
    place = 0
    while place < len(work) and time.perf_counter() < deadline:
        path = folder / f"jobs-{place}.json"
        path.write_text(json.dumps(work[place:]))
        command = [sys.executable, "-m", "benchmarks.kernels.race_delays", "--child", str(path)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=_pump, args=(process, lines), daemon=True).start()
        result = _next(lines, START)
        if "ready" not in result:
            raise RuntimeError(f"a process could not begin: {result}")
        while place < len(work) and time.perf_counter() < deadline:
            result = _next(lines, SILENCE)
            work[place][0].update(result)
            save()
            print(line(work[place][0]), flush=True)
            place += 1
            if "hung" in result or "fault" in result:
                break
        process.kill()
        process.wait()


def _next(lines: queue.Queue[str], seconds: float) -> dict[str, Any]:
    """The next result, or that there was nothing for so long; news of progress begins anew."""
    while True:
        try:
            found = json.loads(lines.get(timeout=seconds))
        except queue.Empty:
            return {"hung": True}
        if "progress" not in found:
            return found


def _pump(process: subprocess.Popen[str], lines: queue.Queue[str]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("{"):
            lines.put(line)
    lines.put(json.dumps({"fault": "the process ended"}))


# ---- what it means ----


def outcome(job: dict[str, Any]) -> str:
    """In a word, what a job showed."""
    if "launches" not in job and "fault" not in job and "hung" not in job:
        return "not run"
    if "fault" in job:
        return f"fault: {job['fault']}"
    if "hung" in job:
        return "hung"
    if job["differing"]:
        return "differs"
    return "waits for ever" if job["late"] else "same"


def verdict(jobs: list[dict[str, Any]]) -> list[str]:
    """What is wrong: a delayed kernel that differs, or a kind of barrier whose loss went unseen."""
    wrong = [
        f"{job['case']} {job['kernel']}, {job['variant']}: {outcome(job)}"
        for job in jobs
        if not job["mutant"] and outcome(job) != "same"
    ]
    for kernel in KERNELS:
        for kind in MUST_SHOW:
            tried = [
                outcome(j)
                for j in jobs
                if j["mutant"] and j["kernel"] == kernel and j["variant"].startswith(kind)
            ]
            if all(x in ("same", "not run") for x in tried):
                wrong.append(f"{kernel}: no mutant without a {kind} is caught")
    return wrong


HEAD = "| kernel | case | variant | launches | outcome |\n|---|---|---|---|---|"


def line(job: dict[str, Any]) -> str:
    """A job's row of the table, in Markdown."""
    variant = f"{'without ' * job['mutant']}{job['variant']}"
    cells = (
        job["kernel"],
        job["case"],
        variant,
        str(job.get("launches", "")),
        outcome(job).splitlines()[0],
    )
    return f"| {' | '.join(cells)} |"


def main() -> int:
    """Compiles, runs, writes; 1 if something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out")
    parser.add_argument("--launches", type=int, default=LAUNCHES)
    parser.add_argument("--budget", type=float, default=85, help="seconds, after which it stops")
    parser.add_argument("--compile-only", action="store_true", help="without a GPU")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        child(given.child)
        return 0
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        jobs = compile_all(folder, list(CASES))
        print(f"{len(jobs)} binaries in {time.perf_counter() - start:.0f} s", flush=True)
        if given.compile_only:
            print("\n".join(f"{j['kernel']} {j['variant']}: {j['assembler']}" for j in jobs))
            return 0
        delayed_jobs = [j for j in jobs if j["variant"] == "delayed"]

        def save() -> None:
            if given.out:
                report = {
                    **around,
                    "launches": sum(j.get("launches", 0) for j in delayed_jobs),
                    "wrong": verdict(jobs),
                    "jobs": [{k: v for k, v in j.items() if k != "binary"} for j in jobs],
                }
                Path(given.out).write_text(json.dumps(report, indent=1) + "\n")

        around = surroundings()
        print(HEAD, flush=True)
        count = -(-given.launches // len(delayed_jobs))
        run_all(jobs, count, folder, start + given.budget, save)
    save()
    wrong = verdict(jobs)
    for problem in wrong:
        print(f"WRONG: {problem}")
    print(f"{'WRONG' if wrong else 'ok'} in {time.perf_counter() - start:.0f} s", flush=True)
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
