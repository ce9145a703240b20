"""Fuzzers of all that reads bytes from strangers: HTTP, JSON, events, engines' answers, topologies."""
