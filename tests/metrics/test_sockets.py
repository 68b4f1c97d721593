"""What the system tells of sockets."""

from __future__ import annotations

import pytest

from streaming.metrics import sockets


@pytest.mark.parametrize(
    ("summary", "found"),
    [
        ("sockets: used 9\nTCP: inuse 5 orphan 0 tw 12 alloc 7 mem 1\nUDP: inuse 0 mem 0\n", 12),
        ("sockets: used 9\n", None),
        ("TCP: inuse 5\n\n", None),
    ],
)
def test_closed_sockets_are_counted_where_the_system_tells(tmp_path, monkeypatch, summary, found):
    table = tmp_path / "sockstat"
    table.write_text(summary)
    monkeypatch.setattr(sockets, "SUMMARY", table)
    assert sockets.time_wait_sockets() == found
