# Everything starts from Python, make and pip; each target installs what it needs, once.

# What it runs on. With other versions, as in `make test TORCH=2.15.0`, it has an environment of its
# own (.venv-torch2.15); what is not named is as in constraints.txt. LOWEST=1 is the lower bound of
# everything that pyproject.toml wants beside the tools of the tests.
PYTHON ?= 3.11
OTHERS := $(strip $(foreach p,ONNXRUNTIME ONNX NUMPY TRANSFORMERS,$(if $($p),$(shell echo $p | tr A-Z a-z)==$($p))))
ifdef LOWEST
BOUNDS := $(shell sed -nE 's/.*"((torch|numpy|onnx|onnxruntime|onnx_ir|rich|safetensors|z3-solver|transformers)>=[0-9.]+)".*/\1/p' pyproject.toml | tr -d '>' | sed 's/=/==/')
OTHERS := $(filter-out torch==%,$(BOUNDS))
TORCH  := $(patsubst torch==%,%,$(filter torch==%,$(BOUNDS)))
endif
TORCH  ?= 2.13.0

minor   = $(word 1,$(subst ., ,$1)).$(word 2,$(subst ., ,$1))
named  := $(if $(filter-out 3.11,$(PYTHON)),-python$(PYTHON)) \
          $(if $(filter-out 2.13.0,$(TORCH)),-torch$(call minor,$(TORCH))) \
          $(foreach o,$(subst ==,,$(OTHERS)),-$(call minor,$o))
ifdef LOWEST
named  := -lowest
endif
VENV   ?= .venv$(shell echo $(named) | tr -d ' ')
PY     := $(VENV)/bin/python
python  = $(or $(shell for p in python$(PYTHON) ~/.pyenv/versions/$(PYTHON).*/bin/python $(if $(filter 3.11,$(PYTHON)),python3); \
          do $$p -c '' 2>/dev/null && echo $$p && break; done),$(error no Python $(PYTHON) here))
PINS   := $(VENV)/constraints.txt
PIP    := $(PY) -m pip --disable-pip-version-check install --quiet -c $(PINS)

# A stamp per level of installation: newer than pyproject.toml and constraints.txt means done.
CORE   := $(VENV)/.installed-core
TESTED := $(VENV)/.installed-test
SITE   := $(VENV)/.installed-docs

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all test-cpus matrix survey check lint replay accept bench bench-against docs wheel size clean

help:
	@echo "make demo      a transformer to a verified ONNX file, with timings"
	@echo "make test      lint, format, types and tests, without the slow ones"
	@echo "make test-all  every test"
	@echo "make test-cpus what depends on the processor, as if it were another one"
	@echo "make matrix    test beside other versions of torch, Python, ...; rewrite docs/versions.md"
	@echo "make survey    models of public libraries, beside torch.onnx; rewrite docs/models.md"
	@echo "make check     lint, format, types, smoke tests: before each commit"
	@echo "make replay    export a fixed set here and with AGAINST=HEAD, and compare: a refactoring"
	@echo "make accept    rewrite the texts that tests compare in full (TESTS=tests), and show them"
	@echo "make bench     measure against torch.export and torch.onnx, rewrite docs/benchmarks.md"
	@echo "make bench-against   the speed of this checkout against the commit AGAINST"
	@echo "make docs      the documentation as a site, in build/site; fails on a broken link"
	@echo "make wheel     a wheel and an sdist in build/dist, tried in a fresh environment"
	@echo "make size      lines per file, largest first"
	@echo "make clean     remove the virtual environment and caches"

# Free: what is named, and what its version decides.
FREE := torch $(OTHERS) $(if $(OTHERS),huggingface_hub tokenizers ml_dtypes onnx-ir protobuf)

$(PINS): constraints.txt FORCE
	@test -x $(PY) || $(python) -m venv $(VENV)
	@(printf '%s\n' $(FREE) | sed 's/==.*//; s/.*/^&==/' | grep -vf - constraints.txt; printf '%s\n' torch==$(TORCH) $(OTHERS)) > $@.new
	@cmp -s $@ $@.new || cp $@.new $@
	@rm $@.new

FORCE:

$(CORE): pyproject.toml $(PINS)
	@echo "installing torch $(TORCH) and graphport into $(VENV)"
	@$(PIP) torch
	@$(PIP) -e .
	@$(PY) -m compileall -q src/graphport
	@touch $@

