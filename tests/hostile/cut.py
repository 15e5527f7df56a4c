#!/usr/bin/env python3
"""The files of files.py, whole and cut at many places, through the fuzz targets of their readers. TAP.

    tests/hostile/cut.py FUZZ_TARGET...       programs of tests/fuzz with fuzz_replay.c
"""
import pathlib
import subprocess
import sys

import files
import lib

PLACES = {"tokenizer": 8}  # loading one costs ten milliseconds
SECONDS = 300


def main():
    tap, folder = lib.Tap(), lib.work_folder()
    try:
        files.write(folder)
        for program in sys.argv[1:]:
            name = pathlib.Path(program).name.removeprefix("fuzz_")
            if not (folder / name).is_dir():
                continue
            done = subprocess.run([program, "--cut", str(PLACES.get(name, 300)), str(folder / name)], text=True,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=SECONDS)
            count = sum(1 for _ in (folder / name).iterdir())
            tap.say(f"{name}: {count} files", "" if done.returncode == 0 else f"{done.returncode}\n{done.stdout}")
    finally:
        lib.remove(folder)
    tap.end()


if __name__ == "__main__":
    main()
