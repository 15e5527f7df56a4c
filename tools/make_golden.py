#!/usr/bin/env python3
"""Makes tests/golden: tiny models of each family with what PyTorch computes from them (layout: tests/golden/README.md).

    PYTHON tools/make_golden.py [FOLDER]      PYTHON has torch, transformers, safetensors; default: tests/golden

The values come from float64 and are rounded to fp32 once. Transformers computes norms and rotary angles of Llama in
float32 whatever the type of the model, so these two are replaced for the float64 run. The unchanged float32 model of
transformers is run as well; its distance is printed, and one above what rounding explains stops the tool.
"""
import json
import os
import pathlib
import sys

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers
from safetensors.torch import save_file
from transformers.models.llama import modeling_llama

VOCAB, POSITIONS, SEQUENCES, LENGTH, BATCHES, STEPS = 101, 32, 2, 24, 4, 20
LR, BETAS, EPS, DECAY, CLIP = 3e-3, (0.9, 0.95), 1e-8, 0.1, 1.0

LLAMA = dict(vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, hidden_act="silu",
             max_position_embeddings=POSITIONS, rms_norm_eps=1e-5, initializer_range=0.02, attention_bias=False,
             mlp_bias=False, attention_dropout=0.0, bos_token_id=0, eos_token_id=0, pad_token_id=None)
CONFIGS = {
    "gpt2": transformers.GPT2Config(vocab_size=VOCAB, n_positions=POSITIONS, n_embd=32, n_layer=2, n_head=4,
                                    activation_function="gelu_new", resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
                                    layer_norm_epsilon=1e-5, bos_token_id=0, eos_token_id=0),
    "llama": transformers.LlamaConfig(**LLAMA, num_key_value_heads=2, intermediate_size=64, tie_word_embeddings=False),
    "llama_tied": transformers.LlamaConfig(**LLAMA, num_key_value_heads=4, intermediate_size=48,
                                           tie_word_embeddings=True),
}


def rms_norm_float64(self, x):
    return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon))


def rotary_float64(self, x, position_ids):
    half = torch.arange(0, self.config.head_dim, 2, dtype=torch.float64) / self.config.head_dim
    theta = self.config.rope_parameters["rope_theta"]
    angle = position_ids[..., None].double() * theta ** -half
    angle = torch.cat((angle, angle), dim=-1)
    return angle.cos(), angle.sin()


def fresh_model(config):
    """Weights large enough that every path matters, gains and biases that are not the trivial ones."""
    draw = torch.Generator().manual_seed(20260601)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").float().train()
    with torch.no_grad():
        for _, weight in sorted(model.named_parameters()):
            noise = torch.randn(weight.shape, generator=draw)
            norm_gain = weight.dim() == 1 and bool((weight == 1).all())
            weight.copy_(1 + 0.2 * noise if norm_gain else 0.2 * noise)
    return model


def float64_copy(model):
    wide = transformers.AutoModelForCausalLM.from_config(model.config, attn_implementation="sdpa").double().train()
    wide.load_state_dict(model.state_dict())
    for module in wide.modules():
        if isinstance(module, modeling_llama.LlamaRMSNorm):
            module.forward = rms_norm_float64.__get__(module)
        if isinstance(module, modeling_llama.LlamaRotaryEmbedding):
            module.forward = rotary_float64.__get__(module)
    return wide


def make_batches():
    """Token ids and targets; some targets are masked with -1, unevenly over the sequences and the batches."""
    draw = torch.Generator().manual_seed(7)
    stream = torch.randint(0, VOCAB, (BATCHES, SEQUENCES, LENGTH + 1), generator=draw)
    tokens, targets = stream[..., :-1].clone(), stream[..., 1:].clone()
    for batch in range(BATCHES):
        targets[batch, 0, LENGTH - 3 * batch - 2:] = -1
        targets[batch, 1, :7 + batch] = -1
        targets[batch, 1, 15] = -1
    return tokens, targets


def loss_of(model, tokens, targets):
    logits = model(input_ids=tokens).logits
    loss = torch.nn.functional.cross_entropy(logits.reshape(-1, VOCAB), targets.reshape(-1), ignore_index=-1)
    return logits, loss


