#!/usr/bin/env bash
# Runs the kernel tests on a GPU, then again under compute-sanitizer.
#
#     benchmarks/kernels/sanitize.sh OUT [tests|memcheck|racecheck ...]
#
# Needs torch with CUDA, Triton, pytest and (for the tools) compute-sanitizer. SECONDS_PER_TOOL
# limits each step. Every buffer is an allocation of its own, so that what is read or written beyond
# one is seen.
set -u
cd "$(dirname "$0")/../.."
out=$1
shift
steps=${*:-tests memcheck racecheck}
mkdir -p "$out"
export PYTHONPATH=.:${PYTHONPATH:-} PYTHONUNBUFFERED=1 KERNEL_REHEARSAL=1
pytest=(python3 -m pytest -o addopts= -o filterwarnings= -p benchmarks.kernels.on_gpu
    -p no:cacheprovider -q)
shared=(tests/kernels/test_{concat,conv,cross_entropy,linear_cross_entropy,matmul,norm}.py
    tests/kernels/test_{pool,random,scan,scatter,softmax,sort,attention}.py)
limit=${SECONDS_PER_TOOL:-120}
# These start interpreted kernels themselves, or compare with JAX, which has another float32 product
# on a GPU.
plain="not known_answers and not single_words and not longest_tiles and not jax_s"

for step in $steps; do
    log=$out/$step.log
    start=$SECONDS
    case $step in
    tests)
        timeout -k 5 "$limit" "${pytest[@]}" -n "${JOBS:-14}" -k "$plain" "${shared[@]}" \
            >"$log" 2>&1
        ;;
    memcheck | racecheck)
        PYTORCH_NO_CUDA_MEMORY_CACHING=1 timeout -k 5 "$limit" compute-sanitizer --tool "$step" \
            --error-exitcode 9 --target-processes all --print-limit 20 \
            "${pytest[@]}" -n "${JOBS:-14}" --maxprocesses 14 -k "($plain) and (${TESTS:-test})" \
            "${shared[@]}" >"$log" 2>&1
        ;;
    attention_memcheck | attention_racecheck)
        timeout -k 5 "$limit" compute-sanitizer --tool "${step#attention_}" --error-exitcode 9 \
            --target-processes all --print-limit 20 python3 -m benchmarks.kernels.attention_bench \
            --only check --names "${NAMES:-causal,full}" --budget "$((limit - 10))" >"$log" 2>&1
        ;;
    *)
        echo "unknown step $step" >&2
        exit 2
        ;;
    esac
    echo "$step: exit status $?, $((SECONDS - start)) s"
    grep -E "ERROR SUMMARY|RACECHECK SUMMARY|^=* .*(passed|failed)|[0-9]+ passed" "$log" | sort | uniq -c | tail -8
    grep -aE "^(FAILED|ERROR)|WRONG|Invalid|hazard" "$log" | cut -c1-300 | head -12
done
