#!/usr/bin/env python3
"""The trace that `invar train --profile N` writes: one process, and four ranks (tensor x pipeline) under mpirun. TAP.

    tests/par/profile.py INVAR
"""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
# In sanitized builds: what MPI libraries leak does not count (mpi_launch.sh).
MPI_ENV = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", LSAN_OPTIONS="exitcode=0")
KERNELS = {"product", "gradient product", "attention", "attention backward", "adamw", "gradient norm"}


def run(work, invar, ranks, name, *args):
    """Exit code, output and state of a run of three steps into the folder `name`."""
    launch = ["mpirun", "--oversubscribe", "-n", str(ranks)] if ranks > 1 else []
    done = subprocess.run(launch + [invar, "train", HERE / "llama.yaml", "--data_path", "tokens", "--output_dir", name,
                                    "--max_steps", "3", "--save_steps", "0", *args],
                          cwd=work, env=MPI_ENV if ranks > 1 else None, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, timeout=120)
    log = pathlib.Path(work, name, "metrics.jsonl")
    lines = log.read_text().splitlines() if log.exists() else []
    return done.returncode, done.stdout, [json.loads(line)["state_hash"] for line in lines if '"train"' in line]


def spans(path):
    """{(rank, row): [(begin, end, name)]} and the row names' ranks of a trace."""
    events = json.loads(path.read_text())["traceEvents"]
    rows = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    out = {}
    for e in events:
        if e["ph"] == "X":
            out.setdefault((e["pid"], rows[e["pid"], e["tid"]]), []).append((e["ts"], e["ts"] + e["dur"], e["name"]))
    return out


def overlap(row):
    """Two spans of a row that neither contain each other nor lie apart, or None."""
    open_spans = []
    for begin, end, name in sorted(row, key=lambda s: (s[0], -s[1])):
        while open_spans and open_spans[-1][1] <= begin + 2e-3:  # times are rounded to a nanosecond
            open_spans.pop()
        if open_spans and end > open_spans[-1][1] + 2e-3:
            return f"{name} and {open_spans[-1][2]} overlap at {begin}"
        open_spans.append((begin, end, name))
    return None


def check(found, ranks, threads, groups):
    """What is wrong with the spans of a trace; empty: nothing."""
    for (rank, row), list_of in found.items():
        if problem := overlap(list_of):
            return f"rank {rank}, {row}: {problem}"
    for rank in range(ranks):
        names = {name for _, _, name in found.get((rank, "thread 0"), [])}
        if KERNELS - names:
            return f"rank {rank}: no span of {sorted(KERNELS - names)}, found {sorted(names)}"
        phases = {name for _, _, name in found.get((rank, "phase"), [])}
        if not {"data", "forward", "backward", "update"} <= phases:
            return f"rank {rank}: phases {sorted(phases)}"
        for row in [f"thread {t}" for t in range(1, threads)] + [f"group {g}" for g in groups]:
            if (rank, row) not in found:
                return f"rank {rank}: nothing on row {row}"
    return ""


def cases(work, invar):
    """(name, problem) of each check."""
    code, text, plain = run(work, invar, 1, "plain", "--threads", "2")
    yield "a run without a profile writes none", "" if code == 0 and not list(work.glob("plain/profile*")) else text
    for ranks, name, threads, groups, args in (
            (1, "one process", 2, [], ["--threads", "2"]),
            (4, "tensor x pipeline", 1, ["tp", "pp", "world"], ["--threads", "1", "--tp", "2", "--pp", "2"])):
        code, text, states = run(work, invar, ranks, f"run{ranks}", "--profile", "2", *args)
        path = work / f"run{ranks}" / "profile-step-2.json"
        problem = text if code != 0 or not path.exists() else check(spans(path), ranks, threads, groups)
        yield f"{name}: kernels, phases and groups of every rank", problem
        yield f"{name}: the state of every step is that without a profile", "" if states == plain else str(states)
    code, text, _ = run(work, invar, 1, "late", "--profile", "9")
    refused = code == 2 and "profile 9 is above max_steps" in text
    yield "a step that the run does not come to is refused", "" if refused else text
    (work / "taken" / "profile-step-2.json").mkdir(parents=True)
    code, text, _ = run(work, invar, 2, "taken", "--profile", "2", "--threads", "1")
    left = [p.name for p in work.glob("taken/profile*")]
    failed = code != 0 and "profile-step-2.json" in text and left == ["profile-step-2.json"]
    yield "a trace that cannot be put in its place leaves nothing", "" if failed else f"{code} {left} {text}"


def main():
    invar = str(pathlib.Path(sys.argv[1]).resolve())
    work = pathlib.Path(tempfile.mkdtemp(prefix="invar-profile."))
    number = 0
    try:
        text = HERE.parents[1] / "examples" / "tinyshakespeare.txt"
        subprocess.run([invar, "data", "build", text, "--tokenizer", "bytes", "--output", "tokens"], cwd=work,
                       check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for name, problem in cases(work, invar):
            number += 1
            print(f"{'not ok' if problem else 'ok'} {number} - {name}", flush=True)
            for line in problem.splitlines():
                print(f"# {line}")
    finally:
        shutil.rmtree(work)
    print(f"1..{number}")


main()
