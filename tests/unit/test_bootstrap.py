"""How our code gets onto a node and starts there."""

from __future__ import annotations

import sys
from pathlib import Path

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.basics import bootstrap
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.wire.link import RemoteProcess
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch import runtime_archive


def test_our_code_comes_up_behind_a_noisy_login(tmp_path: Path) -> None:
    """Profiles print, and the first time the archive has to cross the wire; the second time it must not."""
    start = bootstrap.bootstrap(sys.executable, str(tmp_path / "a home"), runtime_archive.digest())
    for archive in (runtime_archive.archive, never):
        remote = RemoteProcess(["/bin/sh", "-c", 'echo "Welcome!"; echo; exec "$@"', "sh", *start])
        remote.greet(archive)
        assert remote.ask({"kind": "clock"})["time"] > 1e9
        remote.close()


def never() -> bytes:
    raise AssertionError("the archive was asked for again")
