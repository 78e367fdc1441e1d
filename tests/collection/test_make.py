"""What people type: make with other machines, playbooks with an Ansible that is too old, and all tests at once."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
CLUSTER = "inventory/examples/two_nodes.yml"
OLD = "2.16.3"  # that of Ubuntu 24.04
VERBS = ["setup", "verify", "train", "clean"]


def run(argv: list[str | Path], cwd: Path = REPO, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a program as from a shell: not as a part of the make that may run these tests."""
    plain = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    words = {**plain, "ANSIBLE_CONFIG": str(REPO / "ansible.cfg"), "LC_ALL": "C.UTF-8", **env}
    return subprocess.run(argv, cwd=cwd, env=words, capture_output=True, text=True, check=False)


def what_make_runs(goal: str, *words: str) -> str:
    """Return the last command line that make would run; make itself would make a .venv for its own PYTHON."""
    done = run(["make", "--dry-run", "--no-print-directory", goal, *words])
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


@pytest.mark.parametrize(("goal", "playbook"), [*((verb, verb) for verb in VERBS[:3]), ("clean-jobs", "clean")])
def test_make_has_other_machines_and_more_words(goal: str, playbook: str) -> None:
    words = """--list-hosts -e '{"mpis": ["openmpi", "mpich"]}'"""
    line = what_make_runs(goal, f"INVENTORY={CLUSTER}", f"ARGS={words}")
    done = run(["sh", "-c", line], PATH=f"{BIN}:{os.environ['PATH']}")
    assert done.returncode == 0, done.stderr
    typed, *hosts = done.stdout.splitlines()
    assert typed == f"ansible-playbook -i {CLUSTER} {playbook}.yml {words}"
    assert {"node1", "node2"} <= {line.strip() for line in hosts}


