# `make help` lists what there is. Nothing but git, make and Python 3.11 or newer has to be installed before.

# The distribution's first: it is built with profiles, which others (pyenv's) often are not. Those take a fifth longer to
# import the daemons, and a tenth longer for the tests of flows.
FOUND := $(shell for p in /usr/bin/python3 python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { command -v $$p; break; }; done)
PYTHON ?= $(FOUND)
ifeq ($(strip $(PYTHON)),)
$(error Python 3.11 or newer is needed; name one: make PYTHON=/path/to/python ...)
endif

# An interpreter of another version than that has virtual environments of its own: .venv-3.13, .venv-services-3.13 ...
version = $(filter 3.%,$(shell $(1) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null))
ifneq ($(PYTHON),$(FOUND))
export KILONOVA_VENV_SUFFIX := $(if $(FOUND),$(addprefix -,$(filter-out $(call version,$(FOUND)),$(call version,$(PYTHON)))))
endif

VENV := $(or $(KILONOVA_VENV),.venv$(KILONOVA_VENV_SUFFIX))
CLOUD := $(PYTHON) -m tools.cloud $(if $(VAR),--var $(VAR))
CHOSEN := $(if $(HOSTS),--hosts $(HOSTS)) $(if $(CONF),--conf $(CONF))
REAL := $(filter-out test,$(GUESTS))
WITH_CYBORG := $(filter-out 0,$(CYBORG))
WITH_NETWORK := $(filter-out 0,$(NETWORK))
WITH_VOLUME := $(filter-out 0,$(VOLUME))
# The shares of tests that run, and their order, are drawn by chance and printed if SEED isn't given.
TESTS := $(if $(SEED),KILONOVA_TEST_SEED=$(SEED)) $(PYTHON) -m tools.testrun $(if $(WHOLE),--whole)

.DEFAULT_GOAL := help
.NOTPARALLEL:
MAKEFLAGS += --no-print-directory

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: bootstrap
bootstrap: ## install what is missing: system packages, .venv, .venv-services
	@$(PYTHON) -m tools.bootstrap

.PHONY: bootstrap-test
bootstrap-test:
	@$(PYTHON) -m tools.bootstrap --test

.PHONY: bootstrap-check
bootstrap-check:
	@$(PYTHON) -m tools.bootstrap --check

.PHONY: bootstrap-guests
bootstrap-guests:
	@$(PYTHON) -m tools.bootstrap --guests

.PHONY: bootstrap-cyborg
bootstrap-cyborg:
	@$(PYTHON) -m tools.bootstrap --cyborg

.PHONY: bootstrap-network
bootstrap-network:
	@$(PYTHON) -m tools.bootstrap --network

.PHONY: bootstrap-volume
bootstrap-volume:
	@$(PYTHON) -m tools.bootstrap --volume

.PHONY: bootstrap-vfio
bootstrap-vfio:
	@$(PYTHON) -m tools.bootstrap --vfio

.PHONY: bootstrap-ceph
bootstrap-ceph:
	@$(PYTHON) -m tools.bootstrap --test --ceph

.PHONY: bootstrap-tempest
bootstrap-tempest:
	@$(PYTHON) -m tools.bootstrap --tempest --network --volume $(if $(REAL),--guests)

.PHONY: demo
demo: bootstrap $(if $(WITH_NETWORK),bootstrap-network) $(if $(WITH_VOLUME),bootstrap-volume) ## up, then boot and resize GPU servers with the openstack command, every result checked (NETWORK=1: and one on a network, VOLUME=1: and one with a volume)
	@$(CLOUD) demo $(CHOSEN) $(if $(WITH_NETWORK),--network) $(if $(WITH_VOLUME),--volume)

.PHONY: up
up: $(if $(REAL),bootstrap-guests,bootstrap) $(if $(WITH_CYBORG),bootstrap-cyborg) $(if $(WITH_NETWORK),bootstrap-network) $(if $(WITH_VOLUME),bootstrap-volume) ## start the one-machine cloud under var/ (HOSTS=directory of hosts, CONF=file more for all daemons, GUESTS=qemu, CYBORG=1: with the accelerator service, NETWORK=1: with the network service, VOLUME=1: with the volume service)
	@$(CLOUD) up $(CHOSEN) $(if $(GUESTS),--guests $(GUESTS)) $(if $(WITH_CYBORG),--cyborg) $(if $(WITH_NETWORK),--network) $(if $(WITH_VOLUME),--volume)

