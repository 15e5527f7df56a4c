#!/usr/bin/env python3
"""Faults of parallel training, planted one at a time in a copy of the source: `invar verify` must find and name each.
TAP, one line a fault, with what was printed. Builds the program once for each, so it takes minutes: `make mutants`.

    tests/par/mutants.py [NAME-PART]      only the faults whose name contains NAME-PART
"""
import collections
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
SECONDS_MAX = 120
STEPS = 3

# A fault: `old`, which stands exactly once in `path`, becomes `new`; then each of `layouts` must fail, and a line match
# `says`. The job is the GPT-2 of the layout matrix.
Fault = collections.namedtuple("Fault", "name path old new layouts says")

FAULTS = [
    Fault("the gradients of a tied embedding are not added over its two stages", "src/train/holdings.c",
          "    if (tied != REGISTRY_NONE) {", "    if (tied != REGISTRY_NONE && h->stage > 3) {",
          ["pp2", "pp3,mb1"], r"step 1: transformer\.wte\.weight of the first pipeline stage and its copy on the last"),
    Fault("the loss is an average of the averages of ranks", "src/train/step.c",
          "    TRY(sum_over_ranks(t, &loss, &squares));\n",
          "    int64_t mean = t->ranks.at.tp > 0 || loss.tokens == 0 ? 0 : loss.sum / (int64_t)loss.tokens;\n"
          "    TRY(comm_sum_i64(t->ranks.all, &mean, 1));\n    TRY(sum_over_ranks(t, &loss, &squares));\n"
          "    loss.sum = mean / (t->ranks.layout.dp * t->ranks.layout.cp) * (int64_t)loss.tokens;\n",
          ["dp2", "dp3,zero1"], r"first difference of step 1: the loss: "),
    Fault("tokens are counted on every tensor-parallel rank", "src/train/step.c",
          "int64_t count = t->ranks.at.tp == 0 ? 1 : 0;", "int64_t count = 1;",
          ["tp2", "tp4,sp"], r"first difference of step 1: the number of tokens that count: \d+ instead of \d+"),
    Fault("replicas are counted twice in the norm", "src/train/optimizer.c",
          "if (at.begin < at.end && optimizer_counts(h, s)) {\n            struct fixed_wide part",
          "if (at.begin < at.end) {\n            struct fixed_wide part",
          ["tp2", "pp2", "dp2,tp2,zero3"], r"first difference of step 1: the norm of the gradients: "),
    Fault("the last micro-batch is dropped", "src/train/ranks.c",
          "(most + c->micro_batch_size - 1) / c->micro_batch_size", "most / c->micro_batch_size",
          ["mb3", "dp2,mb3"], r"first difference of step 1: the number of tokens that count: \d+ instead of \d+"),
    Fault("sequences beyond an equal share of the batch are dropped", "src/train/ranks.c",
          "    return part_range(c->global_batch_size, r->parts, r->part);",
          "    struct order_range share = part_range(c->global_batch_size, r->parts, r->part);\n"
          "    share.hi = share.lo + c->global_batch_size / r->parts;\n    return share;",
          ["dp2", "dp3,pp2,mb1"], r"first difference of step 1: the number of tokens that count: \d+ instead of \d+"),
    Fault("gradients of a tied embedding are reduced before its second use", "src/train/holdings.c",
          "++h->embed_uses == 2", "++h->embed_uses == 1",
          ["dp2", "cp2"], r"first difference of step 1: the gradient of transformer\.wte\.weight \(backward\)"),
    Fault("gradients are reduced before the last micro-batch", "src/train/pipeline.c",
          "holdings_expect(h, op.micro + 1 == r->micros);", "holdings_expect(h, op.micro == 0);",
          ["dp2,mb1", "dp3,mb1,zero1"], r"first difference of step 1: the gradient of \S+ \(backward\)"),
    Fault("reduced gradients are used before the reduction is done", "src/train/holdings.c",
          "        TRY(reducer_wait_for(h->reducer, NULL));", "        h->turn = 0;",
          ["dp2,seed1", "dp3,seed2"],
          r"the gradient of \S+ \(backward\)|depends on timing|is not the same on all ranks"),
    Fault("two collectives of one group are swapped on one rank", "src/model/backward.c",
          "    TRY(gather_own(m, r, m->full_x, hidden));\n    TRY(gather_own(m, r, m->full_rstd, 1));\n",
          "    bool odd = m->place.share.tp_rank == 1;\n"
          "    TRY(gather_own(m, r, odd ? m->full_rstd : m->full_x, odd ? 1 : hidden));\n"
          "    TRY(gather_own(m, r, odd ? m->full_x : m->full_rstd, odd ? hidden : 1));\n",
          ["tp2,sp", "dp2,tp4,sp"], r"FAILED: .*all-gather"),
    Fault("two collectives of one shape are swapped on one rank", "src/train/holdings.c",
          "        TRY(comm_all_gather(h->ranks->data, h->of[b].p, sizeof(float), h->of[b].bounds));",
          "        uint32_t i = h->ranks->at.dp == 1 && (b == 3 || b == 4) ? 7 - b : b;\n"
          "        TRY(comm_all_gather(h->ranks->data, h->of[i].p, sizeof(float), h->of[i].bounds));",
          ["dp2,zero1", "dp3,zero2"], r"FAILED: step 1: \S+ is not the same on all ranks that hold it: rank"),
    Fault("dropout is keyed by the row of a rank", "src/model/rows.c",
          ".first_row = r->own.lo,", ".first_row = 0,",
          ["tp2,sp", "tp4,sp,mb1"], r"first difference of step 1: the output of the embedding \(forward\)"),
    Fault("dropout is keyed by the sequence of a micro-batch", "src/model/rows.c",
          ".first_sample = b->first_sample,", ".first_sample = 0,",
          ["mb1", "dp2"], r"first difference of step 1: the output of the embedding \(forward\)"),
    Fault("the tree over tensor-parallel ranks is a chain", "src/comm/tree.c",
          "    sum_block(part, parts / 2, at, n, sum);\n    sum_block(part + parts / 2, parts / 2, at, n, right);",
          "    sum_block(part, parts - 1, at, n, sum);\n    sum_block(part + parts - 1, 1, at, n, right);",
          ["tp4", "tp8,sp"], r"first difference of step 1: the output of layer 0 \(forward\)"),
    Fault("keys of ranks that share a sequence are put one rank after the other", "src/model/attend.c",
          "memcpy(out + chunk_of(m, rank, j).lo * cols,", "memcpy(out + (rank * m->length + j * n) * cols,",
          ["cp2", "cp4"], r"first difference of step 1: the output of layer 0 \(forward\)"),
    Fault("positions of a shared sequence are counted from the start of a rank's part", "src/model/model.c",
          "    return chunk.lo + t % n;", "    return chunk.lo * 0 + t;",
          ["cp2", "cp4"], r"first difference of step 1: the number of tokens that count: \d+ instead of \d+"),
    Fault("a slice begins 16 elements late", "src/train/holdings.c",
          "    own->m_at = h->stage >= 1",
          "    own->slice.lo += comm_rank(h->ranks->data) > 0 ? 16 : 0;\n    own->m_at = h->stage >= 1",
          ["dp2,zero1", "dp2,zero2"], r"first difference of step 1: the gradient of \S+ \(backward\)|FAILED: step 0: "),
    Fault("new weights are not gathered after the update", "src/train/holdings.c",
          "(h->stage == 1 || h->stage == 2); b++", "h->stage == 2; b++",
          ["dp2,zero1", "cp2,zero1"], r"FAILED: step 1: \S+ is not the same on all ranks that hold it: rank"),
    Fault("gradients of replicated vectors are not added over tensor-parallel ranks", "src/train/reducer.c",
          "comm_size(r->tp_grad) > 1 && b->replicated > 0", "comm_size(r->tp_grad) > 8 && b->replicated > 0",
          ["tp2", "tp4,sp,mb1"], r"FAILED: step 1: \S+ is not the same on all ranks that hold it: rank"),
    Fault("a stage keeps one set of activations for all micro-batches in flight", "src/train/pipeline.c",
          "uint32_t set = op.micro % (p->first_set[op.chunk + 1] - p->first_set[op.chunk]);",
          "uint32_t set = 0 * op.micro;",
          ["pp2,mb1", "pp2,gpipe,mb2"], r"first difference of step 1: the (gradient of \S+ \(backward\)|loss: )"),
    Fault("layers that do not divide evenly are lost", "src/part/pipe.c",
          "        return part_range(p->layers, p->stages * p->chunks, v);",
          "        uint64_t each = p->layers / (p->stages * p->chunks);\n"
          "        return (struct order_range){ v * each, (v + 1) * each };",
          ["pp4", "pp4,mb1,zero1"], r"first difference of step 1: the output of layer 4 \(forward\)"),
    Fault("the gradient of a stage's input is sent before it is complete", "src/train/pipeline.c",
          "    TRY(model_backward_op(p->model, chunk, set, b, loss));\n",
          "    TRY(model_backward_op(p->model, chunk, set, b, loss));\n"
          "    if (!at.first && !at.last) {\n        model_gradient(p->model)[0] = 0.0f;\n    }\n",
          ["pp3,mb1"], r"first difference of step 1: the gradient of \S+ \(backward\)"),
]


