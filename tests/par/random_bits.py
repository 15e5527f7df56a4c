#!/usr/bin/env python3
"""Random tiny jobs, each run in random ways: threads, micro-batch, instruction set, recomputation, killed and resumed.
Every way must leave the same files and the same log. TAP, one line a job; a job is a pure function of its number, so
that a failing one is run again alone.

    tests/par/random_bits.py INVAR [FIRST [COUNT]]     jobs FIRST .. FIRST + COUNT - 1 (0, 24)
"""
import json
import os
import pathlib
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

SIGNALS = (signal.SIGKILL, signal.SIGINT, signal.SIGTERM)
FILES = ("model.safetensors", "optimizer.safetensors", "trainer_state.json", "manifest.json")
KILLS_MAX = 4


def isas():
    flags = pathlib.Path("/proc/cpuinfo").read_text().split()
    return (["vector", "avx2"] if "avx2" in flags and "fma" in flags else []) + (
        ["avx512"] if {"avx512f", "avx512dq", "avx512vl"} <= set(flags) else [])


def write_store(prefix, ids):
    """A token store of one document (docs/formats.md)."""
    pathlib.Path(prefix + ".bin").write_bytes(struct.pack(f"<{len(ids)}H", *ids))
    pathlib.Path(prefix + ".idx").write_bytes(
        b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, 1, 2) + struct.pack("<iqqq", len(ids), 0, 0, 1))


def gpt2(r, dim, seq):
    heads = r.choice([1, 2, 3, 4, 8]) if dim <= 24 else r.choice([1, 2, 3])
    m = {"model_type": "gpt2", "n_head": heads, "n_embd": heads * dim, "n_positions": seq + r.choice([0, 0, 3, 100])}
    if r.random() < 0.5:
        m["n_inner"] = r.choice([1, 7, 16, 33, 48, 64, 100, 256])
    return m, heads, m.get("n_inner", 4 * heads * dim), heads * dim


def llama(r, dim, seq):
    kv = min(r.choice([1, 2, 3, 4, 8]), 8 if dim <= 24 else 2)
    heads = kv * r.choice([1, 1, 2, 3, 5])
    m = {"model_type": "llama", "num_attention_heads": heads, "num_key_value_heads": kv, "head_dim": dim,
         "hidden_size": r.choice([1, 7, 8, 16, 17, 40, 48, 64, 96]),
         "intermediate_size": r.choice([1, 5, 16, 24, 32, 33, 64, 96, 128, 200]),
         "max_position_embeddings": seq + r.choice([0, 50]), "rope_theta": r.choice([10000.0, 500000.0, 10.0])}
    return m, kv, m["intermediate_size"], heads * dim


def job(r, work):
    """A configuration, and its cost in 10^9 operations."""
    seq = r.choice([1, 2, 3, 15, 16, 17, 63, 64, 65, 127, 128, 129, 300, r.randint(1, 130), r.randint(1, 130)])
    model, kv, ffn, q = r.choice([gpt2, llama])(r, r.choice([8, 8, 16, 24, 32, 40, 64, 72]), seq)
    hidden, layers, batch = model.get("n_embd") or model["hidden_size"], r.randint(1, 4), r.randint(1, 9)
    vocab = r.choice([2, 3, 127, 128, 129, 255, 256, 257, 1000, r.randint(2, 1000)])
    model.update(vocab_size=vocab, num_hidden_layers=layers, tie_word_embeddings=r.random() < 0.5,
                 initializer_range=r.choice([0.02, 0.02, 0.1, 0.5]))
    cost = batch * seq * 6e-9 * (layers * (4 * hidden * q + 3 * hidden * ffn + q * seq) + hidden * max(vocab, 128))
    steps = r.randint(2, 6) if cost < 0.1 else 2
    rate = r.choice([1e-3, 1e-2, 0.1, 1.0, 10.0])
    c = {"model": model, "seq_length": seq, "global_batch_size": batch, "max_steps": steps,
         "seed": r.randrange(2**40), "learning_rate": rate, "warmup_steps": r.choice([0, 0.02, 0.3, 1, 2]),
         "lr_scheduler_type": r.choice(["constant", "linear", "cosine", "wsd", "inverse_sqrt"]),
         "weight_decay": r.choice([0, 0.1, 1]), "max_grad_norm": r.choice([0, 1.0, 1e-6, 1e-3, 100]),
         "adam_beta1": r.choice([0.9, 0.0, 0.99]), "adam_beta2": r.choice([0.95, 0.0, 0.999]),
         "adam_epsilon": r.choice([1e-8, 1e-30, 1e-3]), "save_steps": r.choice([0, 1, 2, 3]), "report_to": "none",
         "data_path": f"{work}/data"}
    if c["lr_scheduler_type"] != "constant":
        c["min_lr"] = r.choice([0, rate / 10])
    if r.random() < 0.5:
        c["grad_unit"] = r.randint(1, seq)
    if r.random() < 0.4:
        c["tp_grain"] = r.choice([g for g in (1, 2, 4, 8) if kv % g == 0 and ffn % g == 0])
    if r.random() < 0.2:
        c["grad_scale_log2"] = r.choice([20, 30, 48, 60])  # too coarse and too fine: some steps are rejected
    if r.random() < 0.5:
        c.update(eval_data_path=f"{work}/data", eval_steps=r.randint(1, 3), eval_iters=r.choice([0, 1]))
    if r.random() < 0.5:
        c["bf16"] = True
    if "n_head" in model and r.random() < 0.4:
        model.update(resid_pdrop=r.choice([0, 0.1, 0.9]), embd_pdrop=r.choice([0, 0.1, 0.9]))
    write_store(f"{work}/data", [r.randrange(vocab) for _ in range(seq * r.randint(1, 12) + 1 + r.randint(0, seq))])
    return c, cost * steps


