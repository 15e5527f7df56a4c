#!/usr/bin/env python3
"""Encoding speed beside `tokenizers` and, for models of its own, `sentencepiece`: one core each, in one run.

    tokenizer_bench.py BENCH_BINARY [SHARED_FOLDER]

For each text the faster of encode(whole text) and encode_batch(lines) counts, on both sides, in
processor time. Prints a table with the ratio.
"""
import os

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"
import pathlib
import subprocess
import sys
import tempfile
import time

import sentencepiece
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

TEXTS = ("en/botchan.txt", "en/frankenstein.txt", "en/tinyshakespeare.txt", "en/war-and-peace.txt",
         "other/es-don-quijote-part.txt", "other/ja-wagahai-wa-neko.txt", "code/human_eval_cpp.jsonl")
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
          r"\s+(?!\S)|\s+")


def judges(base, root):
    yield "gpt2", Tokenizer.from_file(str(base / "gpt2/tokenizer.json"))
    for name, pattern, normalizer in (("qwen2", LLAMA3.replace("{1,3}", ""), normalizers.NFC()),
                                      ("llama3", LLAMA3, None)):
        # Llama 3's own vocabulary may not be passed on: that of Qwen2, of the same size, stands for it.
        judge = Tokenizer(models.BPE.from_file(str(base / "qwen2/vocab.json"), str(base / "qwen2/merges.txt")))
        if normalizer:
            judge.normalizer = normalizer
        judge.pre_tokenizer = pre_tokenizers.Sequence([
            pre_tokenizers.Split(Regex(pattern), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
        judge.add_special_tokens([AddedToken("<|endoftext|>", normalized=False, special=True)])
        yield name, judge


def spm_judges(base, folder):
    """(name, path for the binary, encode, encode lines) of tokenizers that begin with characters."""
    path = str(base / "mistral-v1/tokenizer.json")
    judge = Tokenizer.from_file(path)
    yield "mistral", path, judge.encode, judge.encode_batch
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(base / "sentencepiece/test_ja_model.model"))
    vocab = [(pieces.id_to_piece(i), pieces.get_score(i)) for i in range(pieces.vocab_size())]
    judge = Tokenizer(models.Unigram(vocab, 0, False))  # as T5
    judge.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    path = str(pathlib.Path(folder) / "unigram.json")
    judge.save(path)
    yield "t5 kind", path, judge.encode, judge.encode_batch
    for name, path in (("m.model", "mistral-v1/tokenizer.model"), ("unigram", "sentencepiece/test_ja_model.model")):
        judge = sentencepiece.SentencePieceProcessor(model_file=str(base / path))
        yield name, str(base / path), judge.encode, lambda lines: [judge.encode(x) for x in lines]


def best(fn, runs=3):
    times = []
    for _ in range(runs):
        start = time.process_time()
        fn()
        times.append(time.process_time() - start)
    return min(times)


def own(binary, tokenizer, mode, files):
    out = subprocess.run([binary, tokenizer, mode, *files], capture_output=True, text=True, check=True).stdout
    return [float(line.split()[3]) for line in out.splitlines()]


def side_by_side(binary, name, path, encode, encode_lines, files):
    mine = [min(a, b) for a, b in zip(own(binary, path, "whole", files), own(binary, path, "lines", files))]
    for file, seconds in zip(files, mine):
        text = pathlib.Path(file).read_text(encoding="utf-8")
        lines = text.split("\n")
        size = len(text.encode()) / 1e6
        theirs = min(best(lambda: encode(text)), best(lambda: encode_lines(lines)))
        print(f"{name:9} {file.split('text/')[1]:26} {size / seconds:10.1f} {size / theirs:8.2f} "
              f"{theirs / seconds:6.1f}", flush=True)


def main():
    binary = sys.argv[1]
    shared = pathlib.Path(sys.argv[2] if len(sys.argv) > 2 else os.environ.get("INVAR_SHARED", "../shared"))
    files = [str(shared / "assets/text" / t) for t in TEXTS]
    print(f"{'tokenizer':9} {'text':26} {'invar MB/s':>10} {'judge':>8} {'ratio':>6}")
    with tempfile.TemporaryDirectory() as folder:
        for name, judge in judges(shared / "assets/tokenizers", folder):
            path = str(pathlib.Path(folder) / f"{name}.json")
            judge.save(path)
            side_by_side(binary, name, path, judge.encode, judge.encode_batch, files)
        for row in spm_judges(shared / "assets/tokenizers", folder):
            side_by_side(binary, *row, files)


if __name__ == "__main__":
    main()
