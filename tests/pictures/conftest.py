"""One browser for all tests here, and the reports of runs that are made once."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pictures import runs
from tests.pictures.browser import Browser, browser


@pytest.fixture(scope="session")
def shown() -> Iterator[Browser]:
    with browser() as found:
        yield found


@pytest.fixture(scope="session")
def pages() -> dict[str, Path]:
    """The pages by the name of their run. The first time four lab nodes run the jobs."""
    runs.make_runs(f"pictures{os.getpid()}")
    return runs.make_pages()
