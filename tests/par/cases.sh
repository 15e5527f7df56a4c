#!/bin/sh
# Faults that users of other systems met when a job was divided over ranks, each as a check of the whole program. The
# name of a check begins with the number of its fault. Ranks are threads (`invar verify`) where bits are compared, and
# real processes where starting, reading, saving or dying is the point. Emits TAP.
#
#   tests/par/cases.sh INVAR [NAME-PART]      MPI=mpich for a program that is built with MPICH
set -u

invar=$(realpath "$1")
only=${2:-}
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d -p /dev/shm invar-cases.XXXXXX 2>/dev/null || mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
export TMPDIR="$work"
. "$here/mpi_launch.sh"
. "$here/matrix_data.sh"
cd "$work" || exit 1
mpi_find || no_mpi=$mpi_why
number=0
failed=0
data=data # what `equal` trains on
limit=60  # seconds without progress
rank=OMPI_COMM_WORLD_RANK
[ "$MPI" = mpich ] && rank=PMI_RANK

# ---- checks ----

# begin NAME [mpi]: whether the check is to be run. It sets `problem` while it runs and ends with `report`.
begin() {
    case $1 in *"$only"*) ;; *) return 1 ;; esac
    name=$1
    problem=
    number=$((number + 1))
    if [ "${2:-}" = mpi ] && [ -n "${no_mpi:-}" ]; then
        echo "ok $number - $name # SKIP $no_mpi"
        return 1
    fi
    : >log
    rm -rf out
}

report() {
    if [ -z "$problem" ]; then
        echo "ok $number - $name"
        return
    fi
    failed=1
    echo "not ok $number - $name"
    echo "# $problem"
    grep -v '  # ' log | tail -n 25 | sed 's/^/#   /'
    echo "# rerun: MPI=$MPI tests/par/cases.sh $invar '$name'"
}

wrong() {
    problem="${problem:+$problem; }$*"
}

# ends RC COMMAND...: the command prints into log and exits with RC. What it prints on stderr comes last: mpirun would
# mix the two within lines.
ends() {
    want=$1
    shift
    "$@" >log 2>log.err
    got=$?
    cat log.err >>log
    [ "$got" = "$want" ] || wrong "exit code $got, expected $want"
}

# says N TEXT: that many lines of log hold TEXT.
says() {
    got=$(grep -cF -e "$2" log)
    [ "$got" = "$1" ] || wrong "$got lines with \"$2\", expected $1"
}

# same_bits STEP FOLDER: the last run saved what FOLDER holds after STEP.
same_bits() {
    for file in model.safetensors optimizer.safetensors trainer_state.json; do
        cmp -s "$2/checkpoints/step-$1/$file" "out/checkpoints/step-$1/$file" ||
            wrong "step $1: $file is not that of $2"
    done
}

# hash_of FOLDER STEP: the state hash.
hash_of() {
    "$invar" ckpt hash "$1/checkpoints/step-$2"
}

# ---- runs ----

# One process, one thread. FILE.yaml lies beside this script, or was made here.
train() { # FILE [--key value ...]
    yaml=$here/$1.yaml
    [ -e "$yaml" ] || yaml=$1.yaml
    shift
    "$invar" train "$yaml" --output_dir out --report_to none --threads 1 "$@"
}

# The same on N ranks, with as many threads as they take. What RANK1 holds is added on rank 1 alone, what OTHERS holds
# on the others; BEFORE goes before the program.
ranks() { # N FILE [--key value ...]
    count=$1
    yaml=$here/$2.yaml
    [ -e "$yaml" ] || yaml=$2.yaml
    shift 2
    launch "$count" ./one_rank "$invar" train "$yaml" --output_dir out --report_to none \
        --distributed_timeout $limit "$@"
}
cat >one_rank <<END
#!/bin/sh
if [ "\$$rank" = 1 ]; then
    echo \$\$ >"$work/pid"
    exec \$BEFORE "\$@" \$RANK1
fi
exec \$BEFORE "\$@" \$OTHERS
END
chmod +x one_rank
export RANK1='' OTHERS='' BEFORE=''