.PHONY: host
host: ## describe one more host: NAME=gpu3 GPUS=8 ID=10de:20b5 VGPUS=4 (into HOSTS=directory, else var/described)
	@$(CLOUD) host $(or $(NAME),$(error which one? make host NAME=gpu3 GPUS=8 ID=10de:20b5)) \
		$(if $(GPUS),--gpus $(GPUS)) $(if $(VGPUS),--vgpus $(VGPUS)) $(if $(ID),--id $(ID)) $(if $(HOSTS),--hosts $(HOSTS))

.PHONY: down
down: ## end what up started; the data in var/ stays
	@$(CLOUD) down

.PHONY: restart
restart: ## restart one service, such as SERVICE=compute-gpu1, api, conductor, scheduler, rabbitmq, placement
	@$(CLOUD) restart $(or $(SERVICE),$(error which one? make restart SERVICE=compute-gpu1))

.PHONY: stop
stop: ## end one service and leave it so: SERVICE=rabbitmq
	@$(CLOUD) stop $(or $(SERVICE),$(error which one? make stop SERVICE=rabbitmq))

.PHONY: start
start: ## start one service that was stopped: SERVICE=rabbitmq
	@$(CLOUD) start $(or $(SERVICE),$(error which one? make start SERVICE=rabbitmq))

.PHONY: logs
logs: ## follow the logs (SERVICE=api: that one)
	@$(CLOUD) logs $(SERVICE)

.PHONY: audit
audit: ## compare database, Placement, libvirt domains and files of the running cloud
	@$(CLOUD) audit

.PHONY: test
test: bootstrap-test ## lint type unit api, and by chance a share of functional flows simulation integration; the last line adds up (SEED=…: the same again; WHOLE=1: no shares)
	@$(TESTS)

.PHONY: test-whole
test-whole: bootstrap-test ## all tests of functional, flows, simulation and integration, of which make test has a share
	@$(TESTS) --whole functional flows simulation integration live

.PHONY: check
check: bootstrap-check ## what one runs before each commit, in 200 s on two cores: lint type unit, the API's tables, by chance half of most unit tests and a twelfth of functional (WHOLE=1: all; PYTHON=python3.13: by that interpreter, in .venv-3.13)
	@$(TESTS) check

.PHONY: coverage
coverage: bootstrap-check ## which lines unit, api and a twelfth of functional run, by package; fails below the floors of tools/coverage_floors.py
	@rm -rf build/coverage
	@$(TESTS) covered
	@$(VENV)/bin/python -m tools.coverage_floors

.PHONY: lint
lint: bootstrap ## ruff and its format, dead code, import-linter, references of the documentation, words, one meaning a class name
	@$(TESTS) lint

.PHONY: type
type: bootstrap ## mypy
	@$(TESTS) type

.PHONY: unit
unit: bootstrap ## tests of single parts
	@$(TESTS) unit

.PHONY: functional
functional: bootstrap-test ## the whole cloud in one process: SQLite, a fortieth on MariaDB, another on PostgreSQL
	@$(TESTS) functional

.PHONY: api
api: bootstrap ## every route at every version: samples, bad input, who may
	@$(TESTS) api

.PHONY: flows
flows: bootstrap ## every step of every flow fails, loses its reply, crashes, is deleted: a share (WHOLE=1: all)
	@$(TESTS) flows

.PHONY: integration
integration: bootstrap-test ## real processes on RabbitMQ, the libvirt test driver, MariaDB, PostgreSQL: a share (WHOLE=1: all)
	@$(TESTS) integration live

.PHONY: test-qemu
test-qemu: bootstrap-test ## two machines with libvirtd and QEMU guests, which say on their consoles what becomes of them (as root); FULL=1: many more kills
	@KILONOVA_FULL=$(FULL) $(TESTS) qemu

.PHONY: test-guests
test-guests: bootstrap-test ## two QEMU guests on networks of the real Neutron: DHCP, ping, TCP and metadata, before and after moves (as root)
	@$(TESTS) guests

.PHONY: test-vfio
test-vfio: bootstrap-vfio ## real vfio-pci, VFs and vGPUs, seen by guests of an emulated machine with an IOMMU (as root; needs no KVM)
	@$(TESTS) vfio

.PHONY: test-ceph
test-ceph: bootstrap-ceph ## QEMU guests whose volumes (by Cinder) or disks are in Ceph, or in files of NFS (as root)
	@$(TESTS) ceph

.PHONY: tempest
tempest: bootstrap-tempest ## the acceptance suite of the field, tempest.api.compute, on a cloud of its own; ONLY='word word': some; GUESTS=qemu: the tests that look into guests (as root)
	@$(PYTHON) -m tools.acceptance $(if $(REAL),--guests $(REAL)) $(foreach word,$(ONLY),'$(word)')

