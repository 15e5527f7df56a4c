"""One training step of GPT-2 124M in PyTorch, tuned as well as we know: the peer of bench's training step.

    PYTHON bench/pytorch_step.py [--batch 1] [--length 1024] [--threads 2] [--steps 8] [--warmup 2] [--blas FILE]

Eager mode, fp32, scaled_dot_product_attention, fused AdamW with the usual two groups, gradients clipped at norm 1,
random weights, random tokens. Prints tokens/s (of the fastest and of the median step), the rate of a product, the
peak memory and what the process held before there was a model. The script restarts itself once with an environment
in which PyTorch runs best: glibc keeps its memory and puts it on huge pages (otherwise page faults cost a factor),
no variable that holds a BLAS to an old instruction set is passed on, and OpenBLAS for OpenMP is preloaded where it
is installed (--blas none: the built-in one); it shares PyTorch's thread pool.
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
    for name, default in (("batch", 1), ("length", 1024), ("threads", 2), ("steps", 8), ("warmup", 2)):
        parser.add_argument(f"--{name}", type=int, default=default)
    installed = glob.glob("/usr/lib/*/openblas-openmp/libopenblas.so.0")
    parser.add_argument("--blas", default=installed[0] if installed else "none")
    return parser.parse_args()


options = arguments()
restart_tuned(options.threads, options.blas)

import torch
from torch import nn
from torch.nn import functional

VOCAB, PADDED, WIDTH, HEADS, LAYERS, POSITIONS = 50257, 50304, 768, 12, 12, 1024


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        batch, length, _ = x.shape
        q, k, v = (part.view(batch, length, HEADS, WIDTH // HEADS).transpose(1, 2)
                   for part in self.attention(self.norm1(x)).split(WIDTH, dim=2))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.down(functional.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.positions = nn.Embedding(PADDED, WIDTH), nn.Embedding(POSITIONS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        for weight in self.parameters():
            if weight.dim() > 1:
                nn.init.normal_(weight, std=0.02)

    def forward(self, tokens, targets):
        x = self.embed(tokens) + self.positions.weight[:tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = functional.linear(self.norm(x), self.embed.weight)
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def product_rate():
    """GFLOP/s of the step's most frequent kind of product: tells a badly set up BLAS at once."""
    a, b = torch.randn(1024, WIDTH), torch.randn(4 * WIDTH, WIDTH)
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
    groups = [{"params": [w for w in model.parameters() if w.dim() >= 2], "weight_decay": 0.1},
              {"params": [w for w in model.parameters() if w.dim() < 2], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=3e-4, betas=(0.9, 0.95), fused=True)
    tokens = torch.randint(0, VOCAB, (options.batch, options.length + 1))

    def step():
        loss = model(tokens[:, :-1], tokens[:, 1:])
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
    print(f"torch {torch.__version__}, {blas}, threads {options.threads}, batch {options.batch} x {options.length}: "
          f"{count / min(seconds):.1f} tokens/s fastest, {count / statistics.median(seconds):.1f} median of "
          f"{options.steps} steps; product {product_rate():.0f} GFLOP/s; "
          f"peak {peak_gb():.2f} GB, {before:.2f} GB of it before the model")


main()