# with "NAME=VALUE ..." COMMAND...: in that environment.
with() {
    (
        export $1
        shift
        "$@"
    )
}

# equal NAME FILE LAYOUTS [--key value ...]: under every layout the bits of one rank, step by step.
equal() {
    begin "$1" || return
    file=$2
    layouts=$3
    shift 3
    ends 0 "$invar" verify "$here/$file.yaml" --data_path "$data" --layouts "$layouts" "$@"
    count=$(echo $layouts | wc -w)
    says 1 "$count of $count layouts equal to one rank"
    says 1 "; 0 not possible"
    report
}

# refused NAME N RC TEXT RANK1 [--key value ...]: a job of N ranks ends with RC, TEXT is said once, nothing is made.
refused() {
    begin "$1" mpi || return
    n=$2
    rc=$3
    text=$4
    RANK1=$5
    shift 5
    ends "$rc" ranks "$n" gpt2 --threads 1 "$@"
    says 1 "$text"
    [ ! -e out ] || wrong "there is a folder of the run"
    RANK1=
    report
}

# A store of tokens, given one a line, as one document.
store() { # PREFIX
    awk '{ printf "\\0%03o\\0%03o", $1 % 256, int($1 / 256) }' >"$1.text"
    printf '%b' "$(cat "$1.text")" >"$1.bin"
    tokens=$(($(wc -c <"$1.bin") / 2))
    { printf 'MMIDIDX\0\0\1\0\0\0\0\0\0\0\10\1\0\0\0\0\0\0\0\2\0\0\0\0\0\0\0'
      printf "\\$(printf %o $((tokens % 256)))\\$(printf %o $((tokens / 256)))\\0\\0"
      printf '\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0'; } >"$1.idx"
}

matrix_data "$invar" 0 20000 data && matrix_data "$invar" 20000 10000 other || { echo "Bail out! no data"; exit 1; }
# 14 samples of 64 tokens: an epoch is 2 steps of 7. 20 samples that are all the same.
awk 'BEGIN { for (i = 0; i < 897; i++) print (i * 7 + int(i / 5)) % 256 }' | store epoch
awk 'BEGIN { for (i = 0; i < 1281; i++) print 97 }' | store constant
# Samples of 64 of which the first 1 to 64 positions count: what follows an end of text (256) has no target.
awk 'BEGIN { for (i = 0; i < 2561; i++) print i % 64 <= int(i / 64) * 13 % 64 ? i % 61 + 1 : 256 }' | store ragged

# ---- config: numbers that follow from the number of ranks ----

# I01: three batch numbers that fit 4 ranks, started as one process.
batch="--global_batch_size 8 --micro_batch_size 2 --gradient_accumulation_steps 1"
refused "I01 a batch of 4 ranks on 2 is refused with all factors" 2 2 \
    "global_batch_size 8 != micro_batch_size 2 x gradient_accumulation_steps 1 x dp 2 (= 4)" "" --data_path data $batch
if begin "I01 the same batch on 4 ranks runs" mpi; then
    ends 0 ranks 4 gpt2 --data_path data $batch --max_steps 1
    report
fi

# I02: a number that was computed before the ranks knew of each other; or ranks that were configured differently.
if begin "I02 what follows from the ranks is computed from their real number" mpi; then
    ends 0 ranks 3 gpt2 --data_path data --max_steps 1
    says 1 "dp: 3 "
    report
fi
refused "I02 a key that one rank has otherwise is named with both values" 3 2 \
    "error: rank 1 has learning_rate 0.02 (command line), rank 0 has learning_rate 0.01 ($here/gpt2.yaml:14)" \
    "--learning_rate 2e-2" --data_path data
refused "I02 not the derived number but the key that it followed from" 2 2 \
    "error: rank 1 has tp 2 (command line), rank 0 has tp 1 (default)" "--tp 2" --data_path data --micro_batch_size null
refused "I02 what only one rank finds wrong is said" 2 2 "error: rank 1: command line: unknown key --learning_rates" \
    "--learning_rates 1" --data_path data
