#!/usr/bin/env bash
# Tests of generated kernels that no family of sanitize.sh has, loops of rows and teams first, under
# compute-sanitizer: one process for each tool and file, as many at once as there are cores.
#
#     benchmarks/kernels/sanitize_tests.sh OUT [FILE ...]      # names of tests/cuda/test_FILE.py
#
# FILE:N runs in N processes. SECONDS_PER_JOB limits each one. Prints one line for each; logs lie in
# OUT.
set -u
cd "$(dirname "$0")/../.."
out=$1
shift
mkdir -p "$out"
cores=$(env -u OMP_NUM_THREADS nproc) # which nproc would print instead
files=${*:-team_loops:4 row_loops:3 counted_scans:3 loop_tables:3 loop_lookups:2 updates twin_lanes:2 moving_lanes:2 inner_stacks:2 loop_products
    random_steps in_one recurrent prefixes slabs split_axes pitched_products one_per_row row_sums
    unique_scatters intervals known_indices computed random_words written_attention choices
    segment_sums joined_sums stacked_sums driver_cuda}
export out PYTHONPATH=.:${PYTHONPATH:-} PYTHONUNBUFFERED=1 OMP_NUM_THREADS=1
export GENESIS_DEVICE=cuda GENESIS_CUDA_DRIVER=cuda TRITON_INTERPRET=0 JAX_PLATFORMS=cpu
export GENESIS_COMPILE_WORKERS=0 limit=${SECONDS_PER_JOB:-300}

job() { # TOOL FILE PART/PARTS
    local log=$out/$1-$2-${3%/*}.log status
    TESTS_OF=$3 timeout -k 5 "$limit" compute-sanitizer --tool "$1" --error-exitcode 9 \
        --print-limit 20 python3 -m pytest -p tests.support.host_control_flow -p no:cacheprovider \
        -W ignore "tests/cuda/test_$2.py" >"$log" 2>&1
    status=$?
    echo "$1 $2 $3, exit status $status: $(grep -aoE '[0-9]+ (passed|failed|skipped)' "$log" | xargs)" \
        "$(grep -aE '(ERROR|RACECHECK) SUMMARY' "$log" | tail -1)"
}
export -f job

for file in $files; do
    parts=1
    [[ $file != *:* ]] || parts=${file#*:}
    for tool in memcheck racecheck; do
        for ((part = 0; part < parts; part++)); do echo "$tool ${file%:*} $part/$parts"; done
    done
done | xargs -P "$cores" -L 1 bash -c 'job "$@"' job
