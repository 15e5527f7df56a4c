#!/bin/sh
# Every benchmark, one after the other; bench/RESULTS.md holds what they gave. Leave the machine alone meanwhile.
#
#   bench/bench.sh [BUILD_FOLDER]     INVAR_PYTHON: a Python with torch and tokenizers, for their comparisons
set -eu

build=${1:-build}
ninja -C "$build" benches >/dev/null
echo "== matrix products beside the peers that are installed"
"$(dirname "$0")/compare" "$build/bench_gemm"
echo "== attention beside the peak"
"$build/bench_attention"
echo "== rows, parameters and the loss beside the speed of memory"
"$build/bench_row"
echo "== loading and saving tensor files beside copies of the page cache"
"$build/bench_ckpt"
if [ -n "${INVAR_PYTHON:-}" ]; then
    echo "== training step of GPT-2 124M beside PyTorch"
    "$(dirname "$0")/step.sh" "$build/invar"
    echo "== tokenizers beside Hugging Face"
    ninja -C "$build" tokenizer_bench >/dev/null
    "$INVAR_PYTHON" "$(dirname "$0")/tokenizer_bench.py" "$build/tokenizer_bench"
else
    echo "training step and tokenizers: left out, INVAR_PYTHON names no Python with torch and tokenizers"
fi
