#!/usr/bin/env bash
# Times again, in about 150 s of one GPU, the kernels that were slower than their peers.
#
#     benchmarks/kernels/missed.sh [OUT]
#
# Writes OUT/kernel-{matmul,rows}-again-h200.json (OUT is benchmarks/results if not given), which
# table.py puts in place of older rows. Rows already there are kept: a second call times the rest.
set -u
cd "$(dirname "$0")/../.."
out=${1:-benchmarks/results}
mkdir -p "$out"
export PYTHONPATH=.:${PYTHONPATH:-} PYTHONUNBUFFERED=1
export KERNEL_COMMIT=${KERNEL_COMMIT:-$(git rev-parse HEAD 2>/dev/null)}
bench=benchmarks/kernels
products="tf32 NN 4096,tf32x3 2048,fp8 8192,dW down 1024x3072x16384,decode 32 qkv,decode 64 qkv"
rows="pointwise copy,sort ,top ,layer norm 4096,rms norm 16384,rms norm 262144,cat of,\
embedding lookup,cumsum 2^24"

timeout -k 5 "${SECONDS_MATMUL:-60}" python3 $bench/matmul_bench.py --only "$products" \
    --out "$out/kernel-matmul-again-h200.json" --budget $((${SECONDS_MATMUL:-60} - 10))
timeout -k 5 "${SECONDS_ROWS:-90}" python3 $bench/rows_bench.py --only "$rows" \
    --out "$out/kernel-rows-again-h200.json" --budget $((${SECONDS_ROWS:-90} - 10))
if [ -e "$out/runtime-h200.json" ]; then
    python3 $bench/table.py "$out" >"$out/kernels.tmp" && mv "$out/kernels.tmp" "$out/kernels-h200.md"
fi
