# make demo    install into this directory and run the quickstart study
# make test    install into this directory and run the tests; only of packages that differ from
#              the branch's upstream      SINCE=COMMIT from another commit; SINCE= of all packages
#
# make test-all    all tests; make test-rest those that `make test` leaves out, with a part of large
#                  matrices
# make test-versions  recordings and runs with each supported release of vLLM, six more to download
# make test-quick  the tests that need neither vLLM nor Snakemake, a minute's worth
# make env     the Python environment only      PYTHON=python3.12  DEVICE=cuda
#                                               VLLM_WHEEL=…  TORCH_INDEX=…  (README.md)
# make nsys    NVIDIA Nsight Systems only
# make lint    formats, types, the checks of the workflow, and the documents' links
# make gallery    the pictures of the documents' gallery, from the modeled device (two minutes)
# make docs    the documents as a site, in .cache/site
# make release  wheels and sources of all packages in dist/, tried in an empty environment
# make clean   remove what a run leaves behind, except results/, .venv/ and .nsys/
#
# Everything is installed into this directory, without root.

SHELL := /bin/bash
.DEFAULT_GOAL := demo
.PHONY: demo test test-all test-rest test-versions test-quick env env-dev nsys try-nsys lint docs gallery release clean

export PYTHON DEVICE VLLM_WHEEL TORCH_INDEX
unexport VENV   # the environment is .venv, whatever another tool calls so

# Commands keep their caches in this directory, too. The shell knows it, whatever its name contains.
IN_PLACE := XDG_CACHE_HOME="$$PWD/.cache" VLLM_CACHE_ROOT="$$PWD/.cache/vllm" VLLM_NO_USAGE_STATS=1 \
            PATH="$$PWD/.venv/bin:$$PATH"

CODE := src tests bench workflow packages

demo: env try-nsys
	$(IN_PLACE) snakemake --profile profiles/local
	@echo "The page: results/studies/quickstart/report.html"

# Three workers for two cores: tests of batch systems mostly wait.
# The number of slowest tests whose times are printed; 0: all. `make test-rest` runs the tests of packages
# that do not differ from SINCE.
DURATIONS ?= 10
SINCE ?= HEAD@{upstream}
PYTEST = pytest --since "$(SINCE)" -n 3 --dist loadfile --no-loadscope-reorder --durations=$(DURATIONS) --durations-min=0.5

test: env-dev try-nsys
	$(IN_PLACE) $(PYTEST) -m "not thorough"

test-all: env-dev try-nsys
	$(IN_PLACE) $(PYTEST)

test-rest: env-dev try-nsys
	$(IN_PLACE) $(PYTEST) -m "thorough and not exhaustive"

test-versions: env-dev
	$(IN_PLACE) pytest packages/kvscope-record/tests/engine/test_record.py packages/kvscope-connectors/tests/engine/test_vllm_releases.py

test-quick: env-dev
	$(IN_PLACE) pytest -n 2 --dist loadfile -m 'not slow' tests/unit

env:
	@workflow/scripts/install-env.sh

env-dev:
	@workflow/scripts/install-env.sh dev

nsys:
	@workflow/scripts/install-nsys.sh .nsys

# Optional: without Nsight Systems runs have no profiler data.
try-nsys: env
	@workflow/scripts/install-nsys.sh .nsys || echo "Going on without Nsight Systems: runs record no NVTX ranges."

lint: env-dev docs
	$(IN_PLACE) ruff check $(CODE)
	$(IN_PLACE) ruff format --check $(CODE)
	$(IN_PLACE) mypy
	$(IN_PLACE) lint-imports --no-logo --cache-dir .cache/imports
	$(IN_PLACE) python bench/closures.py
	$(IN_PLACE) deptry --no-ansi src
	for package in packages/kvscope-*; do $(IN_PLACE) \
		deptry --no-ansi $$package/src --config $$package/pyproject.toml || exit 1; done
	$(IN_PLACE) snakefmt --check Snakefile workflow
	$(IN_PLACE) snakemake --lint

gallery: env-dev
	$(IN_PLACE) python workflow/scripts/gallery.py

docs: env-dev
	$(IN_PLACE) mkdocs build --strict --quiet

release: env-dev
	@workflow/scripts/release.sh

clean:
	rm -rf .cache .snakemake .pytest_cache .mypy_cache .ruff_cache .hypothesis dist
	find $(CODE) -name __pycache__ -prune -exec rm -rf {} +
