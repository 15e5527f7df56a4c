#!/bin/sh
# The demo's job in fp32 and in bf16: the loss curves agree. Every validation loss within 1 %, the last within 0.5 % -
# and the weights differ, else one of the two was not what it says. Six minutes. TAP.
#
#   tests/long/bf16_loss.sh INVAR
set -u

invar=$(realpath "$1")
root=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d "${TMPDIR:-/tmp}/invar-bf16.XXXXXX")
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1

quiet() {
    "$@" >log 2>&1 || { cat log; echo "Bail out! $*"; exit 1; }
}

text=$root/examples/tinyshakespeare.txt
quiet "$invar" data train-tokenizer "$text" --vocab-size 1024 --output tokenizer
quiet "$invar" data build "$text" --tokenizer tokenizer --output train --range 0:0.9
quiet "$invar" data build "$text" --tokenizer tokenizer --output val --range 0.9:1
for bf16 in false true; do
    quiet "$invar" train "$root/examples/demo.yaml" --tokenizer tokenizer --data_path train --eval_data_path val \
        --output_dir "$bf16" --bf16 "$bf16"
    sed -n 's/.*"group":"eval","step":\([0-9]*\),.*"loss":\([0-9.]*\).*/\1 \2/p' "$bf16/metrics.jsonl" >"$bf16.loss"
done
paste -d' ' false.loss true.loss | awk '
    {
        off = ($4 - $2) / $2
        printf "# step %d: %.4f in fp32, %.4f in bf16, %+.2f %%\n", $1, $2, $4, 100 * off
        off = off < 0 ? -off : off
        most = off > most ? off : most
        if ($1 != $3 || $2 <= 0) bad = 1
    }
    END {
        good = NR > 0 && !bad
        printf "%s 1 - every validation loss in bf16 is within 1 %% of that in fp32\n",
            good && most <= 0.01 ? "ok" : "not ok"
        printf "%s 2 - the last is within 0.5 %%\n", good && off <= 0.005 ? "ok" : "not ok"
    }'
[ "$("$invar" ckpt hash false)" != "$("$invar" ckpt hash true)" ] && echo "ok 3 - the weights differ" ||
    echo "not ok 3 - the weights are the same: one run was not in bf16"
echo "1..3"
