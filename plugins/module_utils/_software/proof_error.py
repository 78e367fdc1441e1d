# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The error of launcher_proof and library_proof."""

from __future__ import annotations


class UnprovenError(Exception):
    """A launcher or library does not work, or is not the one that was asked for: why, in one line."""
