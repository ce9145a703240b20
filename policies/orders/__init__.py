"""Orders: which waiting request goes first (late mode)."""
