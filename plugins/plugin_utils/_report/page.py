# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A page: one file that loads nothing. Scripts, pictures, fonts and forms are forbidden; its one style has a hash."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable

from .lanes import patterns
from .markup import Html, join, tag
from .run import Run
from .sections import SECTIONS, head
from .style import STYLE
from .verdict import JUDGES

PAGE_BYTES = 290_000  # of a report, whatever the run; what does not fit is left out, and a line says so
FOOT = "Made from the files of the run by torchfleet. Nothing in this page is loaded from elsewhere."


def policy() -> str:
    """Return the content security policy: this style and nothing else."""
    digest = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"


def page(title: str, tone: str, parts: Iterable[str]) -> str:
    """Return a whole page. `tone`: a state, which colours its head."""
    metas = [
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy()),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="referrer", content="no-referrer"),
        tag("meta", name="color-scheme", content="light dark"),
    ]
    body = tag("body", patterns(), tag("main", *parts), tag("footer", FOOT), class_=tone if tone in JUDGES else None)
    whole = tag("html", tag("head", *metas, tag("title", title), tag("style", Html(STYLE))), body, lang="en")
    return f"<!doctype html>\n{whole}\n"


def fitting(parts: Iterable[Html], room: int) -> list[Html]:
    """Return the parts that fit into so many bytes, in order; a line stands where others are left out."""
    kept = []
    for part in parts:
        room -= len(part.encode())
        if room < 0:
            room += len(part.encode())
            kept.append(
                tag("section", tag("p", "A part that is too large for this page is left out here.", class_="warn"))
            )
        else:
            kept.append(part)
    return kept


def report(run: Run) -> str:
    """Return the report of a run."""
    parts = [head(run), *(section(run) for section in SECTIONS)]
    room = PAGE_BYTES - len(page("", "", ()).encode())
    return page(f"{run.job_id} {run.state}".strip(), run.state, [join(fitting(parts, room))])