$(TESTED): $(CORE)
	@echo "installing what the tests need"
	@$(PIP) -e ".[test,examples]"
	@touch $@

$(SITE): $(CORE)
	@echo "installing what the documentation needs"
	@$(PIP) -e ".[docs]"
	@touch $@

setup: $(TESTED)

demo: $(CORE)
	@$(PY) examples/transformer.py

test: lint
	@$(PY) -m pytest -q -n 2 -m "not slow"

test-all: lint
	@$(PY) -m pytest -q -n 2 -m "not slow" --every-export
	@$(PY) -m pytest -q -n 2 -m slow

# A level that the machine lacks is the highest that it has. Each pass has an order, a umask, a locale
# and a day of its own besides.
SENSITIVE := tests/onnx tests/ops tests/runtime tests/program tests/cli
as = umask $(1); env $(3) $(PY) -m pytest -q -n 2 -m "not slow" --shuffle $(2) $(SENSITIVE)

test-cpus: $(TESTED)
	$(call as,077,1,ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41 LC_ALL=C TZ=Etc/GMT-14)
	$(call as,022,2,ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 LC_ALL=C.UTF-8 TZ=UTC)
	$(call as,000,3,ATEN_CPU_CAPABILITY=avx512 ONEDNN_MAX_CPU_ISA=AVX512_CORE LC_ALL=POSIX TZ=Etc/GMT+12)

# ONLY="TORCH=2.15.0": one of them.
matrix: $(TESTED)
	@$(PY) -m tests.matrix --sweep $(if $(ONLY),"$(ONLY)")

# Found behind everything else, without their own dependencies. What torchaudio compiled is for CUDA;
# some wheels bring a package called tests.
FOREIGN := build/survey

$(FOREIGN)/.installed: tests/foreign/requirements.txt $(TESTED)
	@echo "installing what the survey runs into $(FOREIGN)"
	@rm -rf $(FOREIGN)
	@$(PY) -m pip --disable-pip-version-check install --quiet --no-deps --target $(FOREIGN) -r $<
	@cd $(FOREIGN) && rm -rf torchaudio/lib test tests docs examples
	@touch $@

# Hours, most of them torch.onnx's, whose rows are not run again.
survey: $(FOREIGN)/.installed
	@$(PY) -m tests.foreign.survey --exporter torch.onnx --resume
	@$(PY) -m tests.foreign.survey --write

check: lint
	@$(PY) -m pytest -q -m smoke

# Of the sources alone: in one environment.
lint: $(TESTED)
ifeq ($(VENV),.venv)
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy
endif

AGAINST ?= HEAD
TESTS   ?= tests

replay: $(TESTED)
	@$(PY) -m tests.replay --against $(AGAINST)

accept: $(TESTED)
	-@$(PY) -m pytest -q --accept -m "not slow" $(TESTS)
	@git --no-pager diff -- tests

# Compiled first: where Python may not keep what it compiles, an import would be slow.
bench: $(TESTED)
	@$(PIP) -e ".[bench]"
	@$(PY) -m compileall -q src/graphport
	@$(PY) benchmarks/bench.py --write

bench-against: $(TESTED)
	@$(PY) benchmarks/against.py --commit $(AGAINST)

docs: $(SITE)
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict
	@echo "build/site/index.html"

# Built and installed apart from everything else: what the wheel forgets is missing there.
WHEEL := build/wheel

wheel:
	@rm -rf $(WHEEL) build/dist
	@$(python) -m venv $(WHEEL)/build
	@$(WHEEL)/build/bin/python -m pip --disable-pip-version-check install --quiet build -c constraints.txt
	@$(WHEEL)/build/bin/python -m build --outdir build/dist . > $(WHEEL)/log 2>&1 || (cat $(WHEEL)/log; false)
	@$(python) -m venv $(WHEEL)/use
	@$(WHEEL)/use/bin/python -m pip --disable-pip-version-check install --quiet torch -c constraints.txt
	@$(WHEEL)/use/bin/python -m pip --disable-pip-version-check install --quiet build/dist/*.whl -c constraints.txt
	@$(WHEEL)/use/bin/python -I tests/documents.py README.md
	@ls build/dist/*

size:
	@find src -name '*.py' -exec wc -l {} + | sort -rn

clean:
	rm -rf $(VENV) build .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
