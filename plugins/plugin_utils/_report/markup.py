# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Markup: text is escaped unless it is markup already. Numbers and times as people read them."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.looks.hang import plural, spans
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.forms import printable

EMPTY_TAGS = ("meta", "br")


class Html(str):
    """Markup. A text of any other type is escaped where it is put into a page."""

    __slots__ = ()


def safe(text: str) -> Html:
    """Return a text as markup."""
    return text if isinstance(text, Html) else Html(html.escape(printable(text)))


def join(parts: Iterable[str], between: str = "") -> Html:
    """Return parts one after the other."""
    return Html(safe(between).join(safe(part) for part in parts))


def tag(name: str, /, *children: str, **attributes: object) -> Html:
    """Return an element. `class_` is the attribute class, `stroke_width` is stroke-width; None: no such attribute."""
    words = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(printable(str(value)))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Html(f"<{name}{words}>" + ("" if name in EMPTY_TAGS else f"{join(children)}</{name}>"))


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], caption: str, class_: str = "") -> Html:
    """Return a table whose first column names its rows. `caption`: what it is, for those who do not see it.

    Each cell carries the name of its column, which a narrow screen shows in place of the head.
    """
    head = tag("tr", *(tag("th", name, scope="col") for name in heads))
    body = [
        tag("tr", tag("th", row[0], scope="row"), *(
            tag("td", cell, data_head=name) for name, cell in zip(heads[1:], row[1:], strict=True)
        ))
        for row in rows
    ]  # fmt: skip
    inner = tag(
        "table",
        tag("caption", caption, class_="unseen"),
        tag("thead", head),
        tag("tbody", *body),
        class_=class_ or None,
    )
    return tag("div", inner, class_="wide", tabindex="0", role="region", aria_label=caption)


def folded(title: str, *inside: str) -> Html:
    """Return a part that opens when it is asked for."""
    return tag("details", tag("summary", title), *inside)


def code(text: str) -> Html:
    """Return a text as one types it."""
    return tag("code", text)


def number(value: float) -> str:
    """Return a number as people read it: "0.0413", "5,120", "1.2e+08"."""
    if value == 0:
        return "0"
    if 1000 <= abs(value) < 1e7:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def span(seconds: float) -> str:
    """Return a length of time: "0.042 s", "8.3 s", "3 min 20 s", "2 h 5 min", "3 d 4 h"."""
    if seconds < 100:
        return f"{seconds:.3f} s" if seconds < 1 else f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.1f} s"
    for size, unit, rest, less in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if seconds >= size:
            return f"{seconds // size:.0f} {unit} {seconds % size // rest:.0f} {less}"
    return f"{seconds:.0f} s"


def brief(seconds: float) -> str:
    """Return a length of time in a cell of a table: as span(), but "33 ms", and "0" for what is less than 0.5 ms."""
    if seconds >= 1:
        return span(seconds)
    return f"{seconds * 1000:.0f} ms" if seconds >= 0.0005 else "0"


def clock(moment: float) -> str:
    """Return a moment as "2026-11-26 00:31:05 UTC"."""
    try:
        return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):
        return ""


def count(amount: int, what: str) -> str:
    """Return "1 rank", "2 ranks"."""
    return f"{amount:,} {what}" + "s" * (amount != 1)


def ranks_named(found: Sequence[int]) -> str:
    """Return "rank 3" or "ranks 0-3, 7"."""
    return f"{plural(found, 'rank', 'ranks')} {spans(found).replace(',', ', ')}"