if begin "I02 threads and paths of inputs may differ" mpi; then
    mkdir local
    cp other.* local
    RANK1="--threads 2 --data_path local/other"
    OTHERS="--threads 1 --data_path other"
    ends 0 ranks 2 gpt2 --max_steps 2
    RANK1=
    OTHERS=
    rm -r local
    report
fi

# I03: a batch that the ranks do not divide was rounded. Here ranks hold unequal numbers, also none.
equal "I03 a batch that ranks do not divide is the same batch" matrix_gpt2 "dp3 dp4,mb1 dp5,zero2 dp6,mb2 dp9 dp9,zero3"
# I08, I09, I10: layers that a division of the pipeline dropped. (Refusals word by word: tests/cli/config.)
equal "I08 6 layers on 4 stages are 6 layers" matrix_gpt2 "pp4 pp4,mb1 pp4,gpipe,mb2"
equal "I09 6 layers on 2 x 2 and 2 x 3 chunks are 6 layers" matrix_llama "pp2,v2,mb1 pp2,v3,mb1 pp4,mb1,layers1-2-2-1"
if begin "I10 every layer is in the checkpoint of a pipeline" mpi; then
    ends 0 ranks 4 matrix_gpt2 --data_path data --max_steps 1 --save_steps 1 --pp 4
    says 1 "model: 221888 parameters in 76 tensors" # 6 x 33472 + 257 x 64 + 70 x 64 + 2 x 64
    "$invar" ckpt show out/checkpoints/step-1 | sed '/^optimizer/,$d' >show
    for layer in 0 1 2 3 4 5; do
        [ "$(grep -c "h\.$layer\." show)" = 12 ] || wrong "layer $layer is not whole"
    done
    report
fi

# ---- launch: who is a rank of this job ----

# I17: a batch script starts another number of tasks than the file divides the job into; launchers have their own names
# for the number of a rank.
refused "I17 2 ranks for a layout of 8 are refused with both numbers" 2 2 \
    "tp 2 x pp 2 x cp 1 x dp 2 needs 8 ranks, but 2 ranks are running" "" --data_path data --tp 2 --pp 2 --dp 2
refused "I17 fewer ranks than world_size are refused" 2 2 "world_size 4, but 2 ranks are running" "" --data_path data \
    --world_size 4
if begin "I17 one task of several without MPI does not start a job of its own"; then
    ends 2 env SLURM_STEP_NUM_TASKS=8 SLURM_PROCID=0 "$invar" train "$here/gpt2.yaml" --data_path data --output_dir out
    says 1 "error: srun started 8 tasks, but without MPI"
    [ ! -e out ] || wrong "there is a folder of the run"
    report
fi
if begin "I17 a launcher's variables without its launcher are no job" mpi; then
    ends 2 env OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_RANK=0 PMI_SIZE=4 PMI_RANK=0 "$invar" train "$here/gpt2.yaml" \
        --data_path data --output_dir out
    says 1 "started 4 processes, but each is alone"
    [ ! -e out ] || wrong "there is a folder of the run"
    report
fi
if begin "I17 ranks are numbered by MPI, not by the variables of a batch system" mpi; then
    ends 0 ranks 2 gpt2 --data_path data --max_steps 1 --threads 1
    mv out plain
    ends 0 with "SLURM_NTASKS=8 SLURM_PROCID=5 SLURM_LOCALID=5 SLURM_STEP_NUM_TASKS=8 RANK=7 WORLD_SIZE=16 \
        LOCAL_RANK=3 MV2_COMM_WORLD_RANK=6" ranks 2 gpt2 --data_path data --max_steps 1 --threads 1
    same_bits 1 plain
    says 1 "dp: 2 "
    rm -r plain
    report
fi

# ---- threads ----

