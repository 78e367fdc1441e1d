"""What a library is built with on a machine."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.filter.build_options import build_options

PARTS = {"ucx": "pml:ucx", "cuda": "acc:cuda", "verbs": "btl:verbs", "rocm": "acc:rocm"}
PLACES = {"cuda": "/usr/local/cuda", "rocm": "", "verbs": "/usr", "ucx": "/h/ucx", "ucc": "/h/ucc"}
FACTS = {"libraries": PLACES, "versions": {"cuda": "13000", "rocm": "", "verbs": "", "ucx": "1.20", "ucc": "1.4"}}
LINKS = "-Wl,-rpath,/h/ucx/lib -Wl,-rpath,/usr/local/cuda/lib"


def build(wanted: Any = "auto", **more: Any) -> dict[str, Any]:
    return build_options(PARTS, "some", wanted, FACTS, "n1", **more)


def test_it_is_built_with_everything_that_is_there() -> None:
    assert build() == {
        "options": ["--with-ucx=/h/ucx", "--with-cuda=/usr/local/cuda", "--with-verbs", "--without-rocm"],
        "versions": {"ucx": "1.20", "cuda": "13000", "verbs": ""},
        "parts": ["pml:ucx", "acc:cuda", "btl:verbs"],
        "environment": {"LDFLAGS": LINKS},
        "refusal": "",
    }


def test_or_with_exactly_what_is_asked_for_whatever_the_order() -> None:
    found = build(["cuda", "ucx"])
    assert found["options"] == ["--with-ucx=/h/ucx", "--with-cuda=/usr/local/cuda", "--without-verbs", "--without-rocm"]
    assert (found["parts"], found["refusal"]) == (["pml:ucx", "acc:cuda"], "")
    assert build([])["environment"] == {"LDFLAGS": ""}


@pytest.mark.parametrize(
    ("wanted", "needs", "says"),
    [
        (
            ["rocm"],
            "",
            """some_with: got ["rocm"]; n1 has ucx, cuda, verbs: install the others first (-e '{"libraries": """,
        ),
        ("ucx", "", 'some_with: got "ucx"; n1 has ucx, cuda, verbs: install the others first'),
        (["other"], "", 'some_with: got ["other"]; n1 has ucx, cuda, verbs: '),
        (
            "auto",
            "rocm",
            """some cannot be built on n1 without rocm: install it first: -e '{"libraries": ["rocm", "some"]}'""",
        ),
        (["cuda"], "ucx", "some cannot be built on n1 without ucx"),
    ],
)
def test_what_is_asked_for_and_not_there_is_refused(wanted: Any, needs: str, says: str) -> None:
    assert says in build(wanted, needs=needs)["refusal"]


def test_a_machine_that_has_nothing_is_told_so() -> None:
    bare = {"libraries": dict.fromkeys(PLACES, ""), "versions": FACTS["versions"]}
    assert "n1 has none of ucx, cuda, verbs, rocm: " in build_options(PARTS, "some", ["ucx"], bare, "n1")["refusal"]
    assert build_options(PARTS, "some", "auto", bare, "n1")["options"] == [f"--without-{name}" for name in PARTS]
