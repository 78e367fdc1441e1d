"""What can be judged of a page without eyes: faults that a reader would stumble over, as the browser drew it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import cast

from tests.pictures.browser import Browser, Message, Screen

BYTES_MOST = 300_000
LEAST_TEXTS = 2  # that a page has: of one without any text nothing could be wrong
JUDGE = (Path(__file__).parent / "judge.js").read_text()
PHONE = Screen(390, 844)
SCREENS = {
    f"{name}-{'dark' if dark else 'light'}": Screen(width, height, dark)
    for name, width, height in (
        ("phone", PHONE.width, PHONE.height), ("laptop", 1440, 900), ("wall", 2560, 1440), ("large-wall", 3840, 2160),
    )
    for dark in (False, True)
} | {"paper": Screen(794, 1123, media="print")}  # fmt: skip


def faults_of(shown: Browser, page: Path, screen: Screen) -> list[str]:
    """Show a page and return what is wrong with it there, each a line; nothing if all is well."""
    size = page.stat().st_size
    found = [f"the file has {size:,} bytes"] if size >= BYTES_MOST else []
    shown.show(page, screen)
    judged = cast("dict[str, list[str]]", shown.value(JUDGE))
    found += judged["faults"]
    if cast("int", judged["texts"]) < LEAST_TEXTS:
        found.append("the page shows no text")
    return found + told(shown.events, page)


def told(events: list[Message], page: Path) -> list[str]:
    """Return what a page told while it was shown: what it asked for besides itself, and what went wrong."""
    found = []
    for event in events:
        given = cast("Message", event.get("params", {}))
        match event.get("method"):
            case "Network.requestWillBeSent":
                url = str(cast("Message", given["request"])["url"])
                found += [f"it asks for {url[:200]}"] if url != page.as_uri() else []
            case "Log.entryAdded":
                found.append(f"the console says {cast('Message', given['entry'])['text']}")
            case "Runtime.consoleAPICalled":
                found.append(f"the console says {json.dumps(given['args'])[:200]}")
            case "Runtime.exceptionThrown":
                found.append(f"a script failed: {json.dumps(given['exceptionDetails'])[:200]}")
    return found


def first_screenful(shown: Browser, page: Path) -> list[str]:
    """Return which parts of the verdict a phone does not show before one scrolls: its sentence, and the next step."""
    shown.show(page, PHONE)
    return [name for name in ("h1", ".next > p") if not 0 < bottom_of(shown, name) <= PHONE.height]


def bottom_of(shown: Browser, selector: str) -> float:
    """Return where an element ends, in pixels from the top of the page; 0 if there is none."""
    found = shown.value(f"document.querySelector({json.dumps(selector)})?.getBoundingClientRect().bottom ?? 0")
    return cast("float", found)


def titles_of(shown: Browser) -> list[str]:
    """Return the titles of the sections of the page that is shown, in order."""
    return cast("list[str]", shown.value("[...document.querySelectorAll('h2')].map(title => title.textContent)"))
