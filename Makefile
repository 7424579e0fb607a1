# Thin by intent: the build is CMakeLists.txt, the program is build/perilune.
BUILD ?= build
JOBS ?= $(shell nproc)
PREFIX ?= /usr/local
CONFIG = cmake -G Ninja -B $(BUILD) -DCMAKE_BUILD_TYPE=RelWithDebInfo

.PHONY: all setup configure build everything run test check lint bench soak fuzz asan tsan install clean

all: build

setup:
	@tools/setup.sh

configure: setup
	@[ -f $(BUILD)/build.ninja ] || { echo "Configuring $(BUILD)"; $(CONFIG) >/dev/null; }

# the program, and the CUDA plug-in where there is a compiler for it
build: configure
	@ninja -C $(BUILD) -j$(JOBS) program

# the program, and everything that tests and benchmarks need
everything: configure
	@ninja -C $(BUILD) -j$(JOBS)

run: configure
	@ninja -C $(BUILD) -j$(JOBS) perilune
	@model=$$(tools/model.sh smollm2) && \
	echo && echo "$(BUILD)/perilune run $$model --prompt 'The three primary colours are' --max-tokens 64" && \
	$(BUILD)/perilune run "$$model" --prompt 'The three primary colours are' --max-tokens 64

test: everything
	@tools/test.sh $(BUILD)

# everything that has a verdict: lint, sanitizers, all kernel modes, fuzzers; about two hours on two cores
check: everything
	@tools/check.sh

lint: everything
	@tools/lint.sh $(BUILD)

bench: everything
	@bench/run.sh $(BUILD)

# half an hour of load, cancellations, preemptions and changes of policy: each answer is the one the request gets alone;
# then the same over HTTP, with clients that go, stop reading or half-close, changes of keys, and a drain
soak: everything
	@PL_SOAK_SECONDS=$${PL_SOAK_SECONDS:-1800} PL_BUILD=$(BUILD) $(BUILD)/pl-lua tests/lua/load.lua
	@PL_SOAK_SECONDS=$${PL_SOAK_SECONDS:-1800} PL_BUILD=$(BUILD) $(BUILD)/pl-lua tests/lua/serve_load.lua

fuzz: setup
	@tests/fuzz/run long

asan: setup
	@[ -f build-asan/build.ninja ] || cmake -G Ninja -B build-asan -DPL_SANITIZE=address >/dev/null
	@ninja -C build-asan -j$(JOBS) --quiet

tsan: setup
	@[ -f build-tsan/build.ninja ] || cmake -G Ninja -B build-tsan -DPL_SANITIZE=thread >/dev/null
	@ninja -C build-tsan -j$(JOBS) --quiet

# PREFIX and DESTDIR as usual
install: build
	@cmake --install $(BUILD) --prefix "$(PREFIX)"

clean:
	rm -rf build build-*
	@[ ! -f $(BUILD)/CMakeCache.txt ] || rm -rf $(BUILD)
