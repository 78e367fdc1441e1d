"""Files of another machine below a directory of a test."""

from __future__ import annotations

from pathlib import Path


def tree(root: Path, **files: str) -> str:
    """Write files below a root: proc__version="..." is proc/version."""
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(root)
