"""The shipped policies, one file each; like a stranger's, they import `orchestrator.policy` only."""
