#!/usr/bin/env python3
"""Model folders: shards trained, evaluated and generated from with the bits of one file; folders that do not fit. TAP.

    tests/hostile/models.py INVAR [PATTERN]
"""
import json
import os
import pathlib
import shutil
import struct
import sys

import lib

os.environ.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")

CONFIG = """model: {{model_type: llama, vocab_size: 257, hidden_size: 64, num_hidden_layers: 2, num_attention_heads: 8,
  num_key_value_heads: 2, intermediate_size: 24, max_position_embeddings: 32, tie_word_embeddings: {tied}}}
tokenizer: bytes
data_path: data
seq_length: 16
global_batch_size: 2
max_steps: 1
save_steps: 1
report_to: none
threads: 1
output_dir: run
"""
GPT2 = """model: {model_type: gpt2, vocab_size: 257, n_positions: 32, n_embd: 32, n_layer: 2, n_head: 4,
  attn_pdrop: 0.0, embd_pdrop: 0.0, resid_pdrop: 0.0}
"""
SHARDS = "model.safetensors.index.json"
UP = "model.layers.1.mlp.up_proj.weight"
EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"


def mpirun(ranks):
    """In sanitized builds what MPI libraries leak does not count (tests/par/mpi_launch.sh)."""
    return ["env", "LSAN_OPTIONS=exitcode=0", "mpirun", "--oversubscribe", "-n", str(ranks)]


class Rig:
    def __init__(self, invar):
        self.invar = os.path.abspath(invar)
        self.root = lib.work_folder()

    def run(self, folder, *args):
        code, text = lib.run([self.invar, *map(str, args)], folder)
        return code, text

    def must(self, folder, *args):
        code, text = self.run(folder, *args)
        if code != 0:
            raise SystemExit(f"Bail out! {' '.join(map(str, args))}: {code}\n{text}")
        return text

    def make(self):
        """run folders of a tied and of an untied model, and the data."""
        (self.root / "text.txt").write_text("The quick brown fox jumps over the lazy dog, and nobody knows why.\n" * 2)
        self.must(self.root, "data", "build", "text.txt", "--tokenizer", "bytes", "--output", "data", "--threads", 1)
        for name, text in (("plain", CONFIG.format(tied="false")), ("tied", CONFIG.format(tied="true")),
                           ("gpt2", GPT2 + CONFIG[CONFIG.index("tokenizer:"):])):
            (self.root / "run.yaml").write_text(text)
            self.must(self.root, "train", "run.yaml")
            step = self.root / "run/checkpoints/step-1"
            folder = self.root / name
            folder.mkdir()
            for file in ("config.json", "model.safetensors"):
                shutil.copy(step / file, folder)
            shutil.rmtree(self.root / "run")

    def case(self, base="plain"):
        """A fresh folder with a copy of a model as m/."""
        folder = self.root / "case"
        lib.remove(folder)
        folder.mkdir()
        shutil.copytree(self.root / base, folder / "m")
        for name in ("data.bin", "data.idx", "data.json"):
            shutil.copy(self.root / name, folder)
        return folder

    def train(self, folder, *more, out="new"):
        code, text = self.run(folder, "train", "--model", "m", "--data_path", "data", "--seq_length", 16,
                              "--global_batch_size", 2, "--max_steps", 2, "--save_steps", 0, "--learning_rate", "1e-2",
                              "--lr_scheduler_type", "constant", "--report_to", "none",
                              "--threads", 1, "--tokenizer", "bytes", "--output_dir", out, *more)
        log = folder / out / "metrics.jsonl"
        return code, text, [json.loads(line)["state_hash"] for line in log.read_text().splitlines()
                            if '"train"' in line] if log.exists() else []


def tensors(folder):
    return lib.st_read(folder / "m/model.safetensors")


def put(folder, content):
    (folder / "m/model.safetensors").write_bytes(lib.st_bytes(content))


def narrow(raw, kind):
    """fp32 bytes as BF16 (cut) or F16 (rounded): any values do."""
    values = struct.unpack(f"<{len(raw) // 4}f", raw)
    if kind == "F16":
        return struct.pack(f"<{len(values)}e", *values)
    return b"".join(raw[i + 2:i + 4] for i in range(0, len(raw), 4))