# I21: every rank with a thread for each core of the machine, or all threads on one core; a count taken from the
# variable of another library. cores NAME TEXT ENVIRONMENT [--key value ...]: the start of 2 ranks says TEXT, and the
# bits are those of one process with 1 thread.
cores() {
    begin "$1" mpi || return
    text=$2
    variables=$3
    shift 3
    ends 0 with "$variables" ranks 2 gpt2 --data_path data --max_steps 1 "$@"
    says 1 "$text"
    same_bits 1 one_thread
    report
}
rm -rf out
train gpt2 --data_path data --max_steps 1 >log 2>&1
mv out one_thread
"$invar" train "$here/gpt2.yaml" --data_path data --output_dir out --report_to none --max_steps 1 >log 2>&1
alone=$(sed -n 's/^machine: \([0-9]*\) threads* on core.*/\1/p' log) # what a process by itself takes
first=$(taskset -cp $$ | sed 's/.*: //; s/[-,].*//')
share=$((alone > 1 ? alone / 2 : 1))
cores "I21 two ranks share the cores" "machine: ranks 0-1: $share thread$([ $share = 1 ] || echo s) each on core" \
    OMP_NUM_THREADS=1
if grep -q '^machine: .*, bound to' log; then
    cores "I21 ranks that fill a node are bound" ", bound to $first; " A=1
fi
if begin "I21 threads can be left to the system"; then
    ends 0 "$invar" train "$here/gpt2.yaml" --data_path data --output_dir out --report_to none --max_steps 1 \
        --bind_threads none
    says 0 ", bound to"
    same_bits 1 one_thread
    report
fi
BEFORE="taskset -c $first"
cores "I21 ranks have no more threads than the cores that they may use" \
    "machine: ranks 0-1: 1 thread each on core $first" OMP_NUM_THREADS=8
cores "I21 ranks on too few cores are warned" "node 0: 2 ranks with 2 threads, but only 1 core that they may use" A=1
BEFORE=
cores "I21 more threads than cores are warned of" "2 ranks with $((4 * alone)) threads, but only $alone core" A=1 \
    --threads $((2 * alone))
if [ "$MPI" = openmpi ] && [ "$alone" -gt 1 ]; then
    cores "I21 a bound rank takes its core" "machine: rank 0: 1 thread on core $first" \
        OMPI_MCA_hwloc_base_binding_policy=core
fi

# ---- grad-accum: how a batch is cut into micro-batches ----

# I23: losses of micro-batches were added up and never divided: the more of them, the larger the loss. A fresh model
# knows nothing: its loss is the logarithm of the vocabulary.
equal "I23 loss and gradient do not depend on accumulation" gpt2 "mb16 mb4 mb1 mb5 dp3,mb2 tp2,mb1 pp2,mb1" \
    --global_batch_size 32
if begin "I23 the first loss is ln(vocabulary)"; then
    ends 0 train gpt2 --data_path data --max_steps 1 --micro_batch_size 1
    loss=$(sed -n 's/.*"loss":\([0-9.]*\).*/\1/p' out/metrics.jsonl)
    awk "BEGIN { d = $loss - log(257); exit !(d * d < 0.01) }" || wrong "the first loss is $loss, ln(257) is 5.549"
    report
fi

