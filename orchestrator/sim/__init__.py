"""The simulated engine: a pure model in virtual time, and an HTTP server over it in either dialect."""
