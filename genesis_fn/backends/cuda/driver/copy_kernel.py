"""The kernel that makes several small copies in one launch.

On an H200 a copy of a few kilobytes takes 1 us of the device and waits 1.2 us for the one before;
seven of them in one launch take 1.9 us. Which memory they move is in the kernel's parameter, so
that a call needs no transfer to say so. It is PTX, which the driver compiles for its device.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

MOST_COPIES = 64  # of one launch; their table is in the parameters, which are 4 KiB at most
MOST_BYTES = 1 << 20  # of a copy that shares a launch: larger ones take the memory's whole rate
ENTRY = b"genesis_copy_several"
THREADS = 256

_ENTRY_BYTES = 24  # destination, source and bytes of a copy
_BLOCK_BYTES = THREADS * 16 * 4  # that a block of threads moves: four vectors for each thread

# Blocks of one `y` share a copy: whole vectors of 16 bytes where both addresses are aligned, then
# what is left byte by byte.
PTX = f"""\
.version 7.0
.target sm_80
.address_size 64

.visible .entry {ENTRY.decode()}(
    .param .align 8 .b8 copies[{MOST_COPIES * _ENTRY_BYTES}])
{{
    .reg .b64 %rd<16>;
    .reg .b32 %r<10>;
    .reg .pred %p<4>;
    mov.u32 %r1, %ctaid.y;
    mul.wide.u32 %rd1, %r1, {_ENTRY_BYTES};
    mov.u64 %rd2, copies;
    add.s64 %rd2, %rd2, %rd1;
    ld.param.u64 %rd3, [%rd2];
    ld.param.u64 %rd4, [%rd2+8];
    ld.param.u64 %rd5, [%rd2+16];
    cvta.to.global.u64 %rd3, %rd3;
    cvta.to.global.u64 %rd4, %rd4;
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %nctaid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.u32 %r5, %r2, {THREADS}, %r4;
    mul.lo.u32 %r6, %r3, {THREADS};
    cvt.u64.u32 %rd6, %r5;
    cvt.u64.u32 %rd7, %r6;
    shr.u64 %rd8, %rd5, 4;
    or.b64 %rd9, %rd3, %rd4;
    and.b64 %rd9, %rd9, 15;
    setp.eq.u64 %p1, %rd9, 0;
    selp.b64 %rd8, %rd8, 0, %p1;
    mov.u64 %rd10, %rd6;
vectors:
    setp.ge.u64 %p2, %rd10, %rd8;
    @%p2 bra rest;
    shl.b64 %rd11, %rd10, 4;
    add.s64 %rd12, %rd4, %rd11;
    add.s64 %rd13, %rd3, %rd11;
    ld.global.v4.u32 {{%r7, %r8, %r9, %r1}}, [%rd12];
    st.global.v4.u32 [%rd13], {{%r7, %r8, %r9, %r1}};
    add.s64 %rd10, %rd10, %rd7;
    bra vectors;
rest:
    shl.b64 %rd10, %rd8, 4;
    add.s64 %rd10, %rd10, %rd6;
bytes:
    setp.ge.u64 %p3, %rd10, %rd5;
    @%p3 bra done;
    add.s64 %rd12, %rd4, %rd10;
    add.s64 %rd13, %rd3, %rd10;
    ld.global.u8 %r7, [%rd12];
    st.global.u8 [%rd13], %r7;
    add.s64 %rd10, %rd10, %rd7;
    bra bytes;
done:
    ret;
}}
"""


def blocks_of(copies: Sequence[tuple[int, int, int]]) -> int:
    """How many blocks of threads share each of the copies."""
    largest = max([size for _, _, size in copies])
    return -(-largest // _BLOCK_BYTES)


def table_of(copies: Sequence[tuple[int, int, int]]) -> bytes:
    """The kernel's parameter for at most `MOST_COPIES` (destination, source, bytes)."""
    numbers = [n for copy in copies for n in copy]
    packed = struct.pack(f"<{len(numbers)}Q", *numbers)
    return packed.ljust(MOST_COPIES * _ENTRY_BYTES, b"\0")
