# What cases share. A case's `setup` and `cmd` read it with:  . "$CLI/lib.sh"
# Everything is made in the current folder by the program itself, so no case depends on a file of another one.

# run.yaml of a model of 10,832 parameters that trains in a few milliseconds. $1: further keys, "key: value".
tiny_config() {
    cat >run.yaml <<END
model:
  model_type: llama
  vocab_size: 257
  hidden_size: 16
  num_hidden_layers: 1
  num_attention_heads: 2
  num_key_value_heads: 2
  intermediate_size: 32
  max_position_embeddings: 32
tokenizer: bytes
data_path: data
seq_length: 16
global_batch_size: 2
max_steps: 4
save_steps: 2
learning_rate: 1.0e-3
report_to: none
output_dir: run
threads: 1
END
    for line in "$@"; do
        echo "$line" >>run.yaml
    done
}

# data.bin, data.idx, data.json: 128 byte tokens.
tiny_data() {
    printf 'The quick brown fox jumps over the lazy dog, and nobody knows why it does.\n' >text.txt
    printf 'The lazy dog sleeps, and the fox jumps on, again.\n' >>text.txt
    "$INVAR" data build text.txt --tokenizer bytes --output data --threads 1 --quiet
    rm text.txt
}

# All of the above and run/ with the checkpoints step-2 and step-4, made once for all cases.
tiny_run() {
    tiny_config
    tiny_data
    if [ ! -d "$CLI_CACHE/run" ]; then
        "$INVAR" train run.yaml --threads 1 >/dev/null 2>&1 || return 1
        cp -R run "$CLI_CACHE/run"
    else
        cp -R "$CLI_CACHE/run" run
    fi
}

# hf/: a GPT-2 model folder from elsewhere with 32 learned positions; data.*.
tiny_gpt2() {
    tiny_data
    mkdir hf
    printf '{"model_type": "gpt2", "vocab_size": 257, "n_positions": 32, "n_embd": 16, "n_layer": 1,' >run.json
    printf ' "n_head": 2, "attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}' >>run.json
    "$INVAR" train --model run.json --data_path data --seq_length 16 --max_steps 1 --save_steps 1 --report_to none \
        --output_dir made --threads 1 >/dev/null 2>&1 || return 1
    mv made/checkpoints/step-1/config.json made/checkpoints/step-1/model.safetensors hf
    rm -r made run.json
}

# Flip bit 0 of byte $2 of file $1, in place.
flip_bit() {
    byte=$(od -An -tu1 -j"$2" -N1 "$1")
    printf "\\$(printf %o $((byte ^ 1)))" | dd of="$1" bs=1 seek="$2" conv=notrunc 2>/dev/null
}

# Run a command of the program without what depends on time or machine: progress lines, the lines about machine and
# memory, seconds; and without the settings that are printed with their origins.
timeless() {
    "$@" >timeless.out 2>&1
    code=$?
    sed -e '/  # \(default\|derived from .*\|command line\|run\.yaml:[0-9]*\)$/d' -e '/tokens\/s  /d' \
        -e '/^machine: /d' -e '/^window .* tokens\/s/d' -e '/^memory: /d' \
        -e 's/ in [0-9.]* m*s\([,.]\)/ in TIME\1/' -e 's/peak memory .* planned)/peak memory SIZE/' \
        -e 's/, [0-9.]* m*s, [0-9.]* MB\/s$/, TIME/' \
        -e 's/ in [0-9.]* s ([0-9.]* tokens\/s)/ in TIME/' timeless.out
    rm -f timeless.out
    return $code
}
