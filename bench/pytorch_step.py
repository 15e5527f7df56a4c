"""One training step of GPT-2 124M or a Llama of 135M in PyTorch, tuned as well as we know: the peer of Invar's step.

    PYTHON bench/pytorch_step.py [--model gpt2] [--numbers fp32] [--compile 0] [--batch 1] [--length 1024] [--threads 2]
                                 [--steps 8] [--warmup 2] [--layers N] [--blas FILE]

scaled_dot_product_attention, fused AdamW with the usual two groups, gradients clipped at norm 1, random weights, random
tokens. Numbers: fp32; autocast (bf16 in products and attention, fp32 weights); bf16 (weights, gradients and moments,
too). Prints tokens/s (of the fastest and of the median step), the rate of a product, the peak memory and what the
process held before there was a model. The script restarts itself once with an environment in which PyTorch runs best:
glibc keeps its memory and puts it on huge pages (otherwise page faults cost a factor), no variable that holds a BLAS to
an old instruction set is passed on, and OpenBLAS for OpenMP is preloaded where it is installed (--blas none: the
built-in one); it shares PyTorch's thread pool.
"""
import argparse
import glob
import os
import resource
import statistics
import sys
import time

TUNABLES = (
    "glibc.malloc.hugetlb=1:glibc.malloc.mmap_threshold=8589934592:glibc.malloc.mmap_max=0:"
    "glibc.malloc.trim_threshold=68719476736:glibc.malloc.top_pad=268435456:glibc.malloc.arena_max=1"
)


def restart_tuned(threads, blas):
    if os.environ.get("GLIBC_TUNABLES") == TUNABLES:
        return
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("OPENBLAS_", "GOTO_", "MKL_", "OMP_", "KMP_"))}
    kept |= {"GLIBC_TUNABLES": TUNABLES, "OMP_NUM_THREADS": str(threads)}
    if blas != "none":
        kept["LD_PRELOAD"] = blas
    os.execve(sys.executable, [sys.executable, *sys.argv], kept)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=("gpt2", "llama"), default="gpt2")
    parser.add_argument("--numbers", choices=("fp32", "autocast", "bf16"), default="fp32")
    for name, default in (("batch", 1), ("length", 1024), ("threads", 2), ("steps", 8), ("warmup", 2), ("compile", 0),
                          ("layers", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    installed = glob.glob("/usr/lib/*/openblas-openmp/libopenblas.so.0")
    parser.add_argument("--blas", default=installed[0] if installed else "none")
    return parser.parse_args()


options = arguments()
restart_tuned(options.threads, options.blas)

import torch
from torch import nn
from torch.nn import functional

# vocabulary, padded; width, layers, query heads, key heads, feed-forward
SIZES = {"gpt2": (50257, 50304, 768, 12, 12, 12, 3072), "llama": (49152, 49152, 576, 30, 9, 3, 1536)}
VOCAB, PADDED, WIDTH, LAYERS, HEADS, KEY_HEADS, FFN = SIZES[options.model]
LAYERS = options.layers or LAYERS
HEAD = WIDTH // HEADS
GPT2 = options.model == "gpt2"


def rotated(x, cos, sin):
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        norm = nn.LayerNorm if GPT2 else nn.RMSNorm
        self.norm1, self.norm2 = norm(WIDTH, eps=1e-5), norm(WIDTH, eps=1e-5)
        self.attention = nn.Linear(WIDTH, (HEADS + 2 * KEY_HEADS) * HEAD, bias=GPT2)
        self.out = nn.Linear(WIDTH, WIDTH, bias=GPT2)
        self.up, self.down = nn.Linear(WIDTH, FFN if GPT2 else 2 * FFN, bias=GPT2), nn.Linear(FFN, WIDTH, bias=GPT2)

    def forward(self, x, angles):
        batch, length, _ = x.shape
        parts = self.attention(self.norm1(x)).view(batch, length, -1, HEAD).transpose(1, 2)
        q, k, v = parts.split((HEADS, KEY_HEADS, KEY_HEADS), dim=1)
        if not GPT2:
            q, k = rotated(q, *angles), rotated(k, *angles)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=HEADS != KEY_HEADS)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, WIDTH))
        h = self.up(self.norm2(x))
        if GPT2:
            return x + self.down(functional.gelu(h, approximate="tanh"))
        gate, up = h.chunk(2, dim=-1)
        return x + self.down(functional.silu(gate) * up)


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(PADDED, WIDTH)
        self.positions = nn.Embedding(1024, WIDTH) if GPT2 else None
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH) if GPT2 else nn.RMSNorm(WIDTH, eps=1e-5)
        turn = torch.outer(torch.arange(options.length), 1e4 ** (-torch.arange(0, HEAD, 2) / HEAD))
        self.register_buffer("cos", turn.cos())
        self.register_buffer("sin", turn.sin())
        for weight in self.parameters():
            if weight.dim() > 1:
                nn.init.normal_(weight, std=0.02)

    def forward(self, tokens, targets):
        x = self.embed(tokens)
        if GPT2:
            x = x + self.positions.weight[:tokens.shape[1]]
        for block in self.blocks:
            x = block(x, (self.cos, self.sin))
        logits = functional.linear(self.norm(x), self.embed.weight)
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def product_rate():
    """GFLOP/s of the step's most frequent kind of product: tells a badly set up BLAS at once."""
    numbers = torch.float32 if options.numbers == "fp32" else torch.bfloat16
    a, b = torch.randn(1024, WIDTH, dtype=numbers), torch.randn(FFN, WIDTH, dtype=numbers)
    best = min(timed(lambda: functional.linear(a, b)) for _ in range(20))
    return 2 * a.shape[0] * b.numel() / best / 1e9


def peak_gb():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def timed(work):
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main():
    torch.set_num_threads(options.threads)
    torch.manual_seed(1)
    before = peak_gb()
    model = Decoder()
    if options.numbers == "bf16":
        model = model.to(torch.bfloat16)
    groups = [{"params": [w for w in model.parameters() if w.dim() >= 2], "weight_decay": 0.1},
              {"params": [w for w in model.parameters() if w.dim() < 2], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=3e-4, betas=(0.9, 0.95), fused=True)
    tokens = torch.randint(0, VOCAB, (options.batch, options.length + 1))
    loss_of = torch.compile(model) if options.compile else model

    def step():
        with torch.autocast("cpu", torch.bfloat16, enabled=options.numbers == "autocast"):
            loss = loss_of(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        return loss.item()

    for _ in range(options.warmup):
        step()
    seconds = [timed(step) for _ in range(options.steps)]
    count = options.batch * options.length
    blas = "OpenBLAS" if "LD_PRELOAD" in os.environ else "built-in BLAS"
    mode = "compiled" if options.compile else "eager"
    print(f"torch {torch.__version__}, {blas}, {options.model} {options.numbers} {mode}, threads {options.threads}, "
          f"batch {options.batch} x {options.length}: "
          f"{count / min(seconds):.1f} tokens/s fastest, {count / statistics.median(seconds):.1f} median of "
          f"{options.steps} steps; product {product_rate():.0f} GFLOP/s; "
          f"peak {peak_gb():.2f} GB, {before:.2f} GB of it before the model")


main()
