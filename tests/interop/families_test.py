"""Every family against transformers, both ways, on tiny random models with life in every tensor.

For each case transformers makes the model and saves it. Invar loads that folder: its logits must agree to 1e-4; one
training step on one window gives its loss and - with beta1 = 0 the first moment is the gradient - every gradient, which
must agree to 1e-3 of the largest element of the tensor. The checkpoint after that step must load in transformers
without a missing or unexpected key and give the logits that Invar gives.

An argument behind the first one is a part of the names of the cases to run.
"""
import json
import os
import pathlib
import subprocess
import sys

import torch
import transformers
from safetensors.torch import load_file

LOGITS, GRADIENTS = 1e-4, 1e-3
LENGTH = 64
WORK = pathlib.Path(os.environ["INVAR_WORK"])
TEXT = pathlib.Path(__file__).resolve().parents[2] / "examples" / "tinyshakespeare.txt"
SIZES = {"vocab_size": 259, "hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 6,
         "intermediate_size": 80, "max_position_embeddings": LENGTH, "initializer_range": 0.15, "bos_token_id": 256,
         "eos_token_id": 256, "pad_token_id": None}
GROUPED = {**SIZES, "num_key_value_heads": 2}


def rope(kind, **more):
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10000.0, **more}}


def longrope(original):
    return {"max_position_embeddings": 2 * LENGTH, "original_max_position_embeddings": original,
            "partial_rotary_factor": 0.75,
            **rope("longrope", short_factor=[1.0, 1.1, 1.3], long_factor=[2.0, 3.0, 5.0],
                   original_max_position_embeddings=original, partial_rotary_factor=0.75)}


