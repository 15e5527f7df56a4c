#!/usr/bin/env python3
"""Hugging Face `tokenizers` as independent judge: the same files and texts must give the same ids.

    tokenizers_test.py ENCODE_BINARY [SHARED_FOLDER]

ENCODE_BINARY is tests/interop/encode_main.c; SHARED_FOLDER (default: $INVAR_SHARED,
                                                             else ../shared) has assets/tokenizers
and assets/text. Prints one line for each check, exits 1 when one failed, 77 when the judge or the assets are missing.
"""
import gzip
import hashlib
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import unicodedata

try:
    import tokenizers
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
except ImportError:
    print("skipped: the Python package tokenizers is not installed")
    sys.exit(77)

failures = 0


def report(name, good, detail=""):
    global failures
    failures += not good
    print(f"{'ok' if good else 'not ok'} - {name}{': ' + detail if detail else ''}", flush=True)


def encode(binary, path, texts, *flags):
    """Ids of each text, or None where the binary refused it."""
    data = b"".join(b"%d\n%s" % (len(t), t) for t in (x.encode() for x in texts))
    done = subprocess.run([binary, path, *flags], input=data, capture_output=True)
    if done.returncode != 0:
        raise RuntimeError(done.stderr.decode())
    lines = done.stdout.decode().split("\n")[:-1]
    return [None if line.startswith("error") else [int(x) for x in line.split()] for line in lines]


def judge_knows(judge, text):
    """Its normalizer has the tables of an older Unicode; such texts prove nothing."""
    return judge.normalizer is None or judge.normalizer.normalize_str(text) == unicodedata.normalize("NFC", text)


def lossless(judge, text, ids):
    """Whether the judge kept every byte; where it drops some, invar refuses the text."""
    plain = judge.normalizer.normalize_str(text) if judge.normalizer else text
    return judge.decode(ids, skip_special_tokens=False) == plain


def compare(binary, name, path, judge, texts, special=True, post=False):
    judge.encode_special_tokens = not special
    texts = [t for t in texts if judge_knows(judge, t)]
    flags = [f for f, on in (("special", special), ("post", post)) if on]
    mine = encode(binary, path, texts, *flags)
    theirs = [e.ids for e in judge.encode_batch(texts, add_special_tokens=post)]
    if len(mine) != len(theirs):
        report(name, False, f"{len(mine)} answers for {len(theirs)} texts")
        return
    for text, a, b in zip(texts, mine, theirs):
        if a != b and (a is not None or lossless(judge, text, b)):
            where = next((i for i, (x, y) in enumerate(zip(a or [], b)) if x != y), min(len(a or []), len(b)))
            report(name, False, f"{text[:60]!r}: at {where} {a and a[where:where + 6]} instead of {b[where:where + 6]}")
            return
    report(name, True, f"{len(texts)} texts, {sum(map(len, theirs))} ids")


def random_texts(count, seed, extra=()):
    """Strings over characters that every Unicode version since Python's knows, rich in what patterns care about."""
    rng = random.Random(seed)
    known = [c for c in map(chr, range(0x20000)) if unicodedata.category(c) not in ("Cn", "Cs", "Co")]
    spaces = [c for c in known if c.isspace()] + ["\u180e", "\u200b", "\u0085"]
    marks = [c for c in known if unicodedata.combining(c)]
    small = list("abSTdmlLrevVE'’ſ0123456789 \t\n\r.,!-_#@<>|é中あ한가각") + ["'s", "'LL", "'re", " '", "\r\n", "  "]
    jamo = [chr(c) for c in range(0x1100, 0x1200)] + [chr(c) for c in range(0xac00, 0xac40)]
    pools = [known, spaces, marks, small, small, small, jamo, list(extra) or small]
    texts = []
    for _ in range(count):
        pieces = []
        for _ in range(rng.randint(1, 8)):
            pool = rng.choice(pools)
            pieces.append("".join(rng.choice(pool) for _ in range(rng.randint(1, 12))))
        texts.append("".join(pieces))
    return texts


