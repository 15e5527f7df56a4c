#!/usr/bin/env python3
"""The style rules that a machine can check; runs as a test (`make tidy`, suite `quick`).

Each rule is a function that yields findings (line, rule, text) for one file, or (path, line, rule, text) for the tree.
What must break a rule stands in tools/tidy_exempt.txt with its present size and the reason; an entry that is no longer
needed, or larger than needed, is a finding too, and the first line of the list caps its length: it only shrinks.

    tools/tidy.py [--root FOLDER] [--build FOLDER]    the build folder's compile_commands.json is checked for flags
"""
import argparse
import json
import pathlib
import re
import sys

# Folder of src/ -> the folders it may include. The one copy of the layer table beside meson.build, which makes it link.
LAYERS = {
    "base": set(),
    "conf": {"base", "part"},
    "part": {"base"},
    "kern": {"base"},
    "comm": {"base", "part"},
    "data": {"base", "part"},
    "model": {"base", "conf", "part", "kern", "comm"},
    "ckpt": {"base", "conf", "part", "comm", "data"},
    "train": {"base", "conf", "part", "kern", "comm", "data", "model", "ckpt"},
    "bench": {"base", "conf", "part", "kern", "comm", "data", "model", "train"},
    "plan": {"base", "conf", "part", "data", "model", "ckpt"},
    "doctor": {"base", "conf", "ckpt", "plan"},
}
LAYERS["cmd"] = set(LAYERS) | {"cmd"}
GENERATED = {"train": {"tfevents.pb-c.h"}}

FUNCTION_LINES, FILE_LINES, COLUMNS = 70, 800, 120
COMMENT_LINES = 8  # how far above a declaration its comment may stand
CODE_FOLDERS = ("src", "tests", "bench", "tools", ".ci")
CODE_SUFFIXES = {".c", ".h", ".py", ".sh", ".proto"}

BANNED_ANYWHERE = (
    r"strcpy|strcat|strncpy|stpcpy|sprintf|vsprintf|gets|atoi|atol|atoll|atof|rand|srand|random|strtok|assert|alloca"
)
BANNED_IN_SRC = r"system|popen|setlocale|tmpnam|mktemp|perror|setjmp|longjmp"
HEAP = (
    r"malloc|calloc|realloc|reallocarray|posix_memalign|aligned_alloc|strdup|strndup|asprintf|vasprintf|getline"
)
LEAVE = r"exit|_exit|quick_exit|abort"
LIBM = (
    r"expf?|exp2f?|expm1f?|logf?|log2f?|log10f?|log1pf?|powf?|sinf?|cosf?|tanf?|sincosf?|asinf?|acosf?|atanf?|"
    r"atan2f?|sinhf?|coshf?|tanhf?|erff?|erfcf?|cbrtf?|hypotf?|fmodf?|tgammaf?|lgammaf?"
)
INTRINSIC = r"_mm\d*_\w+|__m(128|256|512)[di]?\b|__mmask\d+|__builtin_ia32_\w+|svcntw|v(ld|st)1q_\w+"
INTRINSIC_HEADER = r"\w*intrin\.h|arm_\w+\.h|cpuid\.h"
WORK_LEFT = r"\b(TODO|FIXME|XXX|HACK)\b"
FLAGS = ("-ffast-math", "-Ofast", "-march=native", "-mtune=native", "-ffp-contract=fast", "-ffp-contract=on",
         "-fopenmp", "-funsafe-math-optimizations", "-fassociative-math", "-freciprocal-math", "-fno-signed-zeros",
         "-ffinite-math-only")


class File:
    """One source file: its lines, and the same lines with comments and the inside of strings blanked out."""

    def __init__(self, root, path):
        self.path = path.relative_to(root).as_posix()
        self.text = path.read_bytes().decode("utf-8", errors="replace")
        self.lines = self.text.split("\n")
        self.is_c = path.suffix in (".c", ".h")
        self.code = blank(self.text).split("\n") if self.is_c else self.lines
        parts = pathlib.PurePosixPath(self.path).parts
        self.layer = parts[1] if parts[0] == "src" and len(parts) > 2 else None


