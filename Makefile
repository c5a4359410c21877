# `make demo` and `make test` set everything up by themselves on a fresh Debian machine with Python 3.11.
PYTHON ?= python3
RUN = .venv/bin
# auto; moonshine, which leaves Whisper out; or, for the demo, tiny: Qwen3-ASR with the small model of this repository.
ENGINE ?= auto
# Of the demo: en, es, fr, it or ru. From the command line alone: gettext has an environment variable of this name.
ifneq ($(origin LANGUAGE),command line)
LANGUAGE = en
endif
# Of pytest: how many tests run at once. A file is one process's, since its tests share what they have started.
PARALLEL ?= -n 4
export PYTHON ENGINE
# One BLAS thread: the VAD's matrices are small, and the event loop shares its core with nobody.
export OPENBLAS_NUM_THREADS = 1
export OMP_NUM_THREADS = 1
# The tests start hundreds of processes, and pytest rewrites each test module: what is compiled once is kept.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: cluster mutants checkpoint words fuzz fuzz-asan gpu help field peers interop reference demo screenshot run check unit test test-slow coverage lint bench soak lock schema clean setup setup-dev

help:
	@echo "make demo    install, place a real SIP call and a Twilio stream with recorded speech, show the live events"
	@echo "                (ENGINE=tiny: digits, by Qwen3-ASR with a tiny model, word for word; installs what the tests need)"
	@echo "                (LANGUAGE=es, fr, it or ru: in that language, by Whisper)"
	@echo "                (ENGINE=moonshine: without Whisper, here and with run and test: English alone, 300 MB less)"
	@echo "make run     install and serve with the default configuration"
	@echo "make check   install, look for mistakes and run the tests that need no process (80 CPU-seconds)"
	@echo "make test    the same, and all other tests that a change has to pass (12 CPU-minutes)"
	@echo "make test-slow  kills, hostile peers, load and leaks (half an hour; SLOW='--turns 20' for 20 minutes of them, in turn)"
	@echo "make coverage  the branches that the tests of make test take, against the floor in pyproject.toml"
	@echo "make bench   the media path and the engine against the usual designs (minutes)"
	@echo "make mutants  how many of a hundred small faults in the modules without I/O the unit tests notice (half an hour; MUTANTS='--seed 2')"
	@echo "make words   how many words each engine gets wrong, offline and through real calls (20 to 30 minutes; WORDS=--quick for less;"
	@echo "                WORDS='--languages en,es,fr,it,ru,de' for one table a language, 40 minutes)"
	@echo "make soak    700 kills, 200 power cuts, 10,000 calls and 1,000 lost connections, with a table at the end (an hour; SOAK='--kills 60' for less)"
	@echo "make fuzz    a million mutated inputs for every parser, properties with other examples (minutes)"
	@echo "make fuzz-asan  150,000 mutated messages at the SIP port, with PJSIP under AddressSanitizer (builds it first)"
	@echo "make reference  the engine against the official qwen-asr package, in an environment of its own (minutes, 1.6 GB)"
	@echo "make cluster  three workers, two engine servers, NATS, Kamailio and HAProxy on this machine, struck in turn (ten minutes; CLUSTER=--stay to try them)"
	@echo "make gpu     all about the engine that only an NVIDIA GPU can show, without a network (ten minutes; GPU=--rehearse on a CPU)"
	@echo "make checkpoint  write and load 0.6B at full size with random numbers, in both layouts (a minute, 3 GB of disk)"
	@echo "make interop a real Asterisk, Kamailio, rtpengine and softphone against the worker (as root; minutes, 400 MB the first time)"
	@echo "make field   call flows, files and clients from public reports against a worker, as a table (two minutes; FIELD='--only calls')"
	@echo "make peers   what a user would pick instead, on the same streams and the same core (minutes; installs them into build/peers)"
	@echo "make lock    refresh requirements/*.lock from pyproject.toml"
	@echo "make screenshot  place calls and take the README's pictures of the page"
	@echo "make schema  regenerate docs/ from the code (event schema, configuration reference)"

setup:
	@tools/bootstrap.sh run

setup-dev:
	@tools/bootstrap.sh dev

# Qwen3-ASR needs torch, which is part of what the tests need.
demo:
	@tools/bootstrap.sh $(if $(filter tiny,$(ENGINE)),dev,demo $(LANGUAGE))
	@$(RUN)/python -m tools.demo --engine $(ENGINE) --language $(LANGUAGE)

run: setup
	$(RUN)/mediaworker serve

# The lanes: CONTRIBUTING.md.
lint: setup-dev
	$(RUN)/ruff check .
	$(RUN)/ruff format --check .
	$(RUN)/mypy

unit: setup-dev
	$(RUN)/python -m pytest -q -n 2 --dist loadfile tests/unit

check: setup-dev
	@$(MAKE) --no-print-directory -j 2 --output-sync=target lint unit

# Apart, since only tests/engine needs torch in the process that runs the tests.
test: check
	$(RUN)/python -m pytest -n 2 --dist loadfile tests/engine
	$(RUN)/python -m pytest $(PARALLEL) --dist loadfile --no-loadscope-reorder tests/process tests/sip tests/web

test-slow: setup-dev
	$(RUN)/python -m pytest tests/slow $(SLOW)

# Of branches, in the processes that the tests start as well.
coverage: setup-dev
	$(RUN)/coverage erase
	$(RUN)/coverage run -m pytest $(PARALLEL) --dist loadfile --no-loadscope-reorder tests/unit tests/engine tests/process tests/sip tests/web
	$(RUN)/coverage combine -q
	$(RUN)/coverage report

