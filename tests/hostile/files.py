#!/usr/bin/env python3
"""Files that are broken in one way each, made from rules and given to the command that reads them: exit code as
documented, a message that names the rule, no crash, no hang, little memory, nothing written. TAP.

    tests/hostile/files.py INVAR [PATTERN]
    tests/hostile/files.py --write FOLDER     only write them, as FOLDER/READER/NUMBER, for the fuzz targets
"""
import base64
import json
import os
import pathlib
import struct
import sys

import lib

F4 = b"\0\0\x80\x3f"
ONE = '"dtype":"F32","shape":[1],"data_offsets":[0,4]'

# ---- safetensors ----


def st_file(header, data=F4, length=None):
    header = header if isinstance(header, bytes) else header.encode()
    return struct.pack("<Q", len(header) if length is None else length) + header + data


def st_one(shape="[1]", offsets="[0,4]", dtype='"F32"', data=F4):
    return st_file(f'{{"a":{{"dtype":{dtype},"shape":{shape},"data_offsets":{offsets}}}}}', data)


def safetensors():
    good = st_file(f'{{"a":{{{ONE}}}}}')
    yield "empty", b"", "at least 8"
    yield "seven bytes", good[:7], "at least 8"
    yield "eight bytes", good[:8], "header"
    for n in (100_000_001, 2**63, 2**64 - 1, 2**32):
        yield f"header of {n}", st_file("{}", b"", n), "is announced"
    yield "header longer than the file", st_file("{}", b"", 3), "is announced"
    yield "cut data", good[:-1], "the file has 3 bytes of data"
    yield "one byte more", good + b"\0", "bytes that no tensor owns"
    yield "not UTF-8", st_file(b'{"\xff":{' + ONE.encode() + b"}}"), "not UTF-8"
    yield "overlong UTF-8", st_file(b'{"\xc0\x80":{' + ONE.encode() + b"}}"), "not UTF-8"
    yield "a zero byte", st_file(b'{"a\0":{' + ONE.encode() + b"}}"), "zero byte"
    yield "an escaped zero", st_file('{"a\\u0000":{' + ONE + "}}"), "control character"
    yield "half a surrogate", st_file('{"\\ud800":{' + ONE + "}}"), "surrogate"
    yield "an unknown escape", st_file('{"\\x":{' + ONE + "}}"), "escape"
    for text in ("", "null", "[]", "1", '"a"', "{", '{"a"', '{"a":', '{"a":{', "{'a':{}}", "{a:{}}", "{}{}", "{}x",
                 "{,}", "[" * 5000, '{"a":' * 5000, '{"a":{"shape":' + "[" * 5000, "// {}", "\ufeff{}"):
        yield f"header {text[:12]}", st_file(text, b""), "header, byte"
    for key in ("__metadata__", ):
        for value in ("1", "null", "[]", '{"a":1}', '{"a":null}', '{"a":{}}', '{"a"}'):
            yield f"metadata {value}", st_file(f'{{"{key}":{value}}}', b""), "header, byte"
    yield "metadata twice", st_file('{"__metadata__":{},"__metadata__":{}}', b""), "given twice"
    yield "a name twice", st_file(f'{{"a":{{{ONE}}},"a":{{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}}}',
                                  F4 * 2), "one name"
    for name, part in (("", "without a name"), ("../a", "a path"), ("x/../../a", "a path"),
                       ("n" * 4097, "at most 4096"), ("n" * 65536, "at most 4096")):
        yield f"name {name[:8]}", st_file(f'{{"{name}":{{{ONE}}}}}'), part
    for dtype in ('"f32"', '"F33"', '""', "null", "32", '["F32"]', '"FLOAT"', '"F32 "'):
        yield f"dtype {dtype}", st_one(dtype=dtype), "dtype"
    for shape in ("[-1]", "[1.0]", "[1e0]", "[01]", '["1"]', "[null]", "[[1]]", "{}", "1", "null", "[1,]", "[,1]",
                  "[1 1]", "[99999999999999999999]", "[281474976710657]", "[4294967296,4294967296]",
                  "[1,1,1,1,1,1,1,1,1]", "[2]", "[0]", "[65536,65536,65536,65536,0]", "[1,2]", "[true]", "[+1]",
                  "[0x1]"):
        yield f"shape {shape}", st_one(shape=shape), "header, byte"
    for offsets in ("[4,0]", "[-4,0]", "[0,-4]", "[0,5]", "[0,3]", "[1,5]", "[0]", "[]", "[0,4,8]", "null", "[0.0,4]",
                    "[0,18446744073709551616]", "[0,18446744073709551615]",
                    "[18446744073709551612,18446744073709551616]", '["0","4"]', "[4,8]"):
        yield f"offsets {offsets}", st_one(
            offsets=offsets), "data_offsets" if offsets not in ("null", ) else "header, byte"
    for fields in ('"shape":[1],"data_offsets":[0,4]', '"dtype":"F32","data_offsets":[0,4]',
                   '"dtype":"F32","shape":[1]', "", ONE + ',"more":1', ONE + ',"shape":[1]', ONE + ",",
                   '"dtype" "F32"'):
        yield f"fields {fields[-12:]}", st_file(f'{{"a":{{{fields}}}}}'), "header, byte"
    entry = '"{}":{{{{"dtype":"F32","shape":[1],"data_offsets":[{{}},{{}}]}}}}'
    two = "{{" + entry.format("a") + "," + entry.format("b") + "}}"
    for at, part in (((0, 4, 0, 4), "overlap"), ((0, 4, 2, 6), "overlap"), ((0, 4, 5, 9), "hole"), ((4, 8, 8, 12),
                                                                                                    "hole")):
        yield f"two at {at}", st_file(two.format(*at), F4 * 3), part
    yield "half a byte", st_one('[1]', "[0,1]", '"F4"', b"\0"), "whole bytes"
    many = {f"t{i}": ("U8", [1], i, i + 1) for i in range(100_000)}
    yield "many tensors, the last too long", st_file(lib.st_header(many), bytes(99_999)), "the file has 99999"


