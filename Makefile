# `make train` trains on this machine; `make test` proves the project. Everything is installed below .venv and
# ~/.torchfleet, nothing needs root.
PYTHON ?= python3
# Of setup, verify, train and clean-jobs: other machines than this one, and more words for ansible-playbook. Not taken from
# the environment, where both names may mean something else.
INVENTORY :=
ARGS :=

# Ansible insists on UTF-8, and ignores the ansible.cfg of a directory that anyone may write to unless it is named.
export LC_ALL := C.UTF-8
export ANSIBLE_CONFIG := $(CURDIR)/ansible.cfg
# Some shells have it: every rank would compile what it takes of PyTorch anew, for up to 5 s.
unexport PYTHONDONTWRITEBYTECODE

# The name of a stamp changes with whatever the environment is made from. The python3 of an activated .venv is the one that it
# was made with: making it anew would take Ansible and the guard away from a job that runs.
BASE := $(shell $(PYTHON) -I -S -c 'import os, sys; print(os.path.realpath(sys._base_executable))' 2>/dev/null)
key = $(shell { cat $(1) 2>/dev/null; echo $(CURDIR) $(BASE); } | sha256sum | cut -c1-16)
READY := .venv/ready-$(call key,requirements.txt)
DEV_READY := .venv/dev-ready-$(call key,requirements.txt requirements-dev.txt)
CLOUD_READY := .venv/cloud-ready-$(call key,requirements.txt requirements-dev.txt requirements-cloud.txt)
PIP_INSTALL := .venv/bin/python -m pip install --quiet --quiet --disable-pip-version-check
in_venv = @echo '$(subst ','\'',$(1))' && PATH="$(CURDIR)/.venv/bin:$$PATH" $(1)
# The scenario below a directory, of which roles: its many words are shown if it fails.
molecule_test = start=$$(date +%s); log=$(CURDIR)/.cache/$@.log; \
  if (cd $(1) && PATH="$(CURDIR)/.venv/bin:$$PATH" molecule test >$$log 2>&1); \
  then echo "molecule test: $(2) ($$(($$(date +%s) - start)) s)"; else cat $$log; false; fi
