#!/usr/bin/env bash
# The checks that need a GPU, each within a time limit, with a short summary last.
#
#     benchmarks/gpu_checks.sh OUT STAGE...      # tests sanitize loops fuzz losses operators allocator
#
# Run from a checkout, with the packages of docs/cuda.md on PYTHONPATH. Logs and results lie in OUT.
# TESTS_SECONDS and the like limit a stage; TESTS chooses files; WORKERS is the number of processes.
set -u
cd "$(dirname "$0")/.."
out=$1
shift
mkdir -p "$out"
export PYTHONPATH=.:${PYTHONPATH:-} PYTHONUNBUFFERED=1
failed=0

limited() { # NAME SECONDS COMMAND...: runs it with its output in OUT/NAME.log
    local name=$1 variable="${1^^}_SECONDS" start=$SECONDS status
    local seconds=${!variable:-$2}
    shift 2
    timeout -k 10 "$seconds" "$@" >"$out/$name.log" 2>&1
    status=$?
    [ $status = 0 ] || failed=1
    echo "== $name: exit status $status, $((SECONDS - start)) s (limit $seconds)"
}

for stage in "$@"; do
    case $stage in
    tests)
        rm -f "$out"/failures.txt*
        GENESIS_DEVICE=cuda OMP_NUM_THREADS=1 GENESIS_TEST_REPORT="$out/failures.txt" \
            limited tests 480 python3 -m pytest -n "${WORKERS:-14}" --dist loadgroup \
            -p no:cacheprovider -W ignore --durations 15 ${TESTS:-tests}
        tail -n 25 "$out/tests.log" | grep -aE "passed|failed|s (call|setup)" | cut -c1-160
        if [ -s "$out/failures.txt" ]; then
            echo "failures by file:"
            cut -d: -f1 "$out/failures.txt" | sort | uniq -c | sort -rn | head -30
            echo "failures by message:"
            sed 's/^[^]]*\] //; s/[0-9.e+-]\{2,\}/N/g' "$out/failures.txt" | cut -c1-150 |
                sort | uniq -c | sort -rn | head -40
            echo "examples:"
            awk -F: '!seen[$1]++' "$out/failures.txt" | cut -c1-330 | head -30
        fi
        for crash in "$out"/failures.txt.*; do
            if [ -s "$crash" ]; then
                echo "a process that a signal ended:"
                head -n 60 "$crash"
            fi
        done
        ;;
    sanitize)
        limited sanitize 420 benchmarks/kernels/sanitize.sh "$out/sanitize"
        tail -n 70 "$out/sanitize.log"
        ;;
    loops)
        limited loops 420 benchmarks/kernels/sanitize_tests.sh "$out/loops"
        tail -n 40 "$out/loops.log"
        ;;
    fuzz)
        limited fuzz 150 python3 benchmarks/fuzz_devices.py --seconds $((${FUZZ_SECONDS:-150} - 30))
        tail -n 12 "$out/fuzz.log"
        ;;
    losses)
        limited losses 120 python3 benchmarks/losses.py --out "$out/losses-h200.json"
        tail -n 10 "$out/losses.log"
        ;;
    operators)
        # Rows that are there already are kept; DTYPE=bfloat16 makes the other table.
        cp -n benchmarks/results/operators-* "$out" 2>/dev/null
        limited operators 300 python3 benchmarks/operators.py --out "$out" \
            --dtype "${DTYPE:-float32}" --budget "${OPERATORS_BUDGET:-240}"
        tail -n 60 "$out/operators.log"
        ;;
    allocator)
        cp -n benchmarks/results/allocator-* "$out" 2>/dev/null
        limited allocator 120 python3 benchmarks/allocator.py --out "$out"
        tail -n 12 "$out/allocator.log"
        ;;
    *)
        echo "unknown stage $stage" >&2
        exit 2
        ;;
    esac
done
exit $failed
