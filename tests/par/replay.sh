#!/bin/sh
# `invar replay` on runs of one and of several real processes: every step and every rank equals its record; a record
# with one bit changed, and a rank that computed one bit wrong, are found and named. TAP.
#
#   tests/par/replay.sh INVAR FAULTY      FAULTY: the program with flip.c; MPI=mpich for a build with MPICH
set -u
invar=$(realpath "$1")
faulty=$(realpath "$2")
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d "${TMPDIR:-/tmp}/invar-replay.XXXXXX")
trap 'rm -rf "$work"' EXIT
export TMPDIR="$work"
. "$here/mpi_launch.sh"
cd "$work" || exit 1
number=0
failed=0

report() { # PROBLEM NAME: an empty problem is none
    number=$((number + 1))
    if [ -z "$1" ]; then
        echo "ok $number - $2"
    else
        failed=$((failed + 1))
        echo "not ok $number - $2"
        echo "# $1"
        sed 's/^/#   /' log 2>/dev/null | tail -n 20
        echo "# rerun: MPI=$MPI tests/par/replay.sh $invar $faulty"
    fi
}

# The command line of a run of five steps with checkpoints after 2, 4 and 5.
job() { # FAMILY RUN [--key value ...]
    family=$1
    run=$2
    shift 2
    set -- "$invar" train "$family.yaml" --output_dir "$run" "$@"
    if [ "$ranks" = 1 ]; then "$@" >log 2>&1; else launch "$ranks" "$@" >log 2>&1; fi
}

# replay RC EQUAL TEXT RUN ...: adds to `problem` unless it exits with RC, finds EQUAL lines equal, and says TEXT.
replay() {
    rc=$1
    equal=$2
    text=$3
    shift 3
    "$invar" replay "$@" >log 2>&1
    got=$?
    same=$(grep -cE '^(step|rank) [0-9]+ +equal ' log)
    other=$(grep -cE '^(step|rank) [0-9]+ +(DIFFERENT|not recorded) ' log)
    [ $got = "$rc" ] || problem="$problem replay $*: exit code $got, expected $rc;"
    [ "$same" = "$equal" ] || problem="$problem replay $*: $same lines equal, expected $equal;"
    [ "$rc" != 0 ] || [ "$other" = 0 ] || problem="$problem replay $*: $other lines are not equal;"
    grep -qF -- "$text" log || problem="$problem replay $*: does not say \"$text\";"
    [ -z "$problem" ] || cp log log.problem
}

finish() { # NAME
    [ -z "$problem" ] || mv log.problem log 2>/dev/null
    report "$problem" "$1"
}

