"""Whether the JSON of `invar bench` holds every kernel of a model, and figures that can be."""
import json
import sys

PRODUCTS = {f"{name} {what}" for name in ("q, k, v", "attention out", "down", "head")
            for what in ("forward", "input gradient", "weight gradient")}
COMMON = PRODUCTS | {"cross entropy", "attention forward", "attention backward", "norm forward", "norm input gradient",
                     "norm parameter gradient", "activation forward", "activation backward", "embedding forward",
                     "embedding gradient", "gradient norm", "AdamW"}
OF_FAMILY = {
    "llama": {"gate, up forward", "gate, up input gradient", "gate, up weight gradient", "rotary, queries",
              "rotary, keys"},
    "gpt2": {"up forward", "up input gradient", "up weight gradient", "bias gradient, hidden", "bias gradient, q, k, v",
             "bias gradient, up"},
}

for path in sys.argv[1:]:
    with open(path) as file:
        report = json.load(file)
    family = report["model"]["family"]
    wanted = COMMON | OF_FAMILY[family]
    found = {kernel["name"] for kernel in report["kernels"]}
    print(f"{family}: missing {sorted(wanted - found)}, unexpected {sorted(found - wanted)}")
    figures = [kernel[key] for kernel in report["kernels"] for key in ("calls", "bytes", "seconds", "share")]
    machine, step = report["machine"], report["step"]
    for key in ("fma_fp32_flops", "bf16_flops", "read_bytes_s", "copy_bytes_s", "update_bytes_s"):
        figures += machine[key].values()
    figures += [level["copy"]["all_threads"] for level in machine["levels"]]
    figures += [step["seconds"], step["tokens_per_second"], step["products_at_peak_share"], step["planned_bytes"]]
    figures += step["kernel_seconds"].values()
    print("positive:", all(figure > 0 for figure in figures), "axes:",
          sorted({case["axis"] for case in report["scaling"]}))
