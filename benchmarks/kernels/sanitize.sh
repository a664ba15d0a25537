#!/usr/bin/env bash
# Every hand-written kernel on small shapes: plain first, which compiles and checks values, then under
# compute-sanitizer, one process for each family of kernels, side by side.
#
#     benchmarks/kernels/sanitize.sh OUT [plain|memcheck|racecheck ...]
#
# SECONDS_PER_TOOL limits each step. Prints one line for each family and step; logs lie in OUT.
set -u
cd "$(dirname "$0")/../.."
out=$1
shift
steps=${*:-plain memcheck racecheck}
mkdir -p "$out"
export PYTHONUNBUFFERED=1 OMP_NUM_THREADS=1 GENESIS_COMPILE_WORKERS=${GENESIS_COMPILE_WORKERS:-2}
families=${FAMILIES:-norm softmax cross_entropy linear_cross_entropy matmul attention attention_decode
    attention_specialized scan sorting scatter convolution pooling concatenate random_bits}
limit=${SECONDS_PER_TOOL:-120}
failed=0

for step in $steps; do
    start=$SECONDS
    tool=()
    [ "$step" = plain ] || tool=(compute-sanitizer --tool "$step" --error-exitcode 9 --print-limit 20)
    for family in $families; do
        (
            timeout -k 5 "$limit" "${tool[@]}" python3 benchmarks/kernels/sanitize.py "$family" \
                >"$out/$step-$family.log" 2>&1
            echo $? >"$out/$step-$family.status"
        ) &
    done
    wait
    for family in $families; do
        log=$out/$step-$family.log
        status=$(cat "$out/$step-$family.status")
        [ "$status" = 0 ] || failed=1
        line=$(grep -a "^$family: " "$log" | tail -1)
        found=$(grep -aE "(ERROR|RACECHECK) SUMMARY" "$log" | tail -1 | sed 's/^=* *//')
        echo "$step, exit status $status: ${line:-$family: no result, see $log}${found:+; $found}"
        if [ "$status" != 0 ]; then
            grep -aE "Invalid|hazard|Error|error" "$log" | cut -c1-240 | head -5
        fi
    done
    echo "== $step: $((SECONDS - start)) s"
done
exit $failed