# Change one bit of the last digit of a field of the line of a step.
flip() { # FILE STEP FIELD
    digits=$(sed -n "/\"step\":$2,/s/.*\"$3\":\"*\([0-9a-f]*\).*/\1/p" "$1")
    kept=${digits%?}
    changed=$kept$(printf %x $((0x${digits#"$kept"} ^ 1)))
    sed -i "/\"step\":$2,/s/\"$3\":\(\"*\)$digits/\"$3\":\1$changed/" "$1"
}

# Whether `ranks` can be started; else the check NAME is skipped.
can_start() {
    [ "$ranks" = 1 ] || [ -z "$no_mpi" ] && return 0
    number=$((number + 1))
    echo "ok $number - $1 # SKIP $no_mpi"
    return 1
}

# Every step and rank of a run of RANKS ranks, from its start and from checkpoints.
run_equals() { # NAME FAMILY RUN RANKS [--key value ...]
    name=$1
    family=$2
    run=$3
    ranks=$4
    shift 4
    can_start "$name" || return
    problem=
    if ! job "$family" "$run" "$@"; then
        report "the run failed" "$name"
        return
    fi
    grep -q '"gradient":"0000000000000000"' "$run"/recorder/*.jsonl && problem="a rank gave no gradients;"
    replay 0 1 "from a fresh start, step 0 as 1 rank" "$run" --step 1
    replay 0 2 "from $run/checkpoints/step-2 (step 2) as 1 rank" "$run" --step 3
    replay 0 "$ranks" "from a fresh start, step 0" "$run" --step 1 --rank all
    replay 0 $((ranks + 1)) "from $run/checkpoints/step-4 (step 4)" "$run" --step 5 --rank all
    replay 0 $((ranks + 2)) "gradient" "$run" --step 4 --rank=all
    finish "$name"
}

# One bit of one record of a run is another one.
changed() { # NAME RUN FILE STEP FIELD EQUAL TEXT [replay arguments]
    name=$1
    can_start "$name" || return
    cp -r "$2" changed
    flip "changed/$3" "$4" "$5"
    problem=
    cmp -s "$2/$3" "changed/$3" && problem="nothing was changed;"
    equal=$6
    text=$7
    shift 7
    replay 1 "$equal" "$text" changed "$@"
    rm -r changed
    finish "$name"
}

no_mpi=
mpi_find || no_mpi=$mpi_why
head -c 40000 "$here/../../examples/tinyshakespeare.txt" >text.txt
"$invar" data build text.txt --tokenizer bytes --output text >log 2>&1 ||
    { cat log; echo "Bail out! no data"; exit 1; }
for family in gpt2 llama; do
    sed '/^max_steps\|^save_steps/d' "$here/$family.yaml" >$family.yaml
    cat >>$family.yaml <<'END'
data_path: text
max_steps: 5
save_steps: 2
gradient_hashes: true
threads: 1
report_to: none
END
done

run_equals "a run of one process" gpt2 one 1 --micro_batch_size 3
run_equals "tensor and data parallel, with dropout" gpt2 tp2dp2 4 --tp 2 --micro_batch_size 1 --model.resid_pdrop 0.1
run_equals "three ranks of a batch of eight, ZeRO 2" llama dp3 3 --zero_stage 2 --micro_batch_size 1
run_equals "a pipeline with a tied embedding, gpipe" gpt2 pp2 2 --pp 2 --pipeline_schedule gpipe --micro_batch_size 2
run_equals "a divided pipeline with sequence parallelism" llama tp2pp2 4 --tp 2 --pp 2 --sequence_parallel true
run_equals "context parallel, ZeRO 3" llama cp3 3 --cp 3 --zero_stage 3

ranks=1
changed "a changed state hash" one metrics.jsonl 3 state_hash 1 \
    "step 3 is the first that differs from the record: other weights" --step 3
changed "a changed loss" one metrics.jsonl 3 loss 1 \
    "step 3 is the first that differs from the record: another loss" --step 4
changed "a changed state hash of a checkpoint" one metrics.jsonl 2 state_hash 0 \
    "step 2 is the first that differs" --step 3
ranks=4
changed "a changed gradient of rank 2" tp2dp2 recorder/rank-2.jsonl 5 gradient 4 \
    "step 5: 1 rank gave something else than computed now, the first is rank 2" --step 5 --rank all
changed "a changed gradient, the rank alone" tp2dp2 recorder/rank-3.jsonl 5 gradient 1 \
    "the first is rank 3" --step 5 --rank 3
changed "a changed loss of rank 1" tp2dp2 recorder/rank-1.jsonl 5 loss_sum 4 "the first is rank 1" --step 5 --rank all
changed "a changed number of tokens" tp2dp2 recorder/rank-0.jsonl 5 tokens 4 "the first is rank 0" --step 5 --rank all

# One bit of one gradient of rank 2 is wrong in step 3. All ranks go on with the same wrong sums: nothing differs while
# it runs, and a checkpoint after it holds its result.
ranks=4
name="a rank that computed one bit wrong"
if can_start "$name"; then
    problem=
    product=$invar
    invar=$faulty
    INVAR_FLIP=2@3 job gpt2 wrong --tp 2 --zero_stage 1 --micro_batch_size 2 || problem="the run failed;"
    invar=$product
    replay 0 2 "as 1 rank" wrong --step 2
    replay 1 1 "step 3 is the first that differs from the record: other weights" wrong --step 4
    replay 1 4 "step 3: 1 rank gave something else than computed now, the first is rank 2" wrong --step 3 --rank all
    replay 0 5 "as 2 ranks" wrong --step 5 --rank all
    finish "$name"
fi

# Steps 3 to 5 are done again by other ranks: each step is replayed as it was computed last.
ranks=4
name="a run that went on with another layout"
if can_start "$name"; then
    problem=
    rm -r tp2dp2/checkpoints/step-[45]
    ranks=3
    job gpt2 tp2dp2 --model.resid_pdrop 0.1 --resume_from_checkpoint latest || problem="the run failed;"
    replay 0 4 "as 1 rank" tp2dp2 --step 5 --rank all
    replay 0 2 "rank 3 " tp2dp2 --step 2 --rank 3
    replay 0 4 "as 2 ranks" tp2dp2 --step 1 --rank all
    replay 2 0 "rank 3: step 5 was computed by ranks 0 to 2" tp2dp2 --step 5 --rank 3
    finish "$name"
fi

ranks=1
name="a run that went on from a checkpoint of another one"
problem=
job gpt2 fork --save_steps 0 --resume_from_checkpoint one/checkpoints/step-2 || problem="the run failed;"
replay 0 2 "from $work/one/checkpoints/step-2 (step 2)" fork --step 4
mv one moved
replay 2 0 "step-2 of step 2, is gone" fork --step 4
replay 2 0 "is later" fork --step 2
mv moved one
finish "$name"

name="values that were changed later are those of the step"
problem=
job gpt2 one --max_steps 6 --learning_rate 0.5 --resume_from_checkpoint latest || problem="the run failed;"
replay 0 2 "as 1 rank" one --step 6
replay 0 2 "as 1 rank" one --step 3
replay 2 0 "--max_steps: a replay takes it from the record" one --step 3 --max_steps 5
replay 2 0 "step 3 was computed with another configuration" one --step 3 --model.layer_norm_epsilon 0.1
finish "$name"

name="gradients are recorded when asked for, rejected steps are replayed"
problem=
job gpt2 plain --gradient_hashes false --grad_scale_log2 59
grep -q gradient\" plain/recorder/rank-0.jsonl && problem="a gradient was recorded;"
grep -q '"step":1,.*"rejected":1' plain/metrics.jsonl || problem="$problem no step was rejected;"
replay 0 2 "as 1 rank" plain --step 3
replay 0 1 "gradient not recorded" plain --step 1 --rank 0
finish "$name"

echo "1..$number"
[ $failed = 0 ]