def blank(text):
    """C text with comments and the inside of literals replaced by spaces; line breaks and include lines stay."""
    pattern = re.compile(r"/\*.*?\*/|//[^\n]*|^[ \t]*#[ \t]*include[^\n]*|"
                         r"\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'", re.DOTALL | re.MULTILINE)

    def replace(match):
        found = match.group(0)
        if found.startswith(("/*", "//")):
            return re.sub(r"[^\n]", " ", found)
        if found[0] in "\"'":
            return found[0] + re.sub(r"[^\n]", " ", found[1:-1]) + found[-1]
        return found

    return pattern.sub(replace, text)


def calls(file, names):
    """(line number, name) of each call of one of `names`; members and longer names do not count."""
    pattern = re.compile(r"(?<![\w.>])(" + names + r")\s*\(")
    for number, line in enumerate(file.code, 1):
        for match in pattern.finditer(line):
            yield number, match.group(1)


def functions(file):
    """(name, opening line, lines) of each function: its braces stand alone in column 1."""
    start = None
    for number, line in enumerate(file.code, 1):
        if line.rstrip() == "{":
            start = number
        elif start and line.rstrip() == "}":
            head = " ".join(file.code[max(0, start - 8):start - 1])
            names = re.findall(r"(\w+)\s*\((?=[^{};]*$)", re.split(r"[;}]", head)[-1])
            yield (names[0] if names else "?"), start, number - start + 1
            start = None


# ---- rules of one file ----

def rule_layer(file):
    for number, line in enumerate(file.code, 1):
        match = re.match(r"\s*#\s*include\s*([<\"])([^>\"]+)[>\"]", line)
        if not match or not file.layer:
            continue
        kind, name = match.groups()
        if name == "mpi.h" and file.path != "src/comm/mpi_link.c":
            yield number, "layer", "mpi.h is included by src/comm/mpi_link.c only"
        if re.fullmatch(INTRINSIC_HEADER, name) and file.layer != "kern" and file.path != "src/base/pool.c":
            yield number, "intrinsics", f"{name} belongs to src/kern"
        if kind == "<":
            continue
        layer = name.split("/")[0]
        if name in GENERATED.get(file.layer, ()):
            continue
        if "/" not in name or layer not in LAYERS:
            yield number, "layer", f'"{name}" should name its folder, as in "base/err.h"'
        elif layer != file.layer and layer not in LAYERS.get(file.layer, ()):
            yield number, "layer", f"src/{file.layer} may not include {name}"
        elif layer != file.layer and name.endswith("_int.h"):
            yield number, "layer", f"{name} is private to src/{layer}"


def rule_banned(file):
    if not file.is_c:
        return
    for number, name in calls(file, BANNED_ANYWHERE):
        yield number, "banned", f"{name}() is banned"
    if not file.layer:
        return
    for number, name in calls(file, BANNED_IN_SRC):
        if name != "sigsetjmp":
            yield number, "banned", f"{name}() is banned in src"
    for number, name in calls(file, LIBM):
        yield number, "libm", f"{name}() of libm differs between machines: base/fmath.h or kern has our own"
    if file.layer != "base":
        for number, name in calls(file, HEAP):
            yield number, "heap", f"{name}(): memory comes from base/mem.h"
    if file.layer != "cmd" and file.path not in ("src/base/err.c", "src/comm/mpi_link.c"): # a bug; the end of a job
        for number, name in calls(file, LEAVE):
            yield number, "banned", f"{name}(): a library returns an error, it does not end the process"


def rule_intrinsics(file):
    if not file.layer or file.layer == "kern" or file.path == "src/base/pool.c":
        return
    for number, line in enumerate(file.code, 1):
        match = re.search(INTRINSIC, line)
        if match:
            yield number, "intrinsics", f"{match.group(0)}: elements are touched in src/kern only"


