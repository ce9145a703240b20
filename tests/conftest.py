"""What holds for every test."""

from __future__ import annotations

from hypothesis import settings

# How long an example takes says what else the machine was doing; the tests run side by side.
settings.register_profile("pdctl", deadline=None)
settings.load_profile("pdctl")