CASES = {
    "gpt2": ("GPT2", {"vocab_size": 259, "n_embd": 48, "n_layer": 3, "n_head": 6, "n_positions": LENGTH,
                      "initializer_range": 0.15, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0,
                      "bos_token_id": 256, "eos_token_id": 256}),
    "llama": ("Llama", GROUPED),
    "llama-biases": ("Llama", {**GROUPED, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    "llama-linear": ("Llama", {**GROUPED, **rope("linear", factor=4.0)}),
    "llama-dynamic": ("Llama", {**GROUPED, "max_position_embeddings": 32, **rope("dynamic", factor=2.0)}),
    "llama-llama3": ("Llama", {**GROUPED, **rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                                                 original_max_position_embeddings=32)}),
    "llama-yarn": ("Llama", {**GROUPED, **rope("yarn", factor=4.0, original_max_position_embeddings=16)}),
    "mistral": ("Mistral", {**GROUPED, "sliding_window": 20}),
    "mistral-whole": ("Mistral", {**GROUPED, "sliding_window": None, "head_dim": 16}),
    "qwen2": ("Qwen2", {**GROUPED, "tie_word_embeddings": True}),
    "qwen2-window": ("Qwen2", {**GROUPED, "use_sliding_window": True, "sliding_window": 20, "max_window_layers": 1}),
    "qwen3": ("Qwen3", {**GROUPED, "head_dim": 16}),
    "gemma2": ("Gemma2", {**GROUPED, "head_dim": 16, "sliding_window": 20, "query_pre_attn_scalar": 24,
                          "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}),
    "gemma3": ("Gemma3Text", {**GROUPED, "head_dim": 16, "sliding_window": 20, "query_pre_attn_scalar": 24,
                              "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}),
    "phi3": ("Phi3", {**GROUPED, "sliding_window": 20}),
    "phi3-short": ("Phi3", {**GROUPED, **longrope(LENGTH)}),
    "phi3-long": ("Phi3", {**GROUPED, **longrope(LENGTH // 2)}),
    "olmo2": ("Olmo2", GROUPED),
    "smollm3": ("SmolLM3", {**GROUPED, "no_rope_layers": [1, 0, 1]}),
    "starcoder2": ("Starcoder2", {**GROUPED, "sliding_window": 20}),
    "neox": ("GPTNeoX", {**SIZES, **rope("default", partial_rotary_factor=0.5), "rotary_pct": 0.5}),
    "neox-serial": ("GPTNeoX", {**SIZES, "use_parallel_residual": False, "rotary_pct": 1.0}),
}


NEOX = ("neox", "neox-serial")
RENAMED = {"lm_head.weight": "embed_out.weight"}  # transformers renames it when it reads and writes


def invar(*words):
    done = subprocess.run([os.environ["INVAR"], *map(str, words)], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"invar {' '.join(map(str, words))}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def make_model(family, fields, folder):
    """A random model whose gains and biases are not what fresh ones are."""
    torch.manual_seed(3)
    config = getattr(transformers, f"{family}Config")(**fields)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() == 1:
                p += 0.2 * torch.randn_like(p)
    model.save_pretrained(folder)
    return model


def dumped(folder, name):
    file = WORK / f"{name}-logits.safetensors"
    invar("eval", folder, "--data", WORK / "data", "--seq-length", LENGTH, "--dump-logits", file)
    data = load_file(file)
    return data["tokens"].long().reshape(1, -1), data["logits"].double().reshape(-1, data["logits"].shape[-1])


def logits_differ(model, tokens, ours):
    with torch.no_grad():
        theirs = model(input_ids=tokens, use_cache=False).logits[0].double()
    if theirs.shape != ours.shape:
        raise RuntimeError(f"logits have the shape {tuple(ours.shape)}, transformers gives {tuple(theirs.shape)}")
    return (theirs - ours).abs().max().item()


def compare_gradients(name, model, folder):
    """Largest relative difference of the loss and of a gradient; the checkpoint after one step."""
    run = WORK / f"{name}-run"
    invar("train", "--model", folder, "--data_path", WORK / "data", "--seq_length", LENGTH, "--global_batch_size", 1,
          "--max_steps", 1, "--adam_beta1", 0, "--max_grad_norm", 0, "--warmup_steps", 0, "--learning_rate", 1e-3,
          "--output_dir", run)
    step = run / "checkpoints" / "step-1"
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    loss = next(line["loss"] for line in lines if line["group"] == "train")
    tokens = torch.frombuffer(bytearray((WORK / "data.bin").read_bytes()), dtype=torch.uint16).long()[None, :LENGTH + 1]
    logits = model(input_ids=tokens[:, :-1], use_cache=False).logits[0].double()
    theirs = torch.nn.functional.cross_entropy(logits, tokens[0, 1:])
    theirs.backward()
    worst, where = abs(loss / theirs.item() - 1.0), "loss"
    moments = load_file(step / "optimizer.safetensors")
    for parameter, p in model.named_parameters():
        ours = moments.pop(f"exp_avg.{RENAMED.get(parameter, parameter) if name in NEOX else parameter}").double()
        want = p.grad.double() if p.grad is not None else torch.zeros_like(ours)
        difference = ((ours - want).abs().max() / want.abs().max()).item()
        if not difference <= worst:
            worst, where = difference, parameter
    rest = [key for key in moments if key.startswith("exp_avg.")]
    if rest:
        raise RuntimeError(f"gradients of tensors that transformers does not have: {rest}")
    return worst, where, step


def load_ours(kind, folder):
    model, info = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager",
                                                                    output_loading_info=True)
    wrong = {key: sorted(map(str, value)) for key, value in info.items() if value}
    if wrong:
        raise RuntimeError(f"transformers loads {folder} with {wrong}")
    if type(model) is not kind:
        raise RuntimeError(f"transformers takes {folder} for a {type(model).__name__}")
    return model.float().eval()


def compare(name):
    family, fields = CASES[name]
    folder = WORK / name
    model = make_model(family, fields, folder)
    tokens, ours = dumped(folder, name)
    into = logits_differ(model, tokens, ours)
    gradient, where, step = compare_gradients(name, model, folder)
    tokens, ours = dumped(step, f"{name}-step")
    back = logits_differ(load_ours(type(model), step), tokens, ours)
    print(f"  {name}: largest difference of a logit {into:.1e} (spread {ours.std().item():.2f}), of a checkpoint's "
          f"{back:.1e}; of a gradient {gradient:.1e} of the largest ({where})", flush=True)
    return into <= LOGITS and back <= LOGITS and gradient <= GRADIENTS


def main():
    only = sys.argv[2] if len(sys.argv) > 2 else ""
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    text = WORK / "window.txt"
    text.write_text(TEXT.read_text()[:LENGTH])
    invar("data", "build", text, "--tokenizer", "bytes", "--output", WORK / "data")
    failed = []
    for name in CASES:
        if only in name:
            try:
                good = compare(name)
            except RuntimeError as error:
                print(f"  {name}: {error}", flush=True)
                good = False
            failed += [] if good else [name]
    if failed:
        print(f"  failed: {' '.join(failed)}")
    sys.exit(1 if failed else 0)


main()