def rule_global(file):
    if not file.layer or not file.path.endswith(".c"):
        return
    for number, line in enumerate(file.code, 1):
        stateless = r"\b(const|_Thread_local|_Static_assert|pthread_once_t|volatile sig_atomic_t)\b"
        if re.match(r"\s*static\b[^(]*(=|;)", line) and not re.search(stateless, line):
            yield number, "global", "mutable state outside a struct: a rank could not be a thread"
        if re.match(r"\s*#\s*pragma\s+omp\b", line):
            yield number, "banned", "OpenMP: work is divided by base/pool.h"


def rule_length(file):
    count = file.text.count("\n")
    if count > FILE_LINES:
        yield 1, f"file-length {file.path} {count}", f"{count} lines, at most {FILE_LINES}"
    if file.is_c:
        for name, start, lines in functions(file):
            if lines > FUNCTION_LINES:
                yield (start, f"function-length {file.path}:{name} {lines}",
                       f"{name}() has {lines} lines, at most {FUNCTION_LINES}")
    for number, line in enumerate(file.lines, 1):
        if len(line) > COLUMNS:
            yield number, "width", f"{len(line)} columns, at most {COLUMNS}"


def rule_text(file):
    if "\r" in file.text:
        yield 1, "text", "CR line ends"
    if file.text and not file.text.endswith("\n"):
        yield len(file.lines), "text", "no line break at the end"
    for number, line in enumerate(file.lines, 1):
        if line != line.rstrip():
            yield number, "text", "blanks at the end of a line"
        if "\t" in line and file.is_c:
            yield number, "text", "tab"
        if re.search(WORK_LEFT, line) and not file.path.startswith(("tools/tidy", "tests/tidy/")):
            yield number, "work-left", "finish it or file an issue"


def rule_shape(file):
    if not file.is_c:
        return
    first = file.text.lstrip()
    if not first.startswith("/*") and not file.path.startswith("tests/"):
        yield 1, "opening", "a file opens with a comment: why it exists"
    for number, line in enumerate(file.code, 1):
        if re.match(r"[a-zA-Z_][\w\s*]*\([^;]*\)\s*\{\s*$", line):
            yield number, "shape", "the opening brace of a function stands alone in column 1"
        if re.match(r"\s*(if|for|while)\b.*\)\s*$", line) and number < len(file.code):
            following = file.code[number]
            if balanced(line) and following.strip() and not following.strip().startswith(("{", "&&", "||", "?")):
                yield number, "shape", "braces always"
    if file.layer and file.path.endswith(".h"):
        yield from header_shape(file)


def balanced(line):
    return line.count("(") == line.count(")")


def header_shape(file):
    guard = file.path[4:].upper().replace("/", "_").replace(".", "_")
    if f"#ifndef {guard}\n#define {guard}\n" not in file.text:
        yield 1, "guard", f"the include guard should be {guard}"
    for number, line in enumerate(file.code, 1):
        match = re.match(r"(?!#|typedef\b|static\b|return\b)[a-zA-Z_][\w\s*]*\b(\w+)\s*\([^{]*$", line)
        if not match or re.search(r"_(release|free|close|clear)$", match.group(1)):
            continue
        end = number - 1
        while end + 1 < len(file.lines) and not re.search("[;{]", file.code[end]):
            end += 1
        if "{" in file.code[end]:
            continue  # an inline function: its body is here
        # The comment may stand behind the declaration, or within a few lines above it (one comment for a group).
        near = file.lines[max(0, number - 1 - COMMENT_LINES):end + 1]
        if not any("*/" in text for text in near):
            yield number, "comment", "a public function says what it does, who owns what, in which order it sums"


FILE_RULES = (rule_layer, rule_banned, rule_intrinsics, rule_global, rule_length, rule_text, rule_shape)


# ---- rules of the tree ----

def tree_names(files):
    seen = {}
    for file in files:
        name = pathlib.PurePosixPath(file.path).name
        if name in seen:
            yield file.path, 1, "unique", f"the name is taken by {seen[name]}"
        seen.setdefault(name, file.path)