# ---- model.safetensors.index.json: beside it lies one.safetensors with the tensor a of 4 bytes ----


def index():

    def of(weight_map, **more):
        return json.dumps({"weight_map": weight_map, **more}).encode()

    one = {"a": "one.safetensors"}
    for raw in (b"", b"{", b"[]", b"null", b"1", b'"a"', b"{}", b"\xff", b"\xef\xbb\xbf{}", b"{}{}", b'{"a":1,"a":2}',
                b"[" * 100000, b'{"weight_map":' * 100000, b'{"weight_map":{"a":"one.safetensors"},}',
                b"{'weight_map':{}}", b'{"weight_map":{"a":"\\ud800"}}',
                b'{"weight_map":{"a":"one.safetensors","a":"one.safetensors"}}', b'{"weight_map":{}}',
                b'{"weight_map":[]}', b'{"weight_map":null}', b'{"weight_map":"one.safetensors"}',
                b'{"metadata":{"total_size":4}}', b'{"weight_map":{"a":"one.safetensors"}'):
        yield f"text {raw[:24]!r} {len(raw)}", raw, "index.json"
    for value in (1, None, [], {}, True, 1.5, ["one.safetensors"]):
        yield f"a in {value!r}", of({"a": value}), "the name of a file was expected"
    for value in ("../one.safetensors", "/one.safetensors", "./one.safetensors", "x/one.safetensors", "", ".", "..",
                  "/", "a\0.safetensors", "one.safetensors\0", "a\n.safetensors", "\x7f.safetensors",
                  "one.safetensors/", "one.safetensors/..", "x" * 5000 + ".safetensors", "/dev/zero",
                  "/proc/self/mem", "../../../../etc/passwd"):
        yield f"a in {value[:24]!r}", of({"a": value}), "a plain file name was expected"
    for value in ("one.bin", "pytorch_model.bin", "one", "safetensors", "one.safetensors.tmp", "..safetensors.x"):
        yield f"a in {value}", of({"a": value}), "a file .safetensors was expected"
    yield "a shard that is not there", of({"a": "two.safetensors"}), "cannot be opened"
    yield "a shard that is a folder", of({"a": "folder.safetensors"}), "not a regular file"
    yield "a shard that is a link", of({"a": "link.safetensors"}), "a symbolic link"
    yield "a shard that is empty", of({"a": "empty.safetensors"}), "at least 8"
    yield "a shard that is this file", of({"a": "model.safetensors.index.json"}), "a file .safetensors was expected"
    yield "not in the shard", of({**one, "b": "one.safetensors"}), "listed, but not in the shard: b"
    yield "not listed", of({"b": "one.safetensors"}), "in a shard, but not listed: a"
    yield "in two shards", of({"a": "one.safetensors", "b": "again.safetensors"}), "in two shards: a"
    for value in ("4", None, [], {}, True, -1, 3, 5, 4.5, 1e300, 2**62, -2**63, 0):
        if value is not None:
            yield f"total {value!r}", of(one, metadata={"total_size": value}), "metadata.total_size"
    yield "a total beyond 64 bits", of(one, metadata={"total_size": 10**20 - 1}), "json"
    yield "a total 1e999", b'{"metadata":{"total_size":1e999},"weight_map":{"a":"one.safetensors"}}', "json"
    for value in (1, "x", []):
        yield f"metadata {value!r}", of(one, metadata=value), "metadata: an object"
    yield "many files", of({f"t{i}": f"s{i}.safetensors" for i in range(5000)}), "at most 4096"