def widened(raw, kind):
    if kind == "F16":
        return struct.pack(f"<{len(raw) // 2}f", *struct.unpack(f"<{len(raw) // 2}e", raw))
    return b"".join(b"\0\0" + raw[i:i + 2] for i in range(0, len(raw), 2))


# ---- what must work ----

def shards_give_the_bits_of_one_file(rig):
    seen = []
    for shards, kind in ((0, "F32"), (3, "F32"), (0, "BF16"), (3, "BF16"), (0, "F16"), (2, "F16"), (2, "mixed")):
        folder = rig.case()
        content = tensors(folder)
        kinds = {n: kind if kind != "mixed" else ("F16" if i % 2 else "F32") for i, n in enumerate(sorted(content))}
        stored = {n: t if kinds[n] == "F32" else (kinds[n], t[1], narrow(t[2], kinds[n])) for n, t in content.items()}
        if shards > 0:
            os.remove(folder / "m/model.safetensors")
            lib.write_shards(folder / "m", stored, shards)
        else:
            put(folder, stored)
        code, text, hashes = rig.train(folder)
        if code != 0 or len(set(hashes)) != 2 or "21 tensors" not in text:
            return f"{shards} {kind}: {code} {text}"
        evaluated = rig.must(folder, "eval", "m", "--data", "data", "--threads", 1, "--json")
        evaluated = evaluated[evaluated.index("{"):]
        words = rig.must(folder, "generate", "m", "--prompt", "The", "--max-new-tokens", 8, "--tokenizer", "bytes",
                         "--threads", 1)
        wide = {n: ("F32", t[1], t[2] if kinds[n] == "F32" else widened(t[2], kinds[n])) for n, t in stored.items()}
        same = rig.root / "same"
        lib.remove(same)
        same.mkdir()
        (same / "model.safetensors").write_bytes(lib.st_bytes(wide))
        if rig.must(folder, "ckpt", "hash", "m") != rig.must(folder, "ckpt", "hash", same):
            return f"{shards} {kind}: another state hash than the same values in one F32 file"
        if "equal" not in rig.must(folder, "ckpt", "diff", "m", same):
            return f"{shards} {kind}: differs from the same values"
        rig.must(folder, "ckpt", "verify", "m")
        seen.append((kind, hashes, evaluated, words.split("\n3 prompt")[0]))
    for kind in ("F32", "BF16", "F16"):
        if len({str(s) for s in seen if s[0] == kind}) != 1:
            return f"{kind}: {[s for s in seen if s[0] == kind]}"
    if len({s[1][0] for s in seen}) < 3:
        return "the types do not differ, so nothing was compared"
    return ""


def an_equal_head_of_a_tied_model_is_taken(rig):
    folder = rig.case("tied")
    _, _, alone = rig.train(folder, out="a")
    put(folder, {**tensors(folder), HEAD: tensors(folder)[EMBED]})
    code, text, both = rig.train(folder, out="b")
    return "" if code == 0 and alone == both and len(both) == 2 else f"{code} {alone} {both}\n{text}"


def padding_rows_are_dropped_when_the_configuration_says_so(rig):
    folder = rig.case()
    _, _, plain = rig.train(folder, out="a")
    content = tensors(folder)
    for name in (EMBED, HEAD):
        kind, shape, raw = content[name]
        content[name] = (kind, [264, shape[1]], raw + b"\x41" * (7 * 4 * shape[1]))
    put(folder, content)
    code, text, hashes = rig.train(folder, "--drop_vocab_padding", "true", out="b")
    expected = f"{EMBED} has 264 rows, vocab_size is 257: 7 padding rows, dropped"
    if code != 0 or hashes != plain or len(plain) != 2 or expected not in text or HEAD + " has 264" not in text:
        return f"{code} {plain} {hashes}\n{text}"
    return lib.judge([rig.invar, "train", "--model", "m", "--data_path", "data", "--seq_length", "16",
                      "--max_steps", "1", "--threads", "1", "--report_to", "none", "--output_dir", "none"],
                     folder, (3,),
                     "(are the last 7 rows padding? then train with drop_vocab_padding: true)", keeps=False)


