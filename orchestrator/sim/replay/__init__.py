"""Replay: traces of requests through the real scheduler and simulated engines, in virtual time."""
