"""Runs compiled kernels without a GPU: a model of PTX on NumPy, all threads of some blocks in step.

Triton's interpreter runs a kernel's source; this runs what its compiler made of it. An access that
leaves its buffers or is not aligned to its width raises, as it would on a device. Threads that took
different branches wait for each other at the least position in the text, so that the lanes of a
warp meet where they should. Tensor-core and bulk-copy instructions are not modelled.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

UNSIGNED = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}
TYPES: dict[str, Any] = {
    "f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32, "f64": np.float64,
    "pred": np.bool_,
} | {
    f"{k}{n}": np.dtype(f"{'int' if k == 's' else 'uint'}{n}").type
    for k in "sub" for n in (8, 16, 32, 64)
}  # fmt: skip
_PAIRS: dict[str, Any] = {"e4m3x2": ml_dtypes.float8_e4m3fn, "e5m2x2": ml_dtypes.float8_e5m2}
_STATEMENT = re.compile(r"(?:@(!?)(%?\w+)\s+)?([a-z][\w.:]*)\s*(.*)", re.S)


class Fault(Exception):
    """An access that a device would refuse."""


class Memory:
    """Arrays at the addresses `bases`, in order; at made-up ones, far apart, if none are given."""

    def __init__(self, arrays: Sequence[np.ndarray], bases: Sequence[int] = ()) -> None:
        self.bytes = [a.reshape(-1).view(np.uint8) for a in arrays]
        self.bases = list(bases) or [(i + 1) << 40 for i in range(len(self.bytes))]

    def places(self, address: np.ndarray, size: int) -> list[tuple[np.ndarray, np.ndarray]]:
        """(bytes of an array, positions in it [n, size]) for each array, with checks."""
        if (address % size).any():
            raise Fault(f"an access of {size} bytes at {address[address % size > 0][0]:#x}")
        found = []
        number = np.searchsorted(np.array(self.bases, np.uint64), address, "right") - 1
        for k in np.unique(number):
            here = number == k
            offset = address[here].astype(np.int64) - self.bases[max(k, 0)]
            if k < 0 or (offset + size > self.bytes[k].size).any():
                raise Fault(f"{size} bytes at {offset.max()} of array {k}")
            found.append((here, self.bytes[k], offset[:, None] + np.arange(size)))
        return found

    def load(self, address: np.ndarray, size: int) -> np.ndarray:
        data = np.empty((address.size, size), np.uint8)
        for here, array, at in self.places(address, size):
            data[here] = array[at]
        return data

    def store(self, address: np.ndarray, data: np.ndarray) -> None:
        for here, array, at in self.places(address, data.shape[1]):
            array[at] = data[here]


def _statements(body: str) -> tuple[list[Any], dict[str, int], dict[str, dict[str, int]]]:
    """(guarded operations, positions of labels, bytes of variables by space) of a kernel's text."""
    body = re.sub(r"//[^\n]*", "", body)
    body = re.sub(r"(?m)^\s*\.(loc|file|pragma)\b[^\n;]*;?\s*$", "", body)
    operations: list[Any] = []
    labels: dict[str, int] = {}
    sizes: dict[str, dict[str, int]] = {"shared": {}, "local": {}}
    for piece in body.split(";"):
        text = piece.strip()
        while True:
            text = text.lstrip("{} \t\n")
            if label := re.match(r"(\$[\w$]+):", text):
                labels[label[1]] = len(operations)
                text = text[label.end() :]
            elif not re.match(r"[{}\s]", text[:1] or "x"):
                break
        if declared := re.match(
            r"\.(shared|local)\s+\.align\s+\d+\s+\.b(\d+)\s+(\w+)\[(\d+)\]", text
        ):
            space, width, name, count = declared.groups()
            sizes[space][name] = int(width) // 8 * int(count)
        if not text or text.startswith("."):
            continue
        negated, guard, name, rest = _STATEMENT.fullmatch(text).groups()
        operands, depth, start = [], 0, 0
        for i, c in enumerate(rest + ","):
            depth += (c in "{[") - (c in "}]")
            if c == "," and not depth:
                operands.append(rest[start:i].strip())
                start = i + 1
        operands = [o for o in operands if o]
        parts = [part.partition("::")[0] for part in name.split(".")]
        operations.append((guard, bool(negated), parts, operands))
    return operations, labels, sizes


