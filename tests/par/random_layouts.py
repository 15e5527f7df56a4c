#!/usr/bin/env python3
"""Random tiny jobs, each divided over ranks in random ways: every layout gives the bits of one rank after each step,
also where steps are rejected. Ranks are threads of one process (`invar verify`). TAP, one line a job; a job is a pure
function of its number, so that a failing one is run again alone.

    tests/par/random_layouts.py INVAR [FIRST [COUNT]]     jobs FIRST .. FIRST + COUNT - 1 (0, 40)
"""
import json
import math
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile

import random_bits

LAYOUTS = 5  # of each job
RANKS_MAX = 16
SECONDS_MAX = 600
HEAD_UNIT = 256


def grain_of(conf, kv, ffn):
    """tp_grain when it is not given: docs/numerics.md, section 3. The padded vocabulary is a multiple of 128."""
    return conf.get("tp_grain") or max(g for g in (1, 2, 4, 8) if kv % g == 0 and (g == 1 or ffn % (16 * g) == 0))


def divisible(r, model, dim):
    """Sizes that eight tensor-parallel ranks can share."""
    kv, ffn = r.choice([4, 8, 8]), r.choice([64, 128, 128, 256])
    if model["model_type"] == "gpt2":
        model.update(n_head=kv, n_embd=kv * dim, n_inner=ffn)
    else:
        model.update(num_key_value_heads=kv, num_attention_heads=kv * r.choice([1, 2, 3]), intermediate_size=ffn)
    return kv, ffn


