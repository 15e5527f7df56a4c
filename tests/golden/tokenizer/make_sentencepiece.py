#!/usr/bin/env python3
"""Makes the small tokenizers that begin with characters, and what independent judges make of texts with them.

    make_sentencepiece.py      (needs tokenizers, sentencepiece, protobuf)

Writes spm_bpe.json (as Llama 2's), unigram.json (as T5's), bpe.model, unigram.model (SentencePiece), and
expected_spm.json: for each of them [text, ids, the text they are decoded to].
"""
import json
import pathlib
import tempfile

import sentencepiece
from sentencepiece import sentencepiece_model_pb2
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

HERE = pathlib.Path(__file__).parent
BAR = "\u2581"
CORPUS = """A tokenizer cuts a text into tokens, and the tokens of a text give the text again.
The same bits on one rank and on many ranks; the same tokens from one thread and from many threads.
Numbers like 0, 1, 12, 123 and 2024 are cut as well as words like counting, counted, counter and recount.
What is not in the vocabulary becomes bytes, or is unknown. Été, über, naïve, мир и война, 中文字符, かな.
def count(tokens): return len(tokens)  # two  blanks   or three
""".splitlines() * 4
RULES = [("FF21", "41"), ("FF22", "42"), ("FB01", "66 69"), ("65 301", "E9"), ("3000", "20"), ("9", "20"), ("AD", "")]
TEXTS = ["", " ", "  ", "a", " a", "the text", " the  tokens ", "counted recounting 2024",
         "line\nline\n", "\n", "tab\tand \t",
         "\uff21\uff22 \ufb01 e\u0301 \u3000x\u00ad", "中文 мир かな", "\U0001f642\u00ff", "unknown 龍龍 龍",
         BAR, BAR + " a" + BAR,
         "<s>", "a</s> b", "x<sep>y <sep> z", "<sep><sep>", "a" * 56, "the " * 30,
         "<0x41>", "<unk>", "tokenstokenstokens", "\r\n", "é\u0301", "countcountcountcountcountcountcountcount"]


def bpe_json():
    judge = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    judge.pre_tokenizer = pre_tokenizers.Metaspace()
    special = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)]
    judge.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=420, show_progress=False, special_tokens=special))
    data = json.loads(judge.to_str())
    data["added_tokens"] = [t for t in data["added_tokens"] if t["id"] < 3]
    judge = Tokenizer.from_str(json.dumps(data))
    judge.pre_tokenizer = None
    judge.normalizer = normalizers.Sequence([normalizers.Prepend(BAR), normalizers.Replace(" ", BAR)])
    judge.decoder = decoders.Sequence([decoders.Replace(BAR, " "), decoders.ByteFallback(), decoders.Fuse(),
                                       decoders.Strip(" ", 1, 0)])
    judge.add_tokens([AddedToken("<sep>", rstrip=True, normalized=False)])
    return judge


def model(folder, kind, **settings):
    rules = folder / "rules.tsv"
    rules.write_text("".join(f"{a}\t{b}\n" for a, b in RULES))
    source = folder / "text"
    source.write_text("\n".join(CORPUS))
    prefix = folder / kind
    sentencepiece.SentencePieceTrainer.train(
        input=str(source), model_prefix=str(prefix), model_type=kind, normalization_rule_tsv=str(rules), minloglevel=2,
        user_defined_symbols=["<sep>"], character_coverage=1.0, **settings)
    parsed = sentencepiece_model_pb2.ModelProto()
    parsed.ParseFromString(pathlib.Path(f"{prefix}.model").read_bytes())
    parsed.trainer_spec.ClearField("input")  # paths of this machine
    parsed.trainer_spec.ClearField("model_prefix")
    parsed.normalizer_spec.ClearField("normalization_rule_tsv")
    (HERE / f"{kind}.model").write_bytes(parsed.SerializeToString())
    return sentencepiece.SentencePieceProcessor(model_file=str(HERE / f"{kind}.model")), parsed


def unigram_json(parsed):
    judge = Tokenizer(models.Unigram([(p.piece, p.score) for p in parsed.pieces], 0, False))
    judge.normalizer = normalizers.Sequence([normalizers.Precompiled(parsed.normalizer_spec.precompiled_charsmap),
                                             normalizers.Lowercase()])
    judge.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    judge.decoder = decoders.Metaspace()
    judge.add_special_tokens(["<s>", "</s>"])
    return judge


def main():
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        bpe, _ = model(folder, "bpe", vocab_size=440, byte_fallback=True, remove_extra_whitespaces=False)
        unigram, parsed = model(folder, "unigram", vocab_size=100)
    judges = {"bpe.model": bpe, "unigram.model": unigram}
    expected = {name: [[t, j.encode(t), j.decode(j.encode(t))] for t in TEXTS] for name, j in judges.items()}
    for name, judge in (("spm_bpe.json", bpe_json()), ("unigram.json", unigram_json(parsed))):
        data = json.loads(judge.to_str())
        (HERE / name).write_text(json.dumps(data, ensure_ascii=False, separators=(",", ":")) + "\n")
        ids = {t: judge.encode(t, add_special_tokens=False).ids for t in TEXTS}
        expected[name] = [[t, ids[t], judge.decode(ids[t], skip_special_tokens=False)] for t in TEXTS]
    rows = [f" {json.dumps(n)}: [\n" + ",\n".join("  " + json.dumps(r, separators=(",", ":")) for r in v) + "\n ]"
            for n, v in expected.items()]
    (HERE / "expected_spm.json").write_text("{\n" + ",\n".join(rows) + "\n}\n")


if __name__ == "__main__":
    main()
