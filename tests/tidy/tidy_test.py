#!/usr/bin/env python3
"""Shows every rule of tools/tidy.py failing: one planted fault after another in a small clean tree. TAP."""
import importlib.util
import json
import pathlib
import sys
import tempfile

TIDY = pathlib.Path(__file__).resolve().parents[2] / "tools" / "tidy.py"
spec = importlib.util.spec_from_file_location("tidy", TIDY)
tidy = importlib.util.module_from_spec(spec)
sys.dont_write_bytecode = True
spec.loader.exec_module(tidy)

GOOD = {
    "src/base/err.h": "/* Errors. */\n#ifndef BASE_ERR_H\n#define BASE_ERR_H\n\n/* Says it. */\nint err_say(int n);\n\n"
                      "#endif\n",
    "src/base/err.c": '/* Why. */\n#include "base/err.h"\n\nint err_say(int n)\n{\n    return n;\n}\n',
    "src/part/box.c": '/* Why. */\n#include "base/err.h"\n\n/* strcpy(a, b) in a comment */\nint box(void)\n{\n'
                      '    return err_say("malloc(1) _mm_add_ps()"[0]);\n}\n',
    "meson.build": "files('src/base/err.c', 'src/part/box.c')\n",
    "tools/tidy_exempt.txt": "at-most 0 # cap\n",
    "build/compile_commands.json": json.dumps([{"file": "a.c", "command": "cc -O3 -ffp-contract=off a.c"}]),
}
BOX = GOOD["src/part/box.c"]
LONG = "/* Why. */\nint box(void)\n{\n" + "    box();\n" * 75 + "}\n"


def body(line):
    return f"/* Why. */\nint box(void)\n{{\n    {line}\n}}\n"


