"""What the tests of this folder share: a program run under limits, safetensors and indexes made from rules, TAP."""
import json
import os
import pathlib
import resource
import shutil
import struct
import subprocess
import sys
import tempfile

SECONDS = 20  # of one run; a reader that needs longer for these small files hangs
BYTES = 400 << 20  # resident, of one run: a count of a file must not decide how much memory is asked for


def st_header(entries):
    """The header of {name: (dtype, shape, begin, end)}, as safetensors writes it."""
    header = {"__metadata__": {"format": "pt"}}
    for name, (dtype, shape, begin, end) in entries.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}
    return json.dumps(header, separators=(",", ":")).encode()


def st_bytes(tensors):
    """A safetensors file of {name: (dtype, shape, bytes)}."""
    entries, at, data = {}, 0, b""
    for name, (dtype, shape, raw) in sorted(tensors.items()):
        entries[name] = (dtype, shape, at, at + len(raw))
        at += len(raw)
        data += raw
    header = st_header(entries)
    header += b" " * (-len(header) % 8)
    return struct.pack("<Q", len(header)) + header + data


def st_read(path):
    """{name: (dtype, shape, bytes)} of a good file."""
    raw = pathlib.Path(path).read_bytes()
    length = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8:8 + length])
    header.pop("__metadata__", None)
    return {n: (t["dtype"], t["shape"], raw[8 + length:][t["data_offsets"][0]:t["data_offsets"][1]])
            for n, t in header.items()}


def index_text(weight_map, total=None):
    metadata = {"metadata": {"total_size": total}} if total is not None else {}
    return json.dumps({**metadata, "weight_map": weight_map}, indent=2).encode() + b"\n"


def write_shards(folder, tensors, shards):
    """The tensors dealt over files with an index; returns the weight_map."""
    parts = [dict() for _ in range(shards)]
    for i, name in enumerate(sorted(tensors)):
        parts[i * shards // len(tensors)][name] = tensors[name]
    names = [f"model-{i + 1:05d}-of-{shards:05d}.safetensors" for i in range(shards)]
    for name, part in zip(names, parts):
        pathlib.Path(folder, name).write_bytes(st_bytes(part))
    weight_map = {t: name for name, part in zip(names, parts) for t in part}
    total = sum(len(raw) for _, _, raw in tensors.values())
    pathlib.Path(folder, "model.safetensors.index.json").write_bytes(index_text(weight_map, total))
    return weight_map


def listing(folder):
    """Every name below a folder with its kind, size and contents."""
    out = []
    for root, folders, files in os.walk(folder):
        for name in folders + files:
            path = os.path.join(root, name)
            kind = os.lstat(path).st_mode
            out.append((path, kind, pathlib.Path(path).read_bytes() if os.path.isfile(path) else b""))
    return sorted(out)


def run(command, folder):
    """Exit code (None: too long), stdout and stderr."""
    with tempfile.TemporaryFile() as out:
        try:
            code = subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
                                  timeout=SECONDS).returncode
        except subprocess.TimeoutExpired:
            code = None
        out.seek(0)
        return code, out.read().decode("utf-8", errors="replace")


class Tap:
    """One line a test, and the plan at the end."""

    def __init__(self, pattern=""):
        self.count, self.bad, self.pattern = 0, 0, pattern

    def wants(self, name):
        return self.pattern in name

    def say(self, name, problem=""):
        self.count += 1
        self.bad += bool(problem)
        print(f"{'not ok' if problem else 'ok'} {self.count} - {name}", flush=True)
        for line in str(problem).splitlines():
            print("#", line)

    def end(self):
        print(f"1..{self.count}")
        sys.exit(1 if self.bad or self.count == 0 else 0)


def judge(command, folder, codes, part, keeps=True):
    """What is wrong with a run on a bad file: a code that is not in `codes`, a message without `part`, a crash, a hang,
    too much memory, a file written; empty: nothing."""
    before = listing(folder) if keeps else None
    code, text = run(command, folder)
    if code is None:
        return f"not done after {SECONDS} s\n{text[-2000:]}"
    if code not in codes:
        return f"exit code {code}, expected {codes}\n{text[-2000:]}"
    if part not in text:
        return f"the message lacks \"{part}\":\n{text[-2000:]}"
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024  # of all until now
    if peak > BYTES and not os.environ.get("SANITIZED"):
        return f"{peak >> 20} MiB were needed"
    if keeps and listing(folder) != before:
        return "the folder is not as it was"
    return ""


def work_folder():
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    return pathlib.Path(tempfile.mkdtemp(prefix="invar-hostile-", dir=base))


def remove(folder):
    shutil.rmtree(folder, ignore_errors=True)