def a_saved_table_has_exactly_the_rows_of_the_vocabulary(rig):
    """Whatever the ranks pad it to among themselves."""
    for ranks in (1, 2):
        folder = rig.case()
        launch = mpirun(ranks) if ranks > 1 else []
        if launch and not shutil.which("mpirun"):
            continue
        code, text = lib.run(launch + [rig.invar, "train", "--model", "m", "--data_path", "data", "--seq_length", "16",
                                       "--global_batch_size", "2", "--max_steps", "2", "--tp", str(ranks),
                                       "--tp_grain", "2", "--report_to", "none", "--threads", "1", "--output_dir",
                                       "new"], folder)
        if code != 0:
            return f"{code}\n{text}"
        saved = lib.st_read(folder / "new/checkpoints/step-2/model.safetensors")
        if saved[EMBED][1] != [257, 64] or saved[HEAD][1] != [257, 64]:
            return f"{ranks} ranks: {saved[EMBED][1]} {saved[HEAD][1]}"
    return ""


def through_gguf_every_byte_comes_back(rig):
    """The rotary permutation goes by the heads of each projection: 8 of queries, 2 of keys, and 8 / 2 is not 2."""
    folder = rig.case()
    rig.must(folder, "ckpt", "convert", "m", "m.gguf")
    rig.must(folder, "ckpt", "convert", "m.gguf", "back")
    if (folder / "back/model.safetensors").read_bytes() != (folder / "m/model.safetensors").read_bytes():
        return rig.run(folder, "ckpt", "diff", "m", "back")[1]
    sizes = {n: len(t[2]) for n, t in tensors(folder).items()}
    if max(sizes.values()) > sizes[EMBED]:
        return str(sizes)
    rig.must(folder, "ckpt", "convert", "m", "bf16", "--save_dtype", "bf16", "--max_shard_size", "20KB")
    index = json.loads((folder / "bf16" / SHARDS).read_text())
    half = sum(sizes.values()) // 2
    return "" if index["metadata"]["total_size"] == half else f"{index['metadata']}, expected {half}"


def biases_of_rows_that_ranks_share_are_added_once(rig):
    """GPT-2 with biases that are not zero: the same bits on one rank and with its matrices divided over two."""
    if not shutil.which("mpirun"):
        return ""
    seen = []
    for ranks in (1, 2):
        folder = rig.case("gpt2")
        content = tensors(folder)
        for name, (kind, shape, raw) in content.items():
            if name.endswith(".bias"):
                content[name] = (kind, shape, struct.pack(f"<{shape[0]}f", *((i % 7 - 3) / 8 for i in range(shape[0]))))
        put(folder, content)
        launch = mpirun(ranks) if ranks > 1 else []
        code, text = lib.run(launch + [rig.invar, "train", "--model", "m", "--data_path", "data", "--seq_length", "16",
                                       "--global_batch_size", "2", "--max_steps", "2", "--tp", str(ranks),
                                       "--tp_grain", "2", "--report_to", "none", "--threads", "1", "--tokenizer",
                                       "bytes", "--learning_rate", "1e-2", "--output_dir", "new"], folder)
        if code != 0:
            return f"{code}\n{text}"
        seen.append((folder / "new/checkpoints/step-2/model.safetensors").read_bytes())
        moved = lib.st_read(folder / "new/checkpoints/step-2/model.safetensors")
        if any(moved[n][2] == content[n][2] for n in content if n.endswith(".bias")):
            return "a bias was not trained"
    return "" if seen[0] == seen[1] else "one rank and two write different weights"


def verify_says_where_types_disagree(rig):
    """config.json says float32 and the tensors are BF16; tensors of two types."""
    folder = rig.case()
    content = tensors(folder)
    put(folder, {n: ("BF16", t[1], narrow(t[2], "BF16")) for n, t in content.items()})
    problem = lib.judge([rig.invar, "ckpt", "verify", "m"], folder, (0,),
                        "warning: m/config.json says float32, 21 of 21 tensors are not: lm_head.weight is BF16")
    put(folder, {n: t if n != HEAD else ("F16", t[1], narrow(t[2], "F16")) for n, t in content.items()})
    return problem or lib.judge([rig.invar, "ckpt", "verify", "m"], folder, (0,),
                                "warning: m/config.json says float32, 1 of 21 tensors are not: lm_head.weight is F16")


# ---- what must be refused ----

