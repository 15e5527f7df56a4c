#!/bin/sh
# The layout matrix: one expected state hash after ten steps for every way of dividing a job over ranks. Ranks are
# threads of one process (`invar verify`). A layout that the program refuses is a failure here. Emits TAP, one line for
# each.
#
#   tests/par/layouts.sh INVAR [STEPS [NAME-PART]]      only the layouts whose name contains NAME-PART
#
# The jobs gpt2, llama and bf16 go through all of them; the other families (families/NAME, and NAME_bf16) through a few.
# With fewer steps the layouts are compared with one rank, but not with the hash below.
set -u

invar=$(realpath "$1")
steps=${2:-10}
only=${3:-}
here=$(cd "$(dirname "$0")" && pwd)
. "$here/matrix_data.sh"
work=$(mktemp -d "${TMPDIR:-/tmp}/invar-layouts.XXXXXX")
trap 'rm -rf "$work"' EXIT
number=0
failed=0

# The bits of these jobs, on every machine. They change only with the version of docs/numerics.md.
gpt2_hash=6714bedea1f03524
llama_hash=c30192ecd0b33c37
bf16_hash=68254a115ca5e20f

# What numbers in bf16 change: every axis, and what ranks exchange in bf16.
list_bf16() {
    echo mb1 mb2 threads2 threads3,mb2 selective full full,mb2 dp2 dp3,mb1,zero1 dp2,zero2 dp5,zero3 dp3,seed3
    echo tp2 tp4,sp tp8,sp,mb1 tp2,sp,selective tp4,full tp2,threads2,seed4
    echo pp2,mb1 pp3,v2,mb1 pp4,gpipe,mb2 pp2,full,mb1
    echo cp2 cp4,zero3 cp2,selective cp4,mb3,seed9 cp2,full,threads2 dp2,tp2,sp,mb1 dp3,zero3,tp2 dp2,pp2,mb1,zero2
    echo tp2,pp2,cp2,sp,mb1 dp2,tp2,pp2,cp2,sp,mb1 dp3,tp2,pp2,zero3,mb1,threads2,seed10 dp2,tp2,sp,cp2,zero3,full
}

# One of each kind; without tensor parallelism where a norm goes over all heads.
list_family() { # NAME
    case "$1" in
    olmo2) echo dp2,mb1 dp3,zero3 pp2,mb1 cp2 cp2,full,mb1 selective full,mb1 threads2,mb3 ;;
    olmo2_bf16) echo dp3,zero3,selective cp2 pp2,full,mb1 ;;
    *_bf16) echo tp2,sp,selective cp2 pp2,full,mb1 ;;
    *) echo dp2,mb1 dp3,zero3 tp2 tp2,sp,mb2 pp2,mb1 cp2 tp2,full tp2,sp,selective cp2,full,mb1 full,mb1 threads2,mb3 ;;
    esac
}

list() { # FAMILY
    [ "$1" = bf16 ] && list_bf16 && return
    [ -f "$here/matrix_$1.yaml" ] || { list_family "$1" && return; }
    for dp in 2 3 5; do # unequal: 4 + 3, 3 + 2 + 2, 2 + 2 + 1 + 1 + 1 sequences
        for zero in '' ,zero1 ,zero2 ,zero3; do
            echo dp$dp$zero dp$dp,mb1$zero
            [ $dp = 5 ] || echo dp$dp,mb2$zero
        done
    done
    echo mb1 mb2 mb3 mb5 mb7 zero3 threads2 threads3,mb2
    echo dp7 dp7,zero3 dp9,zero2 dp10,zero3,mb2,threads2 dp2,threads3,zero1
    echo dp3,mb1,zero2,seed1 dp3,seed2 dp2,zero3,seed3
    for tp in 2 4 8; do
        echo tp$tp tp$tp,sp tp$tp,mb2 tp$tp,sp,mb1
    done
    echo tp2,threads2 tp2,sp,threads3 tp4,seed4 tp4,sp,seed5,mb3
    for pp in 2 3 4; do
        echo pp$pp pp$pp,mb1 pp$pp,gpipe,mb1 pp$pp,gpipe,mb3 pp$pp,1f1b,mb2
    done
    echo pp2,v2 pp2,v2,mb1 pp2,v3,mb2 pp3,v2,mb1 pp3,v2,mb2 pp6,mb1
    echo pp2,mb1,layers1-5 pp2,gpipe,mb2,layers5-1 pp3,mb1,layers1-4-1 pp3,mb2,layers0-6-0 pp4,mb1,layers0-3-0-3
    echo pp2,v2,mb1,layers1-2-2-1 pp2,v2,mb2,layers3-0-0-3 pp3,v2,mb1,layers0-1-2-0-3-0 pp4,v2,mb1,layers1-1-0-1-0-1-1-1
    echo pp2,threads2,mb1 pp3,threads3,mb2 pp4,mb1,seed6 pp3,v2,mb1,seed7 pp3,gpipe,mb1,seed8
    for cp in 2 4; do
        echo cp$cp cp$cp,mb1 cp$cp,zero1 cp$cp,zero3,mb2
    done
    echo cp2,threads2 cp2,zero2,threads3 cp4,mb3,seed9
    echo selective full full,mb1 dp2,full dp3,zero3,mb1,full tp2,selective tp4,sp,selective tp8,sp,full,mb2 pp2,mb1,full
    echo pp3,v2,mb1,selective pp2,gpipe,mb1,full cp2,full cp4,selective,mb1 dp2,tp2,pp2,cp2,sp,mb1,full
    [ "$1" = gpt2 ] && echo cp8 cp8,zero3,mb1
    echo dp2,tp2 dp2,tp2,sp dp2,tp4,mb1 dp3,zero3,tp2 dp3,zero3,tp2,sp,mb1 dp2,zero2,tp8,sp dp5,tp2,zero1,mb1
    echo dp2,pp2 dp2,pp2,mb1 dp3,pp2,mb1,zero1 dp2,pp3,zero2,mb1 dp2,pp2,v2,zero3,mb1 dp7,pp2,zero3 dp9,pp2,mb1,zero2
    echo tp2,pp2 tp2,sp,pp2,mb1 tp4,pp2,v2,mb2 tp2,sp,pp3,gpipe,mb1 tp2,pp4,mb1,layers1-2-2-1
    echo dp2,cp2 dp2,cp2,zero2 dp3,cp2,zero3,mb1 dp2,cp4,zero1 tp2,cp2 tp2,sp,cp2,mb2 tp4,sp,cp2 pp2,cp2,mb1
    echo pp2,cp2,v2,zero3,mb2 pp3,cp2,gpipe,mb1
    echo dp2,tp2,pp2 dp2,tp2,pp2,mb1 dp2,tp2,sp,zero3,mb1,pp2,v2,layers1-2-2-1,seed7
    echo dp2,tp2,cp2,mb1 dp2,tp2,sp,cp2,zero3
    echo dp2,pp2,cp2,zero1,mb1 dp2,tp2,pp2,cp2,sp,mb1 dp2,tp2,pp2,cp2,zero2,v2,mb1 dp3,tp2,pp2,zero3,mb1,threads2,seed10
    echo dp2,tp2,threads2,zero3 dp2,pp2,threads3,mb1 tp2,pp2,threads2,sp,mb1,seed11 dp5,pp3,zero1,mb1,seed12
}

