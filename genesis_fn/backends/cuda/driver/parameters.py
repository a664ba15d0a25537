"""The parameter block of a launch, in the layout that Triton's binaries expect.

In order: the run-time parameters, then pointers to global scratch and profile scratch. A host TMA
descriptor is a 128-byte tensor map passed by value, then its shape as int32 and its strides as
int64; where the compiler replaced descriptors by pointers (before sm_90), it is a pointer, shape
and strides as int64, one flag for the padding (two from Triton 3.7 on), then shape and strides
again. The sizes that the compiled code declares are compared with those that are packed, so that a
Triton with another convention is refused instead of reading wrong memory.
"""

from __future__ import annotations

import ctypes
import functools
import math
import struct
from collections.abc import Callable, Sequence
from typing import Any

from genesis_fn.backends.cuda.binaries.compile import CompiledKernel
from genesis_fn.kernels.plan import BufferArg, Descriptor, Launch, Scalar

_MAP_BYTES = 128
_SCALAR_FORMATS = {"i32": "<i", "i64": "<q", "fp32": "<f"}
_HOST_ELEMENT = {8: 10, 9: 8, 10: 9}  # device numbering of tensor map element types -> host

Encoder = Callable[[Descriptor, dict[str, Any], int], bytes]


def _packed(scalar: Scalar) -> bytes:
    """The bytes of a scalar; numbers beyond float32 become infinities, as in NumPy and torch."""
    try:
        return struct.pack(_SCALAR_FORMATS[scalar.dtype], scalar.value)
    except OverflowError:
        if scalar.dtype != "fp32":
            raise
        return struct.pack("<f", math.copysign(math.inf, scalar.value))


