"""TensorBoard reads the event files of a run that was resumed: each step once, with the values of metrics.jsonl."""
import json
import os
import pathlib
import shutil
import struct
import subprocess
import sys

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

WORK = pathlib.Path(os.environ["INVAR_WORK"])
HERE = pathlib.Path(__file__).resolve().parent
TEXT = HERE.parents[1] / "examples" / "tinyshakespeare.txt"
RUN = WORK / "run"
STEPS = 6


def invar(*words):
    done = subprocess.run([os.environ["INVAR"], *map(str, words)], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"invar {' '.join(map(str, words))}: exit {done.returncode}\n{done.stdout}{done.stderr}")


def train(*more):
    invar("train", HERE / "small.yaml", "--data_path", WORK / "data", "--output_dir", RUN, "--max_steps", STEPS,
          "--save_steps", 3, "--logging_steps", 1, "--report_to", "tensorboard", *more)


def single(value):
    """A double as the nearest float32, which is what an event holds."""
    return struct.unpack("<f", struct.pack("<f", value))[0]


def main():
    invar("data", "build", TEXT, "--tokenizer", "bytes", "--output", WORK / "data", "--range", "0:0.1")
    train()
    shutil.rmtree(RUN / "checkpoints" / f"step-{STEPS}")
    train("--resume_from_checkpoint", "latest")
    lines = [json.loads(line) for line in (RUN / "metrics.jsonl").read_text().splitlines()]
    lines = [line for line in lines if line["group"] == "train"]
    files = list(RUN.glob("events.out.tfevents.*"))
    events = EventAccumulator(str(RUN))
    events.Reload()
    good = [line["step"] for line in lines] == list(range(1, STEPS + 1)) and len(files) == 2
    print(f"  {len(files)} event files, steps of metrics.jsonl: {[line['step'] for line in lines]}")
    for name in ("loss", "learning_rate", "grad_norm"):
        seen = [(e.step, e.value) for e in events.Scalars(f"train/{name}")]
        same = seen == [(line["step"], single(line[name])) for line in lines]
        print(f"  train/{name}: {len(seen)} points, {'those of metrics.jsonl' if same else 'OTHER than metrics.jsonl'}")
        good = good and same
    sys.exit(0 if good else 1)


main()