# Turns what verify prints into TAP. Lines of a layout: "NAME equal|DIFFERENT|not possible ..", then indented ones.
to_tap() { # FAMILY WANTED-HASH NUMBER LAYOUT...; reads verify's output
    family=$1
    want=$2
    first=$3
    shift 3
    awk -v family="$family" -v want="$want" -v number="$first" -v rerun="tests/par/layouts.sh $invar $steps" '
    BEGIN {
        for (i = 1; i < ARGC; i++) { name[i] = ARGV[i]; ARGV[i] = "" }
        count = ARGC - 1; ARGC = 1
    }
    NF && !/^ / && $1 != "serial" && $2 ~ /^(equal|DIFFERENT|not|FAILED)$/ { last = $1; line[last] = $0; next }
    NF && !/ layouts equal to one rank / { more[last] = more[last] "# " $0 "\n" }
    END {
        for (i = 1; i <= count; i++) {
            n = name[i]; split(line[n], word, " ")
            good = word[2] == "equal" && (want == "" || word[3] == want)
            printf "%s %d - %s %s\n", good ? "ok" : "not ok", ++number, family, n
            if (!good) {
                printf "# %s\n%s# expected %s\n# rerun: %s \x27%s %s\x27\n",
                    line[n] != "" ? line[n] : "no line", more[n], want, rerun, family, n
                bad = 1
            }
        }
        if (more[""] != "") printf "%s", more[""]
        exit bad
    }' "$@"
}

verify() { # FAMILY LAYOUTS
    config=$here/matrix_$1.yaml
    names=$2
    set --
    if [ ! -f "$config" ]; then
        set -- --model "$here/families/${family%_bf16}"
        [ "$family" = "${family%_bf16}" ] || set -- "$@" --bf16 true
        config=$here/matrix_families.yaml
    fi
    "$invar" verify "$config" "$@" --data_path "$work/data" --steps "$steps" --layouts "$names"
}

others=
while read -r family want want_bf16; do
    others="$others $family ${family}_bf16"
    eval "${family}_hash=$want ${family}_bf16_hash=$want_bf16"
done <"$here/families/hashes.txt"

matrix_data "$invar" 0 40000 "$work/data" || { echo "Bail out! data build failed"; exit 1; }
for family in gpt2 llama bf16 $others; do
    want=
    [ "$steps" = 10 ] && eval "want=\$${family}_hash"
    names=
    for name in $(list $family); do
        case "$family $name" in *"$only"*) names="$names $name" ;; esac
    done
    [ -n "$names" ] || continue
    verify "$family" "$names" >"$work/$family.log" 2>&1
    status=$? # not 0 also when a sanitizer has something to say
    to_tap "$family" "$want" "$number" $names <"$work/$family.log" || failed=1
    for name in $names; do
        number=$((number + 1))
    done
    number=$((number + 1))
    [ $status = 0 ] || failed=1
    [ $status = 0 ] && echo "ok $number - $family: exit code 0" && continue
    echo "not ok $number - $family: exit code $status"
    sed 's/^/# /' "$work/$family.log"
done
echo "1..$number"
exit $failed
