"""Makes a copy of the source without the rules of docs/numerics.md that cost time, to measure what they cost: gradients
are fp32 sums instead of integers, the gradient norm is a plain sum, no hash is taken. Only for bench/contract.sh.

    python3 bench/contract_off.py SOURCE COPY
"""
import os
import re
import shutil
import subprocess
import sys

FLOAT_STORE = """static bool store_grad(const float *tile, const struct gemm_job *job, uint64_t i, uint64_t j,
                       uint32_t rows, uint32_t cols)
{
    for (uint32_t r = 0; r < rows; r++, tile += NR) {
        float *grad = (float *)(void *)job->grad + (i + r) * job->ldg + j;
        uint32_t x = 0;
#if KERN_ISA > 0
        for (; x + LANES <= cols; x += LANES) {
            v_store(grad + x, v_add(v_load(grad + x), v_load(tile + x)));
        }
#endif
        for (; x < cols; x++) {
            grad[x] += tile[x];
        }
    }
    return false;
}
"""

FLOAT_SQUARES = """static void grad_square_sum(const void *job, uint64_t begin, uint64_t end)
{
    const struct square_job *j = job;
    const float *grad = (const float *)(const void *)j->grad;
    struct v16 sum = v16_set1(0.0f);
    for (; begin + 16 <= end; begin += 16) {
        sum = v16_fma(v16_load(grad + begin), v16_load(grad + begin), sum);
    }
    __atomic_fetch_add(&j->sum->limb[0], (int64_t)v16_max_lanes(sum), __ATOMIC_RELAXED);
}
"""

# file, pattern (a regular expression over the whole file), replacement
EDITS = [
    ("gemm_leaf.c", r"/\* 1\.5 \* 2\^52: adding it.*?(?=#define CHAINS)", FLOAT_STORE + "\n"),
    ("param_leaf.c", r"#define FLUSH_ELEMENTS.*?(?=/\* ---- gradients as numbers)", FLOAT_SQUARES + "\n"),
    ("param_leaf.c", r"return v16_from_d8\(.*?\);",
     "(void)factor;\n    return v16_load((const float *)(const void *)grad);"),
    ("param_leaf.c", r"memset\(grad, 0, 16 \* sizeof\(\*grad\)\);", "memset(grad, 0, 16 * sizeof(float));"),
    ("param_leaf.c", r"hash16_add\(&hash, adamw_step\(&c, j->p \+ i, j->m \+ i, j->v \+ i, j->grad \+ i\)\);",
     "adamw_step(&c, j->p + i, j->m + i, j->v + i, (int64_t *)(void *)((float *)(void *)j->grad + i));"),
]
FIXED = {  # v16_add_fixed of each instruction set: the sum of a unit, as it is
    "simd_avx512.h": "float *at = (float *)(void *)acc; _mm512_storeu_ps(at, _mm512_add_ps(_mm512_loadu_ps(at), v.v));",
    "simd_avx2.h": "_mm256_storeu_ps((float *)(void *)acc, v.lo); _mm256_storeu_ps((float *)(void *)acc + 8, v.hi);",
    "simd_scalar.h": "memcpy(acc, v.f, sizeof(v.f));",
}


def edit(path, pattern, replacement):
    with open(path) as f:
        text = f.read()
    new, count = re.subn(pattern, lambda _: replacement, text, count=1, flags=re.S)
    if count != 1:
        sys.exit(f"{path}: the code has changed and this script has not: {pattern!r} is not there")
    with open(path, "w") as f:
        f.write(new)


def main():
    source, copy = sys.argv[1:]
    listed = subprocess.run(["git", "ls-files"], cwd=source, check=True, capture_output=True, text=True)
    files = listed.stdout.split("\n")
    for name in filter(None, files):
        os.makedirs(os.path.join(copy, os.path.dirname(name)), exist_ok=True)
        shutil.copy(os.path.join(source, name), os.path.join(copy, name))
    kern = os.path.join(copy, "src/kern")
    for name, pattern, replacement in EDITS:
        edit(os.path.join(kern, name), pattern, replacement)
    for name, body in FIXED.items():
        head = "V16_INLINE uint32_t v16_add_fixed(int64_t *acc, struct v16 v, float limit)\n{\n"
        edit(os.path.join(kern, name), re.escape(head) + r".*?\n\}\n",
             head + "    (void)limit;\n    " + body + "\n    return 0;\n}\n")


main()
