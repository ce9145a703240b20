"""Engine adapters: pure descriptions of how each engine is launched, probed, spoken to and read."""
