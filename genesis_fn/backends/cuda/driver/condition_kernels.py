"""The kernels that set the conditions of conditional graph nodes.

Triton has no operation for `cudaGraphSetConditional`, so they are PTX, which the driver compiles
for its device. That function is provided by the driver and needs no device runtime library.
"""

from __future__ import annotations

_HEADER = """\
.version 8.3
.target sm_80
.address_size 64

.extern .func cudaGraphSetConditional (.param .b64 handle, .param .b32 value);
"""

_KERNEL = """
.visible .entry {name}(
    .param .u64 handle, .param .u64 place, .param .s32 limit, .param .s32 many)
{{
    .reg .b64 %rd<5>;
    .reg .b32 %r<9>;
    .reg .pred %p<3>;
    ld.param.u64 %rd1, [handle];
    ld.param.u64 %rd2, [place];
    ld.param.s32 %r1, [limit];
    cvta.to.global.u64 %rd3, %rd2;
{body}
    {{
    .param .b64 p0;
    .param .b32 p1;
    st.param.b64 [p0], %rd1;
    st.param.b32 [p1], %r3;
    call.uni cudaGraphSetConditional, (p0, p1);
    }}
    ret;
}}
"""

_BODIES = {
    "flag": """\
    ld.global.u8 %r2, [%rd3];
    setp.ne.u32 %p1, %r2, 0;
    selp.u32 %r3, 1, 0, %p1;""",
    "index": """\
    ld.global.s32 %r2, [%rd3];
    max.s32 %r4, %r2, 0;
    sub.s32 %r5, %r1, 1;
    min.s32 %r3, %r4, %r5;""",
    "count": """\
    ld.param.s32 %r5, [many];
    ld.global.s32 %r2, [%rd3];
    add.s32 %r4, %r2, %r5;
    mov.u32 %r6, 0;
    mov.u64 %rd4, %rd3;
next:
    add.s32 %r7, %r4, %r6;
    st.global.s32 [%rd4], %r7;
    add.s64 %rd4, %rd4, 4;
    add.s32 %r6, %r6, 1;
    setp.lt.s32 %p2, %r6, %r5;
    @%p2 bra next;
    setp.lt.s32 %p1, %r4, %r1;
    selp.u32 %r3, 1, 0, %p1;""",
}

_SOURCE = """
extern "C" __device__ __cudart_builtin__ void cudaGraphSetConditional(
    unsigned long long handle, unsigned int value);
extern "C" __global__ void genesis_set_flag(
    unsigned long long handle, const unsigned char* place, int limit, int many) {
  cudaGraphSetConditional(handle, *place != 0);
}
extern "C" __global__ void genesis_set_index(
    unsigned long long handle, const int* place, int limit, int many) {
  int value = *place < 0 ? 0 : *place;
  cudaGraphSetConditional(handle, value < limit ? value : limit - 1);
}
extern "C" __global__ void genesis_set_count(
    unsigned long long handle, int* place, int limit, int many) {
  int value = *place + many;
  for (int i = 0; i < many; i++) place[i] = value + i;
  cudaGraphSetConditional(handle, value < limit);
}
"""


def entry(mode: str) -> str:
    """The kernel's name for a predicate mode."""
    return f"genesis_set_{mode}"


def ptx() -> str:
    """All of them, as one PTX module."""
    return _HEADER + "".join(
        _KERNEL.format(name=entry(mode), body=body) for mode, body in _BODIES.items()
    )


def cuda_source() -> str:
    """All of them in CUDA C, for a driver that rejects the PTX."""
    return _SOURCE