class Job:
    def __init__(self, invar, number, work):
        self.invar, self.work, self.r = invar, work, random.Random(number)
        self.conf, cost = job(self.r, work)
        self.isas = (["scalar"] if cost < 0.12 else []) + isas() or ["scalar"]
        self.micro = [d for d in range(1, 10) if self.conf["global_batch_size"] % d == 0]
        pathlib.Path(work, "c.yaml").write_text(json.dumps(self.conf))

    def way(self, isas):
        return (self.r.choice(isas), self.r.choice([1, 2, 3, 5]), self.r.choice(self.micro),
                self.r.choice(["none", "selective", "full"]))

    def start(self, out, isa, threads, micro, again, *more):
        return subprocess.Popen(
            [self.invar, "train", f"{self.work}/c.yaml", "--output_dir", out, "--threads", str(threads),
             "--micro_batch_size", str(micro), "--gradient_checkpointing", again, *more],
            env=dict(os.environ, INVAR_ISA=isa), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    def result(self, out, process):
        """Exit code, log without times, last checkpoint."""
        error = process.communicate()[1]
        if process.returncode not in (0, 1):
            return process.returncode, error[-400:], None
        keys = ("group", "step", "state_hash", "loss", "grad_norm", "learning_rate", "tokens", "rejected")
        log = [[json.loads(line).get(k) for k in keys] for line in open(f"{out}/metrics.jsonl", encoding="utf-8")]
        step = pathlib.Path(out, "checkpoints", f"step-{self.conf['max_steps']}")
        return process.returncode, log, [(step / f).read_bytes() for f in FILES if process.returncode == 0]

    def killed(self, out):
        """The result of a run that was stopped at random moments and went on each time in another way."""
        steps = pathlib.Path(out, "checkpoints")
        for i in range(KILLS_MAX + 1):
            saved = steps.is_dir() and any(p.suffix != ".tmp" for p in steps.glob("step-*"))
            more = ["--resume_from_checkpoint", "latest"] if saved else ["--overwrite_output_dir", "true"]
            p = self.start(out, *self.way(self.isas[-2:]), "--save_steps", "1", *more)
            if i < KILLS_MAX:
                time.sleep(self.r.random() * 0.08)
                p.send_signal(self.r.choice(SIGNALS))
                p.wait()
                if p.returncode not in (0, 6) and -p.returncode not in SIGNALS:
                    break
        return self.result(out, p)

    def faults(self):
        first = f"{self.work}/first"
        want = self.result(first, self.start(first, self.isas[0], 1, self.micro[-1], "none"))
        if want[0] not in (0, 1):
            yield f"exit code {want[0]}: {want[1]}"
            return
        for i in range(3):
            how = self.way(self.isas)
            got = self.result(f"{self.work}/{i}", self.start(f"{self.work}/{i}", *how))
            if got != want:
                yield f"isa %s, threads %s, micro-batch %s, recompute %s: {difference(want, got)}" % how
        if want[0] == 0 and (got := self.killed(f"{self.work}/killed")) != want:
            yield f"killed and resumed: {difference(want, got)}"


def difference(want, got):
    if want[0] != got[0]:
        return f"exit code {got[0]}, expected {want[0]}: {got[1]}"
    lines = [(a, b) for a, b in zip(want[1], got[1]) if a != b]
    if lines or len(want[1]) != len(got[1]):
        return f"logs of {len(got[1])} and {len(want[1])} lines: {lines[:1]}"
    return "files differ: " + " ".join(f for f, a, b in zip(FILES, want[2], got[2]) if a != b)


def main():
    invar = os.path.realpath(sys.argv[1])
    first, count = (int(a) for a in (sys.argv[2:4] + ["0", "24"][len(sys.argv[2:4]):]))
    print(f"1..{count}")
    failed = 0
    for n in range(first, first + count):
        work = tempfile.mkdtemp(prefix="invar-random.", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None)
        try:
            j = Job(invar, n, work)
            faults = list(j.faults())
        finally:
            shutil.rmtree(work)
        print(f"{'not ok' if faults else 'ok'} {n - first + 1} - job {n}", flush=True)
        for f in faults:
            print(f"# {f}\n# {json.dumps(j.conf)}\n# rerun: tests/par/random_bits.py {invar} {n} 1")
        failed += bool(faults)
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
