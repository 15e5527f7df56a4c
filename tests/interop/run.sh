#!/bin/sh
# Compares Invar with independent judges written in Python (torch, transformers, tokenizers, safetensors, tensorboard).
#
#   tests/interop/run.sh [BUILD_FOLDER] [NAME...]      NAME: transformers for transformers_test.py; default: all
#
# Uses the Python in INVAR_PYTHON, or makes an environment of its own under the build folder (a large download, once).
# Each *_test.py is a plain script: exit 0 passed, 77 skipped (it says why), else failed. Its argument is the helper
# program `encode` (encode_main.c), beside which `rewrite_config` lies; in its environment it finds
#   INVAR         the binary
#   INVAR_WORK    an empty folder of its own, removed afterwards
#   INVAR_SHARED  a folder of additional material, when there is one (default ../shared)
# Ends with one line "N passed, N failed".
set -eu

root=$(cd "$(dirname "$0")/../.." && pwd)
build=${1:-$root/build}
[ $# = 0 ] || shift
INVAR=$(cd "$build" && pwd)/invar
INVAR_SHARED=${INVAR_SHARED:-$root/../shared}
export INVAR INVAR_SHARED
ninja -C "$build" encode rewrite_config >/dev/null
export HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false PYTHONDONTWRITEBYTECODE=1

python=${INVAR_PYTHON:-}
if [ -z "$python" ]; then
    venv=$build/interop-venv
    python=$venv/bin/python
    if ! cmp -s "$root/tests/interop/requirements.txt" "$venv/installed.txt"; then
        echo "installing the packages of tests/interop/requirements.txt in $venv"
        python3 -m venv "$venv"
        "$python" -m pip install --quiet --disable-pip-version-check -r "$root/tests/interop/requirements.txt"
        cp "$root/tests/interop/requirements.txt" "$venv/installed.txt"
    fi
fi

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
passed=0
failed=0
skipped=0
for test in "$root"/tests/interop/*_test.py; do
    name=$(basename "$test" _test.py)
    case " $* " in
    "  " | *" $name "*) ;;
    *) continue ;;
    esac
    mkdir "$scratch/$name"
    status=0
    (cd "$root" && INVAR_WORK="$scratch/$name" "$python" "$test" "$(dirname "$INVAR")/encode") || status=$?
    case $status in
    0) passed=$((passed + 1)) word=passed ;;
    77) skipped=$((skipped + 1)) word=skipped ;;
    *) failed=$((failed + 1)) word="failed (exit $status)" ;;
    esac
    echo "$name: $word"
done
if [ $((passed + failed)) = 0 ]; then
    failed=1 # nothing compared is not a success
fi
line="$passed passed, $failed failed"
[ "$skipped" = 0 ] || line="$line, $skipped skipped"
echo "$line"
[ "$failed" = 0 ]