# I24: ranks whose gradients were not summed went on with weights of their own, and no loss showed it. So replicas are
# compared: here rank 1 starts from weights of which the last bit of one is another.
equal "I24 each micro-batch of each rank is in the sum" gpt2 "dp2,mb1 dp2,mb2 dp4,mb1 dp3,mb1,zero2"
flip_last() { # FILE: a bit of its last number
    at=$(($(wc -c <"$1") - 4))
    byte=$(od -An -tu1 -j$at -N1 "$1")
    printf "\\$(printf %o $((byte ^ 1)))" | dd of="$1" bs=1 seek=$at conv=notrunc 2>/dev/null
}
rm -rf out
if train gpt2 --data_path data --max_steps 1 >log 2>&1; then
    mkdir weights flipped
    cp out/checkpoints/step-1/config.json out/checkpoints/step-1/model.safetensors weights
    cp weights/* flipped
    flip_last flipped/model.safetensors
fi
replicas() { # NAME TEXT [--key value ...]: the copies of rank 0 and 1 differ in one bit of the embedding
    begin "$1" mpi || return
    text=$2
    shift 2
    RANK1="--model flipped"
    OTHERS="--model weights"
    ends 1 ranks 2 gpt2 --data_path data "$@"
    says 1 "$text"
    RANK1=
    OTHERS=
    report
}
replicas "I24 replicas that differ in one bit end the job" "transformer.wte.weight is not the same on all ranks" --dp 2
replicas "I24 also when moments and gradients are divided" "transformer.wte.weight is not the same on all ranks" \
    --zero_stage 2

# I25: the stages of ZeRO gave different losses when gradients were accumulated; unequal parts broke one of them.
cells=
for zero in zero0 zero1 zero2 zero3; do
    cells="$cells $zero,dp1 $zero,dp2 $zero,dp3 $zero,dp1,mb2 $zero,dp2,mb1 $zero,dp3,mb1"
done
equal "I25 4 stages x accumulation 1 and 4 x 1, 2, 3 ranks: one result" gpt2 "$cells" --steps 10

# ---- layout-loss: what depended on the division of the job ----

# I26: the loss of a part of a sequence was averaged over its ranks, however many of its tokens count. In this data the
# 1 to 64 that do come first in each sequence: many ranks of a sequence have none.
data=ragged
equal "I26 a loss mask in one part of the sequence" matrix_gpt2 "cp2 cp4 cp8 cp2,mb1 dp2,cp2 tp2,cp2 pp2,cp2 cp4,zero3 \
    dp3"
equal "I26 the same without dropout, untied" matrix_llama "cp2 cp4 dp2,cp2,zero2 tp2,sp,cp2"
data=data

# I90, I91: norms counted replicas once for each rank, or only the layers of one stage. Clipping has to bite to show it.
equal "I90 the gradient norm counts each element once" matrix_gpt2 "tp2 tp4 tp8 tp2,sp tp4,sp,dp2 dp2,zero1 dp3,zero3" \
    --max_grad_norm 0.1
equal "I91 the gradient norm is that of all stages" matrix_llama "pp2 pp3 pp6,mb1 pp2,v2,mb1 tp2,pp2 dp2,pp2,zero2" \
    --max_grad_norm 0.1
if begin "I91 each step of these is clipped" mpi; then
    ends 0 train matrix_llama --data_path data --max_grad_norm 0.1 --max_steps 3
    sed 's/,"tokens_per_second.*//' out/metrics.jsonl >serial.jsonl
    awk -F'"grad_norm":' '{ exit !($2 + 0 > 0.1) }' serial.jsonl || wrong "a norm is below 0.1"
    rm -r out
    ends 0 ranks 2 matrix_llama --data_path data --max_grad_norm 0.1 --max_steps 3 --pp 2
    sed 's/,"tokens_per_second.*//' out/metrics.jsonl | cmp -s serial.jsonl - || wrong "two stages log other norms"
    rm -r out
    ends 0 train matrix_llama --data_path data --max_grad_norm 1000 --max_steps 3
    sed 's/,"tokens_per_second.*//' out/metrics.jsonl | cmp -s serial.jsonl - && wrong "clipping changes nothing"
    report
fi

# I93: seeds that were added up from ranks gave another model for each layout, or the same layer twice, or the same
# dropout to different samples. With learning rate 0 the state after a step is that of the start.
equal "I93 initial weights and dropout are those of one rank" matrix_gpt2 "dp2 tp2 tp8,sp pp2 pp6 cp2 pp2,v3 \
    dp3,zero3,tp2" --learning_rate 0 --min_lr 0 --steps 1
if begin "I93 no two tensors start the same" mpi; then
    ends 0 ranks 2 matrix_gpt2 --data_path data --learning_rate 0 --min_lr 0 --max_steps 1 --pp 2
    "$invar" ckpt show out/checkpoints/step-1 | sed '/^optimizer/,$d' | awk '/\[[0-9]+, / { print $NF }' | sort >hashes
    [ "$(wc -l <hashes)" = 26 ] && [ -z "$(uniq -d hashes)" ] || wrong "equal matrices: $(uniq -d hashes)"
    report
