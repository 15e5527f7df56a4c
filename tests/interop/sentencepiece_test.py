#!/usr/bin/env python3
"""`tokenizers`, `sentencepiece` and `tiktoken` as independent judges of the tokenizers that are not byte-level
tokenizer.json: the same files and texts must give the same ids, and ids the same text.

    sentencepiece_test.py ENCODE_BINARY [SHARED_FOLDER] [RANDOM_STRINGS]

ENCODE_BINARY is tests/interop/encode_main.c; SHARED_FOLDER (default: $INVAR_SHARED, else ../shared) has
assets/tokenizers and assets/text. Prints one line for each check, exits 1 when one failed, 77 when a judge or the
assets are missing.
"""
import gzip
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unicodedata

try:
    import sentencepiece
    import tiktoken
    import tiktoken.load
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
except ImportError:
    print("skipped: the Python packages tokenizers, sentencepiece and tiktoken are not installed")
    sys.exit(77)

from tokenizers_test import corpus, encode, random_texts, report

BAR = "\u2581"
ODD = [BAR, BAR + " ", " " + BAR, "\u3000", "\u00a0", "\ufb01", "\uff21", "\u0130", "\r\n", "a\u0301", "\ufdfa",
       "\u212b"]


def decoded(binary, path, texts, *flags):
    data = b"".join(b"%d\n%s" % (len(t), t) for t in (x.encode() for x in texts))
    done = subprocess.run([binary, path, "back", *flags], input=data, capture_output=True)
    if done.returncode != 0:
        raise RuntimeError(done.stderr.decode())
    return [bytes.fromhex(line) for line in done.stdout.decode().split("\n")[:-1]]


def compare(binary, name, path, texts, theirs, back=None, special=False):
    """Ids against `theirs`, and what they are decoded to against `back`."""
    flags = ["special"] if special else []
    mine = encode(binary, path, texts, *flags)
    bad = next((i for i, (a, b) in enumerate(zip(mine, theirs)) if a != b), None)
    detail = f"{len(texts)} texts, {sum(map(len, theirs))} ids"
    if bad is not None or len(mine) != len(theirs):
        a, b = mine[bad] or [], theirs[bad]
        where = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
        report(name, False, f"{texts[bad][:60]!r}: at {where} {a[where:where + 6]} instead of {b[where:where + 6]}")
        return
    if back is not None:
        mine = decoded(binary, path, texts, *flags)
        bad = next((i for i, (a, b) in enumerate(zip(mine, back)) if a != b.encode()), None)
        if bad is not None:
            report(name, False, f"{texts[bad][:60]!r}: decoded {mine[bad][:80]!r} instead of {back[bad][:60]!r}")
            return
    report(name, True, detail)


def by_tokenizers(binary, name, path, judge, texts, special=True):
    judge.encode_special_tokens = not special
    theirs = [e.ids for e in judge.encode_batch(texts, add_special_tokens=False)]
    # The judge shows an added token that is matched after normalization as it was normalized; invar as it is.
    shown = {i for i, t in judge.get_added_tokens_decoder().items() if t.normalized}
    kept = [i for i, ids in enumerate(theirs) if not shown & set(ids)]
    if len(kept) < len(texts):
        compare(binary, f"{name}, ids", path, texts, theirs, None, special)
        texts, theirs = [texts[i] for i in kept], [theirs[i] for i in kept]
    back = judge.decode_batch(theirs, skip_special_tokens=False)
    compare(binary, name, path, texts, theirs, back, special)


def lines_of(texts):
    return [line for text in texts for line in text[:200000].split("\n")][::5]


