# Klamm. `make` prints what there is to make. Each target sets up what it needs, in .venv.
#
# Needs Python >= 3.11 (with headers and venv), a C compiler and make; the rest comes from requirements.lock, of which
# requirements-run.lock is the part that a server, the console and a build need: `make run` installs no more.

PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3.14 python3; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
VENV := .venv
PY := $(VENV)/bin/python
UV := $(VENV)/bin/uv
JOBS := $(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)
NATIVE := $(wildcard src/klamm/*/*.pyx src/klamm/*/*.pxd src/klamm/*/*.pxi src/klamm/*/*.h)

# Debian packages whose programs tests call: mkfs.ext4, mkfs.xfs, mkfs.btrfs; mount and losetup; rsync; a PostgreSQL server of their own; a client of
# Kafka in C; a terminal and a browser to drive; Java (17 or newer), and Maven to fetch an Apache Kafka with.
DEBIAN := e2fsprogs xfsprogs btrfs-progs mount rsync postgresql kcat tmux default-jre-headless maven chromium

# The jars of that Apache Kafka, of its own tests, of Spark's Kafka connector and of Delta Lake, and the files that say which.
KAFKA_JARS := .tools/kafka
KAFKA_POM := tests/interop/kafka/pom.xml
SUITES_JARS := .tools/kafka-suites
SUITES_POM := tests/interop/apache/pom.xml
SPARK_JARS := .tools/spark-kafka
SPARK_POM := tests/spark/connector/pom.xml
DELTA_JARS := .tools/spark-delta
DELTA_POM := tests/spark/delta/pom.xml
# What a JVM has made of Spark's classes, so that those of tests start in half the time.
SPARK_CLASSES := .tools/spark.jsa

# Tests start a thousand interpreters; without bytecode on disk, each compiles pyspark, pandas or pytest again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help run tour test quick check format docs bench soak mutants wheel matrix site tools build venv lock clean

help: ## this list
	@echo "Klamm: what there is to make"
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  make \1\t/' | expand -t 16

run: $(VENV)/.natives ## a server, the console and a live feed of orders, until Ctrl-C; ARGS=DIRECTORY to keep the store
	@$(PY) examples/live.py $(ARGS)

tour: build ## a short tour: write, read, query, kill a writer, lose nothing
	@$(PY) examples/tour.py

test: tools build $(SPARK_CLASSES) ## all tests but the long ones; ARGS="-k name" to choose
	@$(PY) tests/parts.py $(ARGS)

quick: build ## tests that need neither Java nor Debian packages, in two minutes; ARGS as above
	@$(PY) tests/parts.py --quick $(ARGS)

check: build ## format, lint, types, direction of imports
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/mypy
	@$(VENV)/bin/lint-imports --no-logo

format: venv ## format and sort in place
	@$(VENV)/bin/ruff format .
	@$(VENV)/bin/ruff check --fix .

docs: build ## write the tables of docs/reference that come from the code, and those of figures from bench/results
	@$(PY) docs/reference/generate.py
	@$(PY) bench/_tables.py

bench: tools build ## every script of bench/, each beside its peers, into bench/results/; ARGS="read send" to choose, --readme for README's
	@$(PY) bench/_collect.py $(ARGS)

soak: tools build ## the long tests, hours of kills and fuzzing, and all mutants; recorded in tests/soak.jsonl
	@$(PY) -m tests.soak $(ARGS)

mutants: build ## break the code in known ways: a test must fail each time; ARGS="--native" for those that need a build, "-k text"
	@$(PY) -m tests.mutants.run $(ARGS)

wheel: build ## sdist and wheels into dist/, checked and tried in an empty environment; ARGS="x86_64" for one
	@$(PY) release/build_wheels.py $(ARGS)

matrix: build ## the quick tests on other Pythons: those found of 3.12 to 3.14, or PYTHONS="/path/to/python …"
	@$(PY) release/run_matrix.py $(PYTHONS) -- $(ARGS)

site: venv ## the documents as a site, build/site/html/index.html, links checked; ARGS="--serve 8000" to edit and look
	@$(PY) release/build_site.py $(ARGS)

