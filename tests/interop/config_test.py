#!/usr/bin/env python3
"""config.json of every family, read and written by Invar, means to transformers what it meant before: the fields, and
the rotary frequencies and scale at three lengths."""
import glob
import logging
import math
import os
import shutil
import subprocess
import sys

import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

logging.disable(logging.WARNING)
REWRITE = os.path.join(os.path.dirname(sys.argv[1]), "rewrite_config")
# What says nothing about the arithmetic, or says again what another field says.
NOTHING = {"transformers_version", "torch_dtype", "dtype", "architectures", "pad_token_id", "_sliding_window_pattern",
           "sliding_window_pattern", "classifier_dropout", "max_window_layers", "no_rope_layer_interval",
           "pretraining_tp", "_name_or_path", "original_max_position_embeddings", "rope_parameters"}
SAME = {"gelu_fast": "gelu_pytorch_tanh", "gelu_new": "gelu_pytorch_tanh"}


def load(folder):
    return transformers.AutoConfig.from_pretrained(folder)


def rotary(config):
    """Frequencies and scale, whatever words say them."""
    found = []
    nested = any(isinstance(value, dict) for value in config.rope_parameters.values())
    for kind in ("full_attention", "sliding_attention") if nested else (None,):
        rope = config.rope_parameters[kind] if kind else config.rope_parameters
        found += [rope["rope_type"], rope["rope_theta"], rope.get("partial_rotary_factor") or 1.0]
        for length in (16, 128, 512):
            if rope["rope_type"] in ROPE_INIT_FUNCTIONS:
                more = {"layer_type": kind} if kind else {}
                inverse, scale = ROPE_INIT_FUNCTIONS[rope["rope_type"]](config, "cpu", seq_len=length, **more)
                found += [float(scale)] + inverse.tolist()
    return found


def same(a, b):
    return math.isclose(a, b, rel_tol=1e-12) if isinstance(a, float) and isinstance(b, float) else a == b


bad, seen = [], 0
for path in sorted(glob.glob("tests/golden/configs/*.json")):
    name = os.path.basename(path)[:-5]
    folders = [os.path.join(os.environ["INVAR_WORK"], name + end) for end in ("", "_rewritten")]
    for folder in folders:
        os.mkdir(folder)
    shutil.copy(path, folders[0] + "/config.json")
    with open(folders[1] + "/config.json", "w") as out:
        subprocess.run([REWRITE, path], stdout=out, check=True)
    one, two = load(folders[0]), load(folders[1])
    a, b = one.to_dict(), two.to_dict()
    for key in sorted((set(a) | set(b)) - NOTHING):
        if key in a and key in b and SAME.get(a[key] if isinstance(a[key], str) else None, a[key]) != b[key]:
            bad.append(f"{name}: {key} {a[key]}, written {b[key]}")
        elif key in a and key not in b:
            bad.append(f"{name}: {key} {a[key]} is not written")
    r, s = rotary(one), rotary(two)
    if len(r) != len(s) or not all(map(same, r, s)):
        bad.append(f"{name}: rotary settings {one.rope_parameters}, written {two.rope_parameters}")
    seen += 1
print(*bad, f"{seen} configurations, {len(bad)} differences", sep="\n")
sys.exit(bool(bad) or seen < 20)
