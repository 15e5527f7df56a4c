# A job of the layout matrix on one process, and the same on ranks that a script starts; read with `.`, after
# matrix_data.sh.
#
#   same_start INVAR FOLDER             makes data and trains on one process, in FOLDER
#   same_as_one OUTPUT LOG COMMAND...   runs COMMAND followed by what train needs to do that job; sets `problem` unless
#                                       it leaves the same files as one process

same_start() {
    same_folder=$2
    same_config=$(cd "$(dirname "$0")/../par" && pwd)/matrix_gpt2.yaml
    matrix_data "$1" 0 20000 "$2/data" &&
        "$1" train "$same_config" --data_path "$2/data" --output_dir "$2/one" --threads 1 >"$2/one.log" 2>&1
}

same_as_one() {
    same_output=$same_folder/$1
    same_log=$2
    shift 2
    problem=
    "$@" --data_path "$same_folder/data" --output_dir "$same_output" --threads 1 >"$same_log" 2>&1 ||
        problem="exit code $?"
    for file in model.safetensors optimizer.safetensors; do
        cmp "$same_folder/one/checkpoints/step-10/$file" "$same_output/checkpoints/step-10/$file" >/dev/null 2>&1 ||
            problem="$problem; $file is not that of one process"
    done
    rm -rf "$same_output"
}