class Copy:
    """A copy of the tree, in which faults come and go."""

    def __init__(self, work):
        self.root = pathlib.Path(work, "tree")
        top = str(ROOT)
        shutil.copytree(ROOT, self.root, ignore=lambda folder, names: [
            n for n in names if folder == top and (n.startswith("build") or n in (".git", "runs"))])
        self.run("meson", "setup", "-Dwerror=false", "build")
        self.build()
        self.data = self.root / "data"
        script = f". tests/par/matrix_data.sh; matrix_data build/invar 0 40000 {self.data}"
        self.run("sh", "-c", script, "tests/par/mutants.py")

    def run(self, *command):
        p = subprocess.run(command, cwd=self.root, capture_output=True, text=True, check=False)
        if p.returncode != 0:
            print((p.stdout + p.stderr)[-4000:])
            sys.exit(f"Bail out! {' '.join(command)}: exit {p.returncode}")

    def build(self):
        self.run("ninja", "-C", "build", "invar")

    def verify(self, layout):
        """Exit code and output."""
        command = ["build/invar", "verify", "tests/par/matrix_gpt2.yaml", "--data_path", self.data,
                   "--steps", str(STEPS), "--layouts", layout]
        try:
            p = subprocess.run(command, cwd=self.root, capture_output=True, text=True, timeout=SECONDS_MAX, check=False)
        except subprocess.TimeoutExpired:
            return None, f"no end within {SECONDS_MAX} s"
        return p.returncode, p.stdout + p.stderr

    def plant(self, fault):
        path = self.root / fault.path
        text = path.read_text(encoding="utf-8")
        if text.count(fault.old) != 1:
            return f"{fault.path}: {text.count(fault.old)} places with {fault.old!r}, expected one"
        path.write_text(text.replace(fault.old, fault.new), encoding="utf-8")
        try:
            self.build()
            wrong = [w for layout in fault.layouts if (w := self.missed(fault, layout))]
        finally:
            path.write_text(text, encoding="utf-8")
        return "; ".join(wrong)

    def missed(self, fault, layout):
        """Prints what verify says; why that is not enough, or nothing."""
        code, text = self.verify(layout)
        lines = [line for line in text.splitlines() if re.match(r"\S+ +(DIFFERENT|FAILED|equal|not possible)|  ", line)]
        for line in lines or text.splitlines()[-5:]:
            print("#", line.strip() if line.startswith(" ") else re.sub(" +", " ", line))
        if code != 1:
            return f"{layout}: exit code {code}, expected 1"
        return "" if any(re.search(fault.says, line) for line in lines) else f"{layout}: nothing says {fault.says!r}"


def main():
    part = sys.argv[1] if len(sys.argv) > 1 else ""
    faults = [f for f in FAULTS if part in f.name]
    if not faults:
        sys.exit(f"no fault has {part!r} in its name")
    print(f"1..{len(faults) + 1}", flush=True)
    failed = 0
    with tempfile.TemporaryDirectory(prefix="invar-mutants.") as work:
        copy = Copy(work)
        code, text = copy.verify(" ".join(sorted({layout for f in faults for layout in f.layouts})))
        print(f"{'ok' if code == 0 else 'not ok'} 1 - without a fault all layouts are equal", flush=True)
        if code != 0:
            sys.exit("\n".join("# " + line for line in text.splitlines()))
        for number, fault in enumerate(faults, 2):
            wrong = copy.plant(fault)
            print(f"{'not ok' if wrong else 'ok'} {number} - {fault.name}", flush=True)
            if wrong:
                print(f"# {wrong}\n# rerun: tests/par/mutants.py '{fault.name}'", flush=True)
            failed += bool(wrong)
    sys.exit(failed > 0)


main()
