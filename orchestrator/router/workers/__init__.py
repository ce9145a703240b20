"""Relay processes under one scheduler process: the messages between them, and both of their ends."""