def renamed_additional_and_prefixed_names_are_all_listed(rig):
    folder = rig.case()
    content = tensors(folder)
    content["model.layers.1.mlp.upproj.weight"] = content.pop(UP)
    content["rotary.extra"] = ("F32", [1], b"\0" * 4)
    content["module.model.norm.weight"] = content.pop("model.norm.weight")
    kind, shape, raw = content[EMBED]
    content[EMBED] = (kind, [1, shape[1] * 257], raw)
    put(folder, content)
    code, text, _ = rig.train(folder)
    parts = (f"2 missing: {UP} (probably model.layers.1.mlp.upproj.weight in the file)",
             "model.norm.weight (probably module.model.norm.weight in the file)", "3 not known to the model",
             "rotary.extra", f"1 of another shape: {EMBED} is [1, 16448], expected [257, 64]")
    lacks = [p for p in parts if p not in text]
    return f"{code} {lacks}\n{text}" if code != 3 or lacks else ""


def two_models_in_one_folder(rig, folder):
    content = tensors(folder)
    lib.write_shards(folder / "m", content, 2)
    return "both model.safetensors and model.safetensors.index.json"


def sharded(rig, folder, change=None):
    """Shards in place of the file; change(map, folder) before the index is written again."""
    content = tensors(folder)
    os.remove(folder / "m/model.safetensors")
    weight_map = lib.write_shards(folder / "m", content, 2)
    total = sum(len(raw) for _, _, raw in content.values())
    if change is not None:
        total = change(weight_map, folder / "m") or total
        (folder / "m" / SHARDS).write_bytes(lib.index_text(weight_map, total))


def named(value):
    def make(rig, folder):
        sharded(rig, folder, lambda weight_map, _: weight_map.update({EMBED: value}))
        return "a plain file name was expected"
    return make


def shard_missing(rig, folder):
    sharded(rig, folder)
    os.remove(folder / "m/model-00002-of-00002.safetensors")
    return "model-00002-of-00002.safetensors: cannot be opened: No such file"


def shard_is(kind):
    def make(rig, folder):
        sharded(rig, folder)
        path = folder / "m/model-00002-of-00002.safetensors"
        os.rename(path, folder / "away.safetensors")
        if kind == "link":
            os.symlink("../away.safetensors", path)
            return "a symbolic link, a file was expected"
        if kind == "fifo":
            os.mkfifo(path)
        else:
            path.mkdir()
        return "not a regular file"
    return make


def tensor_in_no_shard(rig, folder):
    sharded(rig, folder, lambda weight_map, _: weight_map.update({"lm_head.bias": "model-00002-of-00002.safetensors"}))
    return "1 listed, but not in the shard: lm_head.bias (model-00002-of-00002.safetensors)"


def tensor_not_listed(rig, folder):
    sharded(rig, folder, lambda weight_map, _: weight_map.pop(UP) and None)
    return f"1 in a shard, but not listed: {UP}"


def tensor_in_another_shard(rig, folder):
    other = "model-00002-of-00002.safetensors"
    sharded(rig, folder, lambda weight_map, _: weight_map.update({HEAD: other}))
    return f"1 in another shard than the index says: {HEAD} (model-00001-of-00002.safetensors, not {other})"


def tensor_in_two_shards(rig, folder):
    def change(_, m):
        path = m / "model-00002-of-00002.safetensors"
        second = lib.st_read(path)
        second[EMBED] = lib.st_read(m / "model-00001-of-00002.safetensors")[EMBED]
        path.write_bytes(lib.st_bytes(second))
    sharded(rig, folder, change)
    return f"1 in two shards: {EMBED} (model-0000"


def wrong_total(value, part):
    def make(rig, folder):
        sharded(rig, folder, lambda *_: value)
        return part
    return make


def shard_of_a_tied_head(rig, folder):
    """The index was copied although the head was left out, and an empty entry stands in its place."""
    sharded(rig, folder)
    path = folder / "m/model-00002-of-00002.safetensors"
    header = b'{"lm_head.weight":{"dtype":"","shape":[],"data_offsets":[0,0]}}'
    path.write_bytes(struct.pack("<Q", len(header)) + header)
    return 'lm_head.weight: dtype "" is not one that safetensors has'


def other_head(rig, folder):
    content = tensors(folder)
    kind, shape, raw = content[EMBED]
    content[HEAD] = (kind, shape, raw[:-4] + b"\0\0\x80\x3f")
    put(folder, content)
    return f"{EMBED} and {HEAD} differ (first at element 16447), but config.json says tie_word_embeddings: true"