fi
first_loss() { # [--key value ...]: of samples that are all the same
    rm -rf out
    train matrix_gpt2 --data_path constant --max_steps 1 "$@" >log 2>&1
    sed -n 's/.*"loss":\([0-9.]*\).*/\1/p' out/metrics.jsonl
}
if begin "I93 equal samples have different dropout"; then
    none="--model.resid_pdrop 0 --model.embd_pdrop 0"
    [ "$(first_loss --global_batch_size 1 $none)" = "$(first_loss --global_batch_size 2 $none)" ] ||
        wrong "without dropout equal samples have different losses"
    [ "$(first_loss --global_batch_size 1)" != "$(first_loss --global_batch_size 2)" ] ||
        wrong "both have the same dropout"
    report
fi

# ---- tied-embeddings: one tensor on two stages ----

# I27: the gradients of the two copies were divided over the ranks before they were added to each other.
equal "I27 a tied head with a pipeline and ZeRO" gpt2 "pp2 dp2,pp2 dp2,pp2,zero1 dp2,pp2,zero2 dp2,pp2,zero3 \
    dp3,pp2,zero2,mb1 dp2,pp2,tp2,zero1" --steps 5
# I28: the copies drifted apart, which a checkpoint of one of them repaired at the next start, with a jump of the loss.
if begin "I28 a pipeline saves the tied embedding once, and one rank goes on from it" mpi; then
    ends 0 train matrix_gpt2 --data_path data --max_steps 3
    mv out whole
    ends 0 ranks 2 matrix_gpt2 --data_path data --max_steps 3 --save_steps 2 --pp 2
    same_bits 3 whole
    "$invar" ckpt show out/checkpoints/step-2 | sed '/^optimizer/,$d' >show
    [ "$(grep -c 'wte' show)" = 1 ] && ! grep -q lm_head show || wrong "not one embedding and no head"
    rm -r out/checkpoints/step-3
    ends 0 train matrix_gpt2 --data_path data --max_steps 3 --resume_from_checkpoint latest
    same_bits 3 whole
    rm -r whole
    report
fi
replicas "I28 copies of a tied embedding that differ in one bit end the job" \
    "transformer.wte.weight of the first pipeline stage and its copy on the last one are not the same" --pp 2
# I29: the stage of a copy decided whether it decays.
equal "I29 both copies decay in the same way" matrix_gpt2 "pp2 pp3,mb1 dp2,pp2,zero1" --weight_decay 10
if begin "I29 the copy is not counted twice" mpi; then
    ends 0 ranks 2 matrix_gpt2 --data_path data --max_steps 1 --pp 2
    says 1 "weight decay 0.1: 26 matrices, 217536 parameters"
    says 1 "no weight decay: 50 vectors (norms, biases), 4352 parameters"
    report
fi

# ---- resume-layout, resharding, optimizer-state, rng-state ----

# goes_on NAME REFERENCE STEP N FILE [--key value ...]: what `saved` was at STEP goes on to the last step of REFERENCE,
# on N ranks, with its bits.
goes_on() {
    begin "$1" mpi || return
    reference=$2
    step=$3
    n=$4
    file=$5
    shift 5
    last=$(ls "$reference/checkpoints" | sed 's/step-//' | sort -n | tail -n 1)
    ends 0 ranks "$n" "$file" --max_steps "$last" --resume_from_checkpoint "saved/checkpoints/step-$step" "$@"
    says 1 "resumed from saved/checkpoints/step-$step"
    same_bits "$last" "$reference"
    report
}
# begins REFERENCE FILE STEPS N [--key value ...]: REFERENCE by one process, `saved` by N ranks.
begins() {
    [ -z "${no_mpi:-}" ] || return
    reference=$1
    file=$2
    steps=$3
    n=$4
    shift 4
    rm -rf out saved
    train "$file" --data_path "$data" --max_steps "$steps" --save_steps 1 >log 2>&1
    mv out "$reference"
    ranks "$n" "$file" --data_path "$data" --max_steps "$steps" --save_steps 1 "$@" >log 2>&1 || sed 's/^/# /' log
    mv out saved
}

