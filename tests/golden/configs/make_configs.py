#!/usr/bin/env python3
"""Write the config.json of small models of every family as transformers writes them (NAME.json), and beside them

  facts.txt        NAME, the parameters of a model that transformers builds from it
  frequencies.txt  NAME, a length, what cos and sin are multiplied by, and the frequency of each rotated pair

for tests/unit/conf_families_test.c. Frequencies are transformers' functions run in float64.
Needs torch and transformers; made with transformers 5.24.0. Usage: make_configs.py (in this folder)"""
import logging
import os
import shutil
import tempfile

import torch
import transformers as hf

logging.disable(logging.WARNING)
torch.float = torch.float32 = torch.float64  # the rotary functions ask for these by name
torch.Tensor.float = torch.Tensor.double
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS  # noqa: E402

BASE = dict(vocab_size=300, hidden_size=64, num_hidden_layers=4, num_attention_heads=4, intermediate_size=96,
            max_position_embeddings=128, bos_token_id=1, eos_token_id=2, pad_token_id=None)
KV = dict(BASE, num_key_value_heads=2)
PHI = dict(KV, pad_token_id=0)
LONG = dict(long_factor=[1 + 0.25 * i for i in range(8)], short_factor=[1 + i / 64 for i in range(8)])


def llama(**more):
    return hf.LlamaConfig(**KV, **more)


def rope(kind, **more):
    return llama(rope_theta=500000.0, rope_scaling=dict(rope_type=kind, **more))


CONFIGS = {
    "llama": llama(),
    "llama_bias": llama(attention_bias=True, mlp_bias=True),
    "llama_linear": rope("linear", factor=4.0),
    "llama_dynamic": rope("dynamic", factor=4.0),
    "llama_llama3": rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                         original_max_position_embeddings=32),
    "llama_yarn": rope("yarn", factor=4.0, original_max_position_embeddings=32),
    "llama_yarn_more": rope("yarn", factor=40.0, original_max_position_embeddings=4096, beta_fast=16, beta_slow=2,
                            truncate=False, mscale=0.707, mscale_all_dim=1.0),
    "llama_longrope": rope("longrope", factor=4.0, original_max_position_embeddings=32, **LONG),
    "mistral": hf.MistralConfig(**KV, sliding_window=16),
    "mistral_none": hf.MistralConfig(**KV, sliding_window=None),
    "qwen2": hf.Qwen2Config(**KV),
    "qwen2_window": hf.Qwen2Config(**KV, use_sliding_window=True, sliding_window=16, max_window_layers=2),
    "qwen3": hf.Qwen3Config(**KV, head_dim=32),
    "gemma2": hf.Gemma2Config(**KV, head_dim=16, sliding_window=16, query_pre_attn_scalar=24),
    "gemma3": hf.Gemma3TextConfig(**KV, head_dim=16, sliding_window=16, sliding_window_pattern=3,
                                  rope_scaling=dict(rope_type="linear", factor=8.0)),
    "phi3": hf.Phi3Config(**PHI),
    "phi3_long": hf.Phi3Config(**PHI, original_max_position_embeddings=32, sliding_window=64,
                               rope_scaling=dict(type="longrope", **LONG)),
    "phi3_part": hf.Phi3Config(**PHI, partial_rotary_factor=0.75),
    "olmo2": hf.Olmo2Config(**KV),
    "smollm3": hf.SmolLM3Config(**KV),
    "starcoder2": hf.Starcoder2Config(**KV, sliding_window=16),
    "neox": hf.GPTNeoXConfig(**BASE, rotary_pct=0.5),
    "neox_serial": hf.GPTNeoXConfig(**BASE, use_parallel_residual=False, hidden_act="gelu_fast", attention_bias=False),
}

facts, frequencies = open("facts.txt", "w"), open("frequencies.txt", "w")
for name, config in CONFIGS.items():
    folder = tempfile.mkdtemp()
    config.save_pretrained(folder)
    shutil.copy(os.path.join(folder, "config.json"), name + ".json")
    shutil.rmtree(folder)
    print(name, hf.AutoModelForCausalLM.from_config(config).num_parameters(), file=facts)
    kind = None if name == "gemma3" else config.rope_parameters["rope_type"]
    for length in (16, 128, 512) if kind in ROPE_INIT_FUNCTIONS else ():
        inverse, scale = ROPE_INIT_FUNCTIONS[kind](config, "cpu", seq_len=length)
        print(name, length, repr(float(scale)), *(repr(float(x)) for x in inverse), file=frequencies)