play = $(call in_venv,ansible-playbook $(if $(INVENTORY),-i $(INVENTORY) )$(1).yml $(ARGS))
ROLES := $(notdir $(wildcard roles/*))
ON_PAIR := $(filter-out lab torch_backends,$(ROLES))
PAIR := -e lab_name=molecule -e lab_image=bare -e lab_nodes=2 -e lab_nics=2

.NOTPARALLEL:
.PHONY: help check changelog release train setup venv verify clean-jobs lab lab-absent test cluster nodes nodeless networks combinations stack containers compat storage kubernetes node-containers cloud causes hangs gpu pictures lint ruff ruff-format ansible-lint types collection unit integration molecule molecule-together molecule-pair faults bench bench-nodes bench-launchers bench-look bench-engines bench-backends programs stress-backends sanitize-backends torch-backends wheels clean

help:
	@echo 'make train        set this machine up and train on it; also make setup, make verify, make clean-jobs'
	@echo "                  of other machines: make train INVENTORY=my-machines.yml ARGS='-e workload=mnist'"
	@echo 'make lab          nodes in containers on this machine (root; docs/lab.md); make lab-absent removes them'
	@echo 'make check        what takes about a minute: ruff, types, the fast tests; before every commit'
	@echo 'make test         what proves the project: lint, types, molecule, each feature, launcher and backend once'
	@echo 'make combinations features under every other launcher, MPI and firewall (root; some twenty minutes)'
	@echo 'make lint         ansible-lint and ruff          make types        mypy --strict'
	@echo 'make unit         the fast tests                 make integration  the tests that start jobs'
	@echo 'make collection   the collection as it is installed, its roles and documents'
	@echo 'make stack        Open MPI with UCX and UCC, built from its source on lab nodes (some ten minutes)'
	@echo 'make containers   ranks in images, with three engines on lab nodes, and faults there (a quarter of an hour)'
	@echo 'make compat       programs of others, unchanged, with packages of the index (half an hour; docs/frameworks.md)'
	@echo 'make storage      role storage with real NFS, on machines with a kernel of their own (root; half an hour)'
	@echo 'make node-containers  long-lived containers with an sshd of their own, as nodes (root; some three minutes)'
	@echo 'make cloud        clusters on EC2, with moto as its API and lab nodes as its instances (root; ten minutes)'
	@echo 'make kubernetes   jobs in the pods of a real cluster, built once from Debian (root; half an hour at first)'
	@echo 'make causes       fail for every reason that can be shown, and record it for docs/causes.md (root; two minutes)'
	@echo 'make hangs        make hangs of many kinds, and see whom a look names, for docs/why-it-hangs.md (half an hour)'
	@echo 'make faults       every launcher meets every fault, for docs/fault-matrix.md (root; two to three hours, goes on where'
	@echo "                  it was stopped); some of it: make faults FAULTS='--row cut-n2 --launcher mpich --again'"
	@echo 'make gpu          what needs a GPU, on a machine that has one; also without network (docs/gpus.md)'
	@echo 'make molecule     the scenario of every role     make bench        measure against the bare launcher'
	@echo 'make bench-nodes  measure setup and proof of 2, 8 and 32 lab nodes'
	@echo 'make bench-launchers  measure every launcher on two lab nodes against the bare program'
	@echo 'make bench-look   measure a look at a hung job of 64 ranks on four lab nodes'
	@echo 'make bench-engines    measure what a container engine adds to a job of two lab nodes'
	@echo 'make bench-backends   measure backend mpi against gloo and the MPI alone'
	@echo 'make programs     programs of every kind over backends shm and mpi, compared with gloo (some twenty minutes)'
	@echo 'make stress-backends  ten million random operations with ranks that disagree, are late or die (some two hours)'
	@echo 'make sanitize-backends  shared memory and ring of backends mpi and shm under sanitizers (ten minutes)'
	@echo 'make torch-backends TORCH=2.15.0  the tests of torch_backends with another PyTorch (twenty minutes, 6 GB)'
	@echo 'make pictures     reports of runs on four lab nodes, judged in a browser (root; ten minutes); pictures: .cache/pictures'
	@echo 'make changelog    the section of the next release in CHANGELOG.md, from changelogs/fragments'
	@echo 'make wheels       wheels of torch_backends for machines without a compiler, in wheels/ (root; some forty minutes for all)'
	@echo 'make release      the collection, source and wheels of torch_backends, and their checksums, in release/'
	@echo 'make clean        remove what was built here (not runs/ and not ~/.torchfleet)'

train: setup
	$(call play,train)

setup: $(READY)
	$(call play,setup)

venv: $(READY)

verify: $(READY)
	$(call play,verify)

clean-jobs: $(READY)
	$(call play,clean)

lab: $(READY)
	$(call in_venv,ansible-playbook playbooks/lab.yml -e lab_install=true $(LAB))

lab-absent: $(READY)
	$(call in_venv,ansible-playbook playbooks/lab.yml -e lab_state=absent $(LAB))

# Four lanes at a time, for most wait for nodes or for processes to end: the tests of the four-node cluster and of a head that
# only launches; those of hostile nodes, the lab, NICs, firewalls, old Pythons and the removal; the roles, and then the other
# tests of nodes; what needs no node, and containers as nodes. They take about the same time. A lane goes on after a failure, and its log is printed
# at the end whatever the others came to.
LANE = $(MAKE) --no-print-directory --keep-going
test: $(DEV_READY)
	@mkdir -p .cache; trap 'kill $$nodeless $$cluster $$networks; wait; exit 1' INT TERM; \
	  $(LANE) NEEDS= setup lint types collection nodeless node-containers >.cache/nodeless.log 2>&1 & nodeless=$$!; \
	  $(LANE) molecule-pair >/dev/null 2>&1; \
	  $(LANE) cluster >.cache/cluster.log 2>&1 & cluster=$$!; \
	  $(LANE) networks >.cache/networks.log 2>&1 & networks=$$!; \
	  $(LANE) molecule nodes; rc=$$?; \
	  wait $$nodeless || rc=1; cat .cache/nodeless.log; \
	  wait $$cluster || rc=1; cat .cache/cluster.log; \
	  wait $$networks || rc=1; cat .cache/networks.log; exit $$rc

# What some tests take of this machine. In the lane of all others (NEEDS=) they alone fail where it is not to be had.
NEEDS := setup
PYTEST := python -m pytest -q --durations=15
# Each feature once, and each launcher, backend and firewall: tests/combinations.py.
ONCE := $(PYTEST) -m 'not combination'

CLUSTER := tests/lab/test_head_only.py $(wildcard tests/lab/test_across*.py)
cluster: $(DEV_READY)
	$(call in_venv,$(ONCE) $(CLUSTER))

NETWORKS := $(addprefix tests/lab/test_,hostile_nodes.py firewalls.py lab.py nics.py old_python.py remove.py)
OTHERS := $(CLUSTER) $(NETWORKS) tests/lab/test_stack.py
nodes: $(DEV_READY)
	$(call in_venv,$(ONCE) $(filter-out $(OTHERS),$(wildcard tests/lab/test_*.py)))

networks: $(DEV_READY)
	$(call in_venv,$(ONCE) $(NETWORKS))

nodeless: $(DEV_READY) $(NEEDS)
	$(call in_venv,$(ONCE) tests/unit tests/integration torch_backends/tests)

# Features under more launchers, MPIs and firewalls than one: not part of `make test`.
combinations: $(DEV_READY) setup
	$(call in_venv,$(PYTEST) -m combination $(filter-out tests/lab/test_stack.py,$(wildcard tests/lab/test_*.py)) torch_backends/tests)

# Open MPI built from its source, which takes both cores longer than all else: not part of `make test`.
stack: $(DEV_READY)
	$(call in_venv,python -m pytest -q --durations=5 tests/lab/test_stack.py)

# Engines on lab nodes, with every MPI: not part of `make test`.
containers: $(DEV_READY)
	$(call in_venv,$(PYTEST) tests/containers)

# Programs that nobody here wrote, with packages that the index may lack tomorrow: not part of `make test`.
compat: $(DEV_READY)
	$(call in_venv,$(PYTEST) tests/compat)

# The kernel of this machine may have no NFS: its nodes are kernels in processes, whose boots take both cores. Not part of
# `make test`.
storage: $(DEV_READY)
	$(call in_venv,$(PYTEST) tests/storage)

# Containers of two machines, of which each is this machine's podman in the network of a lab node.
node-containers: $(DEV_READY) $(NEEDS)
	$(call in_venv,$(PYTEST) tests/node_containers)

# Its packages take half a minute to install, so they are not part of `make test`.
cloud: $(CLOUD_READY)
	$(call in_venv,$(PYTEST) tests/cloud)

# A cluster of Kubernetes 1.20 in one container. Its programs are built at first, which takes both cores some ten minutes, and
# stay in ~/.cache/torchfleet. Not part of `make test`.
kubernetes: $(DEV_READY) setup
	$(call in_venv,$(PYTEST) tests/kubernetes)

# Each program of tests/causes fails for one reason; what it says is recorded, and the fast tests replay that.
causes: $(DEV_READY) setup
	$(call in_venv,python tests/causes/reproduce.py)

# Hangs that are made on purpose, under each launcher and backend: not part of `make test`.
MPIS := {"mpis": ["openmpi", "mpich", "intelmpi"], "backends": ["mpi", "shm", "ccl"], "torch_backends_mpis": ["openmpi", "mpich"]}
hangs: $(DEV_READY)
	$(call in_venv,ansible-playbook setup.yml -e '$(MPIS)' --skip-tags verify)
	$(call in_venv,PYTHONPATH=collections:. python tests/hangs/run.py)

# What needs a GPU, on a machine that has one: not part of `make test`. Such a machine may have no network, so no .venv is
# made; GPU_PYTHON is an interpreter with PyTorch, else one is looked for.
GPU_PYTHON :=
gpu:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	  { echo 'Python 3.11 or newer is needed, and $(PYTHON) is not: say make gpu PYTHON=/path/to/python3.11' >&2; exit 1; }
	@GPU_PYTHON='$(GPU_PYTHON)' $(PYTHON) -I tests/gpu/prove.py

# Reports of real runs on four lab nodes, as a browser shows them: it judges what can be judged, and takes pictures for people
# to look at. Not part of `make test`. APT installs the browser. The runs stay in .cache/pictures/runs; without that they are
# made anew.
APT := apt-get install -y --no-install-recommends chromium-headless-shell fonts-dejavu-core
pictures: $(DEV_READY)
	@command -v chromium-headless-shell chromium google-chrome >/dev/null || $(APT)
	$(call in_venv,$(PYTEST) tests/pictures)

# Before every commit, about a minute on two cores: no job is started, and no playbook. Of tests/collection those that
# only compare files. The tests are spread over two processes for each core, for some tests wait; whichever has none left
# takes some of another's. Each process needs 3 s to collect them, so there are not many.
SPREAD := python -m pytest -q --numprocesses $(shell expr 2 \* $$(nproc)) --maxprocesses 8 --dist worksteal
COMPARED := $(addprefix tests/collection/test_,changelog.py docs.py roles.py role_tables.py)
check: ruff ruff-format types
	$(call in_venv,$(SPREAD) tests/unit $(COMPARED))

lint: ruff ruff-format ansible-lint

ruff: $(DEV_READY)
	$(call in_venv,ruff check)

ruff-format: $(DEV_READY)
	$(call in_venv,ruff format --check)

ansible-lint: $(DEV_READY)
	$(call in_venv,ansible-lint)

types: $(DEV_READY)
	$(call in_venv,mypy)

collection: $(DEV_READY) $(NEEDS)
	$(call in_venv,python -m pytest -q --durations=5 tests/collection)

unit: $(DEV_READY)
	$(call in_venv,$(SPREAD) tests/unit)

integration: $(DEV_READY) setup
	$(call in_venv,python -m pytest -q tests/integration)

# All on one pair of lab nodes, which goes at the end whatever happens; `make molecule-openmpi` alone leaves it there.
# Most roles get along there, each in a home of its own: one molecule for all of them, which starts Ansible five times and not
# five times for each. If it fails they are tried one by one, so that no failure hides the others.
TOGETHER := $(shell sed -n 's,.*/roles/\([a-z_]*\)/molecule/.*,\1,p' tests/roles/molecule/default/converge.yml 2>/dev/null)
ONE_BY_ONE := .cache/molecule-one-by-one
molecule: $(DEV_READY)
	@trap '$(MAKE) --silent lab-absent LAB="$(PAIR)"' EXIT; trap 'exit 1' INT TERM; rm -f $(ONE_BY_ONE); \
	  $(MAKE) --no-print-directory molecule-together $(addprefix molecule-,$(filter-out $(TOGETHER),$(ROLES))); rc=$$?; \
	  [ ! -e $(ONE_BY_ONE) ] || $(MAKE) --no-print-directory --keep-going $(addprefix molecule-,$(TOGETHER)); exit $$rc

molecule-together: molecule-pair
	@$(call molecule_test,tests/roles,$(TOGETHER)) || { touch $(ONE_BY_ONE); false; }

molecule-pair: $(DEV_READY)
	@mkdir -p .cache
	$(call in_venv,ansible-playbook playbooks/lab.yml -e lab_install=true $(PAIR)) >.cache/$@.log 2>&1 || { cat .cache/$@.log; exit 1; }

molecule-%: $(DEV_READY)
	@$(call molecule_test,roles/$*,$*)

$(addprefix molecule-,$(ON_PAIR)): molecule-pair
# The one that installs on this machine.
molecule-torch_backends: setup

# Rows, launchers and more words of tests/faults/run.py.
FAULTS :=
faults: $(DEV_READY)
	$(call in_venv,python tests/faults/run.py $(FAULTS))

bench: $(DEV_READY) setup
	$(call in_venv,python tests/bench/bench.py)
	$(call in_venv,python tests/bench/bench_fabric.py)

bench-nodes: $(DEV_READY)
	$(call in_venv,python tests/bench/bench_nodes.py)

bench-launchers: $(DEV_READY)
	$(call in_venv,python tests/bench/bench_launchers.py)

bench-look: $(DEV_READY)
	$(call in_venv,python tests/bench/bench_look.py)

bench-engines: $(DEV_READY)
	$(call in_venv,python tests/bench/bench_engines.py)

bench-backends: $(DEV_READY)
	$(call in_venv,python tests/bench/bench_backends.py)

# Programs that users write, with 2, 3 and 4 ranks over shm and under every MPI, and compiled by inductor: not part of
# `make test`, which has some of these.
programs: $(DEV_READY)
	$(call in_venv,PROGRAMS_MORE=yes python -m pytest -q --durations=5 --timeout 7200 torch_backends/tests/test_programs.py)

# A million small operations of random sizes, with ranks that are late now and then, through shared memory; then ten million
# random operations in which ranks disagree and die. What was done is in STRESSED, of one SEED; it goes on where it stopped.
SEED := 1
STRESSED := .cache/stress
stress-backends: $(DEV_READY) setup
	$(call in_venv,OPERATIONS=1000000 python -m pytest -q --durations=5 torch_backends/tests/test_backend_mpi.py \
	  --timeout 3600 -k 'many_small_ones and (openmpi or mpich)')
	$(call in_venv,PYTHONPATH=collections:. python -m torch_backends.tests.stress $(STRESSED) --seed $(SEED))

# The shared memory of the backends, and the ring of backend mpi, under the thread, address and undefined behaviour
# sanitizers of g++, with threads as ranks; compiling and running it takes both cores some ten minutes. Not part of
# `make test`.
sanitize-backends: $(DEV_READY)
	$(call in_venv,python torch_backends/tests/sanitize/run.py)

# The tests of torch_backends, compiled for another release of PyTorch than the one of locks/pytorch.txt, and PyTorch's own under
# every MPI. It is installed into a directory of .cache; its build for GPUs runs without one. Not part of `make test`.
TORCH := 2.15.0
OTHER := .cache/torch-$(TORCH)
torch-backends: $(DEV_READY)
	$(call in_venv,PYTHONPATH=collections:. python -c 'from torch_backends.tests.package import install; install()')
	$(PYTHON) -I -m venv --clear $(OTHER)
	$(OTHER)/bin/python -I -m pip install --quiet --no-cache-dir torch==$(TORCH) numpy setuptools
	TORCHFLEET_BACKENDS_MPI=$(HOME)/.torchfleet/openmpi:$(HOME)/.torchfleet/mpich TORCHFLEET_BACKENDS_SHM=yes \
	  TORCHFLEET_BACKENDS_CCL=yes $(OTHER)/bin/python -I -m pip install --quiet --no-build-isolation ./torch_backends
	$(call in_venv,TORCHFLEET_TEST_PYTHON=$(CURDIR)/$(OTHER)/bin/python $(PYTEST) torch_backends/tests)

# Wheels of backends shm and mpi, compiled in a container of Debian 11, and machines that install them: not part of
# `make test`. WHEELS: which, instead of all, such as WHEELS='--torch 2.13.0 --python 3.13 --machine aarch64'.
WHEELS :=
wheels: $(DEV_READY)
	$(call in_venv,PYTHONPATH=collections:. python torch_backends/wheels/make.py $(WHEELS))
	$(call in_venv,$(PYTEST) tests/manylinux)

changelog: $(READY)
	$(call in_venv,python docs/changelog.py)

# Of what is committed, and nothing else; wheels, if `make wheels` has built them of it. The version is that of galaxy.yml.
# For each wheel, what is newer than it:
CHANGED = find torch_backends/csrc torch_backends/src torch_backends/setup.py torch_backends/pyproject.toml \
  -type f ! -name '*.pyc' -newer "$$wheel" -print -quit
VERSION = $(shell sed -n 's/^version: //p' galaxy.yml)
release: $(READY)
	@changes=$$(git status --porcelain) && [ -z "$$changes" ] || \
	  { echo "$$changes" >&2; echo 'release: the working tree has changes: commit them, or put them aside' >&2; exit 1; }
	@left=$$(git ls-files 'changelogs/fragments/*.yml') && [ -z "$$left" ] || \
	  { echo "$$left" >&2; echo 'release: CHANGELOG.md lacks these changes: type make changelog, and commit' >&2; exit 1; }
	@for wheel in $(wildcard wheels/*.whl); do changed=$$($(CHANGED)) && [ -z "$$changed" ] || \
	  { echo "release: $$changed is newer than $$wheel: type make wheels, or rm -r wheels" >&2; exit 1; }; done
	rm -rf release && mkdir release
	$(call in_venv,ansible-galaxy collection build --output-path release)
	git archive --prefix=torch_backends-$(VERSION)/ --output=release/torch_backends-$(VERSION).tar.gz HEAD:torch_backends
	$(if $(wildcard wheels/*.whl),cp wheels/*.whl release,@echo 'release: it has no wheel: type make wheels before, to add them')
	cd release && sha256sum -- $(if $(wildcard wheels/*.whl),*.whl) *.tar.gz >SHA256SUMS

clean:
	rm -rf release wheels .venv .cache .ansible .mypy_cache .ruff_cache .pytest_cache torchfleet-cluster-*.tar.gz
	find roles plugins workloads tests -name __pycache__ -prune -exec rm -rf {} +

$(READY):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	  { echo 'Python 3.11 or newer is needed, and $(PYTHON) is not: say make PYTHON=/path/to/python3.11' >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	  { echo '$(PYTHON) cannot make virtual environments: apt install python3-venv (Debian, Ubuntu)' >&2; exit 1; }
	@echo 'Making .venv'
	@$(PYTHON) -m venv --clear .venv
	@$(PIP_INSTALL) -r requirements.txt
	@touch $@

$(DEV_READY): $(READY)
	@echo 'Adding the tools of the tests to .venv'
	@$(PIP_INSTALL) -r requirements-dev.txt
	@touch $@

$(CLOUD_READY): $(DEV_READY)
	@echo 'Adding what make cloud needs to .venv'
	@$(PIP_INSTALL) -r requirements-cloud.txt
	@touch $@