.PHONY: routes
routes: bootstrap ## print the API's routes: method, path, versions, rule, handler
	@$(VENV)/bin/python -W ignore -c 'from kilonova.api.routes import text; print(text())'

.PHONY: mutants
mutants: bootstrap ## break the code by chance, and see a test fail: N=400, SEED=… repeats; RULES=1: rules of operations (ONLY=word: some)
	@ONLY="$(ONLY)" RULES="$(RULES)" N="$(N)" SEED="$(SEED)" SECONDS="$(SECONDS)" $(VENV)/bin/python -m tests.mutants

.PHONY: test-cluster
test-cluster: bootstrap-test ## daemons stand still; three brokers and all daemons end in turn under load, for MINUTES=5 (SEED=… repeats one)
	@KILONOVA_CLUSTER_MINUTES=$(or $(MINUTES),5) KILONOVA_CLUSTER_SEED=$(SEED) $(VENV)/bin/python -m pytest \
		-p no:hypothesispytest tests/integration/test_broker_cluster.py tests/integration/test_stand_still.py

.PHONY: test-databases
test-databases: bootstrap-test ## all functional tests on MariaDB and on PostgreSQL, and each outage of both
	@$(TESTS) databases

.PHONY: test-placement
test-placement: bootstrap ## all tests of flows and of the scheduler with the real Placement; make test has its model there
	@$(TESTS) placement

.PHONY: test-cells
test-cells: bootstrap ## each operation with each kind of device, port and volume, disturbed in each way at each place; make test has a share of it, and fewer ways
	@$(TESTS) cells

.PHONY: fuzz
fuzz: bootstrap ## random hostile requests to the API in one process: N=20000, SEED=7 repeats them
	@$(VENV)/bin/python -W ignore -m tests.api.hostile $(or $(N),20000) $(or $(SEED),$(shell date +%N | sed 's/^0*//'))

.PHONY: db-check
db-check: bootstrap-test ## models equal migrations on SQLite, MariaDB and PostgreSQL
	@$(TESTS) db-check

.PHONY: bench
bench: bootstrap bootstrap-cyborg bootstrap-network bootstrap-volume ## CPU seconds, wall time and memory of boots and reads on the one-machine cloud
	@$(VENV)/bin/python -m tests.bench

.PHONY: bench-attacks
bench-attacks: bootstrap ## requests that once stopped a cloud, sent to real daemons: answers, CPU, memory; fails above a bound
	@$(VENV)/bin/python -W ignore -m tests.bench.attacks $(BACKEND)

.PHONY: simulate
simulate: bootstrap-test ## the cloud under virtual time: SEED=17, or SEEDS=1-100; HOURS=2; PLOT=power_cut; LONG=1 for long stories
	@$(VENV)/bin/python -W ignore -m tests.simulation $(if $(SEED),--seeds $(SEED) $(if $(HOURS),,--twice),--seeds \
		$(or $(SEEDS),1-100)) $(if $(HOURS),--hours $(HOURS)) $(if $(PLOT),--plot $(PLOT)) $(if $(LONG),--shape large --length 2000) --shrink

.PHONY: house
house: bootstrap-test ## figures of the code: lines, Any, circles, and what a boot, resize, revert, stop, lock and show run through
	@$(VENV)/bin/python -m pytest -p no:hypothesispytest -q -s tests/house

.PHONY: bench-adopt
bench-adopt: bootstrap-test ## time and memory of taking over a Nova's databases: N=10000 servers
	@N="$(N)" $(VENV)/bin/python -W ignore -m tests.bench.adopt

.PHONY: bench-scheduler
bench-scheduler: bootstrap-test ## what a selection costs on 100, 1000 and 10 000 hosts, with and without Placement
	@$(VENV)/bin/python -W ignore -m tests.bench.scheduler

.PHONY: lock
lock: ## renew the versions of all libraries with which make installs: constraints.txt and requirements of services (ONLY='a b': of these)
	@$(PYTHON) -m tools.bootstrap --lock $(foreach name,$(ONLY),--only $(name))

VERSION = $(shell sed -n 's/^version = //p' setup.cfg)

.PHONY: changes
changes: bootstrap ## print the notes of the next release, as the files in changes/ make them
	@$(VENV)/bin/towncrier build --draft --version $(VERSION)

.PHONY: release
release: bootstrap ## write the notes of the version in setup.cfg into CHANGELOG.md and delete the files in changes/
	@$(VENV)/bin/towncrier build --yes --version $(VERSION)

.PHONY: docs
docs: bootstrap ## build the documentation into build/docs, warnings are errors
	@$(VENV)/bin/python -m sphinx -W --keep-going -q -b html docs build/docs && echo "build/docs/index.html"
