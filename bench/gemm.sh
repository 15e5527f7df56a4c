#!/bin/sh
# bench_gemm in several processes, 1 thread and all threads: the best of each side for every product. Where a process's
# pages and threads lie moves all its figures by up to a fifth, for either side; one process says little.
#
#   bench/gemm.sh BENCH_GEMM [PROCESSES] [REPETITIONS]
set -eu

bench=$1
processes=${2:-2}
repetitions=${3:-3}

for threads in $(printf '1\n%s\n' "$(nproc)" | uniq); do
    i=0
    while [ "$i" -lt "$processes" ]; do
        "$bench" "$repetitions" "$threads"
        i=$((i + 1))
    done | awk -v threads="$threads" -v processes="$processes" -v repetitions="$repetitions" '
        /^product/ || /^geometric/ || NF < 6 || /best of/ { next }
        {
            ours = $(NF - 2); theirs = $(NF - 1)
            $NF = $(NF - 1) = $(NF - 2) = ""
            if (!($0 in best_ours)) { name[count++] = $0 }
            if (ours > best_ours[$0]) { best_ours[$0] = ours }
            if (theirs > best_theirs[$0]) { best_theirs[$0] = theirs }
        }
        END {
            printf "%d thread%s, best of %d processes x %d repetitions (GFLOP/s)\n", threads, (threads > 1 ? "s" : ""),
                processes, repetitions
            printf "%-58s %9s %9s %7s\n", "product, m n k", "Invar", "oneDNN", "ratio"
            least = 9
            for (i = 0; i < count; i++) {
                ratio = best_ours[name[i]] / best_theirs[name[i]]
                sum += log(ratio)
                least = ratio < least ? ratio : least
                printf "%-58s %9.1f %9.1f %7.3f\n", name[i], best_ours[name[i]], best_theirs[name[i]], ratio
            }
            printf "geometric mean %.3f, least %.3f of %d\n\n", exp(sum / count), least, count
        }'
done
