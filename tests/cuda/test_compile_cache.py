"""Compiling launches to cubins without a GPU, and the files that remember them."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from genesis_fn.backends.cuda.binaries import cache as storage, compile as compiler
from genesis_fn.backends.cuda.binaries.cache import BinaryCache, cache_folder
from genesis_fn.backends.cuda.binaries.triton_compile import CompileError
from genesis_fn.compiler.target import H200, OF_ARCHITECTURE
from genesis_fn.kernels.plan import BufferArg, Descriptor, Launch, Scalar

ADD = """\
import triton
import triton.language as tl

@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr, SCALE: tl.constexpr = 2):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = i < n
    value = tl.load(x + i, keep) + SCALE * tl.load(y + i, keep)
    tl.store(out + i, value, keep)
"""

TILE = """\
import triton
import triton.language as tl

@triton.jit
def tile(x, out, M: tl.constexpr, N: tl.constexpr):
    value = x.load([tl.program_id(0) * M, 0])
    out.store([tl.program_id(0) * M, 0], value * 2)
"""


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(compiler, "_memory", {})
    return BinaryCache(tmp_path)


def add_launch(n: int = 1024, block: int = 256, text: str = ADD, warps: int = 4) -> Launch:
    return Launch(
        kernel=compiler.SourceKernel("add", text, modules=()),
        grid=(-(-n // block), 1, 1),
        arguments={
            "x": BufferArg(0, "fp32"),
            "y": BufferArg(1, "fp32"),
            "out": BufferArg(2, "fp32"),
            "n": Scalar(n),
        },
        constants={"BLOCK": block},
        num_warps=warps,
    )


def tile_launch(rows: int = 256) -> Launch:
    view = {"shape": (rows, 64), "strides": (64, 1), "block": (64, 64)}
    return Launch(
        kernel=compiler.SourceKernel("tile", TILE, modules=()),
        grid=(rows // 64, 1, 1),
        arguments={
            "x": Descriptor(BufferArg(0, "bf16"), **view),
            "out": Descriptor(BufferArg(1, "bf16"), **view),
        },
        constants={"M": 64, "N": 64},
    )


@pytest.fixture(scope="module", autouse=True)
def end_workers():
    yield
    compiler.stop_workers()


def test_compiles_in_parallel_and_remembers(cache, monkeypatch):
    launches = [add_launch(), add_launch(n=2048), add_launch(block=512), tile_launch()]
    first = compiler.compile_launches(launches, H200, cache)
    assert first[0] is first[1], "launches that differ in a scalar's value share a kernel"
    assert len({c.key for c in first}) == 3
    for compiled in first:
        assert compiled.binary.startswith(b"\x7fELF")
        assert compiled.num_warps == 4
    assert first[0].parameters == ("*fp32", "*fp32", "*fp32", "i32")
    assert first[3].parameters == ("tensordesc<bf16[64, 64]>",) * 2
    assert [d["elem_size"] for d in first[3].descriptors] == [2, 2]
    assert first[3].shared > 0

    monkeypatch.setattr(compiler, "_memory", {})
    monkeypatch.setattr(compiler, "_compile_all", lambda requests: pytest.fail("recompiled"))
    with pytest.raises(pytest.fail.Exception):
        compiler.compile_launches([add_launch(block=128)], H200, cache)
    assert compiler.compile_launches(launches, H200, cache) == first


WAITS = """\
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait

@triton.jit
def waits(x, out):
    tl.store(out + 1, 3.0)
    gdc_wait()
    tl.store(out, tl.load(x))