tools: ## what tests need: Debian packages, by apt-get when root or sudo may, else the command; an Apache Kafka
	@missing=; for p in $(DEBIAN); do dpkg -s $$p >/dev/null 2>&1 || missing="$$missing $$p"; done; \
	test -z "$$missing" && exit 0; \
	install="apt-get install -y --no-install-recommends$$missing"; \
	if ! command -v apt-get >/dev/null; then echo "tools: install what Debian calls$$missing, or tests are skipped"; \
	elif [ "$$(id -u)" = 0 ]; then echo "tools:$$missing"; $$install >/dev/null; \
	elif sudo -n true 2>/dev/null; then echo "tools:$$missing"; sudo -n $$install >/dev/null; \
	else echo "tools: tests are skipped until you run: sudo $$install"; fi
	@cmp -s $(KAFKA_POM) $(KAFKA_JARS)/pom.xml || { echo "tools: Apache Kafka into $(KAFKA_JARS)" && rm -rf $(KAFKA_JARS) && \
	mvn -q -B -f $(KAFKA_POM) dependency:copy-dependencies -DoutputDirectory="$(CURDIR)/$(KAFKA_JARS)" && \
	cp $(KAFKA_POM) $(KAFKA_JARS)/pom.xml; } || echo "tools: tests with Apache Kafka are skipped until Maven can fetch it"
	@cmp -s $(SUITES_POM) $(SUITES_JARS)/pom.xml || { echo "tools: Apache Kafka's own tests into $(SUITES_JARS)" && rm -rf $(SUITES_JARS) && \
	mvn -q -B -f $(SUITES_POM) dependency:copy-dependencies -DoutputDirectory="$(CURDIR)/$(SUITES_JARS)" && \
	cp $(SUITES_POM) $(SUITES_JARS)/pom.xml; } || echo "tools: Apache Kafka's own tests are skipped until Maven can fetch them"
	@cmp -s $(SPARK_POM) $(SPARK_JARS)/pom.xml || { echo "tools: Spark's Kafka connector into $(SPARK_JARS)" && rm -rf $(SPARK_JARS) && \
	mvn -q -B -f $(SPARK_POM) dependency:copy-dependencies -DoutputDirectory="$(CURDIR)/$(SPARK_JARS)" && \
	cp $(SPARK_POM) $(SPARK_JARS)/pom.xml; } || echo "tools: tests with Spark's Kafka connector are skipped until Maven can fetch it"
	@cmp -s $(DELTA_POM) $(DELTA_JARS)/pom.xml || { echo "tools: Delta Lake for Spark into $(DELTA_JARS)" && rm -rf $(DELTA_JARS) && \
	mvn -q -B -f $(DELTA_POM) dependency:copy-dependencies -DoutputDirectory="$(CURDIR)/$(DELTA_JARS)" && \
	cp $(DELTA_POM) $(DELTA_JARS)/pom.xml; } || echo "tools: tests with Delta Lake for Spark are skipped until Maven can fetch it"

$(SPARK_CLASSES): $(VENV)/.packages tests/spark/classes.py | tools build
	@echo "tools: Spark's classes into $@"
	@$(PY) -W ignore -m tests.spark.classes >/dev/null 2>&1 && touch $@ || \
	echo "tools: that failed, so tests that start Spark take longer; $(PY) -m tests.spark.classes says why"

venv: $(VENV)/.packages ## .venv with the packages of requirements.lock

$(VENV)/.run-packages: requirements-run.lock
	@test -n "$(PYTHON)" || { echo "venv: no Python >= 3.11 found; say make PYTHON=/path/to/python"; exit 1; }
	@echo "venv: packages of requirements-run.lock into $(VENV)"
	@test -x $(PY) || $(PYTHON) -m venv $(VENV)
	@awk '/^[a-z]/ { uv = /^uv==/ } uv' requirements-run.lock > $(VENV)/uv.txt
	@test -x $(UV) || $(PY) -m pip install -q --disable-pip-version-check --require-hashes -r $(VENV)/uv.txt
	@$(UV) pip install -q --python $(PY) --require-hashes -r requirements-run.lock
	@touch $@

$(VENV)/.packages: requirements.lock $(VENV)/.run-packages
	@echo "venv: packages of requirements.lock into $(VENV): 1.4 GB, for a minute or some"
	@$(UV) pip install -q --python $(PY) --require-hashes -r requirements.lock
	@touch $@

build: $(VENV)/.packages $(VENV)/.natives ## compile the native modules, in place, when they changed
	@:

# An editable install compiles everything, some files at a time; Cython first, for its compiler is not safe in threads. Afterwards only what changed is compiled, until the lock file or the part of
# pyproject.toml that says how to build changes.
$(VENV)/.natives: $(VENV)/.run-packages pyproject.toml $(NATIVE)
	@built_from=$$(sed '/^\[tool.pytest/,$$d' pyproject.toml | cat - requirements.lock | cksum); \
	if [ "$$(cat $(VENV)/.installed 2>/dev/null)" = "$$built_from" ]; then \
		echo "build: native modules" && \
		$(PY) -W ignore -c 'import setuptools; setuptools.setup()' -q build_ext --inplace; \
	else \
		echo "build: klamm into $(VENV), editable; compiles for a minute" && \
		printf '[build_ext]\nparallel = %s\n' $(JOBS) > $(VENV)/build.cfg && \
		{ $(VENV)/bin/cythonize -q -j $(JOBS) $(filter %.pyx,$(NATIVE)) 2>$(VENV)/cython.log || { cat $(VENV)/cython.log; exit 1; }; } && \
		CFLAGS="-g0 $(CFLAGS)" DIST_EXTRA_CONFIG=$(CURDIR)/$(VENV)/build.cfg $(UV) pip install -q --python $(PY) --no-deps --no-build-isolation -e . && \
		echo "$$built_from" > $(VENV)/.installed; \
	fi
	@touch $@

lock: venv ## resolve the packages of pyproject.toml again into requirements.lock
	@$(UV) pip compile -q --upgrade --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-annotate \
		--all-extras --group dev --custom-compile-command "make lock" pyproject.toml -o requirements.lock
	@printf 'cython\nsetuptools\nuv\n' | $(UV) pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
		--no-annotate --extra cli --extra console --extra server --constraint requirements.lock \
		--custom-compile-command "make lock" pyproject.toml - -o requirements-run.lock
	@if grep -n '://' requirements.lock requirements-run.lock; then echo "lock: a lock file names a host"; exit 1; fi

clean: ## remove everything made here, .venv too
	@rm -rf $(VENV) .tools build dist src/*.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
	@find src tests bench examples -name __pycache__ -prune -exec rm -rf {} +
	@rm -f src/klamm/*/*.so src/klamm/*/_*.c