def run(model, tokens, targets):
    """Logits, loss and gradients of batch 0; then losses, norms and weights of STEPS steps over the batches in turn."""
    named = dict(model.named_parameters())
    logits, loss = loss_of(model, tokens[0], targets[0])
    loss.backward()
    result = {"logits": logits.detach(), "loss": loss.detach().reshape(1)}
    gradients = {name: weight.grad.clone() for name, weight in named.items()}
    groups = [{"params": [w for w in named.values() if w.dim() >= 2], "weight_decay": DECAY},
              {"params": [w for w in named.values() if w.dim() < 2], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=LR, betas=BETAS, eps=EPS)
    losses, norms = [], []
    for step in range(STEPS):
        optimizer.zero_grad()
        _, loss = loss_of(model, tokens[step % BATCHES], targets[step % BATCHES])
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(named.values(), CLIP))
        optimizer.step()
        losses.append(loss.detach())
    result |= {"losses": torch.stack(losses), "grad_norms": torch.stack(norms)}
    return result, gradients, {name: weight.detach().clone() for name, weight in named.items()}


def distance(judge, other, skip_key_bias=False):
    """Largest difference of a tensor relative to its largest element."""
    worst = 0.0
    for name, value in judge.items():
        difference = (value - other[name].double()).abs()
        if skip_key_bias and name.endswith("c_attn.bias"):
            difference[32:64] = 0  # see README.md: nothing depends on it
        worst = max(worst, (difference.max() / value.abs().max().clamp_min(1e-12)).item())
    return worst


def write_config(config, name, folder):
    """As transformers writes it; for the tied Llama as its releases before 5 did, which most models still have."""
    kept = json.loads(config.to_json_string())
    kept["architectures"] = ["GPT2LMHeadModel" if name == "gpt2" else "LlamaForCausalLM"]
    if name == "llama_tied":
        theta = kept.pop("rope_parameters")["rope_theta"]
        kept.pop("dtype", None)
        kept |= {"rope_theta": theta, "rope_scaling": None, "torch_dtype": "float32"}
    (folder / "config.json").write_text(json.dumps(kept, indent=2, sort_keys=True) + "\n")


def make(name, config, folder):
    folder.mkdir(parents=True, exist_ok=True)
    tokens, targets = make_batches()
    model = fresh_model(config)
    wide = float64_copy(model)
    stored = {n: w.detach().clone() for n, w in model.named_parameters()}
    result, gradients, after = run(wide, tokens, targets)
    result32, gradients32, after32 = run(model, tokens, targets)
    far = [distance({key: result[key]}, result32) for key in ("logits", "loss", "losses", "grad_norms")]
    far += [distance(gradients, gradients32, True), distance(after, after32, True)]
    print(f"{name:11s} float32 against float64: " +
          "logits %.1e loss %.1e losses %.1e norms %.1e gradients %.1e weights %.1e" % tuple(far))
    if max(far[:5]) > 2e-5 or far[5] > 2e-3:
        sys.exit(f"{name}: float32 and float64 differ by more than rounding")

    def narrow(tensors):
        return {key: value.float().contiguous() for key, value in tensors.items()}

    save_file(narrow(stored), folder / "model.safetensors", metadata={"format": "pt"})
    save_file(narrow(gradients), folder / "gradients.safetensors")
    save_file(narrow(after), folder / "after.safetensors")
    save_file(narrow(result | {"tokens": tokens, "targets": targets}), folder / "golden.safetensors")
    write_config(config, name, folder)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="sdpa")
    if not torch.equal(loaded(input_ids=tokens[0]).logits, result32["logits"]):
        sys.exit(f"{name}: the folder does not load to the same model")


def main():
    torch.set_num_threads(1)
    root = pathlib.Path(__file__).resolve().parent.parent
    target = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else root / "tests" / "golden"
    print(f"torch {torch.__version__}, transformers {transformers.__version__}")
    for name, config in CONFIGS.items():
        make(name, config, target / name)


main()
