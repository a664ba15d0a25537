#!/usr/bin/env bash
# Every kernel family on small shapes: plain first, which compiles and checks values, then under the
# tools of compute-sanitizer, one process for each tool and family, as many at once as there are cores.
#
#     benchmarks/kernels/sanitize.sh OUT [TOOL ...]      # memcheck racecheck synccheck initcheck
#
# SECONDS_PER_JOB limits each process, SECONDS_IN_ALL the whole. Prints one line for each process;
# logs, sanitizer-h200.json and sanitizer-h200.md lie in OUT.
set -u
cd "$(dirname "$0")/../.."
out=$1
shift
tools=${*:-memcheck racecheck synccheck initcheck}
mkdir -p "$out"
cores=$(env -u OMP_NUM_THREADS nproc) # which nproc would print instead
export out PYTHONPATH=.:${PYTHONPATH:-} PYTHONUNBUFFERED=1 OMP_NUM_THREADS=1
export GENESIS_COMPILE_WORKERS=${GENESIS_COMPILE_WORKERS:-2}
export limit=${SECONDS_PER_JOB:-240} end=$(($(date +%s) + ${SECONDS_IN_ALL:-400}))
families=${FAMILIES:-norm softmax cross_entropy linear_cross_entropy matmul ragged attention
    attention_decode attention_specialized scan sorting scatter convolution pooling concatenate
    random_bits linear_algebra generated}

job() { # TOOL FAMILY
    local log=$out/$1-$2.log command=() left=$((end - $(date +%s))) status
    [ "$1" = plain ] || command=(compute-sanitizer --tool "$1" --error-exitcode 9 --print-limit 40)
    [ "$left" -gt 3 ] || { echo "$1: no time left for $2"; return; }
    timeout -k 3 $((left < limit ? left : limit)) "${command[@]}" \
        python3 benchmarks/kernels/sanitize.py "$2" >"$log" 2>&1
    status=$?
    echo "$1, exit status $status: $(grep -a "^$2: " "$log" | tail -1 | cut -d';' -f1)" \
        "$(grep -aE "(ERROR|RACECHECK) SUMMARY" "$log" | tail -1)"
}
export -f job

for stage in plain "$tools"; do
    start=$SECONDS
    for tool in $stage; do
        for family in $families; do echo "$tool $family"; done
    done | xargs -P "$cores" -L 1 bash -c 'job "$@"' job
    echo "== $stage: $((SECONDS - start)) s"
done
python3 benchmarks/kernels/sanitize.py --report "$out" "$out/sanitizer-h200.json"
