"""The judge finds each fault that it is there for: pages with one fault each, and one without."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pictures.browser import Browser
from tests.pictures.judge import BYTES_MOST, SCREENS, faults_of, first_screenful

HEAD = '<!doctype html><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>x</title>'
STYLE = "<style>body { margin: 8px; background: #fff; color: #000; } .dark { color: #000; }</style>"
GOOD = '<h1>A verdict</h1><div class="next"><p>What to do next</p></div>'
CURVE = '<path class="line" fill="none" stroke="#00f" d="M0 50L200 50"/><text x="90" y="54">42</text>'
FAULTS = {
    "the page is 3008 pixels wide": '<div style="width: 3000px">wide</div>',
    "text is cut off: hidden": '<div style="width: 20px; overflow: hidden; white-space: nowrap">hidden words</div>',
    "text is cut off: below": '<div style="height: 4px; overflow: hidden">below</div>',
    "text is cut off: in a picture": '<svg width="90" height="30"><text x="70" y="20">in a picture</text></svg>',
    "text is cut off: scrolled": '<div style="width: 60px; overflow: auto; white-space: nowrap">scrolled words</div>',
    "text is beside the page": '<div style="position: absolute; left: -40px">left words</div>',
    "two texts overlap": '<p>one</p><p style="margin-top: -34px">two</p>',
    "a curve goes through a label: 42": f'<figure><svg width="200" height="100">{CURVE}</svg></figure>',
    "text has a contrast of": '<p style="color: #999">pale</p>',
    "text has a contrast of 1": '<p style="opacity: 0.1">nearly gone</p>',
    "text is 6": '<p style="font-size: 5px; line-height: 1">tiny</p>',
    "a section is empty: Links": "<section><h2>Links</h2><p></p></section>",
    "a column is empty: CPUs": '<div class="wide"><table><thead><tr><th>rank</th><th>CPUs</th></tr></thead>'
    "<tbody><tr><th>0</th><td></td></tr></tbody></table></div>",
    "a picture is empty": '<figure><svg width="9" height="9"></svg><p>x</p></figure>',
    "it asks for http://127.0.0.1:9/x.png": '<img src="http://127.0.0.1:9/x.png" alt="">',
    "it asks for file:///none.css": '<link rel="stylesheet" href="file:///none.css">',
    "the console says": "<script>console.warn('look')</script>",
    "a script failed": "<script>undefined.x</script>",
    "the file has": f"<!-- {'x' * BYTES_MOST} -->",
}


def write(tmp_path: Path, body: str) -> Path:
    page = tmp_path / "page.html"
    page.write_text(HEAD + STYLE + body)
    return page


@pytest.mark.parametrize("screen", SCREENS)
def test_a_good_page_has_no_fault(shown: Browser, tmp_path: Path, screen: str) -> None:
    size = "<style>body { font-size: 24px }</style>"
    assert faults_of(shown, write(tmp_path, size + GOOD), SCREENS[screen]) == []


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found(shown: Browser, tmp_path: Path, fault: str) -> None:
    found = faults_of(shown, write(tmp_path, GOOD + FAULTS[fault]), SCREENS["laptop-light"])
    assert any(fault in line for line in found), found


def test_text_that_a_dark_scheme_hides_is_found(shown: Browser, tmp_path: Path) -> None:
    style = "<style>@media (prefers-color-scheme: dark) { body { background: #111 } }</style>"
    page = write(tmp_path, style + GOOD)
    assert faults_of(shown, page, SCREENS["laptop-light"]) == []
    assert "contrast" in "".join(faults_of(shown, page, SCREENS["laptop-dark"]))


def test_a_page_without_text_is_a_fault(shown: Browser, tmp_path: Path) -> None:
    assert faults_of(shown, write(tmp_path, "<div></div>"), SCREENS["phone-light"]) == ["the page shows no text"]


@pytest.mark.parametrize(
    ("body", "missing"),
    [
        (GOOD, []),
        ('<div style="height: 900px"></div>' + GOOD, ["h1", ".next > p"]),
        (GOOD.replace("<p>", '<p style="margin-top: 800px">'), [".next > p"]),
        ("<p>nothing</p>", ["h1", ".next > p"]),
    ],
)
def test_a_verdict_below_the_first_screenful_is_found(
    shown: Browser, tmp_path: Path, body: str, missing: list[str]
) -> None:
    assert first_screenful(shown, write(tmp_path, body)) == missing
