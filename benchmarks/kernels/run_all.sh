#!/usr/bin/env bash
# Checks and times the CUDA runtime and every hand-written kernel on one GPU.
#
#     benchmarks/kernels/run_all.sh OUT [PART ...]
#
# Writes OUT/{runtime,matmul,attention_check,attention,decode,rows,conv}.json and the logs; the parts are
# the names of these files, all of them if none is given. SECONDS_<PART> limits a part, MATMUL_ONLY
# and ROWS_ONLY choose its cases. Prints the tables last.
set -u
cd "$(dirname "$0")/../.."
out=$1
shift
parts=${*:-runtime attention_check matmul attention decode rows conv}
mkdir -p "$out"
export PYTHONPATH=.:${PYTHONPATH:-} PYTHONUNBUFFERED=1
export KERNEL_COMMIT=${KERNEL_COMMIT:-$(git rev-parse HEAD 2>/dev/null)}
bench=benchmarks/kernels

limit() {
    local name="SECONDS_${1^^}"
    echo "${!name:-$2}"
}

run() {
    local part=$1 seconds=$2
    shift 2
    local start=$SECONDS
    timeout -k 5 "$seconds" "$@" >"$out/$part.log" 2>&1
    echo "$part: exit status $?, $((SECONDS - start)) s"
}

for part in $parts; do
    case $part in
    runtime)
        run runtime "$(limit runtime 120)" python3 $bench/runtime_check.py --out "$out/runtime.json"
        ;;
    matmul)
        seconds=$(limit matmul 125)
        run matmul "$seconds" python3 $bench/matmul_bench.py --out "$out/matmul.json" \
            --budget $((seconds - 15)) --only "${MATMUL_ONLY:-}"
        ;;
    attention_check | attention | decode)
        only=speed
        [ $part = attention_check ] && only=check
        [ $part = decode ] && only=decode
        seconds=$(limit $part 120)
        run $part "$seconds" python3 $bench/attention_bench.py \
            --out "$out/$part.json" --only $only --budget $((seconds - 15))
        ;;
    rows)
        seconds=$(limit rows 125)
        run rows "$seconds" python3 $bench/rows_bench.py --out "$out/rows.json" \
            --budget $((seconds - 15)) --only "${ROWS_ONLY:-}" ${ROWS_FLAGS:-}
        ;;
    conv)
        seconds=$(limit conv 110)
        run conv "$seconds" python3 $bench/conv_bench.py --out "$out/conv.json" \
            --budget $((seconds - 15)) ${CONV_FLAGS:-}
        ;;
    *)
        echo "unknown part $part" >&2
        exit 2
        ;;
    esac
done
cat "$out"/*.log >"$out/all.log"
for part in $parts; do
    echo "== $part"
    tail -c "${TAIL:-2500}" "$out/$part.log"
    rm "$out/$part.log"
done
