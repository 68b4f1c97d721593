"""Levels of delivery quality: what a reader gets when not everybody can have everything."""

from __future__ import annotations

import enum


class Level(enum.Enum):
    """From the one that is served first to the one that gives way first."""

    REALTIME = "realtime"
    STANDARD = "standard"
    ECONOMY = "economy"
