#!/usr/bin/env python3
"""Makes the tokenizers and expected ids of this folder with Hugging Face `tokenizers`, the independent judge.

    make_tokenizers.py TEXT...      (public-domain texts; the vocabulary is learnt from them)

Writes gpt2.json, llama3.json, qwen2.json, chain.json (tokenizer.json files, small) and expected.json: for each of them
[text, ids with special tokens recognised, ids with special tokens as text, ids with the post-processor].
"""
import json
import pathlib
import sys

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

HERE = pathlib.Path(__file__).parent
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
          r"\s+(?!\S)|\s+")
TEXTS = [
    "", " ", "  ", "\n", "\r\n\r\n", "a", "Hello, world!", " Hello  world  ", "I've you'LL we'D THEY'RE 'ſ 'S don't",
    "1 12 123 1234 12345 ½ ² Ⅷ ١٢٣", "tabs\tand\n\nlines \n \t\n  end   ", "x\u00a0y\u2003\u2003z\u3000\u0085w\u180e",
    "cafe\u0301 café ẛ̣ \u1100\u1161\u11a8 각", "中文字符，日本語かな カナ 한국어", "мир и война", "🙂🙃👩‍👩‍👧 ☃️",
    "def f(x):\n    return x  # comment\n\n\n", "http://example.com/?q=1&r=2#top", "...!!!???---___***",
        "a_b-c.d,e;f:g",
    "<|endoftext|>", "a<|endoftext|>b", "  <|left|>  x  <|right|>  y  <|both|>  z", "wordy word words word", "<|end",
    "<|begin|>already there", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "                                                                                     x", "the " * 30,
    "antidisestablishmentarianismandsupercalifragilisticexpialidocious", "\x00\x01\x7f\x1c\x1f",
]
ADDED = [AddedToken("<|begin|>", special=True, normalized=False),
         AddedToken("<|left|>", lstrip=True, special=True, normalized=False),
         AddedToken("<|right|>", rstrip=True, special=False, normalized=True),
         AddedToken("<|both|>", lstrip=True, rstrip=True, special=True, normalized=False),
         AddedToken("word", single_word=True), AddedToken("    ", normalized=True), AddedToken("é", normalized=True)]


def base(texts):
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=560, show_progress=False, special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return t


def variants(texts):
    source = base(texts).to_str()
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)

    def made(pre=None, normalizer=None, added=True):
        t = Tokenizer.from_str(source)
        if pre is not None:
            t.pre_tokenizer = pre
        if normalizer is not None:
            t.normalizer = normalizer
        if added:
            t.add_tokens(ADDED)
            begin = t.token_to_id("<|begin|>")
            t.post_processor = processors.Sequence([processors.ByteLevel(), processors.TemplateProcessing(
                single="<|begin|> $A", special_tokens=[("<|begin|>", begin)])])
        return t

    def split(pattern):
        return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), level])

    chain = [pre_tokenizers.Punctuation("contiguous"), pre_tokenizers.ByteLevel(add_prefix_space=False),
             pre_tokenizers.Digits(), pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), "isolated")]
    yield "gpt2", made(added=False)
    yield "llama3", made(split(LLAMA3))
    yield "qwen2", made(split(LLAMA3.replace("{1,3}", "")), normalizers.NFC())
    yield "chain", made(pre_tokenizers.Sequence(chain))


def ids(t, text, special, post):
    t.encode_special_tokens = not special
    return t.encode(text, add_special_tokens=post).ids


def main():
    texts = [pathlib.Path(p).read_text(encoding="utf-8") for p in sys.argv[1:]]
    expected = {}
    for name, t in variants(texts):
        data = json.loads(t.to_str())
        (HERE / f"{name}.json").write_text(json.dumps(data, ensure_ascii=False, separators=(",", ":")) + "\n")
        expected[name] = [[x, ids(t, x, True, False), ids(t, x, False, False), ids(t, x, True, True)] for x in TEXTS]
    rows = [f" {json.dumps(n)}: [\n" + ",\n".join("  " + json.dumps(r, ensure_ascii=True,
                                                                    separators=(",", ":")) for r in v) + "\n ]"
            for n, v in expected.items()]
    (HERE / "expected.json").write_text("{\n" + ",\n".join(rows) + "\n}\n")


if __name__ == "__main__":
    main()
