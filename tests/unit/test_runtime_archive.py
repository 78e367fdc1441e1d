"""The archive of the runtime, as it is sent to nodes."""

from __future__ import annotations

import io
import zipfile

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch import runtime_archive


def test_the_runtime_is_whole_and_repeatable() -> None:
    digest, data = runtime_archive.digest(), runtime_archive.archive()
    runtime_archive.digest.cache_clear()
    runtime_archive.sources.cache_clear()
    assert (runtime_archive.digest(), runtime_archive.archive()) == (digest, data)
    names = zipfile.ZipFile(io.BytesIO(data)).namelist()
    assert {"torchfleet.py", "hook/sitecustomize.py", f"{runtime_archive.PACKAGE}/ranks/rank.py"} <= set(names)
    assert not [name for name in names if "lab" in name]
