"""Takes pictures of reports of real runs, for people to look at: `make pictures`. Not part of `make test`.

The runs are started once, on this machine; with them in .cache/pictures/runs only the pages are made anew.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import sys
from pathlib import Path

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._report.compare import comparison
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._report.page import report
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._report.reading import read_run
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._report.writer import write_page, write_report

REPO = Path(__file__).parents[2]
PLACE = REPO / ".cache" / "pictures"
RUNS = PLACE / "runs"
BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
CURVES = str(REPO / "tests" / "pictures" / "curves.py")
JOBS: dict[str, dict[str, object]] = {
    "success": {"workload": "mnist", "np": 2},
    "slower": {"workload": "mnist", "np": 1},
    "failure": {"workload": CURVES, "workload_args": "raise"},
    "hang": {"workload": CURVES, "workload_args": "hang", "job_timeout": 90, "hang_look": 10},
}
SLOTS = 4
DARK = "--blink-settings=preferredColorScheme=0"
# Name of the picture: page below PLACE, width and height, and further words for the browser.
PICTURES = {
    "success-light": ("runs/success/latest/report.html", "1440,2000", ()),
    "success-phone": ("runs/success/latest/report.html", "390,3000", ()),
    "success-wall": ("runs/success/latest/report.html", "3840,2160", ()),
    "failure-light": ("runs/failure/latest/report.html", "1440,2000", ()),
    "failure-dark": ("runs/failure/latest/report.html", "1440,2000", (DARK,)),
    "hang-dark": ("runs/hang/latest/report.html", "1440,2000", (DARK,)),
    "hang-phone-dark": ("runs/hang/latest/report.html", "390,3000", (DARK,)),
    "docs": ("docs.html", "1440,1060", ("--force-device-scale-factor=0.75",)),  # docs/report.png
    "compared-light": ("compared.html", "1440,1400", ()),
}


def run_jobs() -> None:
    """Run the jobs whose runs are not there. Two of them fail, as they should."""
    inventory = PLACE / "hosts.json"
    host = {"localhost": {"slots": SLOTS}}
    variables = {"ansible_connection": "local", "ansible_python_interpreter": "{{ ansible_playbook_python }}"}
    groups = {"head": {"hosts": {"localhost": {}}}, "workers": {"hosts": host}}
    inventory.write_text(json.dumps({"all": {"children": groups, "vars": variables}}))
    for name, given in JOBS.items():
        if not (RUNS / name / "latest" / "result.json").exists():
            extra = json.dumps({"runs_dir": str(RUNS / name), **given})
            subprocess.run(
                ["ansible-playbook", "-i", str(inventory), str(REPO / "train.yml"), "-e", extra], cwd=REPO, check=False
            )


def make_pages() -> None:
    """Make the report of each run, and the page that compares the two that are alike."""
    for name in JOBS:
        write_report((RUNS / name / "latest").resolve(), PLACE / "none.json")
    runs = [read_run((RUNS / name / "latest").resolve()) for name in ("success", "slower")]
    write_page(PLACE / "compared.html", comparison(runs))


def make_page_of_docs() -> None:
    """Make the page of docs/report.png: that of the failure, as if it lay in somebody's home."""
    run = read_run((RUNS / "failure" / "latest").resolve())
    write_page(PLACE / "docs.html", report(dataclasses.replace(run, run_dir="/home/me/runs/run7", job_id="run7")))


def take(browser: str, name: str) -> Path:
    """Take one picture."""
    page, size, words = PICTURES[name]
    picture = PLACE / f"{name}.png"
    argv = [
        browser,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
        f"--window-size={size}",
        *words,
    ]
    subprocess.run(
        [*argv, f"--screenshot={picture}", (PLACE / page).as_uri()], check=True, capture_output=True, timeout=120
    )
    return picture


def main() -> int:
    """Return 0, or 1 where there is no browser."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        print(f"no browser is here: install one of {', '.join(BROWSERS)}", file=sys.stderr)
        return 1
    PLACE.mkdir(parents=True, exist_ok=True)
    run_jobs()
    make_pages()
    make_page_of_docs()
    for name in PICTURES:
        print(take(browser, name).relative_to(REPO))
    return 0


if __name__ == "__main__":
    sys.exit(main())
