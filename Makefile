# make         an environment of its own, the Verilog of a card, and a capture replayed against it
# make test    everything that is tested at each change
# make help    the rest

VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
# The first Python that is new enough; `make PYTHON=...` names another one.
NEW_ENOUGH := import sys; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(or $(shell for p in python3 python3.13 python3.12 python3.11; do \
                 $$p -c '$(NEW_ENOUGH)' 2>/dev/null && echo $$p && break; done),python3)
PRESET ?= small
JOBS   ?= 2
# of place and route; more of them (SEEDS=1,2,3) show how far the clock moves by chance
SEEDS  ?= 1

HARDWARE := $(shell find optinic rtl_gen -name '*.py')
PACKAGES := build/xp/$(PRESET) build/rc/$(PRESET)
EXAMPLE  := examples/replay/uc_send.json
CAPTURE  := tests/data/golden/uc_send.pcap

# An environment remembers its folder: one that was copied or moved is made anew.
MOVED := $(if $(wildcard $(READY)),$(if $(filter $(CURDIR),$(shell cat $(READY))),,--clear))
ifneq ($(MOVED),)
$(shell rm -f $(READY))
endif

.DELETE_ON_ERROR:
.PHONY: all help environment generate replay compare demo test peer soak sweep bench synth report baseline inject abi clean

all: generate replay compare
	@echo
	@echo "The cards: build/{xp,rc}/$(PRESET)/optinic_nic.v. What the first did with the capture: build/replay/uc_send.json."
	@echo "Next: '$(BIN)/optinic --help', README.md, 'make test'."

help:
	@echo "make            environment, Verilog of both cards, preset '$(PRESET)' (PRESET=...), replay of a capture, a comparison"
	@echo "make compare    best effort and reliable cards on a cable that loses frames, as models: a look (bench pair measures)"
	@echo "make demo       a tensor between two simulated cards over a lossy network, capture in build/demo/"
	@echo "make test       all tests of a change"
	@echo "make peer       simulated cards against Linux in QEMU, the long form (docs/linux-peer.md); as root installs QEMU"
	@echo "make soak       long random runs against the model"
	@echo "make sweep      many configurations, generated and simulated"
	@echo "make bench      how fast the card is, as a table, JSON and a picture in build/bench/"
	@echo "make synth      resources and logic levels of preset '$(PRESET)', by open synthesis"
	@echo "make report     what the cards cost and how they compare, with charts, in build/report/ (a quarter of an hour at first, then from a cache)"
	@echo "make baseline   the same, and its main figures into docs/report/baseline.json and the README"
	@echo "make inject     a thousand bits each of tables, buffers and registers flipped in both simulated cards: docs/report/injection.json"
	@echo "make abi        the committed register map and structures, docs/abi/, from optinic/abi/"
	@echo "make clean      remove build/ and caches (the environment in $(VENV) stays)"

environment: $(READY)

$(READY): pyproject.toml .ci/system-packages
	sh .ci/system-packages $(PYTHON)
	$(PYTHON) -m venv $(MOVED) $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[all]'
	@echo '$(CURDIR)' > $@

generate: $(PACKAGES:=/manifest.json)

build/%/$(PRESET)/manifest.json: $(READY) $(HARDWARE)
	$(BIN)/optinic generate --preset $(PRESET) --transport $* -o $(@D)

replay: $(READY)
	@mkdir -p build/replay
	$(BIN)/optinic replay --setup $(EXAMPLE) --pcap $(CAPTURE) --json build/replay/uc_send.json

compare: $(READY)
	@mkdir -p build/compare
	$(BIN)/optinic bench pair --transport xp,rc --backend model --preset tiny --quick --loss 0,0.01,0.05 --json build/compare/pair.json

demo: $(READY)
	@mkdir -p build/demo
	$(BIN)/optinic demo --pcap build/demo/demo.pcap --json build/demo/demo.json

test: $(READY)
	$(BIN)/python -m pytest -n $(JOBS)

# The image first: that it can't be made is an error here, and in 'make test' a skip.
peer: $(READY)
	$(BIN)/python -m sim.linux_peer
	$(BIN)/python -m pytest -n $(JOBS) -m 'peer or not soak and not sweep' tests/linux_peer

soak: $(READY)
	$(BIN)/python -m pytest -n $(JOBS) -m soak

sweep: $(READY)
	$(BIN)/python -m pytest -n $(JOBS) -m sweep

bench: $(READY)
	@mkdir -p build/bench
	$(BIN)/optinic bench rx --preset $(PRESET) --json build/bench/rx_$(PRESET).json --plot build/bench/rx_$(PRESET).png

synth: $(READY)
	@mkdir -p build/synth
	$(BIN)/optinic synth --preset $(PRESET) --json build/synth/$(PRESET).json

# Kept results make the second run instant; a run that was stopped goes on where it was.
ALSO := tiny/xp/ecp5
report: $(READY)
	$(BIN)/optinic report --preset c100g --transport xp,rc --qps 1024,10240 --family xcup --also $(ALSO) \
	  --seeds $(SEEDS) --jobs $(JOBS) -o build/report $(KEEP)

baseline: ALSO := tiny/xp,rc/xcup,ecp5
baseline: SEEDS := 1,2,3
baseline: KEEP := --baseline
baseline: report
	$(BIN)/optinic report --readme

inject: $(READY)
	@mkdir -p docs/report
	$(BIN)/optinic inject --transport xp,rc --preset tiny --runs 1000 --jobs $(JOBS) --json docs/report/injection.json

abi: $(READY)
	$(BIN)/optinic abi

clean:
	rm -rf build .pytest_cache .hypothesis
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