# In copies of the tree: nothing here changes.
mutants: setup-dev
	$(RUN)/python -m tools.mutants $(MUTANTS)

bench: setup-dev
	$(RUN)/mediaworker bench media --legs 1,100,500,1000 --seconds 20
	$(RUN)/mediaworker bench twilio --streams 50,250,500 --seconds 20
	$(RUN)/mediaworker bench sip --calls 50,300 --seconds 20
	$(RUN)/mediaworker bench engine --calls 1,8,32 --seconds 30
	$(RUN)/mediaworker bench engine --engine moonshine --clock cpu
	$(RUN)/mediaworker bench files
	$(RUN)/mediaworker bench events

words: setup-dev
	@tools/install_packages.sh words $$(echo "$(WORDS)" | sed -nE 's/.*--languages[ =]([a-z,]+).*/\1/p' | tr , ' ')
	@$(RUN)/python -m benchmarks.words $(WORDS)

soak: setup-dev
	$(RUN)/python tools/soak.py $(SOAK)

field: setup-dev
	@$(RUN)/python -m tools.field $(FIELD)

peers: setup-dev
	@$(RUN)/python -m tools.peers $(PEERS)

# What is guided by coverage needs atheris, which is not part of the lock; without it the mutations alone run.
fuzz: setup-dev
	$(RUN)/python -m pytest -q -m hypothesis --hypothesis-profile anew --timeout 1800
	$(RUN)/python -m tools.fuzz --inputs 1000000
	FUZZ_WIRE=150000 $(RUN)/python -m pytest -q --timeout 3600 tests/slow/test_hostile_sip.py -k mutated
	$(RUN)/python -m tools.fuzz_api
	@if $(RUN)/python -m pip install -q 'atheris>=3,<4'; then $(RUN)/python -m tools.fuzz --guided --inputs 200000; \
	  else echo "fuzz: no atheris for this Python: nothing is guided by coverage"; fi

# With a PJSIP of its own, beside the one that is installed. An error of memory ends the worker, with a report in its log.
fuzz-asan: setup-dev
	@wheel=$$(PJSIP_SANITIZE=address tools/build_pjsip.sh $(RUN)/python | tail -n1) && site=$$(mktemp -d) && \
	  trap 'rm -rf "$$site"' EXIT && $(RUN)/python -m pip install -q --no-deps --target "$$site" "$$wheel" && \
	  PYTHONPATH=$$site LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libstdc++.so.6)" \
	  ASAN_OPTIONS=detect_leaks=0:abort_on_error=1:quarantine_size_mb=64 \
	  FUZZ_WIRE=$${FUZZ_WIRE:-150000} $(RUN)/python -m pytest -q --timeout 3600 tests/slow/test_hostile_sip.py -k 'mutated or room_for'

reference: setup-dev
	@$(RUN)/python -m tools.reference

# In a network of its own: as root, or where user namespaces are allowed.
cluster: setup-dev
	@$(RUN)/python -m tools.cluster $(CLUSTER)

# 0.6B at full size with random numbers, written and loaded: 1.6 GB of disk for each layout.
checkpoint: setup-dev
	@folder=$$(mktemp -d) && trap 'rm -rf "$$folder"' EXIT && for layout in original hf; do \
	  $(RUN)/python -m tools.make_checkpoint "$$folder/$$layout" --model 0.6B --layout $$layout && \
	  $(RUN)/python -m tools.gpu.checkpoints --load "$$folder/$$layout" cpu bfloat16 || exit 1; done

# With the machine's own torch, and without a network: docs/measurements/gpu.md.
gpu:
	@tools/gpu.sh $(GPU)

interop: setup-dev
	@tools/install_packages.sh interop
	@tools/interop/asterisk.sh >/dev/null
	$(RUN)/python -m pytest tests/interop

# Not requirements/moonshine.txt and torch.txt, which are kept by hand: they say why. whisper.txt is the extra alone, with
# the tokenizers of the tests.
lock: setup-dev
	$(RUN)/python -m pip install -q uv
	for extra in run dev; do \
	  $(RUN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url --upgrade \
	    --custom-compile-command 'make lock' $$( [ $$extra = dev ] && echo --extra dev || echo --extra tracing ) pyproject.toml -o requirements/$$extra.lock; done
	$(RUN)/uv pip compile -q --no-config --universal --python-version 3.11 --generate-hashes --no-emit-index-url --upgrade \
	  --custom-compile-command 'make lock' requirements/schemathesis.in -o requirements/schemathesis.lock
	$(RUN)/uv pip compile -q --no-config --python-platform x86_64-manylinux_2_28 --python-version 3.11 --generate-hashes \
	  --no-emit-index-url --custom-compile-command 'make lock' --override requirements/cuda.overrides.txt \
	  -c requirements/run.lock --extra qwen --extra tracing pyproject.toml -o requirements/cuda.lock
	$(RUN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["whisper"], sep="\n")' | \
	  $(RUN)/uv pip compile -q --no-config --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-deps \
	  --no-annotate --upgrade --custom-compile-command 'make lock' -c requirements/dev.lock - -o requirements/whisper.txt

screenshot: setup-dev
	@$(RUN)/python -m tools.screenshot

schema: setup-dev
	$(RUN)/python tools/gen_docs.py

clean:
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