class ParameterBlock:
    """The values of a launch's parameters and the array of pointers to them.

    `address` is what `cuLaunchKernel` takes as its parameters. `encode` makes a tensor map from a
    descriptor, its metadata and an address.
    """

    def __init__(self, launch: Launch, compiled: CompiledKernel, encode: Encoder) -> None:
        self._encode = encode
        self._pointers: list[tuple[int, int]] = []
        self._maps: list[tuple[int, Descriptor, dict[str, Any]]] = []
        self._encoded: list[int] = []
        # Where the parameters are addresses 0, 1, ... and numbers: writes the addresses, that of
        # scratch memory and a zero.
        self.write: Callable[..., None] | None = None
        fixed: list[tuple[int, bytes]] = []
        # The slot of each parameter: ("pointer", number), ("map", number) or ("fixed", number).
        slots: list[tuple[str, int]] = []
        sizes: list[int] = []

        def pointer(buffer: BufferArg) -> None:
            slots.append(("pointer", len(self._pointers)))
            self._pointers.append((buffer.index, buffer.offset))
            sizes.append(8)

        def value(content: bytes) -> None:
            slots.append(("fixed", len(fixed)))
            fixed.append((len(content), content))
            sizes.append(len(content))

        flags = _decomposed_flags(launch, compiled)
        described = iter(compiled.descriptors)
        for argument in launch.arguments.values():
            if isinstance(argument, BufferArg):
                pointer(argument)
            elif isinstance(argument, Scalar):
                value(_packed(argument))
            else:
                assert isinstance(argument, Descriptor)
                long = struct.Struct("<q").pack
                if compiled.descriptors:
                    slots.append(("map", len(self._maps)))
                    self._maps.append((0, argument, next(described)))
                    sizes.append(_MAP_BYTES)
                else:
                    pointer(argument.buffer)
                    for number in (*argument.shape, *argument.strides):
                        value(long(number))
                    for _ in range(flags):
                        value(b"\0")
                for number in argument.shape:
                    value(struct.pack("<i", number))
                for number in argument.strides:
                    value(long(number))
        sizes += [8, 8]
        if tuple(sizes) != compiled.layout:
            raise RuntimeError(
                f"kernel {compiled.name} compiled by Triton {compiled.triton} takes parameters of "
                f"{list(compiled.layout)} bytes, not {sizes}: this version's convention is unknown"
            )
        self._allocate(slots, fixed)

    def bind(self, addresses: Sequence[int], scratch: int) -> None:
        """Writes the addresses of buffers (by number) and of scratch memory."""
        self._slots[:] = [
            *[addresses[index] + offset for index, offset in self._pointers],
            scratch,
            0,
        ]
        for number, (slot, descriptor, meta) in enumerate(self._maps):
            address = addresses[descriptor.buffer.index] + descriptor.buffer.offset
            if address != self._encoded[number]:
                content = self._encode(descriptor, meta, address)
                ctypes.memmove(slot, content, _MAP_BYTES)
                self._encoded[number] = address

    def values(self) -> list[bytes]:
        """The bytes of each parameter as they are now, in order."""
        return [
            ctypes.string_at(pointer, size)
            for pointer, size in zip(self._array, self._sizes, strict=True)
        ]

    def _allocate(self, slots: list[tuple[str, int]], fixed: list[tuple[int, bytes]]) -> None:
        maps, pointers = len(self._maps), len(self._pointers) + 2
        total = 64 + maps * _MAP_BYTES + 8 * pointers + 8 * len(fixed)
        self._memory = ctypes.create_string_buffer(total)
        start = -(-ctypes.addressof(self._memory) // 64) * 64
        map_slots = [start + i * _MAP_BYTES for i in range(maps)]
        pointer_slots = start + maps * _MAP_BYTES
        values = pointer_slots + 8 * pointers
        self._maps = [
            (slot, descriptor, meta)
            for slot, (_, descriptor, meta) in zip(map_slots, self._maps, strict=True)
        ]
        self._encoded = [-1] * maps
        self._slots = (ctypes.c_uint64 * pointers).from_address(pointer_slots)
        # Most eager kernels take all of their buffers in order: one call writes all addresses.
        if not maps and self._pointers == [(i, 0) for i in range(pointers - 2)]:
            pack = struct.Struct(f"<{pointers}Q").pack_into
            self.write = functools.partial(pack, self._slots, 0)
        for number, (size, content) in enumerate(fixed):
            ctypes.memmove(values + 8 * number, content, size)
        where = {"map": (map_slots[:1] or [0])[0], "pointer": pointer_slots, "fixed": values}
        stride = {"map": _MAP_BYTES, "pointer": 8, "fixed": 8}
        width = {
            "map": lambda n: _MAP_BYTES,
            "pointer": lambda n: 8,
            "fixed": lambda n: fixed[n][0],
        }
        listed = [*slots, ("pointer", pointers - 2), ("pointer", pointers - 1)]
        self._sizes = [width[kind](number) for kind, number in listed]
        self._array = (ctypes.c_void_p * len(listed))(
            *[where[kind] + number * stride[kind] for kind, number in listed]
        )
        self.address = ctypes.addressof(self._array)


def _decomposed_flags(launch: Launch, compiled: CompiledKernel) -> int:
    """How many one-byte flags this Triton passes for a descriptor that it made a pointer."""
    count = sum(isinstance(a, Descriptor) for a in launch.arguments.values())
    return compiled.layout.count(1) // count if count and not compiled.descriptors else 0


def tensor_map_geometry(
    descriptor: Descriptor, meta: dict[str, Any]
) -> tuple[int, list[int], list[int], list[int]]:
    """(element type, sizes, strides in bytes, box), innermost dimension first, as the driver's
    encoder takes them; strides leave out the innermost one."""
    item = meta["elem_size"]
    shape = list(descriptor.shape)
    if meta["fp4_padded"]:
        shape[-1] *= 2
    strides = [item * s for s in reversed(descriptor.strides[:-1])]
    if not strides:
        strides = [shape[-1] * item]
    element: int = meta["elem_type"]
    kind = _HOST_ELEMENT.get(element, element)
    return kind, shape[::-1], strides, list(meta["block_size"])[::-1]


def patch_small_map(
    content: bytes, sizes: Sequence[int], strides: Sequence[int], item: int
) -> bytes:
    """The tensor map without the bit that drivers up to 13.1 set wrongly below 128 KiB.

    Source: the condition is that of CUTLASS's and Triton's encoders.
    """
    last = sum((n - 1) * s for n, s in zip(sizes, [item, *strides], strict=False))
    if last + 1 >= 128 * 1024:
        return content
    words = list(struct.unpack("<16Q", content))
    words[1] &= ~(1 << 21)
    return struct.pack("<16Q", *words)
