"""The offset of a node's clock."""

from __future__ import annotations

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health import clock


def test_the_clock_is_corrected_by_the_round_trip() -> None:
    assert clock.clock_of("1000.25\n", 1000.0, 1000.5) == {"offset": 0.0, "uncertainty": 0.25}
    assert clock.clock_of("1100.25", 1000.0, 1000.5) == {"offset": 100.0, "uncertainty": 0.25}
    assert clock.clock_of("900.%N", 1000.0, 1000.5) == {"offset": -99.75, "uncertainty": 0.75}
    assert clock.clock_of("sh: date: not found", 1000.0, 1000.5) is None
