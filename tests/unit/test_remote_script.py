"""Scripts that lie elsewhere: only what is pinned runs, and it is what was pinned."""

from __future__ import annotations

import functools
import hashlib
import http.server
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.remote_script import (
    fetched,
    find_script,
    script_at,
)
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.request import parse_request

COMMIT = "0" * 40
SCRIPT = "print('here')\n"
DIGEST = hashlib.sha256(SCRIPT.encode()).hexdigest()


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_words: object) -> None:
        pass


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """The address of a server, and the directory that it serves."""
    place = tmp_path / "served"
    place.mkdir()
    handler = functools.partial(Quiet, directory=str(place))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as found:
        thread = threading.Thread(target=found.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{found.server_address[1]}", place
        found.shutdown()
        thread.join()


UNPINNED = [
    ("https://host/train.py", None, "pin what lies at https://host/train.py: -e sha256="),
    ("https://host/train.py", "abc", "pin what lies at"),
    ("http://host/train.py", DIGEST, "give https://"),
    ("file:///train.py", DIGEST, "give https://"),
    ("https://host/", DIGEST, "the address must end in the name of the script"),
    ("https://[::1/train.py", DIGEST, "it is no address"),
    ("https://me:hush@[::1/train.py", DIGEST, "it is no address"),
    ("https://a..b/train.py", DIGEST, "it cannot be fetched"),
    ("https://me:hush@host/train.py", DIGEST, "no password in a URL"),
    ("https://hush@host/train.py", DIGEST, "no password in a URL"),
    (f"git+https://hush@host/repository@{COMMIT}#train.py", None, "no password in a URL"),
    ("git+https://host/repository", None, "pin the commit"),
    ("git+https://host/repository@main#train.py", None, "pin the commit"),
    (f"git+https://host/repository@{COMMIT}", None, "pin the commit"),
    (f"git+http://host/repository@{COMMIT}#train.py", None, "pin the commit"),
    (f"git+ext::sh -c x@{COMMIT}#train.py", None, "pin the commit"),
    (f"git+https://host/repository@{COMMIT}#../train.py", None, "give the path of the script in the repository"),
    (f"git+https://host/repository@{COMMIT}#/train.py", None, "give the path of the script in the repository"),
]


@pytest.mark.parametrize(("address", "sha256", "allowed"), UNPINNED)
def test_what_is_not_pinned_is_refused(address: str, sha256: str | None, allowed: str) -> None:
    with pytest.raises(InputError) as caught:
        script_at(address, sha256)
    assert allowed in str(caught.value)
    assert "hush" not in str(caught.value)


def test_a_checksum_belongs_to_an_address(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="it is for a workload that is an address"):
        find_script(parse_request({"workload": "mnist", "sha256": DIGEST}), tmp_path)


def test_a_file_is_fetched_once(server: tuple[str, Path], home: Path) -> None:
    url, place = server
    (place / "train.py").write_text(SCRIPT)
    found = Path(fetched(f"{url}/train.py", DIGEST))
    assert (found.read_text(), found.name) == (SCRIPT, "train.py")
    assert found.parent.parent == home / ".torchfleet/scripts"
    assert [path.name for path in found.parent.iterdir()] == ["train.py"]
    (place / "train.py").unlink()
    assert fetched(f"{url}/train.py", DIGEST) == str(found)
    found.write_text("changed\n")
    with pytest.raises(InputError, match=r"it cannot be fetched: .*404"):
        fetched(f"{url}/train.py", DIGEST)


def test_another_content_is_refused(server: tuple[str, Path], home: Path) -> None:
    url, place = server
    (place / "train.py").write_text("other\n")
    other = hashlib.sha256(b"other\n").hexdigest()
    with pytest.raises(InputError, match=f'train.py"; it has the sha256 {other}, not {DIGEST}'):
        fetched(f"{url}/train.py", DIGEST)
    assert not list(home.rglob("train.py"))


# --- git --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def repository(tmp_path: Path) -> tuple[str, str]:
    """The address of a repository and its first commit, after which the script was changed."""
    place = tmp_path / "repository"
    (place / "examples").mkdir(parents=True)
    run = functools.partial(subprocess.run, cwd=place, check=True, capture_output=True, text=True)
    run(["git", "init", "--quiet"])
    commits = []
    for text in (SCRIPT, "print('later')\n"):
        (place / "examples/train.py").write_text(text)
        run(["git", "add", "."])
        run(["git", "-c", "user.name=x", "-c", "user.email=x@y", "commit", "--quiet", "--message", "x"])
        commits.append(run(["git", "rev-parse", "HEAD"]).stdout.strip())
    return f"git+file://{place}", commits[0]


def test_a_commit_is_what_runs(repository: tuple[str, str]) -> None:
    url, commit = repository
    found = Path(script_at(f"{url}@{commit}#examples/train.py", None))
    assert found.read_text() == SCRIPT
    found.write_text("changed\n")
    (found.parent / "made.txt").write_text("")
    assert script_at(f"{url}@{commit}#examples/train.py", None) == str(found)
    assert found.read_text() == SCRIPT
    assert not (found.parent / "made.txt").exists()


def test_what_is_not_in_the_repository(repository: tuple[str, str], home: Path) -> None:
    url, commit = repository
    with pytest.raises(InputError, match="git rev-parse: "):
        script_at(f"{url}@{COMMIT}#examples/train.py", None)
    assert not [path for path in (home / ".torchfleet/scripts").iterdir() if path.name.endswith(COMMIT)]
    with pytest.raises(InputError, match=f"no such file at {commit[:12]}"):
        script_at(f"{url}@{commit}#nowhere.py", None)
    with pytest.raises(InputError, match="git fetch: "):
        script_at(f"git+file:///nowhere@{commit}#train.py", None)


def test_a_link_in_a_repository_leads_nowhere_else(repository: tuple[str, str], tmp_path: Path) -> None:
    url, _commit = repository
    place = Path(url.removeprefix("git+file://"))
    (tmp_path / "secret.py").write_text("key = 1\n")
    (place / "examples/out.py").symlink_to(tmp_path / "secret.py")
    run = functools.partial(subprocess.run, cwd=place, check=True, capture_output=True, text=True)
    run(["git", "add", "."])
    run(["git", "-c", "user.name=x", "-c", "user.email=x@y", "commit", "--quiet", "--message", "x"])
    commit = run(["git", "rev-parse", "HEAD"]).stdout.strip()
    with pytest.raises(InputError, match="no such file at"):
        script_at(f"{url}@{commit}#examples/out.py", None)


def test_git_runs_no_hook_and_asks_nobody(
    repository: tuple[str, str], home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hook of the user's is for work in a repository; a question for a password would wait for ever."""
    url, commit = repository
    hooks = home / "hooks"
    hooks.mkdir()
    (hooks / "post-checkout").write_text(f"#!/bin/sh\ntouch {tmp_path}/hooked\n")
    (hooks / "post-checkout").chmod(0o755)
    (home / ".gitconfig").write_text(f"[core]\n\thooksPath = {hooks}\n")
    script_at(f"{url}@{commit}#examples/train.py", None)
    assert not (tmp_path / "hooked").exists()
    fake = tmp_path / "bin" / "git"
    fake.parent.mkdir()
    fake.write_text('#!/bin/sh\necho "prompt: $GIT_TERMINAL_PROMPT" >&2\nexit 1\n')
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(fake.parent), prepend=os.pathsep)
    with pytest.raises(InputError, match="prompt: 0"):
        script_at(f"{url}@{commit}#examples/train.py", None)