"""


def disassembled(binary: bytes, path) -> str:
    import triton

    path.write_bytes(binary)
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    command = [str(tool), "-sass", str(path)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_programmatic_kernels_wait_before_they_touch_memory(cache, tmp_path):
    own = Launch(
        compiler.SourceKernel("waits", WAITS, modules=()),
        (1, 1, 1),
        {"x": BufferArg(0, "fp32"), "out": BufferArg(1, "fp32")},
    )
    launches = [add_launch(), tile_launch(), own]
    late = [replace(launch, programmatic=True) for launch in launches]
    for launch, compiled in zip(late, compiler.compile_launches(late, H200, cache), strict=True):
        code = disassembled(compiled.binary, tmp_path / "kernel.cubin")
        waits = code.index("ACQBULK")
        assert code.count("ACQBULK") == 1
        touched = [code.find(op) for op in ("LDG", "STG", "UTMALDG", "UTMASTG")]
        first = min(at for at in touched if at >= 0)
        assert (first < waits) == (launch is late[2]), "its own wait is kept"
        if launch is not late[2]:
            assert waits < code.index("PREEXIT")
    plain = compiler.compile_launches(launches[:2], H200, cache)
    assert all("ACQBULK" not in disassembled(c.binary, tmp_path / "plain") for c in plain)
    # Before sm_90 there is nothing to wait for.
    compiler.compile_launches([late[0]], OF_ARCHITECTURE[80], cache)


def test_architectures_without_tensor_maps_get_pointers(cache):
    (compiled,) = compiler.compile_launches([tile_launch()], OF_ARCHITECTURE[80], cache)
    assert compiled.descriptors == ()


@pytest.mark.parametrize(
    "change",
    [
        {"text": ADD.replace("SCALE: tl.constexpr = 2", "SCALE: tl.constexpr = 3")},
        {"block": 128},
        {"warps": 8},
        {"n": 1023},  # no longer divisible by 16
    ],
)
def test_key_changes_with_what_determines_the_binary(change):
    base = compiler.launch_key(add_launch(), H200)
    assert compiler.launch_key(add_launch(**change), H200) != base
    assert compiler.launch_key(add_launch(), OF_ARCHITECTURE[89]) != base
    assert compiler.launch_key(add_launch(n=4096), H200) == base


def test_key_follows_the_modules_a_kernel_uses(tmp_path, monkeypatch):
    (tmp_path / "used_by_kernel.py").write_text("X = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    one = compiler.SourceKernel("add", ADD, modules=("used_by_kernel",)).digest
    compiler._module_digest.cache_clear()
    (tmp_path / "used_by_kernel.py").write_text("X = 2\n")
    assert compiler.SourceKernel("add", ADD, modules=("used_by_kernel",)).digest != one
    with pytest.raises(ValueError, match="no_such_module"):
        _ = compiler.SourceKernel("add", ADD, modules=("no_such_module",)).digest


def test_errors_name_the_kernel(cache):
    bad = ADD.replace("tl.load(x + i, keep)", "tl.lod(x + i, keep)")
    with pytest.raises(CompileError, match="(?s)kernel add with .*lod"):
        compiler.compile_launches([add_launch(text=bad), add_launch()], H200, cache)
    launch = add_launch()
    short = Launch(launch.kernel, launch.grid, launch.arguments, {}, 4, 3)
    with pytest.raises(CompileError, match="no parameter 'BLOCK'"):
        compiler.compile_launches([short, add_launch(block=64)], H200, cache)
    with pytest.raises(TypeError, match="constexpr"):
        compiler.launch_key(Launch(launch.kernel, (1, 1, 1), {}, {"BLOCK": object()}), H200)


def test_dead_worker_is_replaced(cache):
    launches = [add_launch(block=32), add_launch(block=64)]
    compiler.compile_launches(launches, H200, cache)
    for worker in compiler._started:
        worker._process.kill()
        worker._process.wait()
    outcomes = []
    for block in (16, 128, 2048, 4096, 8192):
        try:
            compiler.compile_launches([add_launch(block=block)], H200, cache)
            outcomes.append("ok")
        except CompileError as error:
            outcomes.append(str(error))
    assert outcomes[-1] == "ok", outcomes


def test_damaged_entries_are_absent(tmp_path):
    cache = BinaryCache(tmp_path)
    key = "ab" + "0" * 62
    cache.put(key, {"name": "k"}, b"binary")
    (path,) = [p for p in tmp_path.rglob("*") if p.is_file()]
    whole = path.read_bytes()
    assert cache.get(key) == ({"name": "k"}, b"binary")
    damaged = [whole[:-1], whole[:20], b"", whole + b"x", b"\0" * len(whole)]
    damaged += [whole[:i] + bytes([whole[i] ^ 1]) + whole[i + 1 :] for i in range(len(whole))]
    for content in damaged:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        assert cache.get(key) is None
        assert not path.exists(), "a damaged entry is removed"
    cache.put(key, {"name": "k"}, b"binary")
    path.rename(path.with_name("1" * 62))
    assert cache.get("ab" + "1" * 62) is None, "an entry under a wrong name is no entry"


def test_concurrent_writers_leave_whole_entries(tmp_path):
    key = "cd" + "0" * 62
    binaries = [bytes([i]) * 200_000 for i in range(4)]
    seen = []

    def work(i: int) -> None:
        cache = BinaryCache(tmp_path)
        for _ in range(20):
            cache.put(key, {"i": i}, binaries[i])
            entry = cache.get(key)
            seen.append(entry is not None and entry[1] == binaries[entry[0]["i"]])

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert all(seen) and len(seen) == 80
    assert not list(tmp_path.rglob("*.tmp"))


def test_entries_not_used_for_longest_go_first(tmp_path, monkeypatch):
    monkeypatch.setattr(storage, "_LOOKED_AT", 1)
    held = BinaryCache(tmp_path, limit=13_000)
    keys = [f"{i:02x}{i:062x}" for i in range(12)]
    for i, key in enumerate(keys[:9]):
        held.put(key, {"number": i}, bytes(1000))
        os.utime(held._path(key), (1000 + i, 1000 + i))
    entry = held.get(keys[0])  # used again, so no longer the oldest
    assert entry is not None and entry[1] == bytes(1000)
    for key in keys[9:]:
        held.put(key, {}, bytes(1000))
    there = [held.get(key) is not None for key in keys]
    assert there[0] and not there[1] and all(there[9:])
    assert sum(f.stat().st_size for f in tmp_path.glob("kernels/*/*")) <= 13_000


def test_an_entry_removed_by_another_process_is_absent(tmp_path):
    held, other = BinaryCache(tmp_path), BinaryCache(tmp_path, limit=0)
    held.put("ab" * 32, {}, b"binary")
    other.trim()
    assert held.get("ab" * 32) is None
    other.trim()


def test_unwritable_folder_costs_only_time(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    cache = BinaryCache(blocked)
    cache.put("ef" + "0" * 62, {}, b"x")
    assert cache.get("ef" + "0" * 62) is None


def test_cache_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("GENESIS_CACHE_DIR", str(tmp_path / "here"))
    assert cache_folder() == tmp_path / "here"
    monkeypatch.delenv("GENESIS_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "genesis_fn"


def test_warm_start_imports_neither_triton_nor_torch(cache, tmp_path):
    compiler.compile_launches([add_launch()], H200, cache)
    program = textwrap.dedent("""
        import sys, pathlib
        from genesis_fn.backends.cuda.binaries import cache as storage, compile as compiler
        from genesis_fn.backends.cuda.binaries.cache import BinaryCache
        from genesis_fn.compiler.target import H200
        from genesis_fn.kernels.plan import BufferArg, Launch, Scalar
        before = set(sys.modules)
        text = pathlib.Path(sys.argv[2]).read_text()
        buffers = {name: BufferArg(i, "fp32") for i, name in enumerate(("x", "y", "out"))}
        arguments = {**buffers, "n": Scalar(64)}
        launch = Launch(compiler.SourceKernel("add", text, modules=()), (4, 1, 1), arguments,
                        {"BLOCK": 256})
        cache = BinaryCache(pathlib.Path(sys.argv[1]))
        compiler._compile_all = lambda requests: sys.exit("recompiled")
        (compiled,) = compiler.compile_launches([launch], H200, cache)
        new = set(sys.modules) - before
        assert not {"torch", "triton"} & new, new
        print(compiled.name)
    """)
    (tmp_path / "text.py").write_text(ADD)
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path), str(tmp_path / "text.py")],
        capture_output=True,
        text=True,
        env=environment,
    )
    assert done.stdout.strip() == "add", done.stderr


def test_the_librarys_kernels_travel_by_name(tmp_path):
    """The library's functions compile in workers; users' compile here, where their modules are
    imported: a second import might do anything, or fail without the whole library."""
    (tmp_path / "my_kernels.py").write_text(
        "import os\nimport triton\nimport triton.language as tl\nfrom genesis_fn import jit\n\n"
        "assert os.environ.setdefault('IMPORTED_BY', str(os.getpid())) == str(os.getpid())\n\n"
        "@triton.jit\ndef double(v):\n    return v * 2\n\n"
        "@triton.jit\ndef apply(x, F: tl.constexpr, T: tl.constexpr, B: tl.constexpr):\n"
        "    i = tl.arange(0, B)\n    tl.store(x + i, F(tl.load(x + i)).to(T))\n"
    )
    program = textwrap.dedent("""
        import os, sys, pathlib
        sys.path.insert(0, sys.argv[1])
        import triton, triton.language as tl, my_kernels
        from genesis_fn.backends.cuda.binaries import cache as storage, compile as compiler
        from genesis_fn.backends.cuda.binaries.cache import BinaryCache
        from genesis_fn.compiler.target import H200
        from genesis_fn.kernels.plan import BufferArg, Launch

        @triton.jit
        def local(v):
            return v * 3

        def launch(function, block):
            constants = {"F": function, "T": tl.float32, "B": block}
            return Launch(my_kernels.apply, (1, 1, 1), {"x": BufferArg(0, "fp32")}, constants)

        if __name__ == "__main__":
            cache = BinaryCache(pathlib.Path(sys.argv[1]))
            launches = [launch(my_kernels.double, 32), launch(my_kernels.double, 64),
                        launch(local, 32)]
            from genesis_fn.kernels.language.source import kernel_from_source
            text = "def made(x, B: tl.constexpr):\\n    tl.store(x, exp2(tl.load(x)) + B)\\n"
            made = kernel_from_source(text)
            launches.append(Launch(made, (1, 1, 1), {"x": BufferArg(0, "fp32")}, {"B": 1}))
            from genesis_fn.kernels.sort.radix_sort import radix_start_kernel
            buffers = {name: BufferArg(i, "i32") for i, name in enumerate(("keys", "order", "out"))}
            constants = {"LENGTH": 64, "BLOCK": 64}
            launches.append(Launch(radix_start_kernel, (1, 1, 1), buffers, constants))
            wanted = [compiler.request(l, H200).where[0] for l in launches]
            assert wanted == ["object", "object", "object", "generated", "module"], wanted
            done = compiler.compile_launches(launches, H200, cache)
            assert len({c.key for c in done}) == 5
            print(*[c.name for c in done])
    """)
    script = tmp_path / "program.py"
    script.write_text(program)
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path)],
        capture_output=True,
        text=True,
        env=environment,
    )
    assert done.stdout.split() == [*["apply"] * 3, "made", "radix_start_kernel"], done.stderr
