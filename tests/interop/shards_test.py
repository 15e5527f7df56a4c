"""Models in shards: those of transformers are read, those of `invar ckpt convert` are what the libraries write.

Each shard that Invar writes must be, byte for byte, what safetensors writes for the same tensors; its index the form of
huggingface_hub's; its rounding torch's; and transformers must load it without a missing or unexpected key.
"""
import json
import os
import pathlib
import subprocess
import sys

import torch
import transformers
from safetensors.torch import load_file, save

WORK = pathlib.Path(os.environ["INVAR_WORK"])
INDEX = "model.safetensors.index.json"
failed = []


def check(good, what, detail=""):
    print(f"  {'right' if good else 'WRONG'}: {what}")
    if not good:
        failed.append(what)
        print(detail)


def expect(code, what, *words):
    done = subprocess.run([os.environ["INVAR"], *map(str, words)], capture_output=True, text=True)
    check(done.returncode == code, what, f"exit {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def models():
    torch.manual_seed(3)
    llama = dict(vocab_size=270, hidden_size=64, num_hidden_layers=2, num_attention_heads=8, num_key_value_heads=2,
                 intermediate_size=96, max_position_embeddings=64)
    yield "llama", transformers.LlamaForCausalLM(transformers.LlamaConfig(**llama))
    yield "llama-tied", transformers.LlamaForCausalLM(transformers.LlamaConfig(**llama, tie_word_embeddings=True))
    yield "gpt2", transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=270, n_positions=64, n_embd=64,
                                                                       n_layer=2, n_head=4))


def stored(folder):
    """Name to tensor over all files of a folder, and the files' names."""
    files = sorted(p for p in folder.iterdir() if p.suffix == ".safetensors")
    return {k: v for p in files for k, v in load_file(p).items()}, files


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) and a[k].dtype == b[k].dtype for k in a)


def written(name, model, source, kind, dtype):
    target = WORK / f"{name}-{kind}"
    expect(0, f"{name}: {kind} in shards is written", "ckpt", "convert", source, target, "--save_dtype", kind,
           "--max_shard_size", "40KB")
    tensors, files = stored(target)
    whole = {k: v.to(dtype) for k, v in load_file(source / "model.safetensors").items()}
    check(same(tensors, whole), f"{name}: {kind} is rounded as torch rounds", sorted(tensors.keys() ^ whole.keys()))
    for path in files:
        check(path.read_bytes() == save(load_file(path), metadata={"format": "pt"}),
              f"{name}: {kind} {path.name} is what safetensors writes")
    text = (target / INDEX).read_text()
    index = json.loads(text)
    check(len(files) > 1 and text == json.dumps(index, indent=2, sort_keys=True) + "\n", f"{name}: the index's form")
    check(index["metadata"]["total_size"] == sum(v.numel() * v.element_size() for v in tensors.values()),
          f"{name}: total_size")
    loaded, info = type(model).from_pretrained(target, output_loading_info=True, dtype="auto")
    check(not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"],
          f"{name}: {kind} is loaded by transformers", info)
    check(loaded.dtype == dtype, f"{name}: config.json says {kind}", loaded.dtype)
    expect(0, f"{name}: {kind} is verified", "ckpt", "verify", target)


def main():
    for name, model in models():
        single, shards = WORK / f"{name}-one", WORK / f"{name}-many"
        model.save_pretrained(single)
        model.save_pretrained(shards, max_shard_size="40KB")
        check((shards / INDEX).exists(), f"{name}: transformers makes shards")
        expect(0, f"{name}: its shards are verified", "ckpt", "verify", shards)
        expect(0, f"{name}: its shards equal its one file", "ckpt", "diff", single, shards)
        for kind, dtype in (("f32", torch.float32), ("bf16", torch.bfloat16), ("f16", torch.float16)):
            written(name, model, single, kind, dtype)
    sys.exit(1 if failed else 0)


main()