def test_make_takes_this_machine_and_nothing_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INVENTORY", "stock.csv")
    monkeypatch.setenv("ARGS", "-x")
    done = run(["sh", "-c", what_make_runs("setup") + " --list-hosts"], PATH=f"{BIN}:{os.environ['PATH']}")
    assert done.stdout.splitlines()[0].rstrip() == "ansible-playbook setup.yml"
    assert {"localhost"} <= {line.strip() for line in done.stdout.splitlines()}, done.stdout + done.stderr


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin directory of an Ansible that is too old."""
    place = tmp_path_factory.mktemp("old")
    for argv in (["-m", "venv", place], ["-m", "pip", "--python", place, "install", "--quiet", f"ansible-core=={OLD}"]):
        done = run([sys.executable, *argv])
        assert done.returncode == 0, done.stderr
    return place / "bin"


@pytest.mark.parametrize("verb", VERBS)
def test_an_ansible_that_is_too_old_is_refused_in_a_line(old: Path, verb: str) -> None:
    done = run([old / "ansible-playbook", f"{verb}.yml"])
    assert done.returncode == 2
    said = " ".join(done.stdout.split())
    assert f"ansible-core: got {OLD}; 2.19.0 or newer is needed: type make venv, then . .venv/bin/activate" in said
    assert said.count("TASK [") == 1


def test_an_activated_environment_is_not_made_anew(tmp_path: Path) -> None:
    """Reproduced before: `make clean-jobs` beside a job took the .venv away that its playbook and its guard run in."""
    base = Path(getattr(sys, "_base_executable", sys.executable))
    done = run([base, "-m", "venv", "--without-pip", tmp_path / "active"])
    assert done.returncode == 0, done.stderr
    for name in ("Makefile", "requirements.txt", "requirements-dev.txt"):
        shutil.copy(REPO / name, tmp_path)
    stamps = {
        run(["make", "--dry-run", "venv", f"PYTHON={python}"], tmp_path).stdout.splitlines()[-1]
        for python in (base, tmp_path / "active/bin/python3")
    }
    assert len(stamps) == 1 and next(iter(stamps)).startswith("touch .venv/ready-"), stamps


@pytest.fixture
def nothing(tmp_path: Path) -> Path:
    """A directory with the Makefile and the tools, a role that is empty, tests that fail, and no playbook."""
    for name in ("Makefile", "requirements.txt", "requirements-dev.txt"):
        shutil.copy(REPO / name, tmp_path)
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv/bin").symlink_to(BIN)
    (tmp_path / "roles/some").mkdir(parents=True)
    (tmp_path / "tests/lab").mkdir(parents=True)
    for name in ("test_across", "test_software"):
        (tmp_path / f"tests/lab/{name}.py").write_text("def test(): assert False")
    for stamp in re.findall(r"^touch (.*)", run(["make", "--dry-run", "types"], tmp_path).stdout, re.MULTILINE):
        (tmp_path / stamp).touch()
    return tmp_path


def test_where_everything_fails_everything_was_tried_and_is_told(nothing: Path) -> None:
    done = run(["make", "test"], nothing)
    assert done.returncode == 2
    said = done.stdout
    for command in ("ansible-playbook setup.yml", "ruff check", "ruff format --check", "ansible-lint", "mypy"):
        assert f"\n{command}\n" in said.replace(" \n", "\n"), said
    others = (
        "tests/collection",
        "tests/unit tests/integration torch_backends/tests",
        "tests/lab/test_lab.py tests/lab/test_nics.py tests/lab/test_old_python.py tests/lab/test_remove.py",
    )
    for tests in (*others, "tests/lab/test_across.py", "tests/lab/test_software.py"):
        assert re.search(rf"\npython -m pytest .*{tests}\n", said), said
    assert said.count("the playbook: playbooks/lab.yml could not be found") == 1  # without which no role is tried


def test_roles_that_fail_together_are_tried_one_by_one(nothing: Path) -> None:
    """So that each that fails is told, and nothing is tried twice where none does."""
    shutil.copytree(REPO / "tests/roles", nothing / "tests/roles")
    for path in (REPO / "roles").iterdir():
        (nothing / "roles" / path.name).mkdir()
    programs = nothing / ".venv/bin"
    programs.unlink()
    programs.mkdir()
    molecule = (
        '#!/bin/sh\necho "at ${PWD##*/}"\ncase "$BROKEN $PWD" in *" "*/roles/mpich|yes*/tests/roles) exit 1;; esac\n'
    )
    for name, text in (("ansible-playbook", "#!/bin/sh\n"), ("molecule", molecule)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    together = run(["make", "--keep-going", "molecule"], nothing)
    assert together.returncode == 0, together.stdout + together.stderr
    tried = [line.rpartition(" (")[0].partition(": ")[2].split() for line in together.stdout.splitlines()]
    assert sorted(role for roles in tried for role in roles) == sorted(
        path.name for path in (nothing / "roles").iterdir()
    )
    apart = run(["make", "--keep-going", "molecule"], nothing, BROKEN="yes")
    assert apart.returncode == 2
    assert "at mpich" in apart.stdout and {"molecule test: openmpi", "molecule test: cuda"} <= {
        line.rpartition(" (")[0] for line in apart.stdout.splitlines()
    }


def test_check_runs_what_is_fast_and_starts_no_job(nothing: Path) -> None:
    done = run(["make", "--dry-run", "check"], nothing)
    commands = re.findall(r"/bin:\$PATH\" (.*)", done.stdout)
    cores = len(os.sched_getaffinity(0))
    compared = " ".join(f"tests/collection/test_{name}.py" for name in ("changelog", "docs", "roles", "role_tables"))
    fast = f"python -m pytest -q --numprocesses {2 * cores} --maxprocesses 8 --dist worksteal tests/unit {compared}"
    assert commands == ["ruff check", "ruff format --check", "mypy", fast], done.stdout + done.stderr


def test_programs_of_others_are_run_by_make_compat_alone(nothing: Path) -> None:
    assert what_make_runs("compat").endswith("python -m pytest -q --durations=15 tests/compat")
    assert "tests/compat" not in run(["make", "--dry-run", "test"], nothing).stdout


def test_machines_with_kernels_of_their_own_are_started_by_make_storage_alone(nothing: Path) -> None:
    assert what_make_runs("storage").endswith("python -m pytest -q --durations=15 tests/storage")
    assert "tests/storage" not in run(["make", "--dry-run", "test"], nothing).stdout


def test_hangs_are_made_by_make_hangs_alone(nothing: Path) -> None:
    assert what_make_runs("hangs").endswith("python tests/hangs/run.py")
    assert "tests/hangs" not in run(["make", "--dry-run", "test"], nothing).stdout


def test_wheels_are_made_by_make_wheels_alone(nothing: Path) -> None:
    assert what_make_runs("wheels").endswith("python -m pytest -q --durations=15 tests/manylinux")
    assert "tests/manylinux" not in run(["make", "--dry-run", "test"], nothing).stdout


@pytest.fixture
def committed(nothing: Path) -> Path:
    """The same with what a release takes, committed."""
    for name in (".gitignore", "galaxy.yml", "README.md"):
        shutil.copy(REPO / name, nothing)
    for name in ("csrc/all.cpp", "src/__init__.py", "setup.py", "pyproject.toml"):
        (nothing / "torch_backends" / name).parent.mkdir(parents=True, exist_ok=True)
        (nothing / "torch_backends" / name).touch()
    who = ["-c", "user.name=me", "-c", "user.email=me@here.example"]
    for words in (["init", "-q"], ["add", "."], [*who, "commit", "-q", "-m", "all"]):
        done = run(["git", *words], nothing)
        assert done.returncode == 0, done.stderr
    return nothing


def test_a_release_has_the_collection_the_backends_and_their_checksums(committed: Path) -> None:
    done = run(["make", "release"], committed)
    assert done.returncode == 0, done.stdout + done.stderr
    version = re.search(r"^version: (.*)", (REPO / "galaxy.yml").read_text(), re.MULTILINE)
    assert version
    names = [f"torch_backends-{version[1]}.tar.gz", f"torchfleet-cluster-{version[1]}.tar.gz"]
    assert sorted(entry.name for entry in (committed / "release").iterdir()) == ["SHA256SUMS", *names]
    assert run(["sha256sum", "--check", "SHA256SUMS"], committed / "release").stdout.count(": OK") == len(names)
    listed = run(["tar", "--list", "--file", committed / "release" / names[0]]).stdout.splitlines()
    assert f"torch_backends-{version[1]}/setup.py" in listed
    assert run(["make", "release"], committed).returncode == 0  # a second one, beside the first


def test_a_release_has_the_wheels_that_were_built_of_it(committed: Path) -> None:
    wheel = committed / "wheels/torchfleet_backends-1.whl"
    wheel.parent.mkdir()
    wheel.touch()
    done = run(["make", "release"], committed)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "torchfleet_backends-1.whl" in (committed / "release/SHA256SUMS").read_text()
    source = committed / "torch_backends/csrc/all.cpp"
    os.utime(source, (wheel.stat().st_mtime + 10,) * 2)
    done = run(["make", "release"], committed)
    assert done.returncode == 2
    assert "release: torch_backends/csrc/all.cpp is newer than wheels/torchfleet_backends-1.whl" in done.stderr


@pytest.mark.parametrize("name", ["README.md", "new.yml"])
def test_a_release_of_what_is_not_committed_is_refused(committed: Path, name: str) -> None:
    (committed / name).write_text("changed")
    done = run(["make", "release"], committed)
    assert done.returncode == 2
    assert name in done.stderr and "release: the working tree has changes" in done.stderr
    assert not (committed / "release").exists()


def test_a_release_whose_changes_are_not_in_the_changelog_is_refused(committed: Path) -> None:
    (committed / "changelogs/fragments").mkdir(parents=True)
    (committed / "changelogs/fragments/new.yml").touch()
    who = ["-c", "user.name=me", "-c", "user.email=me@here.example"]
    for words in (["add", "."], [*who, "commit", "-q", "-m", "more"]):
        assert run(["git", *words], committed).returncode == 0
    done = run(["make", "release"], committed)
    assert done.returncode == 2
    assert "changelogs/fragments/new.yml\nrelease: CHANGELOG.md lacks these changes: type make changelog" in done.stderr
    assert not (committed / "release").exists()


def test_make_gpu_without_a_gpu_says_so_and_runs_nothing() -> None:
    """This machine has none. The status is that of the program: make's own is 2 for every failure."""
    kept = sorted((REPO / "tests/transcripts").iterdir())
    line = what_make_runs("gpu", f"PYTHON={sys.executable}")
    done = run(["sh", "-c", line])
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == "make gpu: there is no GPU on this machine: nothing was run (status 3)\n"
    assert sorted((REPO / "tests/transcripts").iterdir()) == kept