def index_folder(folder, raw):
    (folder / "one.safetensors").write_bytes(st_file(f'{{"a":{{{ONE}}}}}'))
    (folder / "again.safetensors").write_bytes(st_file(f'{{"a":{{{ONE}}}}}'))
    (folder / "empty.safetensors").write_bytes(b"")
    (folder / "folder.safetensors").mkdir()
    os.symlink("one.safetensors", folder / "link.safetensors")
    (folder / "model.safetensors.index.json").write_bytes(raw)


# ---- config.json ----

LLAMA = {
    "model_type": "llama",
    "vocab_size": 300,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "max_position_embeddings": 64
}


def config():

    def of(**more):
        return json.dumps({k: v for k, v in {**LLAMA, **more}.items() if v != "absent"}).encode()

    for raw in (b"", b"{", b"[]", b"null", b"1", b"\xff\xfe{\0}\0", b"\xef\xbb\xbf{}", b"{}",
                b'{"model_type":"llama"', b"{}{}", b'{"model_type": "llama", "model_type": "gpt2"}', b"[" * 50000,
                b'{"a":' * 50000, b"&a [*a, *a]", b"model_type: !!python/object:os.system x", b"model_type: \0llama",
                b"\t- x", b"--- {}\n--- {}\n", b"model_type: &x llama\nvocab_size: *x\n", b"\x00" * 100):
        yield f"text {raw[:20]!r} {len(raw)}", raw, "config.json"
    for value in ("x", "", None, 1, ["llama"], {}, "llama\n", "LLAMA", "mamba", "t5"):
        yield f"model_type {value!r}", of(model_type=value), "model_type"
    for key in ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"):
        for value in (0, -1, 1.5, "64", None, [], {}, True, 2**63, 10**30, 1e300, "absent"):
            if (key, value) not in (("intermediate_size", None), ):
                yield f"{key} {value!r}", of(**{key: value}), "error"
    for key, value in (("num_key_value_heads", 3), ("num_key_value_heads", 16), ("num_key_value_heads", 0),
                       ("hidden_size", 65), ("head_dim", 0), ("head_dim", -8), ("head_dim", 7), ("head_dim", 10**9),
                       ("max_position_embeddings",
                        0), ("rms_norm_eps", -1), ("rms_norm_eps", "x"), ("rms_norm_eps", 0), ("rope_theta", 0),
                       ("rope_theta", -1), ("rope_theta", "x"), ("initializer_range", -1), ("hidden_act", "relu9"),
                       ("hidden_act", 1), ("attention_bias", "yes"), ("attention_dropout", 2),
                       ("tie_word_embeddings", 1), ("rope_scaling", {
                           "type": "x",
                           "factor": 2
                       }), ("rope_scaling", {
                           "type": "linear"
                       }), ("rope_scaling", {
                           "type": "linear",
                           "factor": -1
                       }), ("rope_scaling", []), ("rope_scaling", "linear"), ("unknown_field",
                                                                              1), ("quantization_config", {
                                                                                  "bits": 4
                                                                              }), ("num_experts", 8)):
        yield f"{key} {value!r}", of(**{key: value}), "config.json"
    for text in ("NaN", "Infinity", "-Infinity", "1e400", "-1e400"):
        yield f"rms_norm_eps {text}", of().replace(b"}", f', "rms_norm_eps": {text}}}'.encode()), "config.json"


