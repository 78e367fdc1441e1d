"""The hook in a rank's Python notes the status it leaves with. The program sees nothing of it: all is as without it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CATCHES = "except SystemExit as e:\n    print(type(e).__module__, type(e).__qualname__, repr(e), e.code)"
THREAD = "import sys, threading, _thread\nt = threading.Thread(target={})\nt.start()\nt.join()\nprint(t.is_alive())"
LAST = (
    "import multiprocessing as m\np = m.get_context('fork').Process(target={})\np.start()\np.join()\nprint(p.exitcode)"
)
PROGRAMS = {  # and the status that is noted, if one is
    "pass": "0",
    "import sys\nsys.exit()": "0",
    "import sys\nsys.exit(3)": "3",
    "import sys\nsys.exit('why')": "why",
    "import sys\nsys.exit((1, 2))": "(1, 2)",
    "import sys\nsys.exit(SystemExit(4))": "4",
    "raise SystemExit(4)": "4",
    "raise SystemExit": "0",
    "exit(5)": "5",
    "import argparse\nargparse.ArgumentParser().parse_args(['--no'])": "2",
    "1 / 0": None,
    "import os\nos._exit(6)": None,
    "import os, signal\nos.kill(os.getpid(), signal.SIGTERM)": None,
    f"import _thread\ntry:\n    _thread.exit()\n{CATCHES}": "0",
    f"import sys\ntry:\n    sys.exit(3)\n{CATCHES}": "3",
    f"try:\n    raise SystemExit(1, 2)\n{CATCHES}": "(1, 2)",
    "import _thread\n_thread.exit()": "0",
    THREAD.format("sys.exit"): "0",
    THREAD.format("lambda: sys.exit(3)"): "0",
    THREAD.format("exit, args=(4,)"): "0",
    THREAD.format("_thread.exit"): "0",
    "import _thread, sys, time\n_thread.start_new_thread(sys.exit, (3,))\ntime.sleep(0.1)": "0",
    "import concurrent.futures as f, sys\nprint(repr(f.ThreadPoolExecutor().submit(sys.exit, 3).exception()))": "0",
    LAST.format("exit, args=(7,)"): "0",
    LAST.format("__import__('_thread').exit"): "0",
    "import pickle\nprint(repr(pickle.loads(pickle.dumps(SystemExit(3)))), SystemExit, pickle.dumps(exit) and 1)": "3",
    "import pickle, sys\nprint(pickle.loads(pickle.dumps(sys.exit)) is sys.exit, sys.exit.__module__)": "0",
    "import os, sys\nos.fork() or sys.exit(8)\nprint(os.WEXITSTATUS(os.wait()[1]))": "0",
}


def run(program: str, environment: dict[str, str]) -> tuple[int, str, str]:
    """Run a program with its pid in TORCHFLEET_EXIT_NOTE as a rank has it."""
    code = "import os, sys\nif 'NOTE' in os.environ:\n    note = f'{os.getpid()}:' + os.environ['NOTE']\n"
    code += (
        "    os.environ['TORCHFLEET_EXIT_NOTE'] = note\nos.execv(sys.executable, [sys.executable, '-c', sys.argv[1]])"
    )
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        [sys.executable, "-S", "-c", code, program],
        env={**own, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("program", PROGRAMS)
def test_all_is_as_in_plain_python(hook: Path, tmp_path: Path, program: str) -> None:
    note = tmp_path / "exit"
    assert run(program, {"PYTHONPATH": str(hook), "NOTE": str(note)}) == run(program, {})
    assert (note.read_text() if note.exists() else None) == PROGRAMS[program]


def test_a_rank_is_asked_to_record_its_collectives(hook: Path, tmp_path: Path) -> None:
    """By what PyTorch's flight recorder reads, with PyTorch's default; what the user gives stays."""
    program = "import os\nprint(os.environ.get('TORCH_FR_BUFFER_SIZE'))"
    rank = {"PYTHONPATH": str(hook), "NOTE": str(tmp_path / "exit")}
    assert run(program, rank) == (0, "2000\n", "")
    assert run(program, {**rank, "TORCH_FR_BUFFER_SIZE": "0"}) == (0, "0\n", "")