# name, files that replace or join the good ones, rule and text of the one finding expected (None: clean)
CASES = [
    ("clean tree has no finding", {}, None),
    ("include upwards", {"src/part/box.c": BOX.replace("base/err.h", "train/step.h")}, "layer: src/part may"),
    ("include without folder", {"src/part/box.c": BOX.replace("base/err.h", "err.h")}, "layer: \"err.h\" should name"),
    ("private header of another module", {"src/part/box.c": BOX.replace("base/err.h", "base/err_int.h")}, "layer: "),
    ("mpi.h in a second file", {"src/comm/far.c": "/* W. */\n#include <mpi.h>\n",
                                "meson.build": "files('src/base/err.c', 'src/part/box.c', 'src/comm/far.c')\n"},
     "layer: mpi.h"),
    ("intrinsics header outside kern", {"src/part/box.c": "/* W. */\n#include <immintrin.h>\n"}, "intrinsics: "),
    ("intrinsic outside kern", {"src/part/box.c": body("_mm512_add_ps(a, b);")}, "intrinsics: _mm512_add_ps"),
    ("vector type outside kern", {"src/part/box.c": body("__m256i v;")}, "intrinsics: __m256i"),
    ("strcpy", {"src/part/box.c": body("strcpy(a, b);")}, "banned: strcpy()"),
    ("assert", {"src/part/box.c": body("assert(a > b);")}, "banned: assert()"),
    ("malloc outside base", {"src/part/box.c": body("char *p = malloc(4);")}, "heap: malloc()"),
    ("strdup outside base", {"src/part/box.c": body("p = strdup(q);")}, "heap: strdup()"),
    ("expf of libm", {"src/part/box.c": body("return expf(x);")}, "libm: expf()"),
    ("exit in a library", {"src/part/box.c": body("exit(1);")}, "banned: exit()"),
    ("system in src", {"src/part/box.c": body('system("ls");')}, "banned: system()"),
    ("mutable global", {"src/part/box.c": "/* W. */\nstatic int calls;\n"}, "global: "),
    ("mutable static in a function", {"src/part/box.c": body("static int calls = 0;")}, "global: "),
    ("OpenMP", {"src/part/box.c": body("#pragma omp parallel")}, "banned: OpenMP"),
    ("function of 77 lines", {"src/part/box.c": LONG}, "function-length: box() has 77 lines"),
    ("file of 801 lines", {"src/part/box.c": "/* W. */\n" + "\n" * 800}, "file-length: 801 lines"),
    ("line of 121 columns", {"src/part/box.c": "/* " + "w" * 115 + " */\n"}, "width: 121 columns"),
    ("blank at the end of a line", {"src/part/box.c": "/* W. */ \n"}, "text: blanks"),
    ("tab", {"src/part/box.c": "/* W. */\n\tint a;\n"}, "text: tab"),
    ("CR", {"src/part/box.c": "/* W. */ int a;\r"}, "text: CR"),
    ("no line break at the end", {"src/part/box.c": "/* W. */"}, "text: no line break"),
    ("work left", {"src/part/box.c": "/* TODO: all of it */\n"}, "work-left: "),
    ("no opening comment", {"src/part/box.c": "int a;\n"}, "opening: "),
    ("brace of a function on its line", {"src/part/box.c": "/* W. */\nint box(void) {\n}\n"}, "shape: the opening"),
    ("if without braces", {"src/part/box.c": body("if (a)\n        b();")}, "shape: braces"),
    ("wrong include guard", {"src/base/err.h": GOOD["src/base/err.h"].replace("BASE_ERR_H", "ERR_H")}, "guard: "),
    ("public function without a comment",
     {"src/base/err.h": GOOD["src/base/err.h"].replace("/* Says it. */", "\n" * 9)},
     "comment: "),
    ("name taken twice", {"src/part/err.h": "/* W. */\n#ifndef PART_ERR_H\n#define PART_ERR_H\n#endif\n"},
     "unique: "),
    ("file that is not built", {"src/part/dead.c": "/* W. */\n"}, "listed: no line"),
    ("built file that is not there", {"meson.build": GOOD["meson.build"] + "'src/part/gone.c'\n"},
     "listed: src/part/gone.c"),
    ("-ffast-math", {"build/compile_commands.json":
                     '[{"file": "a.c", "command": "cc -ffp-contract=off -ffast-math a.c"}]'},
     "flags: compiled with -ffast"),
    ("contraction not off", {"build/compile_commands.json": '[{"file": "a.c", "command": "cc a.c"}]'},
     "flags: compiled without"),
    ("exempt function", {"src/part/box.c": LONG, "tools/tidy_exempt.txt":
                         "at-most 1\nfunction-length src/part/box.c:box 77 # why\n"}, None),
    ("function that outgrew its exemption", {"src/part/box.c": LONG, "tools/tidy_exempt.txt":
                                             "at-most 1\nfunction-length src/part/box.c:box 76 # why\n"},
     "function-length: "),
    ("exemption larger than needed", {"src/part/box.c": LONG, "tools/tidy_exempt.txt":
                                      "at-most 1\nfunction-length src/part/box.c:box 80 # why\n"}, "exempt: "),
    ("exemption not needed", {"tools/tidy_exempt.txt": "at-most 1\nwidth src/part/box.c 1 # why\n"}, "exempt: "),
    ("exemption without a reason", {"tools/tidy_exempt.txt": "at-most 0\nwidth src/part/box.c 1\n"}, "exempt: expec"),
    ("exemptions beyond the cap", {"src/part/box.c": LONG, "tools/tidy_exempt.txt":
                                   "at-most 0\nfunction-length src/part/box.c:box 77 # why\n"}, "exempt: 1 entries"),
]


def run(files):
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder).resolve()
        for name, text in {**GOOD, **files}.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text.encode())
        found = tidy.check(root, root / "build")[1]
        return [f"{rule}: {text}" for _, _, rule, text in found]


def main():
    failed = 0
    print(f"1..{len(CASES)}")
    for number, (name, files, expected) in enumerate(CASES, 1):
        found = run(files)
        good = found == [] if expected is None else any(text.startswith(expected) for text in found)
        failed += not good
        print(f"{'ok' if good else 'not ok'} {number} - {name}")
        if not good:
            print(f"# expected {expected!r}, found {found}")
    return 1 if failed else 0


sys.exit(main())