# ---- tokenizer.json ----


def byte_alphabet():
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    other = [b for b in range(256) if b not in plain]
    table = {b: chr(b) for b in plain} | {b: chr(256 + i) for i, b in enumerate(other)}
    return [table[b] for b in range(256)]


def tokenizer_of(**model):
    vocab = {c: i for i, c in enumerate(byte_alphabet())} | {"ab": 256, "abab": 257}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "ByteLevel",
            "add_prefix_space": False,
            "trim_offsets": True,
            "use_regex": True
        },
        "post_processor": None,
        "decoder": {
            "type": "ByteLevel",
            "add_prefix_space": True,
            "trim_offsets": True,
            "use_regex": True
        },
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": vocab,
            "merges": ["a b", "ab ab"],
            **model
        }
    }


def added(content, number, **more):
    return {
        "id": number,
        "content": content,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
        **more
    }


def tokenizer():

    def of(**more):
        return json.dumps({**tokenizer_of(), **more}).encode()

    def model(**more):
        return json.dumps(tokenizer_of(**more)).encode()

    vocab = tokenizer_of()["model"]["vocab"]
    for raw in (b"", b"{", b"[]", b"null", b"{}", b"\xff", b"{}{}", b"[" * 100000, b'{"model":' * 100000,
                b'{"model":{},"model":{}}', b'{"model":null}', b'{"model":[]}', b'{"model":{}}',
                b'{"model":{"type":1}}'):
        yield f"text {raw[:16]!r} {len(raw)}", raw, "tokenizer.json"
    for kind in ("WordPiece", "WordLevel", "X", "", None, 1):
        yield f"model {kind!r}", model(type=kind), "tokenizer.json"
    for value in (None, [], 1, "x", {}):
        yield f"vocab {value!r}", model(vocab=value), "tokenizer.json"
    for number in (-1, 2**31, 2**40, 2**63, 1.5, "1", None, [], 10**9):
        yield f"an id {number!r}", model(vocab={**vocab, "zz": number}), "tokenizer.json"
    yield "an id twice", model(vocab={**vocab, "zz": 5}), "tokenizer.json"
    yield "a byte without token", model(vocab={k: v for k, v in vocab.items() if k != "a"}), "tokenizer.json"
    for merges in (None, {}, 1, "a b", [1], [None], ["a"], ["a b c"], [""], [" "], ["a  b"],
                   [["a"]], [["a", "b", "c"]], [["a", 1]], ["q q"], ["zz a"], ["a zz"], ["ab a"], [["a", "b"],
                                                                                                   ["a", "b", "c"]],
                   ["a b"] * 3 + ["x y"], ["a" * 100000 + " b"]):
        yield f"merges {str(merges)[:24]}", model(merges=merges), "tokenizer.json"
    for key, value in (("dropout", 0.5), ("continuing_subword_prefix", "##"), ("end_of_word_suffix", "</w>"),
                       ("byte_fallback", 3), ("fuse_unk", "x"), ("ignore_merges", 5), ("new_field", 1)):
        yield f"model.{key} {value!r}", model(**{key: value}), "tokenizer.json"
    for value in ({
            "type": "X"
    }, {}, 1, "NFC", [], {
            "type": "Sequence"
    }, {
            "type": "Sequence",
            "normalizers": 1
    }, {
            "type": "Replace",
            "pattern": {
                "Regex": "("
            },
            "content": ""
    }, {
            "type": "Replace"
    }, {
            "type": "Precompiled",
            "precompiled_charsmap": "!!!"
    }, {
            "type": "Precompiled",
            "precompiled_charsmap": 3
    }, {
            "type": "Precompiled",
            "precompiled_charsmap": base64.b64encode(b"\xff" * 12).decode()
    }):
        yield f"normalizer {str(value)[:48]}", of(normalizer=value), "tokenizer.json"
    for value in ({
            "type": "X"
    }, {}, 1, [], {
            "type": "Sequence"
    }, {
            "type": "Sequence",
            "pretokenizers": {}
    }, {
            "type": "Split",
            "pattern": {
                "Regex": "("
            },
            "behavior": "Isolated",
            "invert": False
    }, {
            "type": "Split",
            "pattern": {
                "Regex": "a{99999}"
            },
            "behavior": "Isolated",
            "invert": False
    }, {
            "type": "Split",
            "pattern": {
                "Regex": "(?R)"
            },
            "behavior": "Isolated",
            "invert": False
    }, {
            "type": "Split",
            "pattern": {},
            "behavior": "Isolated",
            "invert": False
    }, {
            "type": "Split",
            "pattern": {
                "String": "x"
            },
            "behavior": "Sideways",
            "invert": False
    }, {
            "type": "ByteLevel",
            "add_prefix_space": 3
    }, {
            "type": "UnicodeScripts"
    }):
        yield f"pre_tokenizer {str(value)[:60]}", of(pre_tokenizer=value), "tokenizer.json"
    for value in ({
            "type": "X"
    }, {}, 1, {
            "type": "TemplateProcessing"
    }, {
            "type": "TemplateProcessing",
            "single": [{
                "SpecialToken": {
                    "id": "<q>",
                    "type_id": 0
                }
            }],
            "pair": [],
            "special_tokens": {
                "<q>": {
                    "id": "<q>",
                    "ids": [99999],
                    "tokens": ["<q>"]
                }
            }
    }):
        yield f"post_processor {str(value)[:40]}", of(post_processor=value), "tokenizer.json"
    for value in ([1], [None], [{}], {}, "x", [added("<s>", -1)], [added("<s>", 2**31)], [added("", 258)],
                  [added(1, 258)], [added("<s>", 5)], [added("<s>", 258),
                                                       added("<s>", 259)], [added("<s>", 258),
                                                                            added("<t>", 258)],
                  [added("<s>", 258, lstrip=3)], [added("<s>", "258")], [added("<s>", 10**9)]):
        yield f"added_tokens {str(value)[:60]}", of(added_tokens=value), "tokenizer.json"


