"""A process at the other end of a connection: what is said where it cannot be reached."""

from __future__ import annotations

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.wire.link import ConnectionLost, RemoteProcess


def test_a_way_that_leads_nowhere_tells_why() -> None:
    with pytest.raises(ConnectionLost, match="Permission denied"):
        RemoteProcess(["/bin/sh", "-c", "echo banner >&2; echo 'me@n2: Permission denied (publickey).' >&2"]).greet(
            bytes
        )
    with pytest.raises(ConnectionLost, match="/no/such: No such file"):
        RemoteProcess(["/no/such"])
    silent = RemoteProcess(["sleep", "60"])
    with pytest.raises(ConnectionLost, match="no answer within 0 s"):
        silent.greet(bytes, seconds=0.2)
    silent.process.kill()
    silent.close()
