"""The part that decides: standard library only, no I/O, time and randomness passed in."""
