"""Matrix products in PyTorch, one for each line of the standard input: the peer "PyTorch" of bench_gemm (peers.c).

    PYTHON bench/pytorch_gemm.py THREADS fp32|bf16

A line "m n k a_trans b_trans" is answered with the seconds of C[m][n] = A B: A is stored [m][k], or [k][m] where
a_trans is 1; B is stored [n][k], or [k][n] where b_trans is 1.
"""
import sys
import time

import torch

PAUSE_S = 0.004  # as bench_gemm: threads of the side that ran before may still spin


def operands(numbers, m, n, k, a_trans, b_trans):
    a = torch.randn(k, m, dtype=numbers).T if a_trans else torch.randn(m, k, dtype=numbers)
    b = torch.randn(k, n, dtype=numbers) if b_trans else torch.randn(n, k, dtype=numbers).T
    return a, b, torch.empty(m, n, dtype=numbers)


def main():
    threads = int(sys.argv[1])
    torch.set_num_threads(threads)
    numbers = torch.bfloat16 if sys.argv[2] == "bf16" else torch.float32
    now = time.process_time if threads == 1 else time.perf_counter  # as the other sides are timed
    print(torch.__version__, flush=True)
    shape, made = None, None
    for line in sys.stdin:
        wanted = tuple(map(int, line.split()))
        if wanted != shape:
            made = None  # the old ones first: the head's are large
            shape, made = wanted, operands(numbers, *wanted)
        a, b, c = made
        time.sleep(PAUSE_S)
        torch.mm(a, b, out=c)
        start = now()
        torch.mm(a, b, out=c)
        print(now() - start, flush=True)


main()
