"""Analysis: what replays and records say of a deployment, as figures and reports."""