def job(r, work):
    """A configuration, and what limits its layouts: (tp_grain, cp sizes)."""
    cp = r.choice([1, 1, 2, 2, 3, 4, 5, 8])
    unit = r.choice([1, 2, 5, 8, 16, 17, 32]) if cp > 1 else None
    seq = r.choice([1, 2, 3, 15, 17, 64, 65, 129, 300, r.randint(1, 130)])
    seq = cp * unit * r.choice([1, 2, 3, 4]) if cp > 1 else seq
    family = r.choice([random_bits.gpt2, random_bits.llama])
    dim = r.choice([8, 8, 16, 24, 40])
    model, kv, ffn, _ = family(r, dim, seq)
    if r.random() < 0.5:
        kv, ffn = divisible(r, model, dim)
    vocab = r.choice([2, 3, 100, 127, 128, 129, 257, 1000, r.randint(2, 1000)])
    batch, layers = r.randint(1, max(2, min(9, 800 // seq))), r.randint(1, 6)
    model.update(vocab_size=vocab, num_hidden_layers=layers, tie_word_embeddings=r.random() < 0.5,
                 initializer_range=r.choice([0.02, 0.02, 0.1, 0.5]))
    if family is random_bits.gpt2:
        model.update(resid_pdrop=r.choice([0, 0, 0.1, 0.5, 0.9]), embd_pdrop=r.choice([0, 0, 0.1, 0.5]), attn_pdrop=0)
    rate = r.choice([1e-3, 1e-2, 0.1, 1.0, 1000.0])
    c = {"model": model, "seq_length": seq, "global_batch_size": batch, "max_steps": 10, "seed": r.randrange(2**40),
         "learning_rate": rate, "warmup_steps": r.choice([0, 1, 2]), "weight_decay": r.choice([0, 0.1, 1]),
         "max_grad_norm": r.choice([0, 1.0, 1e-3, 100]), "adam_beta1": r.choice([0.9, 0.0]),
         "data_path": f"{work}/data"}
    if unit or r.random() < 0.5:
        c["grad_unit"] = unit or r.randint(1, seq)
    if r.random() < 0.3:
        c["tp_grain"] = r.choice([g for g in (1, 2, 4, 8) if kv % g == 0 and ffn % g == 0])
    if r.random() < 0.15:
        c["grad_scale_log2"] = r.choice([20, 48, 60])  # too coarse and too fine: some steps are rejected
    if r.random() < 0.5 and vocab > 2 and seq * batch > 30:
        model["eos_token_id"] = r.randrange(vocab)
        c["eod_mask_loss"] = True
    tokens = seq * r.randint(1, 12) + 1 + r.randint(0, seq)
    random_bits.write_store(f"{work}/data", [r.randrange(vocab) for _ in range(tokens)])
    return c, grain_of(c, kv, ffn), [n for n in (1, 2, 3, 4, 5, 8) if context_fits(seq, c.get("grad_unit", seq), n)]


def context_fits(seq, unit, cp):
    """src/part/layout.h."""
    unit = min(unit, 1024)
    return cp == 1 or (seq % (unit * cp) == 0 and unit % min(unit, HEAD_UNIT) == 0)


def pipeline(r, layers, most):
    """The tokens of a pipeline of at most `most` stages."""
    pp = r.choice([n for n in (1, 1, 2, 2, 3, 4, 5) if n <= most])
    if pp == 1:
        return 1, []
    v = r.choice([1, 1, 2, 3])
    tokens = [f"pp{pp}"] + ([f"v{v}"] if v > 1 else r.choice([[], ["gpipe"], ["1f1b"]]))
    if layers < pp * v or r.random() < 0.4:
        cuts = sorted(r.randint(0, layers) for _ in range(pp * v - 1))
        tokens.append("layers" + "-".join(str(b - a) for a, b in zip([0] + cuts, cuts + [layers])))
    return pp, tokens


def layout(r, conf, grain, contexts):
    """A random layout that the job can have."""
    tp = r.choice([n for n in (1, 1, 2, 4, 8) if n <= grain])
    cp = r.choice([n for n in contexts if n * tp <= RANKS_MAX])
    pp, tokens = pipeline(r, conf["model"]["num_hidden_layers"], RANKS_MAX // (tp * cp))
    dp = r.randint(1, max(1, min(RANKS_MAX // (tp * cp * pp), conf["global_batch_size"] + 2)))
    tokens += [f"{name}{n}" for name, n in (("dp", dp), ("tp", tp), ("cp", cp)) if n > 1]
    tokens += ["sp"] if tp > 1 and r.random() < 0.5 else []
    tokens += [f"zero{r.randint(0, 3)}"] if r.random() < 0.7 else []
    tokens += [f"mb{r.randint(1, math.ceil(conf['global_batch_size'] / dp))}"] if r.random() < 0.7 else []
    tokens += [f"threads{r.randint(2, 3)}"] if r.random() < 0.2 else []
    tokens += [f"seed{r.randint(1, 999)}"] if r.random() < 0.5 else []
    r.shuffle(tokens)
    return ",".join(tokens) or "serial"


def faults(invar, conf, layouts, steps, work):
    """What is wrong with a job; it must have one line for each layout, and all of them equal."""
    pathlib.Path(work, "c.yaml").write_text(json.dumps(conf), encoding="utf-8")
    try:
        p = subprocess.run([invar, "verify", f"{work}/c.yaml", "--steps", str(steps), "--layouts", " ".join(layouts)],
                           capture_output=True, text=True, timeout=SECONDS_MAX, check=False)
    except subprocess.TimeoutExpired:
        return [f"no end within {SECONDS_MAX} s"]
    equal = re.findall(r"^(\S+) +equal ", p.stdout, re.MULTILINE)
    bad = [line for line in p.stdout.splitlines() if re.match(r"\S+ +(DIFFERENT|FAILED|not possible)|  ", line)]
    if p.returncode != 0 or equal != layouts or bad:
        return [f"exit code {p.returncode}", *bad, *p.stderr.splitlines()[-10:]]
    return []


def main():
    invar = os.path.realpath(sys.argv[1])
    first, count = (int(a) for a in (sys.argv[2:4] + ["0", "40"][len(sys.argv[2:4]):]))
    print(f"1..{count}")
    failed = 0
    for n in range(first, first + count):
        r = random.Random(n)
        work = tempfile.mkdtemp(prefix="invar-layouts.", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None)
        try:
            conf, grain, contexts = job(r, work)
            layouts = [layout(r, conf, grain, contexts) for _ in range(LAYOUTS)]
            steps = r.randint(2, 4)
            wrong = faults(invar, conf, layouts, steps, work)
        finally:
            shutil.rmtree(work)
        print(f"{'not ok' if wrong else 'ok'} {n - first + 1} - job {n}", flush=True)
        if wrong:
            print("\n".join(f"# {line}" for line in wrong))
            print(f"# {json.dumps(conf)}\n# --steps {steps} --layouts '{' '.join(layouts)}'")
            print(f"# rerun: tests/par/random_layouts.py {invar} {n} 1", flush=True)
        failed += bool(wrong)
    sys.exit(failed > 0)


main()