def check_json(binary, shared, root, texts, count):
    for name in ("mistral-v1/tokenizer.json", "phi-3-mini/tokenizer.json.gz"):
        source = shared / "assets/tokenizers" / name
        name = name.split("/")[0]
        text = gzip.decompress(source.read_bytes()) if source.suffix == ".gz" else source.read_bytes()
        path = root / f"{name}.json"
        path.write_bytes(text)
        judge = Tokenizer.from_file(str(path))
        specials = [t.content for t in judge.get_added_tokens_decoder().values()]
        odd = random_texts(count, name, specials + ODD)
        by_tokenizers(binary, f"{name}: whole texts", str(path), judge, texts)
        by_tokenizers(binary, f"{name}: lines", str(path), judge, lines_of(texts))
        by_tokenizers(binary, f"{name}: random Unicode", str(path), judge, odd)
        by_tokenizers(binary, f"{name}: random Unicode, special tokens as text", str(path), judge, odd, special=False)


def normalizer_cases():
    n = normalizers
    yield "NFC", n.NFC()
    yield "NFD", n.NFD()
    yield "NFKC", n.NFKC()
    yield "NFKD", n.NFKD()
    yield "lowercase", n.Lowercase()
    yield "strip", n.Strip()
    yield "strip left", n.Strip(left=True, right=False)
    yield "strip accents", n.Sequence([n.NFD(), n.StripAccents()])
    yield "prepend", n.Prepend(BAR)
    yield "replace", n.Sequence([n.Replace("a", "bb"), n.Replace("bb", ""), n.Prepend("x ")])
    yield "replace pattern", n.Replace(Regex(" {2,}"), BAR)
    yield "replace nothing", n.Replace(Regex("x*"), "-")


def pre_cases():
    p = pre_tokenizers
    for scheme in ("always", "first", "never"):
        for split in (True, False):
            yield f"metaspace {scheme} split {split}", p.Metaspace(prepend_scheme=scheme, split=split)
    yield "whitespace", p.Whitespace()
    yield "white space split", p.WhitespaceSplit()
    yield "white space split, metaspace", p.Sequence([p.WhitespaceSplit(), p.Metaspace()])
    yield "white space split, metaspace first", p.Sequence([p.WhitespaceSplit(), p.Metaspace(prepend_scheme="first")])
    yield "digits, metaspace", p.Sequence([p.Digits(individual_digits=True), p.Metaspace()])
    yield "punctuation, metaspace never", p.Sequence([p.Punctuation(), p.Metaspace(prepend_scheme="never")])
    yield "split", p.Split(Regex("[0-9]|\\s"), "merged_with_next")


def decoder_cases():
    d = decoders
    llama = [d.Replace(BAR, " "), d.ByteFallback(), d.Fuse()]
    yield "no decoder", None
    yield "strip behind fuse", d.Sequence(llama + [d.Strip(" ", 1, 0)])
    yield "strip two behind fuse", d.Sequence(llama + [d.Strip(" ", 2, 0)])
    yield "strip of tokens", d.Sequence([d.Replace(BAR, " "), d.Strip(" ", 0, 1), d.ByteFallback()])
    yield "metaspace", d.Metaspace(prepend_scheme="always")
    yield "metaspace never", d.Metaspace(prepend_scheme="never")
    yield "metaspace and bytes", d.Sequence([d.ByteFallback(), d.Metaspace(prepend_scheme="first")])


def same_unicode(text):
    """Whether the judge's tables read the text as Python's do; where they are older it proves nothing."""
    forms = all(getattr(normalizers, f)().normalize_str(text) == unicodedata.normalize(f, text)
                for f in ("NFC", "NFD", "NFKC", "NFKD"))
    bare = "".join(c for c in text if unicodedata.category(c)[0] != "M")
    return forms and normalizers.StripAccents().normalize_str(text) == bare


