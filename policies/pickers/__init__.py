"""Pickers: which of the scored candidates is taken."""
