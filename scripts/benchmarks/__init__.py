"""Benchmarks of pdctl beside its peers, each repeated by one command: `scripts/bench NAME`, or `all`.

What they share: `processes` starts and ends things, `cpu` reads what they cost, `figures` takes rounds in
turn and makes medians of them, `report` writes JSON, Markdown and pictures (`charts`) with the `machine`
described.

A new benchmark is a module with `main(argv) -> int` and a line in `__main__.BENCHES`; its results are one
`report.Report`, written to docs/benchmarks. Its pure parts have tests in tests/benchmarks.
"""