# I71: a checkpoint that only the same number of ranks could read.
begins ref71 matrix_llama 4 4 --tp 2 --zero_stage 2
goes_on "I71 saved on tp 2 dp 2 zero 2, goes on on 3 ranks" ref71 2 3 matrix_llama --data_path data --zero_stage 3
goes_on "I71 saved on tp 2 dp 2 zero 2, goes on on one rank" ref71 2 1 matrix_llama --data_path data
goes_on "I71 saved on tp 2 dp 2 zero 2, goes on on pp 2 tp 2" ref71 3 4 matrix_llama --data_path data --pp 2 --tp 2
# I74: moments that were not saved, not read, or dropped because there was no room for them yet.
if begin "I74 a checkpoint without its moments is refused" mpi; then
    cp -r saved/checkpoints/step-2 broken
    rm broken/optimizer.safetensors
    ends 3 train matrix_llama --data_path data --max_steps 4 --resume_from_checkpoint broken
    says 1 "broken/optimizer.safetensors"
    rm -r broken
    report
fi
if begin "I74 moments that became zero are refused" mpi; then
    cp -r saved/checkpoints/step-2 broken
    bytes=$(wc -c <broken/optimizer.safetensors)
    head -c 4096 /dev/zero | dd of=broken/optimizer.safetensors bs=1 seek=$((bytes - 4096)) conv=notrunc 2>/dev/null
    ends 3 ranks 2 matrix_llama --data_path data --max_steps 4 --resume_from_checkpoint broken --zero_stage 3
    says 1 "broken/optimizer.safetensors"
    rm -r broken
    report
fi
# I73: half of a divided tensor was saved.
if begin "I73 half of the weights is noticed, by the run and by verify" mpi; then
    cp -r saved/checkpoints/step-2 broken
    truncate -s $(($(wc -c <broken/model.safetensors) / 2)) broken/model.safetensors
    ends 3 ranks 2 matrix_llama --data_path data --max_steps 4 --resume_from_checkpoint broken --tp 2
    says 1 "broken/model.safetensors"
    ends 3 "$invar" ckpt verify broken
    says 1 "model.safetensors"
    rm -r broken
    report
fi
# I72: parts of flat buffers were padded, and put together wrongly for another number of ranks.
cat >odd.yaml <<END
model: {model_type: llama, vocab_size: 257, hidden_size: 13, num_hidden_layers: 2, num_attention_heads: 3,
  num_key_value_heads: 1, head_dim: 8, intermediate_size: 7, max_position_embeddings: 64}
seq_length: 16
global_batch_size: 4
lr_decay_steps: 4
learning_rate: 1.0e-2
END
begins ref72 odd 4 3 --zero_stage 3
goes_on "I72 sizes that 3 ranks do not divide, on 2 ranks" ref72 2 2 odd --data_path data --zero_stage 2
goes_on "I72 sizes that 3 ranks do not divide, on 4 ranks" ref72 1 4 odd --data_path data --zero_stage 1

# I75: states of random generators that were not restored at the end of an epoch, or were those of ranks that are gone.
# Dropout is on; an epoch is 2 steps; evaluations in between draw nothing.
data=epoch
begins ref75 matrix_gpt2 6 2 --dp 2
goes_on "I75 dropout goes on at the end of an epoch, on fewer ranks" ref75 2 1 matrix_gpt2 --data_path epoch
goes_on "I75 dropout goes on within an epoch, on more ranks" ref75 3 3 matrix_gpt2 --data_path epoch
goes_on "I75 evaluation between the steps changes nothing" ref75 4 2 matrix_gpt2 --data_path epoch \
    --eval_data_path other --eval_steps 1 --eval_iters 1 --tp 2
data=data

# ---- hang: ranks that wait for each other ----

# I98: ranks with fewer samples left, and the others waited. Steps are counted once; ranks without a sample take part.
if begin "I98 samples that ranks and batches do not divide end all ranks at the same step" mpi; then
    ends 0 train matrix_gpt2 --data_path epoch --max_steps null --num_train_epochs 1.5 --global_batch_size 5
    mv out whole
    ends 0 ranks 3 matrix_gpt2 --data_path epoch --max_steps null --num_train_epochs 1.5 --global_batch_size 5
    says 1 "done: 4 steps"
    same_bits 4 whole
    rm -r whole
    report