def folder_of(root, name, files):
    path = root / name
    path.mkdir()
    for file, text in files.items():
        (path / file).write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def real_tokenizers(shared, root):
    """(name, path for the binary, judge) of the byte-level tokenizers in the assets."""
    base = shared / "assets/tokenizers"
    for name in ("gpt2", "gpt-neox-20b", "falcon", "phi-2"):
        plain, packed = base / name / "tokenizer.json", base / name / "tokenizer.json.gz"
        text = plain.read_bytes() if plain.exists() else None
        if packed.exists():
            text = gzip.decompress(packed.read_bytes())
        if text is not None:
            path = folder_of(root, name, {"tokenizer.json": text})
            yield name, str(path), Tokenizer.from_file(str(path / "tokenizer.json"))
    tiny = base / "tiny/torchtune-tiny/tiny_bpe_tokenizer.json"
    if tiny.exists():
        yield "torchtune-tiny", str(tiny), Tokenizer.from_file(str(tiny))
    qwen = base / "qwen2"
    if (qwen / "vocab.json").exists():
        judge = Tokenizer(models.BPE.from_file(str(qwen / "vocab.json"), str(qwen / "merges.txt")))
        judge.normalizer = normalizers.NFC()
        split = QWEN2
        judge.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(split), "isolated"),
                                                       pre_tokenizers.ByteLevel(add_prefix_space=False,
                                                                                use_regex=False)])
        config = json.loads((qwen / "tokenizer_config.json").read_text())
        judge.add_special_tokens([tokenizers.AddedToken(t["content"], normalized=False, special=True)
                                  for t in config["added_tokens_decoder"].values()])
        yield "qwen2", str(qwen), judge


GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
          r"\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
