"""A fixture that cannot be made fails once, and not once more for each test that wants it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

REPO = Path(__file__).parents[2]
TESTS = {
    "conftest.py": """
import pytest

@pytest.fixture(scope="session")
def nodes():
    raise OSError("no nodes here")

@pytest.fixture
def mended(nodes):
    return nodes
""",
    "test_of_nodes.py": """
import pytest

@pytest.mark.parametrize("number", range(3))
def test_it(mended, number): pass
""",
    "test_others.py": """
def test_it(): pass

def test_of_nodes(nodes): pass
""",
}


def test_it_fails_once_and_the_tests_of_other_files_run(tmp_path: Path) -> None:
    for name, text in TESTS.items():
        (tmp_path / name).write_text(text)
    options = [
        "-q",
        "-p",
        "tests.conftest",
        "-p",
        "no:cacheprovider",
        f"--rootdir={tmp_path}",
        f"--confcutdir={tmp_path}",
    ]
    argv = [sys.executable, "-m", "pytest", *options, tmp_path]
    done = subprocess.run(argv, cwd=REPO, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.search(r"\n1 passed, 1 error, 3 not run in ", done.stdout), done.stdout
    assert done.stdout.count("E       OSError: no nodes here") == 1