fi
cp other.idx cut.idx
head -c 5000 other.bin >cut.bin
OTHERS="--data_path other"
refused "I98 a file of tokens that is cut on one rank" 2 3 "rank 1: cut.bin: has 5000 bytes, the index needs" \
    "--data_path cut"
refused "I98 a file that is missing on one rank" 2 3 "rank 1: nowhere.idx: cannot be opened" "--data_path nowhere"
refused "I98 a rank with fewer tokens" 2 2 "data_path: rank 1 has 897 tokens, rank 0 has" "--data_path epoch"
cp other.idx same.idx
{ head -c 12000 other.bin; printf x; tail -c +12002 other.bin; } >same.bin
refused "I98 a rank with as many tokens, but others" 2 2 \
    "data_path: rank 1 has as many tokens as rank 0, but not the same ones" "--data_path same"
OTHERS=
# I99, I100: a rank that makes other calls than the rest, because it saves, evaluates or reduces at other times. What
# the calls themselves say of each other is tested in tests/par/mpirun.sh.
refused "I99 a rank that would save at other steps" 2 2 \
    "rank 1 has save_steps 1 (command line), rank 0 has save_steps 10" "--save_steps 1" --data_path data
refused "I100 a rank that would reduce other parts" 2 2 \
    "rank 1 has zero_optimization.stage 2 (command line), rank 0 has" "--zero_optimization.stage 2" --data_path data
# I103: parameters that got no gradient on one rank, which had nothing to compute.
equal "I103 a rank without a sequence gives zeros" gpt2 "dp2 dp3,zero3 dp4,zero2 dp3,tp2,zero1 dp2,pp2" \
    --global_batch_size 1 --micro_batch_size 1
# I104: a process that was forked while it had threads waits for one that it does not have.
if begin "I104 the program does not fork"; then
    if command -v nm >/dev/null; then
        nm -D --undefined-only "$invar" >log
        grep -q ' pthread_create' log || wrong "nm does not show what the program calls"
        for call in fork vfork popen system posix_spawn; do
            grep -q " $call\(@\|$\)" log && wrong "it calls $call"
        done
    fi
    report
fi

# A job that goes on until something happens to rank 1, after two steps. happens NAME RC TEXT COMMAND: the job ends
# within 10 s with RC, says TEXT once and leaves no rank behind. COMMAND knows the process as $pid.
happens() {
    begin "$1" mpi || return
    rm -f pid
    for kind in bin idx json; do
        cp other.$kind victim.$kind
    done
    RANK1="--data_path victim"
    OTHERS="--data_path other"
    ranks 2 gpt2 --max_steps 1000000 --save_steps 0 --threads 1 >log 2>log.err &
    job=$!
    until [ "$(wc -l <out/metrics.jsonl)" -ge 2 ] || ! kill -0 $job; do
        sleep 0.05
    done 2>/dev/null
    pid=$(cat pid)
    eval "$4"
    start=$(date +%s)
    wait $job
    got=$?
    took=$(($(date +%s) - start))
    cat log.err >>log
    for wait in 1 2 3 4 5 6 7 8 9 10 11; do # mpirun does not wait for those that it ends
        alive=$(tr -d '\0' <"/proc/$pid/cmdline") # nothing of a process that is only waited for
        [ -n "$alive" ] && sleep 0.2
    done 2>/dev/null
    [ -z "$alive" ] || { wrong "rank 1 is left behind" && kill -9 "$pid"; }
    case " $2 " in *" $got "*) ;; *) wrong "exit code $got, expected $2" ;; esac
    [ $took -le 10 ] || wrong "it took $took s to end"
    says 1 "$3"
    RANK1=
    OTHERS=
    report
}
happens "I98 a file that is cut while it is read ends the job" 3 "error: rank 1: victim.bin: the file was cut" \
    'truncate -s 100 victim.bin'
limit=3
happens "I98 a rank that is stopped is named" 5 "error: rank 1 is late: in" 'kill -STOP $pid'
limit=60
happens "I98 a rank that is killed is named" "137 9 5" "error: rank 1 is lost: process" 'kill -KILL $pid'
[ $number = 0 ] && echo "no check has \"$only\" in its name" >&2 && exit 2
echo "1..$number"
exit $failed
