"""transformers loads a checkpoint folder of both families and computes the same logits.

A short run of each family gives the checkpoint; `invar eval --dump-logits` gives Invar's logits of the first window.
"""
import os
import pathlib
import subprocess
import sys

import torch
import transformers
from safetensors.torch import load_file

TOLERANCE = 1e-4
WORK = pathlib.Path(os.environ["INVAR_WORK"])
HERE = pathlib.Path(__file__).resolve().parent
TEXT = HERE.parents[1] / "examples" / "tinyshakespeare.txt"


def invar(*words):
    done = subprocess.run([os.environ["INVAR"], *map(str, words)], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"invar {' '.join(map(str, words))}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def newest_checkpoint(run):
    return max((run / "checkpoints").glob("step-*"), key=lambda folder: int(folder.name.split("-")[1]))


def compare(family):
    run, logits_file = WORK / family, WORK / f"{family}-logits.safetensors"
    invar("train", HERE / f"{family}.yaml", "--data_path", WORK / "data", "--tokenizer", WORK / "tokenizer",
          "--output_dir", run)
    folder = newest_checkpoint(run)
    invar("eval", folder, "--data", WORK / "data", "--dump-logits", logits_file)
    dumped = load_file(logits_file)
    ours = dumped["logits"].double()
    ours = ours.reshape(-1, ours.shape[-1])
    tokens = dumped["tokens"].long().reshape(1, -1)
    worst = 0.0
    for attention in ("eager", "sdpa"):
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation=attention).float().eval()
        with torch.no_grad():
            theirs = model(input_ids=tokens).logits[0].double()
        if theirs.shape != ours.shape:
            sys.exit(f"{family}: logits have the shape {tuple(ours.shape)}, transformers gives {tuple(theirs.shape)}")
        worst = max(worst, (theirs - ours).abs().max().item())
    spread = ours.std().item()
    print(f"  {family}: {tokens.numel()} tokens, largest difference of a logit {worst:.1e} (spread {spread:.2f})")
    return worst <= TOLERANCE and spread > 0.1


def tokenizer_loads():
    """The checkpoint's tokenizer files give AutoTokenizer the ids that Invar's tokenizer folder gives."""
    text = TEXT.read_text()[:5000]
    source = transformers.PreTrainedTokenizerFast(tokenizer_file=str(WORK / "tokenizer" / "tokenizer.json"))
    loaded = transformers.AutoTokenizer.from_pretrained(newest_checkpoint(WORK / "llama"))
    same = source(text)["input_ids"] == loaded(text)["input_ids"] and loaded.decode(loaded(text)["input_ids"]) == text
    print(f"  tokenizer of the checkpoint: {'the same ids' if same else 'other ids'}")
    return same


def main():
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    invar("data", "train-tokenizer", TEXT, "--vocab-size", 517, "--output", WORK / "tokenizer")
    invar("data", "build", TEXT, "--tokenizer", WORK / "tokenizer", "--output", WORK / "data", "--range", "0:0.1")
    good = [compare("gpt2"), compare("llama"), tokenizer_loads()]
    sys.exit(0 if all(good) else 1)


main()
