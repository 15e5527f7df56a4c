# Thin front door: everything is built by Meson and ninja, and every verb works on a machine with nothing but git and make.
# `make help` lists the verbs. One test: CONTRIBUTING.md.
BUILD ?= build
PREFIX ?= /usr/local
ASAN_FLAGS = -Db_sanitize=address,undefined -Dbuildtype=debugoptimized -Dc_args=-fno-sanitize-recover=all \
	-Dwerror=false # gcc's flow warnings are not reliable under sanitizers; the plain build has them as errors
TSAN_FLAGS = -Db_sanitize=thread -Dbuildtype=debugoptimized -Dwerror=false

.DEFAULT_GOAL := all
.PHONY: all fuzz demo test quick asan tsan mutants tidy install interop fault long bench valgrind clang clean help deps aarch64

all: deps ## build (the default): build/invar
	@test -f $(BUILD)/build.ninja || meson setup --prefix $(PREFIX) $(BUILD) >/dev/null
	@ninja -C $(BUILD)

demo: all ## tiny Shakespeare: tokenizer, data, a model trained in two minutes, a sample
	@tools/demo $(BUILD)/invar

test: all ## the whole test suite
	@tools/deps test
	@tools/run-tests $(BUILD)

quick: all ## unit and golden tests, tidy: under 30 seconds
	@tools/run-tests $(BUILD) --suite unit --suite golden --suite quick

asan: deps ## the whole suite again under the address and undefined-behaviour sanitizers
	@tools/deps test
	@test -f $(BUILD)-asan/build.ninja || meson setup $(ASAN_FLAGS) $(BUILD)-asan >/dev/null
	@ninja -C $(BUILD)-asan
	@ASAN_OPTIONS=detect_stack_use_after_return=1 UBSAN_OPTIONS=print_stacktrace=1 \
		tools/run-tests $(BUILD)-asan --timeout-multiplier 8

tsan: deps ## ranks as threads under the thread sanitizer: the collectives, and layouts with ranks that are late on purpose
	@tools/deps test
	@test -f $(BUILD)-tsan/build.ninja || meson setup $(TSAN_FLAGS) $(BUILD)-tsan >/dev/null
	@ninja -C $(BUILD)-tsan invar unit_comm
	@TSAN_OPTIONS=history_size=4 tools/run-tests $(BUILD)-tsan --no-rebuild --timeout-multiplier 4 comm layouts

mutants: deps ## faults of parallel training planted in a copy of the source: invar verify must name each; minutes
	@tests/par/mutants.py

fuzz: deps ## look for inputs that break a reader: libFuzzer, a minute each (FUZZ_SECONDS); `tools/fuzz NAME` for one
	@tools/deps test
	@tools/fuzz

tidy: all ## the style rules: layers, lengths, banned calls, flags
	@python3 tools/tidy.py --build $(BUILD)

install: all ## install the binary under PREFIX (default /usr/local)
	@meson configure $(BUILD) --prefix $(PREFIX)
	@meson install -C $(BUILD)

interop: all ## torch, transformers and tokenizers as judges, and MPICH (makes a Python environment, or uses INVAR_PYTHON)
	@test -n "$$INVAR_PYTHON" || tools/deps interop
	@tests/interop/run.sh $(BUILD)
	@tests/interop/mpich.sh $(BUILD) || test $$? = 77

fault: all ## jobs on two hosts and under Slurm, on this machine, as root (what is missing is skipped, with its reason)
	@tools/deps fault
	@tools/run-tests $(BUILD) --suite fault

long: all ## the demo in fp32 and in bf16: the loss curves agree; six minutes
	@tools/run-tests $(BUILD) --suite long

bench: all ## measure against oneDNN, and against PyTorch when INVAR_PYTHON names a Python that has it
	@tools/deps bench
	@meson setup --reconfigure $(BUILD) >/dev/null
	@ninja -C $(BUILD)
	@bench/bench.sh $(BUILD)

valgrind: all ## one training step of each family under valgrind
	@tools/deps test
	@tools/valgrind-step $(BUILD)/invar

clang: all ## build with clang too, train with both builds, compare the bits
	@tools/deps test
	@tools/compare-compilers $(BUILD)/invar

aarch64: all ## cross-build for aarch64, run the tests of kernels under qemu, train there: the same bits; minutes
	@tools/deps aarch64
	@tools/aarch64 $(BUILD)/invar

clean: ## remove what was built
	@rm -rf $(BUILD) $(BUILD)-asan $(BUILD)-tsan $(BUILD)-clang $(BUILD)-mpich $(BUILD)-aarch64 $(BUILD)-aarch64-sysroot $(BUILD)-fuzz

deps:
	@tools/deps

help: ## this list
	@sed -n 's/^\([a-z0-9]*\):[^#]*## \(.*\)/make \1	\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 18