O200K = "|".join([
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])
DEEPSEEK = "|".join([r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+", r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+",
                     r" ?[\p{P}\p{S}]+[\r\n]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])


def byte_level(prefix=False, regex=False):
    return pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=regex)


def pre_cases():
    """(name, pre-tokenizer): chains that real models use, and each behaviour."""
    split = pre_tokenizers.Split
    sequence = pre_tokenizers.Sequence
    yield "gpt2 pattern as split", sequence([split(Regex(GPT2), "isolated"), byte_level()])
    yield "llama3", sequence([split(Regex(LLAMA3), "isolated"), byte_level()])
    yield "llama3 removed and inverted", sequence([split(Regex(LLAMA3), "removed", invert=True), byte_level()])
    yield "o200k", sequence([split(Regex(O200K), "isolated"), byte_level()])
    yield "deepseek", sequence([split(Regex(r"\p{N}{1,3}"), "isolated"), split(Regex("[一-龥぀-ゟ゠-ヿ]+"), "isolated"),
                                split(Regex(DEEPSEEK), "isolated"), byte_level()])
    yield "starcoder", sequence([pre_tokenizers.Digits(individual_digits=True), byte_level(regex=True)])
    yield "prefix space", byte_level(prefix=True, regex=True)
    yield "prefix space of each digit", sequence([pre_tokenizers.Digits(True), byte_level(prefix=True)])
    for behavior in ("removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"):
        yield f"regex {behavior}", sequence([split(Regex(r"\d|[\s']"), behavior), byte_level()])
        yield f"inverted regex {behavior}", sequence([split(Regex(r"[a-z]+"), behavior, invert=True), byte_level()])
        yield f"string {behavior}", sequence([split("'s", behavior), byte_level(regex=True)])
        yield f"punctuation {behavior}", sequence([pre_tokenizers.Punctuation(behavior), byte_level(regex=True)])
        yield f"empty matches {behavior}", sequence([split(Regex(r"a*|\s"), behavior), byte_level()])
        yield f"behind byte level {behavior}", sequence([byte_level(regex=True),
                                                         split(Regex(r"[Ġ0-9]|\p{No}"), behavior)])
    yield "lines", sequence([split(Regex(r"^.|.$|\A|[^\S\n]+\z"), "isolated"), byte_level()])
    yield "escapes", sequence([split(Regex(r"\x41|\u00e9|\x{4e2d}|\v|\t{2}|a{1,}|b{,2}c|\p{^L}{3}|\P{Han}\p{Han}"),
                                     "isolated"), byte_level()])


ADDED = [dict(content="<|a|>", special=True), dict(content="<|a|><|b|>", special=True),
         dict(content="<|b|>", special=True),
         dict(content="  ", normalized=True), dict(content="   ", normalized=True), dict(content="é", normalized=True),
         dict(content="<l>", lstrip=True, special=True), dict(content="<r>", rstrip=True, special=False),
         dict(content="<lr>", lstrip=True, rstrip=True, special=True), dict(content="word", single_word=True),
         dict(content="<|", special=False), dict(content="\n", special=False, normalized=False)]


def trained(text, size):
    judge = Tokenizer(models.BPE())
    judge.pre_tokenizer = byte_level(regex=True)
    judge.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=size, show_progress=False, special_tokens=["<|endoftext|>"],
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    judge.train_from_iterator([text], trainer)
    return judge


def variant(base, normalizer=None, pre=None, template=None, added=()):
    judge = Tokenizer.from_str(base.to_str())
    if pre:
        judge.pre_tokenizer = pre
    if normalizer:
        judge.normalizer = normalizer
    for token in added:
        token = dict(token)
        content, special = token.pop("content"), token.get("special", False)
        normalized = token.pop("normalized", not special)
        judge.add_tokens([tokenizers.AddedToken(content, normalized=normalized, **token)])
    if template:
        judge.post_processor = template(judge)
    return judge


def begin_template(judge):
    eot = judge.token_to_id("<|endoftext|>")
    return processors.Sequence([processors.ByteLevel(trim_offsets=False),
                                processors.TemplateProcessing(single="<|endoftext|> $A", pair="$A $B",
                                                              special_tokens=[("<|endoftext|>", eot)])])


def corpus(shared):
    texts = []
    for path in sorted((shared / "assets/text").rglob("*")):
        if path.suffix in (".txt", ".jsonl"):
            texts.append(path.read_text(encoding="utf-8"))
    return texts


def check_real(binary, shared, root, texts):
    lines = [line for text in texts for line in text[:200000].split("\n")][::7]
    for name, path, judge in real_tokenizers(shared, root):
        specials = [t.content for t in judge.get_added_tokens_decoder().values()]
        odd = random_texts(3000, name, specials)
        if name == "torchtune-tiny":  # has no token for most bytes; the judge drops them
            known = set("".join(k for k in judge.get_vocab() if len(k) == 1))
            odd = [t for t in odd + lines if all(ord(c) < 127 and ("Ġ" if c == " " else c) in known for c in t)]
            compare(binary, f"{name}: known characters", path, judge, odd)
            continue
        if name in ("gpt2", "gpt-neox-20b", "qwen2"):
            compare(binary, f"{name}: whole texts", path, judge, texts)
        compare(binary, f"{name}: lines", path, judge, lines)
        compare(binary, f"{name}: random Unicode", path, judge, odd)
        compare(binary, f"{name}: random Unicode, special tokens as text", path, judge, odd, special=False)


def punctuation_of(judge_step):
    """Characters that Python calls punctuation and the judge's older table does not."""
    marks = [c for c in map(chr, range(128, 0x20000)) if unicodedata.category(c)[0] == "P"]
    return {c for c in marks if judge_step.pre_tokenize_str(c)}


def check_training(binary, root, text):
    """The same merges as the judge's own trainer, whose ties are broken in the same way."""
    (root / "train.txt").write_bytes(text.encode())
    for size in (300, 4000):
        subprocess.run([binary, "train", str(size), str(root / f"own-{size}"), "2", str(root / "train.txt")],
                       check=True, capture_output=True)
        mine = json.loads((root / f"own-{size}/tokenizer.json").read_text())["model"]
        judge = Tokenizer(models.BPE())
        judge.pre_tokenizer = byte_level(regex=True)
        judge.train_from_iterator([text], trainers.BpeTrainer(
            vocab_size=size, min_frequency=2, show_progress=False, special_tokens=["<|endoftext|>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
        theirs = [tuple(m) for m in json.loads(judge.to_str())["model"]["merges"]]
        same = [tuple(m.split(" ")) for m in mine["merges"]] == theirs and len(mine["vocab"]) == size
        report(f"training {size} tokens gives the judge's merges", same, f"{len(theirs)} merges")


def check_loading(binary, shared, root, texts):
    """What invar writes is read by transformers, with the same ids and the same end of text."""
    try:
        from transformers import AutoTokenizer
    except ImportError:
        print("skipped: the Python package transformers is not installed")
        return
    sources = {"bytes": "bytes", "trained": str(root / "own-4000"), "gpt2 pair": str(root / "pair"),
               "qwen2": str(shared / "assets/tokenizers/qwen2")}
    gpt2 = shared / "assets/tokenizers/gpt2"
    folder_of(root, "pair", {n: (gpt2 / n).read_bytes() for n in ("encoder.json", "vocab.bpe")})
    for name, source in sources.items():
        saved = root / f"saved {name}"
        saved.mkdir()
        subprocess.run([binary, "save", source, str(saved)], check=True, capture_output=True)
        judge = AutoTokenizer.from_pretrained(str(saved))
        special = [judge.eos_token, "<|im_start|>"]
        odd = [t for t in random_texts(300, name, special) + texts if t]
        odd = [t for t in odd if judge_knows(judge.backend_tokenizer, t)]
        mine = encode(binary, str(saved), odd, "special")
        theirs = judge(odd, add_special_tokens=False)["input_ids"]
        report(f"transformers loads what was saved: {name}", mine == theirs and judge.eos_token == "<|endoftext|>",
               f"{len(odd)} texts, {type(judge).__name__}")


def check_expected(binary, shared):
    """Hashes of all ids of whole files, computed by other programs."""
    base = shared / "assets/expected/generated"
    for name, path in (("gpt2-r50k", "gpt2"), ("gpt-neox-20b", "gpt-neox-20b"), ("qwen2", "qwen2")):
        files = json.loads((base / f"{name}.json").read_text())["files"]
        flags = [] if name == "gpt2-r50k" else ["special"]
        texts = [(shared / "assets" / f["file"]).read_bytes().decode() for f in files]
        found = encode(binary, str(shared / "assets/tokenizers" / path), texts, *flags)
        same = [hashlib.sha256(b"".join(i.to_bytes(4, "little") for i in ids)).hexdigest() == f["sha256_of_u32le_ids"]
                for ids, f in zip(found, files)]
        report(f"{name}: ids of whole files", all(same) and len(same) > 10, f"{len(same)} files")


def check_made(binary, root, text):
    count = 0
    base = trained(text, 1200)
    unknown = punctuation_of(pre_tokenizers.Punctuation("removed"))

    def one(name, odd, special=True, post=False, **options):
        nonlocal count
        count += 1
        judge = variant(base, **options)
        path = root / f"made-{count}"
        path.mkdir()
        judge.save(str(path / "tokenizer.json"))
        compare(binary, name, str(path), judge, odd, special, post)

    odd = [t for t in random_texts(1500, 5) if not unknown & set(t)]
    for name, pre in pre_cases():
        one(f"pre-tokenizer: {name}", odd, pre=pre)
    contents = [t["content"] for t in ADDED] + ["<|endoftext|>"]
    odd = random_texts(4000, 6, contents + ["sword", "word ", " <l>", "<r>  ", "e\u0301"])
    for normalizer in (None, normalizers.NFC(), normalizers.Sequence([normalizers.NFC()])):
        for special in (True, False):
            one(f"added tokens, {normalizer}, special {special}", odd, special=special, normalizer=normalizer,
                added=ADDED)
    plain = [t for t in odd if not t.startswith("<|endoftext|>")]  # invar adds no second begin token, the judge does
    one("template with a begin token", plain, template=begin_template, post=True)
    return count


def main():
    binary = sys.argv[1]
    shared = pathlib.Path(sys.argv[2] if len(sys.argv) > 2 else os.environ.get("INVAR_SHARED", "../shared"))
    if not (shared / "assets/text").is_dir():
        print(f"skipped: no assets in {shared}")
        sys.exit(77)
    texts = corpus(shared)
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        check_real(binary, shared, root, texts)
        check_made(binary, root, "\n".join(t[:100000] for t in texts[:30]))
        check_training(binary, root, "".join(t[:60000] for t in texts))
        check_loading(binary, shared, root, [t[:20000] for t in texts])
        check_expected(binary, shared)
    print(f"{failures} failed")
    sys.exit(failures > 0)


if __name__ == "__main__":
    main()
