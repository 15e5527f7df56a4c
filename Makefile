# Thin front door: everything is built by Meson and ninja. `make help` lists the verbs.
BUILD ?= build
.DEFAULT_GOAL := all
.PHONY: all
all:
	@test -f $(BUILD)/build.ninja || meson setup $(BUILD) >/dev/null
	@ninja -C $(BUILD)