def tree_listed(root, files):
    meson = root / "meson.build"
    listed = meson.read_text(encoding="utf-8") if meson.exists() else ""
    for file in files:
        if file.path.endswith(".c") and f"'{file.path}'" not in listed:
            yield file.path, 1, "listed", "no line of meson.build builds this file"
    for name in re.findall(r"'((?:src|tests|bench)/[\w./-]+\.c)'", listed):
        if not (root / name).exists():
            yield "meson.build", 1, "listed", f"{name} does not exist"


def tree_flags(build):
    path = build / "compile_commands.json"
    if not path.exists():
        yield str(path), 1, "flags", "not found: set the build folder up first (make)"
        return
    for command in json.loads(path.read_text()):
        words = command["command"].split()
        for flag in FLAGS:
            if flag in words:
                yield command["file"], 1, "flags", f"compiled with {flag}"
        if command["file"].endswith(".c") and "-ffp-contract=off" not in words:
            yield command["file"], 1, "flags", "compiled without -ffp-contract=off"


# ---- exemptions ----

def read_exemptions(root):
    """({rule and place: (size, line)}, findings)."""
    path = root / "tools" / "tidy_exempt.txt"
    entries, findings = {}, []
    if not path.exists():
        return entries, findings
    name, cap = "tools/tidy_exempt.txt", None
    for number, line in enumerate(path.read_text().splitlines(), 1):
        head, _, reason = line.partition("#")
        words = head.split()
        if not words:
            continue
        if words[0] == "at-most" and len(words) == 2:
            cap = int(words[1])
        elif len(words) != 3 or not words[2].isdigit() or not reason.strip():
            findings.append((name, number, "exempt", "expected: RULE PLACE SIZE # reason"))
        else:
            entries[f"{words[0]} {words[1]}"] = (int(words[2]), number)
    if cap is None or len(entries) > cap:
        findings.append((name, 1, "exempt", f"{len(entries)} entries, the first line allows {cap}: it only shrinks"))
    elif len(entries) < cap:
        findings.append((name, 1, "exempt", f"only {len(entries)} entries: lower the first line to that"))
    return entries, findings


def apply_exemptions(entries, findings):
    """Drop what is exempt; report entries that are not needed or larger than needed."""
    left, used = [], set()
    for path, line, rule, text in findings:
        words = rule.split()
        key = " ".join(words[:2]) if len(words) == 3 else f"{rule} {path}"
        size = int(words[2]) if len(words) == 3 else 1
        if key in entries and size <= entries[key][0]:
            used.add(key)
            if len(words) == 3 and size < entries[key][0]:
                left.append(("tools/tidy_exempt.txt", entries[key][1], "exempt", f"{key} is down to {size}: lower it"))
            continue
        left.append((path, line, words[0], text))
    for key, (_, line) in entries.items():
        if key not in used:
            left.append(("tools/tidy_exempt.txt", line, "exempt", f"{key} is not needed any more: remove it"))
    return left


def is_code(path):
    return path.suffix in CODE_SUFFIXES or (not path.suffix and path.read_bytes()[:2] == b"#!")


def load(root):
    files = []
    for folder in CODE_FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts and is_code(path):
                files.append(File(root, path))
    return files


def check(root, build):
    files = load(root)
    findings = [(file.path, *found) for file in files for rule in FILE_RULES for found in rule(file)]
    findings += tree_names(files)
    findings += tree_listed(root, files)
    if build:
        findings += tree_flags(build)
    entries, trouble = read_exemptions(root)
    return files, trouble + apply_exemptions(entries, findings)


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent.parent)
    arguments.add_argument("--build", type=pathlib.Path)
    options = arguments.parse_args()
    files, findings = check(options.root.resolve(), options.build)
    for path, line, rule, text in sorted(findings):
        print(f"{path}:{line}: {rule}: {text}")
    lines = {}
    for file in files:
        folder = "/".join(pathlib.PurePosixPath(file.path).parts[:2 if file.layer else 1])
        lines[folder] = lines.get(folder, 0) + file.text.count("\n")
    print("lines: " + ", ".join(f"{folder} {count}" for folder, count in sorted(lines.items())))
    print(f"tidy: {len(files)} files, {len(findings)} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