class Blocks:
    """Some thread blocks of one launch."""

    def __init__(
        self,
        ptx: str,
        memory: Memory,
        arguments: Sequence[int],
        grid: Sequence[int],
        blocks: np.ndarray,
        shared: int,
    ) -> None:
        entry = ptx.index(".visible .entry")
        head, _, rest = ptx[entry:].partition("{")
        self.name = re.match(r"\.visible \.entry (\w+)", head)[1]
        self.operations, self.labels, variables = _statements(rest.partition("// -- End")[0])
        threads = int(re.search(r"\.reqntid (\d+)", head)[1])
        self.parameters = {f"{self.name}_param_{i}": a for i, a in enumerate(arguments)}
        # Tables of constants lie behind all that a launch may touch.
        self.variables = {"global_smem": 0}
        arrays, bases = list(memory.bytes), list(memory.bases)
        for name, values in re.findall(
            r"\.global \.align \d+ \.b8 (\w+)\[\d+\] = \{([\d, ]+)\};", ptx[:entry]
        ):
            self.variables[name] = ((bases[-1] if bases else 0) >> 44) + 1 << 44
            bases.append(self.variables[name])
            arrays.append(np.array([int(v) for v in values.split(",")], np.uint8))
        self.memory = Memory(arrays, bases)
        self.count = blocks.size * threads
        self.carry = np.zeros(self.count, np.uint64)
        self.block = np.repeat(np.arange(blocks.size), threads)
        thread = np.tile(np.arange(threads), blocks.size)
        self.lane, self.warp = thread % 32, np.arange(self.count) // 32 * 32
        size = -shared % 128 + shared
        for name, n in variables["shared"].items():
            self.variables[name] = size
            size += -n % 128 + n
        private = 0
        for name, n in variables["local"].items():
            self.variables[name] = private
            private += -n % 16 + n
        # Of each block, and of each thread.
        self.sizes = {"shared": max(size, 16), "local": max(private, 16)}
        self.shared = np.full(blocks.size * self.sizes["shared"], 0xFF, np.uint8)
        self.local = np.full(self.count * self.sizes["local"], 0xFF, np.uint8)
        x, y = blocks % grid[0], blocks // grid[0]
        self.special = {
            "%tid.x": thread,
            "%tid.y": thread * 0,
            "%tid.z": thread * 0,
            "%laneid": self.lane,
            "%ntid.x": thread * 0 + threads,
            "%lanemask_lt": (1 << self.lane) - 1,
            "%ctaid.x": x[self.block],
            "%ctaid.y": (y % grid[1])[self.block],
            "%ctaid.z": (y // grid[1])[self.block],
            "%nctaid.x": thread * 0 + grid[0],
            "%nctaid.y": thread * 0 + grid[1],
            "%nctaid.z": thread * 0 + grid[2],
        }
        self.values: dict[str, np.ndarray] = {}
        self.at = np.zeros(self.count, np.int64)
        self.active = np.ones(self.count, np.bool_)

    def run(self) -> None:
        """Until every thread has returned."""
        end = len(self.operations)
        waiting = np.zeros(self.count, np.bool_)
        while True:
            running = (self.at < end) & ~waiting
            if not running.any():
                if not waiting.any():
                    return
                # Blocks do not wait for each other, and all of a block's threads have come.
                waiting[:] = False
                continue
            now = self.at[running].min()
            active = running & (self.at == now)
            guard, negated, name, operands = self.operations[now]
            if guard:
                active &= self.values[guard] ^ negated
            following = np.where(running & (self.at == now), now + 1, self.at)
            if name[0] in ("bra", "ret", "exit"):
                target = self.labels[operands[0]] if name[0] == "bra" else end
                following[active] = target
            elif name[0] in ("bar", "barrier") and name[1] != "warp":
                waiting |= active
            elif active.any():
                self.active = active
                try:
                    self.step(name, operands)
                except Fault as fault:
                    raise Fault(f"{self.name}: {'.'.join(name)} {operands}: {fault}") from None
                except Exception as error:
                    error.add_note(f"{self.name}: {'.'.join(name)} {operands}")
                    raise
            self.at = following

    # Operands.

    def read(self, operand: str, kind: str) -> np.ndarray:
        """The operand of every thread, as type `kind`."""
        if operand.startswith("{"):
            width = int(kind[1:])
            parts = [x.strip() for x in operand.strip("{} ").split(",")]
            each = width // len(parts)
            total = np.zeros(self.count, UNSIGNED[width])
            for i, x in enumerate(parts):
                total |= self.read(x, f"b{each}").astype(UNSIGNED[width]) << (i * each)
            return total
        dtype = TYPES[kind]
        if operand in self.values:
            value = self.values[operand]
            if value.dtype == dtype or kind == "pred":
                return value
            if value.dtype.itemsize == np.dtype(dtype).itemsize:
                return value.view(dtype)
            return value.astype(dtype)
        if operand in self.special:
            return self.special[operand].astype(dtype)
        if operand in self.variables:
            return np.full(self.count, self.variables[operand], dtype)
        if operand[:2] in ("0f", "0F"):
            bits = np.array([int(operand[2:], 16)], np.uint32)
            return np.repeat(bits.view(dtype), self.count)
        if operand[:2] in ("0d", "0D"):
            bits = np.array([int(operand[2:], 16)], np.uint64)
            return np.repeat(bits.view(dtype), self.count)
        if operand.startswith("%"):  # undefined: whatever it holds does not matter
            return np.zeros(self.count, dtype)
        number = int(operand.rstrip("U"), 0)
        if np.dtype(dtype).kind in "fV" or dtype is ml_dtypes.bfloat16:
            width = np.dtype(dtype).itemsize * 8
            return np.repeat(
                np.array([number % (1 << width)], UNSIGNED[width]).view(dtype), self.count
            )
        if kind == "pred":
            return np.full(self.count, bool(number))
        width = np.dtype(dtype).itemsize * 8
        return np.repeat(np.array([number % (1 << width)], UNSIGNED[width]).view(dtype), self.count)

    def write(self, operand: str, value: np.ndarray) -> None:
        """Sets a register, or the parts of one, of the active threads."""
        if operand == "_":
            return
        if operand.startswith("{"):
            parts = [x.strip() for x in operand.strip("{} ").split(",")]
            each = value.dtype.itemsize * 8 // len(parts)
            bits = value.view(UNSIGNED[value.dtype.itemsize * 8])
            for i, x in enumerate(parts):
                self.write(x, (bits >> (i * each)).astype(UNSIGNED[each]))
            return
        if "|" in operand:
            operand = operand.partition("|")[0]
        if value.dtype != np.bool_:
            value = value.view(UNSIGNED[value.dtype.itemsize * 8])
        held = self.values.get(operand)
        if held is None or self.active.all():
            self.values[operand] = value
        else:
            if held.dtype != value.dtype:
                held = held.astype(value.dtype)
            self.values[operand] = np.where(self.active, value, held)

    def address(self, operand: str) -> np.ndarray:
        """The address, in bytes, that the active threads name."""
        name, _, offset = operand.strip("[] ").replace(" ", "").partition("+")
        kind = "u64"
        return (self.read(name, kind) + np.uint64(int(offset or "0", 0) % (1 << 64)))[self.active]

    def held(self, address: np.ndarray, size: int, space: str = "shared") -> np.ndarray:
        """Positions of shared or local memory [n, size] for addresses of active threads."""
        most = self.sizes[space]
        address = address.astype(np.int64) & 0xFFFFFFFF
        if (address % size).any():
            raise Fault(f"a {space} access of {size} bytes at {address[address % size > 0][0]}")
        if (address + size > most).any():
            raise Fault(f"{space} memory at {address.max()} of {most}")
        own = (self.block if space == "shared" else np.arange(self.count))[self.active] * most
        return (own + address)[:, None] + np.arange(size)

    # Operations.

    def step(self, name: list[str], operands: list[str]) -> None:
        family = name[0]
        if family in ("ld", "st"):
            self.access(name, operands)
        elif family == "cp":
            self.copy(name, operands)
        elif family in ("fence", "membar", "bar", "barrier", "griddepcontrol", "nanosleep"):
            return
        elif family in ("shfl", "vote", "redux", "match", "activemask", "elect"):
            self.among_lanes(name, operands)
        elif family in ("atom", "red"):
            self.atomic(name, operands)
        elif family in ("ldmatrix", "stmatrix"):
            self.matrices(name, operands)
        elif family == "mma":
            self.multiply(name, operands)
        elif family == "setp":
            self.compare(name, operands)
        elif family in ("mad", "madc") and ("cc" in name or family == "madc"):
            self.write(operands[0], self.carried(name, operands[1:]))
        elif family == "cvt":
            self.write(operands[0], self.converted(name, operands))
        elif family == "createpolicy":  # of a cache, which the model does not have
            self.write(operands[0], np.zeros(self.count, np.uint64))
        elif family in ("cvta",):
            self.write(operands[0], self.read(operands[1], "u64"))
        else:
            self.write(operands[0], self.computed(name, operands[0], operands[1:]))

    def access(self, name: list[str], operands: list[str]) -> None:
        kind, lanes = name[-1], 1
        for part in name:
            if re.fullmatch(r"v\d", part):
                lanes = int(part[1:])
        width = int(re.sub(r"\D", "", kind))
        size = width // 8 * lanes
        if name[0] == "ld" and name[1] == "param":
            argument = self.parameters[operands[1].strip("[]")]
            self.write(
                operands[0],
                np.repeat(np.array([argument % (1 << width)], UNSIGNED[width]), self.count),
            )
            return
        place, other = (operands[1], operands[0]) if name[0] == "ld" else operands[:2]
        registers = [x.strip() for x in other.strip("{} ").split(",")]
        address = self.address(place)
        space = name[1]
        if space not in ("shared", "local", "global"):
            raise ValueError(f"memory {name}")
        where = self.held(address, size, space) if space != "global" else None
        near = self.shared if space == "shared" else self.local
        if name[0] == "st":
            data = np.stack([self.read(r, f"b{width}")[self.active] for r in registers], 1)
            data = np.ascontiguousarray(data).view(np.uint8)
            if where is not None:
                near[where] = data
            else:
                self.memory.store(address, data)
            return
        data = near[where] if where is not None else self.memory.load(address, size)
        data = np.ascontiguousarray(data).view(UNSIGNED[width])
        for i, r in enumerate(registers):
            whole = np.zeros(self.count, UNSIGNED[width])
            whole[self.active] = data[:, i]
            self.write(r, whole)

    def matrices(self, name: list[str], operands: list[str]) -> None:
        """8 x 8 matrices of 16 bits: lane 8 m + i says where row i of matrix m is, and lane l
        holds elements 2 (l % 4) and the next of row l // 4 (of column l // 4 with "trans")."""
        count = next(int(p[1:]) for p in name if re.fullmatch(r"x\d", p))
        place, other = operands if name[0] == "stmatrix" else operands[::-1]
        registers = [x.strip() for x in other.strip("{} ").split(",")]
        if not self.active.reshape(-1, 32).all(1)[self.warp[self.active] // 32].all():
            raise Fault("matrices move with part of a warp")
        rows = np.zeros(self.count, np.int64)
        given = self.active & (self.lane < 8 * count)
        everyone, self.active = self.active, given
        rows[given] = self.held(self.address(place), 16)[:, 0]
        self.active = everyone
        for m, register in enumerate(registers):
            if "trans" in name:
                row = [8 * m + 2 * (self.lane % 4) + k for k in (0, 1)]
                at = [rows[self.warp + r] + 2 * (self.lane // 4) for r in row]
            else:
                first = rows[self.warp + 8 * m + self.lane // 4] + 4 * (self.lane % 4)
                at = [first, first + 2]
            at = np.stack([at[0], at[0] + 1, at[1], at[1] + 1], 1)
            if name[0] == "stmatrix":
                data = np.ascontiguousarray(self.read(register, "b32")).view(np.uint8)
                self.shared[at[everyone]] = data.reshape(-1, 4)[everyone]
            else:
                self.write(register, self.shared[at].view(np.uint32).reshape(-1))

    def multiply(self, name: list[str], operands: list[str]) -> None:
        """d = a b + c, 16 x 8 of each warp, from the lanes' parts of rows lane // 4 and so on."""
        depth = int(next(p for p in name if re.fullmatch(r"m16n8k\d+", p))[6:])
        kinds = name[-4:]
        lists = [[x.strip() for x in o.strip("{} ").split(",")] for o in operands]
        each = {"f64": 1, "tf32": 1, "bf16": 2, "f16": 2, "s8": 4, "u8": 4}[kinds[1]]
        held = "f32" if kinds[1] == "tf32" else kinds[1]
        whole = "b64" if kinds[1] == "f64" else "b32"
        total = np.int64 if kinds[3] == "s32" else np.float64
        warps, group, thread = self.count // 32, self.lane // 4, self.lane % 4
        number = np.arange(self.count) // 32
        a, b = np.zeros((warps, 16, depth), total), np.zeros((warps, depth, 8), total)
        for matrix, registers in ((a, lists[1]), (b, lists[2])):
            for r, register in enumerate(registers):
                data = np.ascontiguousarray(self.read(register, whole)).view(TYPES[held])
                for j in range(each):
                    part = data.reshape(-1, each)[:, j].astype(total)
                    if matrix is a:
                        at = each * thread + (r >> 1) * 4 * each + j
                        a[number, group + 8 * (r & 1), at] = part
                    else:
                        b[number, each * thread + 4 * each * r + j, group] = part
        product = a @ b
        for r, (target, register) in enumerate(zip(lists[0], lists[3], strict=True)):
            value = product[number, group + 8 * (r >> 1), 2 * thread + (r & 1)]
            c = self.read(register, kinds[3])
            self.write(target, (value + c.astype(total)).astype(TYPES[kinds[3]]))

    def copy(self, name: list[str], operands: list[str]) -> None:
        if "commit_group" in name or "wait_group" in name or "wait_all" in name:
            return
        if "bulk" in name:
            raise ValueError(f"{name} is not modelled")
        size = int(operands[2], 0)
        taken = self.read(operands[3], "u32")[self.active] if len(operands) > 3 else None
        where = self.held(self.address(operands[0]), size)
        address = self.address(operands[1])
        data = np.zeros((address.size, size), np.uint8)
        some = np.ones(address.size, np.bool_) if taken is None else taken > 0
        if some.any():
            data[some] = self.memory.load(address[some], size)
        if taken is not None:
            data[np.arange(size)[None, :] >= taken[:, None]] = 0
        self.shared[where] = data

    def atomic(self, name: list[str], operands: list[str]) -> None:
        kind = name[-1]
        result, place, value = ("_", *operands) if name[0] == "red" else operands[:3]
        registers = [x.strip() for x in value.strip("{} ").split(",")]
        size = int(kind[1:]) // 8 * len(registers)
        address = self.address(place)
        value = np.stack([self.read(r, kind)[self.active] for r in registers], 1)
        old = np.zeros((self.count, len(registers)), TYPES[kind])
        for i, (n, v) in enumerate(zip(np.flatnonzero(self.active), value, strict=True)):
            if "shared" in name:
                array, at = self.shared, self.held(address, size)[i]
            else:
                ((_, array, positions),) = self.memory.places(address[i : i + 1], size)
                at = positions[0]
            now = array[at].view(TYPES[kind])
            old[n] = now
            function = {"add": np.add, "max": np.maximum, "min": np.minimum, "or": np.bitwise_or}
            array[at] = function[next(p for p in name if p in function)](now, v).view(np.uint8)
        for j, register in enumerate(result.strip("{} ").split(",")):
            self.write(register.strip(), old[:, j])

    def among_lanes(self, name: list[str], operands: list[str]) -> None:
        if name[0] == "shfl":
            mode, value = name[2], self.read(operands[1], "b32")
            by, clamp = self.read(operands[2], "u32"), self.read(operands[3], "u32")
            if (clamp >> 8).any():
                raise ValueError("segments of a warp")
            by = by.astype(np.int64) & 31
            source = {
                "bfly": self.lane ^ by,
                "up": self.lane - by,
                "down": self.lane + by,
                "idx": by,
            }[mode]
            fits = (source >= 0) & (source < 32)
            source = self.warp + np.where(fits, source, self.lane)
            if not self.active[source[self.active]].all():
                raise Fault("a lane reads one that does not take part")
            self.write(operands[0], value[source])
            if "|" in operands[0]:
                self.write(operands[0].partition("|")[2], fits)
            return
        lanes = self.active.reshape(-1, 32)
        if name[0] == "activemask":
            bits = (lanes << np.arange(32)).sum(1)
        elif name[0] == "vote":
            value = (self.read(operands[1], "pred") & self.active).reshape(-1, 32)
            if name[2] in ("any", "all"):
                held = value.any(1) if name[2] == "any" else (value | ~lanes).all(1)
                self.write(operands[0], np.repeat(held, 32))
                return
            bits = (value.astype(np.int64) << np.arange(32)).sum(1)
        elif name[0] == "match":
            value = self.read(operands[1], "b32").reshape(-1, 32)
            same = (value[:, :, None] == value[:, None, :]) & lanes[:, None, :]
            bits = (same.astype(np.int64) << np.arange(32)).sum(2).reshape(-1)
            self.write(operands[0], bits.astype(np.uint32))
            return
        elif name[0] == "redux":
            value = self.read(operands[1], name[-1]).reshape(-1, 32)
            function = {
                "add": np.add,
                "max": np.maximum,
                "min": np.minimum,
                "or": np.bitwise_or,
                "and": np.bitwise_and,
                "xor": np.bitwise_xor,
            }[name[2]]
            if not (lanes.all(1) == lanes.any(1)).all():
                raise Fault("a reduction that lanes of a warp do not take part in")
            self.write(operands[0], np.repeat(function.reduce(value, 1, dtype=value.dtype), 32))
            return
        else:
            raise ValueError(f"{name} is not modelled")
        self.write(operands[0], np.repeat(bits, 32).astype(np.uint32))

    def compare(self, name: list[str], operands: list[str]) -> None:
        kind, test = name[-1], name[1]
        a, b = self.read(operands[1], kind), self.read(operands[2], kind)
        if kind in ("bf16", "f16"):
            a, b = a.astype(np.float32), b.astype(np.float32)
        floating = a.dtype.kind == "f"
        unordered = (np.isnan(a) | np.isnan(b)) if floating else np.zeros(self.count, np.bool_)
        if test in ("nan", "num"):
            held = unordered if test == "nan" else ~unordered
        else:
            also = test.endswith("u") and floating
            base = test[:2]
            with np.errstate(invalid="ignore"):
                held = {
                    "eq": lambda: a == b,
                    "ne": lambda: (a != b) & ~unordered,
                    "lt": lambda: a < b,
                    "le": lambda: a <= b,
                    "gt": lambda: a > b,
                    "ge": lambda: a >= b,
                    "lo": lambda: a < b,
                    "ls": lambda: a <= b,
                    "hi": lambda: a > b,
                    "hs": lambda: a >= b,
                }[base]()
            if also:
                held = held | unordered
        if len(operands) > 3:
            more = self.read(operands[3].lstrip("!"), "pred") ^ operands[3].startswith("!")
            join = next(p for p in name if p in ("and", "or", "xor"))
            held = {"and": held & more, "or": held | more, "xor": held ^ more}[join]
        first, _, second = operands[0].partition("|")
        self.write(first, held)
        if second:
            self.write(second, ~held)

    def converted(self, name: list[str], operands: list[str]) -> np.ndarray:
        to, of = name[-2], name[-1]
        if of in _PAIRS:
            data = np.ascontiguousarray(self.read(operands[1], "b16")).view(_PAIRS[of])
            return data.astype(np.float16).view(np.uint32)
        x = self.read(operands[1], of)
        if to in _PAIRS:
            pair = [self.read(operands[2], of), x]
            most = np.float32(ml_dtypes.finfo(_PAIRS[to]).max)
            pair = [np.clip(v, -most, most).astype(_PAIRS[to]).view(np.uint8) for v in pair]
            return pair[0].astype(np.uint16) | (pair[1].astype(np.uint16) << 8)
        if to in ("bf16x2", "f16x2"):
            half = TYPES[to[:-2]]
            low = self.read(operands[2], of).astype(half).view(np.uint16).astype(np.uint32)
            return (x.astype(half).view(np.uint16).astype(np.uint32) << 16) | low
        target = np.dtype(TYPES[to])
        with np.errstate(all="ignore"):
            if of in ("f16", "bf16", "f32", "f64"):
                wide = x.astype(np.float64) if of != "bf16" else x.astype(np.float32)
                if target.kind in "iu":
                    rounded = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}
                    how = next((p for p in name if p in rounded), "rzi")
                    y = np.nan_to_num(rounded[how](wide.astype(np.float64)), nan=0.0)
                    info = np.iinfo(target)
                    result = np.clip(y, info.min, info.max)
                    top = y >= float(info.max)
                    result = np.where(top, 0, result).astype(target)
                    return np.where(top, target.type(info.max), result)
                for how, f in (
                    ("rni", np.rint),
                    ("rzi", np.trunc),
                    ("rmi", np.floor),
                    ("rpi", np.ceil),
                ):
                    if how in name:
                        wide = f(wide)
                if "rz" in name:
                    raise ValueError("rounding towards zero")
                result = wide.astype(target) if of != "f32" else x.astype(target)
                if of == "f32" and any(p in name for p in ("rni", "rzi", "rmi", "rpi")):
                    result = wide.astype(target)
                if "sat" in name:
                    result = np.nan_to_num(np.clip(result, 0, 1), nan=0.0).astype(target)
                return result
            if "sat" in name:
                info = np.iinfo(target)
                return np.clip(x.astype(np.int64), info.min, info.max).astype(target)
            return x.astype(target)

    def computed(self, name: list[str], target: str, operands: list[str]) -> np.ndarray:
        family, kind = name[0], name[-1]
        if kind in ("bf16x2", "f16x2", "s16x2", "u16x2"):
            each = TYPES[kind[:-2]]
            parts = [
                np.ascontiguousarray(self.read(o, "b32")).view(each).reshape(-1, 2)
                for o in operands
            ]
            return np.ascontiguousarray(_pure(family, name, parts)).view(np.uint32).reshape(-1)
        if family == "selp":
            chosen = self.read(operands[2], "pred")
            return np.where(chosen, self.read(operands[0], kind), self.read(operands[1], kind))
        if family in ("shl", "shr"):
            x, by = self.read(operands[0], kind), self.read(operands[1], "u32")
            width = x.dtype.itemsize * 8
            most = np.minimum(by, width - 1).astype(x.dtype)
            if family == "shl":
                return np.where(by >= width, x.dtype.type(0), x << most)
            beyond = x.dtype.type(0) if x.dtype.kind == "u" else x >> x.dtype.type(width - 1)
            return np.where(by >= width, beyond, x >> most)
        if family in ("mul", "mad") and name[1] == "wide":
            double = f"{kind[0]}{2 * int(kind[1:])}"
            a, b = [self.read(o, kind).astype(TYPES[double]) for o in operands[:2]]
            return a * b + (self.read(operands[2], double) if family == "mad" else 0)
        if family in ("bfe", "bfi", "prmt", "popc", "clz", "shf", "lop3", "brev"):
            return self.bits(name, operands)
        parts = [self.read(o, kind) for o in operands]
        if kind in ("bf16", "f16") and family not in ("mov", "neg", "abs"):
            parts = [p.astype(np.float32) for p in parts]
            return _pure(family, name, parts).astype(TYPES[kind])
        return _pure(family, name, parts)

    def carried(self, name: list[str], operands: list[str]) -> np.ndarray:
        """A word of a product and a sum, with the carry of the one before it (`madc`), and for the
        next (`cc`)."""
        a, b, c = [self.read(o, "u32").astype(np.uint64) for o in operands]
        product = a * b
        total = (product >> np.uint64(32) if "hi" in name else product & np.uint64(0xFFFFFFFF)) + c
        if name[0] == "madc":
            total = total + self.carry
        if "cc" in name:
            self.carry = np.where(self.active, total >> np.uint64(32), self.carry)
        return total.astype(np.uint32)

    def bits(self, name: list[str], operands: list[str]) -> np.ndarray:
        kind = name[-1]
        if name[0] == "popc":
            return np.bitwise_count(self.read(operands[0], kind)).astype(np.uint32)
        if name[0] == "clz":
            x = self.read(operands[0], "u32")
            return np.array([32 - int(v).bit_length() for v in x], np.uint32)
        if name[0] == "bfe":
            x = self.read(operands[0], kind)
            at, n = int(operands[1]), int(operands[2])
            width = x.dtype.itemsize * 8
            left = x.dtype.type(width - at - n)
            return (x << left) >> x.dtype.type(width - n)
        if name[0] == "bfi":
            a, b = self.read(operands[0], kind), self.read(operands[1], kind)
            at, n = int(operands[2]), int(operands[3])
            mask = a.dtype.type(((1 << n) - 1) << at)
            return ((a << a.dtype.type(at)) & mask) | (b & ~mask)
        if name[0] == "prmt":
            both = np.stack([self.read(o, "b32") for o in operands[:2]], 1)
            data = np.ascontiguousarray(both).view(np.uint8)
            chosen = self.read(operands[2], "u32")
            result = np.zeros((self.count, 4), np.uint8)
            for i in range(4):
                nibble = (chosen >> (4 * i)) & 15
                byte = data[np.arange(self.count), nibble & 7]
                sign = np.where(byte & 0x80, 0xFF, 0).astype(np.uint8)
                result[:, i] = np.where(nibble & 8, sign, byte)
            return result.view(np.uint32).reshape(-1)
        if name[0] == "shf":
            low, high = [self.read(o, "u32").astype(np.uint64) for o in operands[:2]]
            by = (self.read(operands[2], "u32") & 31).astype(np.uint64)
            both = (high << np.uint64(32)) | low
            if name[1] == "l":
                return ((both << by) >> np.uint64(32)).astype(np.uint32)
            return (both >> by).astype(np.uint32)
        if name[0] == "lop3":
            a, b, c = [self.read(o, "u32") for o in operands[:3]]
            table, result = int(operands[3], 0), np.zeros(self.count, np.uint32)
            for i in range(8):
                if table >> i & 1:
                    result |= (a if i & 4 else ~a) & (b if i & 2 else ~b) & (c if i & 1 else ~c)
            return result
        raise ValueError(f"{name} is not modelled")


def _flushed(name: list[str], x: np.ndarray) -> np.ndarray:
    if "ftz" in name and x.dtype == np.float32:
        return np.where(np.abs(x) < np.float32(2.0**-126), np.copysign(np.float32(0), x), x)
    return x


def _fma(name: list[str], a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    if a.dtype == np.float64:
        return a * b + c
    # The product is exact in float64. The sum is rounded to odd there, so that rounding it again,
    # in any direction, gives what rounding the exact sum would (Boldo and Melquiond, 2008).
    product, term = a.astype(np.float64) * b.astype(np.float64), c.astype(np.float64)
    total = product + term
    part = total - product
    rest = (product - (total - part)) + (term - part)
    even = (total.view(np.uint64) & np.uint64(1)) == 0
    odd = np.where(
        even & np.isfinite(rest) & (rest != 0),
        np.nextafter(total, np.where(rest > 0, np.inf, -np.inf)),
        total,
    )
    result = odd.astype(np.float32)
    if "rm" in name:
        down = np.nextafter(result, np.float32(-np.inf))
        return np.where(result.astype(np.float64) > odd, down, result)
    if "rz" in name:
        inward = np.nextafter(result, np.float32(0))
        return np.where(np.abs(result.astype(np.float64)) > np.abs(odd), inward, result)
    return result


def _added(name: list[str], a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if "rz" not in name:
        return a + b
    exact = a.astype(np.float64) + b.astype(np.float64)
    result = exact.astype(np.float32)
    inward = np.nextafter(result, np.float32(0))
    return np.where(np.abs(result.astype(np.float64)) > np.abs(exact), inward, result)


def _divided(a: np.ndarray, b: np.ndarray, remainder: bool) -> np.ndarray:
    if a.dtype.kind == "f":
        return a / b
    safe = np.where(b == 0, 1, b)
    q = np.abs(a.astype(object)) // np.abs(safe.astype(object))
    q = np.where((a < 0) != (safe < 0), -q, q)
    result = a.astype(object) - q * safe.astype(object) if remainder else q
    return np.where(b == 0, -1, result).astype(object).astype(np.int64).astype(a.dtype)


def _high(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    width = a.dtype.itemsize * 8
    if width < 64:
        wide = np.int64 if a.dtype.kind == "i" else np.uint64
        return ((a.astype(wide) * b.astype(wide)) >> wide(width)).astype(a.dtype)
    product = a.astype(object) * b.astype(object)
    return np.array([int(v) >> 64 for v in product], object).astype(a.dtype)


def _extreme(name: list[str], f: Callable[..., Any], a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if a.dtype.kind != "f":
        return f(a, b)
    return (
        (np.maximum if f is np.maximum else np.minimum)(a, b)
        if "NaN" in name
        else (np.fmax if f is np.maximum else np.fmin)(a, b)
    )


def _pure(family: str, name: list[str], parts: list[np.ndarray]) -> np.ndarray:
    with np.errstate(all="ignore"):
        a = parts[0] = _flushed(name, parts[0])
        rest = [_flushed(name, p) for p in parts[1:]]
        if family == "mul" and name[1] == "hi":
            return _high(a, rest[0])
        result = {
            "mov": lambda: a,
            "add": lambda: _added(name, a, rest[0]),
            "sub": lambda: a - rest[0],
            "mul": lambda: a * rest[0],
            "mad": lambda: a * rest[0] + rest[1],
            "fma": lambda: _fma(name, a, *rest),
            "div": lambda: _divided(a, rest[0], False),
            "rem": lambda: _divided(a, rest[0], True),
            "and": lambda: a & rest[0],
            "or": lambda: a | rest[0],
            "xor": lambda: a ^ rest[0],
            "not": lambda: ~a,
            "neg": lambda: -a,
            "abs": lambda: np.abs(a),
            "min": lambda: _extreme(name, np.minimum, a, rest[0]),
            "max": lambda: _extreme(name, np.maximum, a, rest[0]),
            "sqrt": lambda: np.sqrt(a),
            "rsqrt": lambda: (1 / np.sqrt(a.astype(np.float64))).astype(a.dtype),
            "rcp": lambda: (1 / a.astype(np.float64)).astype(a.dtype),
            "ex2": lambda: np.exp2(a.astype(np.float64)).astype(a.dtype),
            "lg2": lambda: np.log2(a.astype(np.float64)).astype(a.dtype),
            "sin": lambda: np.sin(a.astype(np.float64)).astype(a.dtype),
            "cos": lambda: np.cos(a.astype(np.float64)).astype(a.dtype),
            "tanh": lambda: np.tanh(a.astype(np.float64)).astype(a.dtype),
            "copysign": lambda: np.copysign(rest[0], a),
        }[family]()
        return _flushed(name, result.astype(a.dtype, copy=False))


def run(
    ptx: str,
    memory: Memory,
    arguments: Sequence[int],
    grid: Sequence[int],
    shared: int = 0,
    together: int = 4096,
) -> None:
    """One launch: changes the memory's arrays. `arguments` are addresses and integers, in order;
    pointers that a compiler adds for scratch memory are zero."""
    total = int(np.prod(grid))
    threads = int(re.search(r"\.reqntid (\d+)", ptx)[1])
    arguments = [*arguments, 0, 0, 0, 0]
    step = max(1, together // threads)
    for first in range(0, total, step):
        blocks = np.arange(first, min(total, first + step))
        Blocks(ptx, memory, arguments, grid, blocks, shared).run()
