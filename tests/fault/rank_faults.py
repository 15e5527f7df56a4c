#!/usr/bin/env python3
"""Ranks of real jobs that die, stop, spin or sleep: who is to blame is named, in time, and nothing is left. TAP.

    tests/fault/rank_faults.py FAULT_DRIVER            every kind x phase x rank, and some on several nodes: 252 jobs
    tests/fault/rank_faults.py FAULT_DRIVER --few      each kind once
    tests/fault/rank_faults.py FAULT_DRIVER NAME       the cases that have NAME in their name

Each job is 3 or 4 ranks of FAULT_DRIVER under mpirun with a time limit of 1 s, of which one has a fault (fault.c). Its
exit records must all blame that rank, with its phase, step, last call and how its process is, and stderr must say it
once. A rank that ended is named at once, one that keeps others waiting after the limit: 0.2 s more are allowed, and
what other programs on this machine cost meanwhile, in the best of three jobs. MPI=mpich for a driver that is built with
MPICH.

Several nodes are this machine's ranks, taken for nodes of two or one of them (INVAR_TRANSPORT). A rank alone on its
node that ends is missing here: its launcher is the first to know, and ends the job. So are all ranks that end with
MPICH, whose launcher kills the others within a millisecond.
"""
import collections
import concurrent.futures
import glob
import json
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
LIMIT_S = 1.0
TRIES = 3
JOBS = 2
# kind -> what the process is said to be or to have done, exit code in its record (None: 5, it is ended with the others)
KINDS = {
    "kill": (r"was killed by signal 9 \(Killed\)", 137),
    "segv": (r"was killed by signal 11 \(Segmentation fault\)", 139),
    "abrt": (r"was killed by signal 6 \(Aborted\)", 134),
    "term": (r"was killed by signal 15 \(Terminated\)", 143),
    "exit0": (r"exited with 0", 0),
    "exit3": (r"exited with 3", 3),
    "stop": (r"is stopped", None),
    "spin": (r"computes", None),
    "sleep": (r"sleeps", None),
}
# phase -> where the fault is, step, last call before it (a rank that is alone in a group makes no calls there)
PHASES = {
    "load": ("load", 0, r"#2 split"),
    "data": ("data:step=2", 2, r"#7 agree"),
    "forward": ("forward:step=2:layer=1", 2, r"#5 all-reduce sum i64 x 4|#8 bcast"),
    "backward": ("backward:step=2:layer=0", 2, r"#7 all-reduce sum i64 x 4|#8 bcast"),
    "reduce": ("reduce:step=2", 2, r"#8 all-reduce sum i64 x 4|#8 bcast"),
    "update": ("update:step=2", 2, r"#2 all-reduce sum i64 x 64|#8 all-reduce sum i64 x 4|#8 bcast"),
    "eval": ("eval:step=2", 2, r"#9 barrier"),
    "save": ("save:step=2", 2, r"#10 all-reduce sum i64 x 1 "),
}
PLACES = ("first", "middle", "last")


class Noise:
    """How much longer than asked short sleeps take: the machine's own delays, which are not the watchdog's."""

    def __init__(self):
        self.late = collections.deque(maxlen=10000) # (when, by how much)
        threading.Thread(target=self.measure, daemon=True).start()

    def measure(self):
        while True:
            begin = time.time()
            time.sleep(0.01)
            self.late.append((begin, time.time() - begin - 0.01))

    def since(self, begin):
        return max((late for when, late in list(self.late) if when >= begin), default=0.0)


