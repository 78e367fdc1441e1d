"""Make the workloads' modules importable under the names by which they import each other."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "workloads"))
