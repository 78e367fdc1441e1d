"""The page on security: each test that it names as proof is there."""

from __future__ import annotations

import re
from pathlib import Path

REPO = Path(__file__).parents[2]


def test_every_proof_that_the_page_names_is_there() -> None:
    page = (REPO / "docs/security.md").read_text()
    named = re.findall(r"`(test_\w+\.py)::(test_\w+)`", page)
    assert len(named) > 10
    for file, test in named:
        found = [path.read_text() for path in REPO.glob(f"tests/*/{file}")]
        assert any(f"def {test}(" in text for text in found), (file, test)


def test_the_readme_and_the_policy_lead_there() -> None:
    assert "docs/security.md" in (REPO / "README.md").read_text()
    assert "docs/security.md" in (REPO / "SECURITY.md").read_text()