class Case:
    def __init__(self, number, kind, phase, place, per_node=0):
        self.kind, self.phase, self.per_node = kind, phase, per_node
        self.size = 4 if per_node else 3 + number % 2
        self.rank = {"first": 0, "middle": self.size // 2, "last": self.size - 1}[place]
        self.name = f"{kind} in {phase} of the {place} of {self.size} ranks"
        self.name += f", {self.size // per_node} nodes" if per_node else ""
        self.at, self.step, self.last_call = PHASES[phase]
        self.process, self.code = KINDS[kind]
        self.dies = self.code is not None
        self.delay = None


def all_cases():
    cases = []
    for kind in KINDS:
        for phase in PHASES:
            for place in PLACES:
                cases.append(Case(len(cases), kind, phase, place))
    for per_node, kinds in ((2, ("kill", "stop", "spin", "sleep")), (1, ("spin", "sleep"))):
        cases += [Case(0, kind, phase, place, per_node) for kind in kinds for phase in ("forward", "reduce", "update")
                  for place in ("first", "last")]
    return cases


def few_cases():
    phases = list(PHASES)
    cases = [Case(i, kind, phases[i % len(phases)], PLACES[i % 3]) for i, kind in enumerate(KINDS)]
    return cases + [Case(0, "stop", "reduce", "middle", 2), Case(0, "spin", "forward", "last", 1)]


def launch(driver, case, folder):
    """(exit code or None when it hung, stderr) of one job."""
    script = f'. "{HERE}/../par/mpi_launch.sh"; mpi_find; launch "$@"'
    command = ["sh", "-c", script, "sh", str(case.size), driver, str(folder), str(LIMIT_S)]
    session = tempfile.mkdtemp(dir=os.environ["TMPDIR"]) # those of two jobs would be in each other's way
    env = dict(os.environ, TMPDIR=session, INVAR_FAULT=f"{case.kind}@{case.at}:rank={case.rank}", MPI_SECONDS="40")
    if case.per_node:
        env["INVAR_TRANSPORT"] = f"mpi:{case.per_node}"
    done = subprocess.run(command, env=env, capture_output=True, text=True, errors="replace")
    return (None if done.returncode in (124, 137) and "fault:" not in done.stderr else done.returncode), done.stderr


def check_record(case, folder, rank):
    """What is wrong with the exit record of a rank."""
    path = folder / f"exit-rank-{rank}.json"
    if not path.exists():
        return [f"no {path.name}"]
    record = json.loads(path.read_text())
    problems = []

    def expect(what, found, pattern):
        if not re.search(pattern, str(found)):
            problems.append(f"{path.name}: {what} is {found!r}, expected {pattern!r}")

    late = record.get("late", [])
    expect("ranks that are late", [r["rank"] for r in late], rf"^\[{case.rank}\]$")
    for blamed in late:
        expect("phase", blamed.get("phase"), f"^{case.phase}$")
        expect("step", blamed.get("step"), f"^{case.step}$")
        expect("last call", blamed.get("last_call"), case.last_call)
        expect("process", blamed.get("process"), f"^{case.process}$")
    if not case.dies:
        if not case.per_node: # else there may be none on that node
            expect("waiting ranks", len(record.get("waiting", [])), r"^[1-9]$")
        expect("reason", record.get("reason"), r"ha(s|ve) waited 1\.[0-9] s in #\d+ ")
    expect("reason", record.get("reason"), rf"^rank {case.rank} is {'lost' if case.dies else 'late'}: ")
    own = case.code if rank == case.rank and case.dies else 5
    expect("exit code", record["exit_code"], f"^{own}$")
    expect("last calls", len(record["last_calls"]), r"^[1-8]$")
    return problems


def named_after(case, folder, text):
    """Seconds from the fault to the exit record of its rank."""
    at = re.search(rf"^fault: rank {case.rank} at ([\d.]+) s$", text, re.MULTILINE)
    record = folder / f"exit-rank-{case.rank}.json"
    return record.stat().st_mtime - float(at.group(1)) if at and record.exists() else float("inf")


def run(driver, case, work, noise):
    """What is wrong with a case: the best try counts for the time, any for the rest."""
    # On several nodes the record is perhaps written elsewhere than the news is told.
    allowed = 0.3 if case.dies else LIMIT_S + (0.35 if case.per_node else 0.2)
    for attempt in range(TRIES):
        folder = work / f"{case.kind}-{case.phase}-{case.rank}-{case.size}-{case.per_node}-{attempt}"
        begin = time.time()
        code, text = launch(driver, case, folder)
        problems = ["the job hung"] if code is None else []
        if code not in ((5,) if not case.dies else (1, 5, 3, case.code)):
            problems.append(f"exit code {code}")
        said = re.findall(rf"^error: rank {case.rank} is (?:late|lost): .*{case.process}", text, re.MULTILINE)
        if len(said) != 1 or len(re.findall(r"^error: ", text, re.MULTILINE)) != 1:
            problems.append("stderr does not say it exactly once")
        for rank in range(case.size):
            problems += check_record(case, folder, rank)
        if problems:
            return problems + text.splitlines()[:20]
        case.delay = named_after(case, folder, text)
        shutil.rmtree(folder)
        if case.delay <= allowed + 4 * noise.since(begin): # four sleeps on the way, at most
            return []
    return [f"named after {case.delay:.3f} s, at most {allowed} s are allowed"]


def mapped_files():
    """Every file that some process has mapped."""
    text = ""
    for path in glob.glob("/proc/[0-9]*/maps"):
        try:
            text += pathlib.Path(path).read_text(errors="replace")
        except OSError:
            continue # it ended just now, or is not ours to look at
    return text


def left_over(session, begin):
    """Files of the jobs that are still there; in /dev/shm, where other jobs may be, those that nobody uses."""
    left = [str(p) for p in session.rglob("*") if not p.is_dir()]
    mapped = mapped_files()
    for path in pathlib.Path("/dev/shm").glob("*"):
        try:
            if path.is_file() and path.stat().st_mtime >= begin and str(path) not in mapped:
                left.append(str(path))
        except OSError:
            continue # another job's, gone just now
    return left


def main():
    driver = str(pathlib.Path(sys.argv[1]).resolve())
    wanted = sys.argv[2] if len(sys.argv) > 2 else ""
    found = subprocess.run(["sh", "-c", f'. "{HERE}/../par/mpi_launch.sh"; mpi_find || echo "$mpi_why"'],
                           capture_output=True, text=True).stdout.strip()
    if found:
        print(f"1..0 # SKIP {found}")
        return
    cases = few_cases() if wanted == "--few" else [c for c in all_cases() if wanted in c.name]
    if os.environ.get("MPI") == "mpich":
        cases = [c for c in cases if not c.dies]
    if not cases:
        sys.exit(f'no case has "{wanted}" in its name')
    begin = time.time()
    work = pathlib.Path(tempfile.mkdtemp(prefix="invar-faults."))
    session = work / "session"
    session.mkdir()
    os.environ["TMPDIR"] = str(session)
    noise = Noise()
    failed = 0
    try:
        with concurrent.futures.ThreadPoolExecutor(JOBS) as pool:
            for i, problems in enumerate(pool.map(lambda case: run(driver, case, work, noise), cases)):
                print(f"{'not ok' if problems else 'ok'} {i + 1} - {cases[i].name}", flush=True)
                failed += bool(problems)
                for line in problems:
                    print(f"#   {line}")
        left = left_over(session, begin)
        print(f"{'not ok' if left else 'ok'} {len(cases) + 1} - nothing is left in TMPDIR and /dev/shm")
        for path in left[:20]:
            print(f"#   {path}")
        for what, dies in (("ended", True), ("kept others waiting", False)):
            times = [c.delay for c in cases if c.dies == dies and c.delay is not None]
            if times:
                print(f"# {len(times)} ranks that {what}: named after {statistics.median(times):.3f} s (median), "
                      f"{max(times):.3f} s (most)")
    finally:
        shutil.rmtree(work, ignore_errors=True)
    print(f"1..{len(cases) + 1}")
    sys.exit(1 if failed or left else 0)


main()
