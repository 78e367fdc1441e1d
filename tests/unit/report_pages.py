"""Pages of reports as tests look at them, and the recorded runs that they are made of."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser
from pathlib import Path

RECORDED = Path(__file__).parent / "recorded" / "jobs"
EMPTY = ("meta", "br")
BYTES = 300_000


class Page(HTMLParser):
    """A page as a browser takes it. Fails at an element that is not closed, and keeps all there is."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len(attrs) == len(dict(attrs)), tag
        self.found.append((tag, dict(attrs)))
        if tag not in EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data.replace("\xa0", " ") if self.open[-1:] != ["style"] else ""

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.found if name == tag]


def checked(text: str) -> Page:
    """Return a page that loads nothing, runs nothing and is small."""
    assert len(text.encode()) < BYTES
    page = Page(text)
    assert not {"script", "img", "link", "iframe", "object", "form", "base", "a", "image", "use"} & {
        t for t, _a in page.found
    }
    for tag, attributes in page.found:
        names = set(attributes)
        assert not [name for name in names if name.startswith("on")], tag
        assert not {"style", "src", "href", "xlink:href"} & names, tag
        assert not [v for v in attributes.values() if "url(" in str(v) and not re.fullmatch(r"url\(#\w+\)", str(v))]
    (style,) = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
    assert "url(" not in style and "@import" not in style
    (policy,) = [meta["content"] for meta in page.all("meta") if meta.get("http-equiv") == "Content-Security-Policy"]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert policy == f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    return page
