"""The safetensors library and Invar read each other's files, and write the same tensors as the same bytes.

Files made by the library in F32, F16 and BF16 are verified, shown and compared by `invar ckpt`; a checkpoint of a short
run is written again by the library and must be equal byte for byte.
"""
import json
import os
import pathlib
import subprocess
import sys

import torch
from safetensors.torch import load_file, save, save_file

WORK = pathlib.Path(os.environ["INVAR_WORK"])
HERE = pathlib.Path(__file__).resolve().parent
TEXT = HERE.parents[1] / "examples" / "tinyshakespeare.txt"
failed = []


def invar(*words):
    return subprocess.run([os.environ["INVAR"], *map(str, words)], capture_output=True, text=True)


def check(good, what, detail=""):
    print(f"  {'right' if good else 'WRONG'}: {what}")
    if not good:
        failed.append(what)
        print(detail)


def expect(code, what, *words):
    done = invar(*words)
    check(done.returncode == code, what, f"exit {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def folder_of(name, tensors, metadata=None):
    folder = WORK / name
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors", metadata=metadata)
    return folder


def library_files():
    torch.manual_seed(1)
    f32 = {"b.weight": torch.randn(70, 33), "a": torch.randn(5), "empty": torch.zeros(0, 3),
           "scalar": torch.tensor(2.5), "\u00e4.\U0001f600": torch.randn(2, 1, 3)}
    denormal = torch.arange(1, 1000, dtype=torch.int16).view(torch.float16)
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        narrow = {k: v.to(dtype) for k, v in f32.items()}
        if dtype == torch.float16:
            narrow["denormal"] = denormal
        name = str(dtype).split(".")[1]
        one = folder_of(name, narrow, {"format": "pt"})
        wide = folder_of(name + "-wide", {k: v.float() for k, v in narrow.items()})
        expect(0, f"{name}: verify", "ckpt", "verify", one)
        expect(0, f"{name}: equal to its values as float32", "ckpt", "diff", one, wide)
        hashes = expect(0, f"{name}: hash", "ckpt", "hash", one), expect(0, f"{name}: hash wide", "ckpt", "hash", wide)
        check(hashes[0] == hashes[1], f"{name}: the state hash does not depend on the stored type", hashes)
        shown = expect(0, f"{name}: show", "ckpt", "show", one)
        check("[70, 33]" in shown and f"{len(narrow)} tensors" in shown, f"{name}: shown shapes", shown)
    altered = dict(f32)
    altered["a"] = f32["a"] + torch.tensor([0, 0, 1.0, 0, 0])
    shown = expect(1, "one changed element is a difference", "ckpt", "diff", WORK / "float32",
                   folder_of("altered", altered))
    check("1 of 5 differ, first at 2" in shown, "the changed element is named", shown)


def refused_files():
    whole = (WORK / "float32" / "model.safetensors").read_bytes()
    for name, data in (("cut", whole[:-1]), ("longer", whole + b"\0"), ("short", whole[:7]), ("empty", b"")):
        folder = WORK / name
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(data)
        expect(3, f"{name} file is refused", "ckpt", "verify", folder)
    expect(3, "no state hash of whole numbers", "ckpt", "hash", folder_of("int64", {"ids": torch.arange(4)}))
    folder = WORK / "split"
    folder.mkdir()
    (folder / "model.safetensors.index.json").write_text("{}")
    expect(3, "a split model is refused", "ckpt", "verify", folder)


def own_files():
    expect(0, "data build", "data", "build", TEXT, "--tokenizer", "bytes", "--output", WORK / "data", "--range",
           "0:0.1")
    expect(0, "train", "train", HERE / "small.yaml", "--data_path", WORK / "data", "--output_dir", WORK / "run",
           "--max_steps", 2, "--save_steps", 2)
    if failed:
        return
    step = WORK / "run" / "checkpoints" / "step-2"
    manifest = json.loads((step / "manifest.json").read_text())
    for entry in manifest["files"]:
        path = step / entry["name"]
        check(path.stat().st_size == entry["bytes"], f"{path.name}: size of the manifest")
        if path.suffix != ".safetensors":
            continue
        tensors = load_file(path)
        check(save(tensors, metadata={"format": "pt"}) == path.read_bytes(),
              f"{path.name}: byte for byte what the library writes")
        check([t["name"] for t in entry["tensors"]] == sorted(tensors) and
              all(list(tensors[t["name"]].shape) == t["shape"] for t in entry["tensors"]),
              f"{path.name}: names and shapes of the manifest")
    expect(0, "ckpt verify of the run", "ckpt", "verify", WORK / "run")
    check(expect(0, "ckpt hash of the run", "ckpt", "hash", WORK / "run").strip() == manifest["state_hash"],
          "the state hash of the manifest")


library_files()
refused_files()
own_files()
sys.exit(1 if failed else 0)
