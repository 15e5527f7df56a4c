#!/bin/bash
# Runs every case tests/cli/GROUP/NAME/ in a fresh copy of its folder and compares what a user sees. TAP on stdout.
#
#   tests/cli/cli.sh INVAR [--accept] [PATTERN]      PATTERN: part of GROUP/NAME
#
# A case folder holds
#   cmd     shell text; $INVAR is the program, the folder's copy is the current folder
#   exact   stdout and stderr of cmd, together, byte for byte
#   rc      exit code of cmd
#   setup   optional: shell text run before cmd, for inputs that are too binary to commit; what it makes is an input
#   after   optional: names of files that cmd leaves beside its inputs, one a line, sorted; without it, none
# and whatever inputs cmd needs. Every file must be the same before and after, except those named in `after`.
# $CLI/lib.sh has what cases share (a tiny run, damage to a file, output without times).
# --accept writes exact, rc and after as they are now: read the difference before you commit it.
set -u
export LC_ALL=C
here=$(cd "$(dirname "$0")" && pwd)
invar=${1:?usage: cli.sh INVAR [--accept] [PATTERN]}
INVAR=$(cd "$(dirname "$invar")" && pwd)/$(basename "$invar")
export INVAR
shift
accept=0
if [ "${1:-}" = --accept ]; then
    accept=1
    shift
fi
pattern=${1:-}
CLI=$here
export CLI
work=$(mktemp -d -p /dev/shm 2>/dev/null || mktemp -d) || exit 1 # in memory: no case waits for a busy disk
CLI_CACHE=$work/cache
export CLI_CACHE
mkdir "$CLI_CACHE"
trap 'rm -rf "$work"' EXIT

# Kind, name and contents of everything below the current folder.
listing() {
    find . -mindepth 1 ! -type f -printf '%y %p\n' | sort
    find . -type f -print0 | sort -z | xargs -0 -r sha256sum
}

# New names below the current folder, given the old listing of names.
new_names() {
    find . -mindepth 1 -printf '%P\n' | sort | comm -13 "$1" -
}

cases=()
for folder in "$here"/*/*/; do
    name=${folder#"$here"/}
    name=${name%/}
    case $name in
        *"$pattern"*) [ -f "$folder/cmd" ] && cases+=("$name") ;;
    esac
done
if [ ${#cases[@]} -eq 0 ]; then
    echo "1..0 # no case matches '$pattern'"
    exit 1
fi

echo "1..${#cases[@]}"
number=0
failed=0
for name in "${cases[@]}"; do
    number=$((number + 1))
    source=$here/$name
    copy=$work/$number
    mkdir "$copy"
    cp -R "$source/." "$copy/"
    rm -f "$copy/exact" "$copy/rc" "$copy/after" # a case must not read its own answer
    cd "$copy" || exit 1
    unprepared=
    if [ -f setup ] && ! sh ./setup >"$work/setup" 2>&1 </dev/null; then
        unprepared="setup failed: $(tail -n 1 "$work/setup")"
    fi
    find . -mindepth 1 -printf '%P\n' | sort >"$work/names"
    listing >"$work/before"
    timeout 60 sh ./cmd >"$work/out" 2>&1 </dev/null
    rc=$?
    new_names "$work/names" >"$work/new"
    if [ $accept = 1 ]; then
        cp "$work/out" "$source/exact"
        echo $rc >"$source/rc"
        rm -f "$source/after"
        [ -s "$work/new" ] && cp "$work/new" "$source/after"
    fi
    why=$unprepared
    if [ "$rc" != "$(cat "$source/rc" 2>/dev/null)" ]; then
        why="${why:+$why; }exit code $rc, expected $(cat "$source/rc" 2>&1)"
    fi
    if ! diff -u "$source/exact" "$work/out" >"$work/diff" 2>&1; then
        why="${why:+$why; }the text differs"
    fi
    if ! diff -u <(cat "$source/after" 2>/dev/null) "$work/new" >>"$work/diff"; then
        why="${why:+$why; }files were left behind or are missing"
    fi
    while IFS= read -r made; do
        rm -rf "./$made"
    done <"$work/new"
    listing >"$work/now"
    if ! diff -u "$work/before" "$work/now" >>"$work/diff"; then
        why="${why:+$why; }an input was changed"
    fi
    cd "$here" || exit 1
    if [ -z "$why" ]; then
        echo "ok $number - $name"
    else
        failed=$((failed + 1))
        echo "not ok $number - $name"
        echo "# $why"
        sed 's/^/# /' "$work/diff"
        echo "# rerun: tests/cli/cli.sh $invar $name"
    fi
done
[ $failed -eq 0 ]
