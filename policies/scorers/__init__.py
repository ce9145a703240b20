"""Scorers: how good each candidate is, as a share from 0 to 1."""