def check_made(binary, shared, root, count):
    base = json.loads((shared / "assets/tokenizers/mistral-v1/tokenizer.json").read_text())
    words = ["word", "  ", "<a>", "<b>", " <b>", "<c>  ", "x"] + ODD
    odd = [t for t in random_texts(count, "made", words) if same_unicode(t)]
    marks = [AddedToken("<a>", special=True), AddedToken("<b>", lstrip=True, normalized=True),
             AddedToken("<c>", rstrip=True, special=True), AddedToken("word", single_word=True, normalized=True)]

    def one(name, change, added=marks):
        judge = Tokenizer.from_str(json.dumps(base))
        change(judge)
        judge.add_tokens(added)
        path = root / "made.json"
        judge.save(str(path))
        by_tokenizers(binary, name, str(path), judge, odd)

    for name, normalizer in normalizer_cases():
        one(f"normalizer: {name}", lambda j: setattr(j, "normalizer", normalizer))
    for name, pre in pre_cases():
        def change(judge):
            judge.normalizer = None
            judge.pre_tokenizer = pre
        one(f"pre-tokenizer: {name}", change)
    for name, decoder in decoder_cases():
        one(f"decoder: {name}", lambda j: setattr(j, "decoder", decoder))

    for fuse in (True, False):  # a vocabulary without the bytes
        base["model"].update(byte_fallback=False, fuse_unk=fuse)
        one(f"unknown characters, fuse {fuse}", lambda j: None)


def by_sentencepiece(binary, name, path, judge, texts):
    theirs = [judge.encode(t) for t in texts]
    back = [judge.decode(ids) for ids in theirs]
    compare(binary, name, path, texts, theirs, back)


def check_models(binary, shared, root, texts, count):
    for name in ("mistral-v1/tokenizer.model", "mistral-v3/tokenizer.model", "sentencepiece/test_model.model",
                 "sentencepiece/test_ja_model.model"):
        path = str(shared / "assets/tokenizers" / name)
        judge = sentencepiece.SentencePieceProcessor(model_file=path)
        words = [judge.id_to_piece(i) for i in range(0, judge.vocab_size(), 97)]
        odd = random_texts(count, name, words + ODD)
        # The judge sums the scores of a Unigram model in low precision: its choices in very long texts are by chance.
        size = 4000 if name.startswith("sentencepiece/") else 1 << 30
        parts = [t[i:i + size] for t in texts for i in range(0, len(t), size)]
        by_sentencepiece(binary, f"{name}: whole texts", path, judge, parts)
        by_sentencepiece(binary, f"{name}: lines", path, judge, lines_of(texts))
        by_sentencepiece(binary, f"{name}: random Unicode", path, judge, odd)


def unigram_cases(judge):
    """Tokenizers of the kinds of T5, XLM-R and ALBERT, from one trained model."""
    p, n = pre_tokenizers, normalizers
    rules = n.Precompiled(bytes(judge["map"]))
    yield "T5", rules, p.Sequence([p.WhitespaceSplit(), p.Metaspace()])
    yield "XLM-R", n.Sequence([rules, n.Replace(Regex(" {2,}"), " ")]), p.Metaspace(prepend_scheme="always")
    yield "ALBERT", n.Sequence([n.Replace("``", '"'), n.NFKD(), n.StripAccents(), n.Lowercase(), rules]), p.Metaspace()
    yield "no normalizer", None, p.Metaspace(prepend_scheme="first", split=False)
    yield "no pre-tokenizer", rules, None


def check_unigram(binary, shared, root, texts, count):
    from sentencepiece import sentencepiece_model_pb2
    for source in ("test_model", "test_ja_model"):
        model = sentencepiece_model_pb2.ModelProto()
        model.ParseFromString((shared / f"assets/tokenizers/sentencepiece/{source}.model").read_bytes())
        vocab = [(p.piece, p.score) for p in model.pieces]
        odd = [t for t in random_texts(count, source, [p for p, _ in vocab[::50]] + ODD) if same_unicode(t)]
        odd += lines_of(texts)[::4] + [t[:20000] for t in texts if same_unicode(t)]
        for fallback in (False, True):
            extra = [(f"<0x{b:02X}>", -50.0) for b in range(256)] if fallback else []
            for name, normalizer, pre in unigram_cases({"map": model.normalizer_spec.precompiled_charsmap}):
                judge = Tokenizer(models.Unigram(vocab + extra, 0, fallback))
                if normalizer:
                    judge.normalizer = normalizer
                if pre:
                    judge.pre_tokenizer = pre
                steps = [decoders.ByteFallback()] if fallback else []
                judge.decoder = decoders.Sequence(steps + [decoders.Metaspace()])
                judge.add_special_tokens(["</s>", "<pad>"])
                path = root / "unigram.json"
                judge.save(str(path))
                by_tokenizers(binary, f"unigram {source} {name}, bytes {fallback}", str(path), judge, odd)


