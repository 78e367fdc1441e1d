"""What all tests share: an option."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record-transcripts", action="store_true", help="write tests/transcripts anew")
