"""Cases that `make test` leaves to `make combinations`.

`make test` has each feature once, and each launcher, backend, MPI and firewall. A feature under one more of them is a
combination: a matrix would take hours, and most of its cells prove the same lines twice.
"""

from __future__ import annotations

import pytest


def combined(*cases: object) -> list[object]:
    """Mark values of a parameter, or tuples of several parameters' values, as combinations."""
    sets = [case if isinstance(case, tuple) else (case,) for case in cases]
    return [pytest.param(*values, marks=pytest.mark.combination) for values in sets]