# ---- PREFIX.idx, beside a .bin of 12 bytes ----


def idx_bytes(
        lengths=(3, 2, 1), documents=(0, 1, 3), dtype=8, magic=b"MMIDIDX\0\0", version=1, n=None, d=None,
        pointers=None):
    width = {1: 1, 3: 2, 4: 4, 5: 8, 8: 2}.get(dtype, 2)
    at = [sum(lengths[:i]) * width for i in range(len(lengths))] if pointers is None else pointers
    return (magic + struct.pack("<QBQQ", version, dtype,
                                len(lengths) if n is None else n,
                                len(documents) if d is None else d) + struct.pack(f"<{len(lengths)}i", *lengths) +
            struct.pack(f"<{len(at)}q", *at) + struct.pack(f"<{len(documents)}q", *documents))


def idx():
    good = idx_bytes()
    for n in (0, 1, 8, 9, 17, 18, 26, 33, 34, 40, len(good) - 1):
        yield f"cut at {n}", good[:n], "data.idx"
    yield "a byte more", good + b"\0", "data.idx"
    yield "magic", idx_bytes(magic=b"MMIDIDX\0\1"), "data.idx"
    yield "lower-case magic", idx_bytes(magic=b"mmididx\0\0"), "data.idx"
    for version in (0, 2, 2**56, 2**64 - 1):
        yield f"version {version}", idx_bytes(version=version), "data.idx"
    for dtype in (0, 2, 6, 7, 9, 255):
        yield f"type {dtype}", idx_bytes(dtype=dtype), "data.idx"
    for n in (0, 2, 4, 2**31, 2**60, 2**62, 2**63, 2**64 - 1, (2**64 - 34) // 12):
        yield f"{n} sequences", idx_bytes(n=n), "data.idx"
    for d in (0, 1, 2, 4, 2**61, 2**63, 2**64 - 1):
        yield f"{d} documents", idx_bytes(d=d), "data.idx"
    for lengths in ((-1, 2, 5), (3, -2, 5), (3, 2, 2), (2**31 - 1, 2, 1), (3, 2, 0), (0, 0, 0), (-2**31, 2, 1)):
        yield f"lengths {lengths}", idx_bytes(lengths, pointers=[0, 6, 10]), "data"
    for pointers in ([0, 6, 11], [0, 6, -10], [0, 10, 6], [2, 8, 12], [0, 6, 2**62], [0, 0, 0], [1, 6, 10]):
        yield f"pointers {pointers}", idx_bytes(pointers=pointers), "data.idx"
    for documents in ((1, 2, 3), (0, 2, 1, 3), (0, 1, 2), (0, 1, 4), (0, -1, 3), (0, 1, 2**62), (3, 3, 3), (0, ),
                      (0, 1, 2, 3, 3)):
        yield f"documents {documents}", idx_bytes(documents=documents), "data.idx"
    for dtype in (1, 4, 5):
        yield f"a .bin of another width than {dtype}", idx_bytes(dtype=dtype), "data"


# ---- manifest.json of a checkpoint ----

MANIFEST = {
    "format":
    "invar-ckpt/1",
    "numerics":
    "invar-num/1",
    "step":
    3,
    "state_hash":
    "0" * 16,
    "files": [{
        "name": "model.safetensors",
        "bytes": 62,
        "hash128": "0" * 32,
        "tensors": [{
            "name": "a",
            "dtype": "F32",
            "shape": [1],
            "offset": 0,
            "hash128": "a" * 32
        }]
    }]
}


def manifest():
    """Without its own hash, which stops all of them; the fuzz target puts the right one behind each."""
    own = "manifest"
    for raw in (b"", b"{", b"{}", b"[]", b"null", b"\xff", b'{"hash": ""}', b"[" * 50000, b"\0" * 64,
                json.dumps(MANIFEST).encode(), json.dumps({
                    **MANIFEST, "hash": "0" * 32
                }).encode(), json.dumps({
                    **MANIFEST, "hash": "0" * 32
                }, indent=2).encode() + b"\n"):
        yield f"text {raw[:20]!r} {len(raw)}", raw, own
    for key, value in (("format", "invar-ckpt/2"), ("numerics", "x"), ("step", -1), ("step", "3"),
                       ("state_hash", "0"), ("files", []), ("files",
                                                            {}), ("files", [1]), ("files", [{}]), ("files", [{
                                                                "name":
                                                                "../x"
                                                            }]), ("files", MANIFEST["files"] * 2), ("files", [{
                                                                "name":
                                                                "model.safetensors",
                                                                "bytes":
                                                                -1
                                                            }])):
        yield f"{key} {str(value)[:30]}", json.dumps({**MANIFEST, key: value}, indent=2)[:-2].encode() + b",\n", own
    tensor = MANIFEST["files"][0]["tensors"][0]
    for key, value in (("name", 1), ("dtype", "X"), ("shape", [-1]), ("shape", [2**62, 2**62]), ("shape", [1] * 9),
                       ("offset", -1), ("offset", 2**63 - 1), ("hash128", "z" * 32), ("hash128", "")):
        files = [{**MANIFEST["files"][0], "tensors": [{**tensor, key: value}]}]
        yield f"tensor {key} {str(value)[:30]}", json.dumps({
            **MANIFEST, "files": files
        }, indent=2)[:-2].encode() + b",\n", own


# ---- each reader: its cases, the files of a folder, the command, the exit codes ----


def plain(name):

    def make(folder, raw):
        (folder / name).write_bytes(raw)

    return make


def config_folder(folder, raw):
    (folder / "config.json").write_bytes(raw)
    (folder / "model.safetensors").write_bytes(st_file(f'{{"a":{{{ONE}}}}}'))


def text_folder(folder, raw):
    (folder / "tokenizer.json").write_bytes(raw)
    (folder / "text.txt").write_text("ab ba abab\n")


def store_folder(folder, raw):
    (folder / "data.idx").write_bytes(raw)
    (folder / "data.bin").write_bytes(struct.pack("<6H", 1, 2, 3, 4, 5, 6))


def manifest_folder(folder, raw):
    (folder / "manifest.json").write_bytes(raw)
    (folder / "model.safetensors").write_bytes(st_file(f'{{"a":{{{ONE}}}}}'))


READERS = {
    "safetensors": (safetensors, plain("model.safetensors"), ("ckpt", "verify", "."), (3, ), "safetensors"),
    "index": (index, index_folder, ("ckpt", "verify", "."), (3, ), "index"),
    "config": (config, config_folder, ("generate", ".", "--prompt", "x", "--tokenizer", "bytes", "--threads", "1"),
               (2, 3), "model_conf"),
    "tokenizer": (tokenizer, text_folder, ("data", "build", "text.txt", "--tokenizer", "tokenizer.json", "--output",
                                           "out", "--threads", "1"), (2, 3), "tokenizer"),
    "idx": (idx, store_folder, ("data", "verify", "data"), (3, ), None),
    "manifest": (manifest, manifest_folder, ("ckpt", "verify", "."), (3, ), "manifest"),
}


def write(folder):
    for reader, (cases, *_, target) in READERS.items():
        if target is not None:
            out = pathlib.Path(folder, target)
            out.mkdir(parents=True, exist_ok=True)
            for number, (_, raw, _) in enumerate(cases()):
                (out / f"{number:03d}").write_bytes(raw)


def main():
    if sys.argv[1] == "--write":
        write(sys.argv[2])
        return
    invar, tap, count = os.path.abspath(sys.argv[1]), lib.Tap(sys.argv[2] if len(sys.argv) > 2 else ""), 0
    folder = lib.work_folder()
    try:
        for reader, (cases, make, command, codes, _) in READERS.items():
            for name, raw, part in cases():
                label = f"{reader}: {name}".replace("#", "")
                if not tap.wants(label):
                    continue
                here = folder / "case"
                lib.remove(here)
                here.mkdir()
                make(here, raw)
                tap.say(label, lib.judge([invar, *command], here, codes, part))
                count += 1
    finally:
        lib.remove(folder)
    tap.end()


if __name__ == "__main__":
    main()