def head_missing(rig, folder):
    content = tensors(folder)
    del content[HEAD]
    put(folder, content)
    return f"1 missing: {HEAD}"


def pickle_named(*names, part):
    def make(rig, folder):
        os.remove(folder / "m/model.safetensors")
        for name in names:
            (folder / "m" / name).write_bytes(b"\x80\x02cposix\nsystem\n(X\x0f\x00\x00\x00touch m/owned.x\ntR.")
        return part
    return make


REFUSED = {
    "weights of two models in one folder, a file and shards": two_models_in_one_folder,
    "a shard in the folder above": named("../../secret.safetensors"),
    "a shard with an absolute path": named("/etc/passwd"),
    "a shard that leaves a folder": named("sub/../../x.safetensors"),
    "a shard in a folder below": named("sub/model-00001-of-00002.safetensors"),
    "a shard with a zero byte": named("model-00001-of-00002.safetensors\0.x"),
    "a shard without a name": named(""),
    "a shard named . .": named(".."),
    "a shard with a line break": named("a\n.safetensors"),
    "a shard that is missing": shard_missing,
    "a shard that is a link": shard_is("link"),
    "a shard that is a pipe": shard_is("fifo"),
    "a shard that is a folder": shard_is("folder"),
    "a tensor that no shard has": tensor_in_no_shard,
    "a tensor that is not listed": tensor_not_listed,
    "a tensor in another shard": tensor_in_another_shard,
    "a tensor in two shards": tensor_in_two_shards,
    "a total that is too small": wrong_total(4, "metadata.total_size is 4, the tensors have"),
    "a total that is a text": wrong_total("4", "metadata.total_size: a number of bytes"),
    "a total below zero": wrong_total(-4, "metadata.total_size: a number of bytes"),
    "a total of another type": wrong_total({"a": 1}, "a number of bytes"),
    "an entry of a head that is not there": shard_of_a_tied_head,
    "a head that is missing": head_missing,
    "a pickle": pickle_named("pytorch_model.bin", part='sorted(glob.glob("pytorch_model*.bin"))'),
    "a pickle in shards": pickle_named("pytorch_model-00001-of-00002.bin", "pytorch_model.bin.index.json",
                                       part='sorted(glob.glob("pytorch_model*.bin"))'),
    "a pickle .pt": pickle_named("model.pt", part='sorted(glob.glob("*.pt"))'),
    "a pickle .pth": pickle_named("model.pth", part='sorted(glob.glob("*.pth"))'),
    "a pickle in Meta's pieces": pickle_named("consolidated.00.pth", part="convert_llama_weights_to_hf"),
}
GOOD = (shards_give_the_bits_of_one_file, an_equal_head_of_a_tied_model_is_taken,
        padding_rows_are_dropped_when_the_configuration_says_so, a_saved_table_has_exactly_the_rows_of_the_vocabulary,
        through_gguf_every_byte_comes_back, biases_of_rows_that_ranks_share_are_added_once,
        verify_says_where_types_disagree, renamed_additional_and_prefixed_names_are_all_listed)


def refused(rig, make, base="plain"):
    """By training from it, by evaluating it and by looking at it."""
    folder = rig.case(base)
    part = make(rig, folder)
    train = [rig.invar, "train", "--model", "m", "--data_path", "data", "--seq_length", "16", "--max_steps", "1",
             "--threads", "1", "--report_to", "none", "--output_dir", "out"]
    for command in (train, [rig.invar, "eval", "m", "--data", "data", "--threads", "1"]):
        problem = lib.judge(command, folder, (3,), part, keeps=command is not train)
        if problem:
            return f"{command[1]}: {problem}"
    if (folder / "m/owned.x").exists():
        return "the pickle was run"
    return ""


def main():
    tap = lib.Tap(sys.argv[2] if len(sys.argv) > 2 else "")
    rig = Rig(sys.argv[1])
    try:
        rig.make()
        for test in GOOD:
            if tap.wants(test.__name__):
                tap.say(test.__name__.replace("_", " "), test(rig))
        for name, make in REFUSED.items():
            if tap.wants(name):
                tap.say(f"{name} is refused", refused(rig, make))
        if tap.wants("tied"):
            tap.say("another head of a tied model is refused", refused(rig, other_head, "tied"))
    finally:
        lib.remove(rig.root)
    tap.end()


if __name__ == "__main__":
    main()