def check_tiktoken(binary, shared, root, texts, count):
    """The rank files as tiktoken reads them, with its own patterns."""
    from tiktoken_ext import openai_public
    for name in ("cl100k_base", "o200k_base"):
        folder = shared / "assets/tokenizers/tiktoken"
        packed = folder / f"{name}.tiktoken.gz"
        data = gzip.decompress(packed.read_bytes()) if packed.exists() else (folder / f"{name}.tiktoken").read_bytes()
        path = root / f"{name}.tiktoken"
        path.write_bytes(data)
        openai_public.load_tiktoken_bpe = lambda *_, **__: tiktoken.load.load_tiktoken_bpe(str(path))
        judge = tiktoken.Encoding(**getattr(openai_public, name)())
        odd = random_texts(count, name, ["<|endoftext|>", "  \n ", "\n  ", "'S", "'re"] + ODD)
        odd += [t + end for t in odd[:500] for end in ("\n ", " \n", "  ", "\r\n\t")]
        for label, some in (("whole texts", texts), ("lines", lines_of(texts)), ("random Unicode", odd)):
            compare(binary, f"{name}: {label}", str(path), some, [judge.encode_ordinary(t) for t in some], some)
            theirs = [judge.encode(t, allowed_special="all") for t in some]
            compare(binary, f"{name}: {label}, special tokens", str(path), some, theirs, some, special=True)


def check_trained(binary, root, text, count):
    """Models of every setting, learnt here."""
    source = root / "train.txt"
    source.write_text(text)
    symbols = ["<sep>", "ab", "abc", "the", "  ", "\u4e2d\u6587"]
    odd = random_texts(count, "trained", symbols + ODD) + text[:20000].split("\n")
    number = 0
    for kind in ("bpe", "unigram"):
        for settings in (dict(), dict(byte_fallback=True), dict(add_dummy_prefix=False),
                         dict(remove_extra_whitespaces=False, byte_fallback=True),
                         dict(normalization_rule_name="identity", split_by_whitespace=False),
                         dict(normalization_rule_name="nfkc_cf", user_defined_symbols=symbols),
                         dict(user_defined_symbols=symbols, byte_fallback=True, remove_extra_whitespaces=False),
                         dict(allow_whitespace_only_pieces=True, split_digits=True, control_symbols=["<c>"])):
            number += 1
            prefix = root / f"trained-{number}"
            sentencepiece.SentencePieceTrainer.train(
                input=str(source), model_prefix=str(prefix), model_type=kind, vocab_size=1500, minloglevel=2,
                character_coverage=0.98, **settings)
            judge = sentencepiece.SentencePieceProcessor(model_file=f"{prefix}.model")
            by_sentencepiece(binary, f"trained {kind} {settings}", f"{prefix}.model", judge, odd)


def main():
    binary = sys.argv[1]
    shared = pathlib.Path(sys.argv[2] if len(sys.argv) > 2 else os.environ.get("INVAR_SHARED", "../shared"))
    count = int(sys.argv[3]) if len(sys.argv) > 3 else 10000
    if not (shared / "assets/text").is_dir():
        print(f"skipped: no assets in {shared}")
        sys.exit(77)
    texts = corpus(shared)
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        check_json(binary, shared, root, texts, count)
        check_models(binary, shared, root, texts, count)
        check_unigram(binary, shared, root, texts, count // 4)
        check_tiktoken(binary, shared, root, texts, count)
        check_trained(binary, root, "".join(t[:20000] for t in texts), count // 4)
        check_made(binary, shared, root, count // 2)
    import tokenizers_test
    print(f"{tokenizers_test.failures} failed")
    sys.exit(tokenizers_test.failures > 0)


if __name__ == "__main__":
    main()
