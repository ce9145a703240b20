"""Launch profiles as YAML, `ENGINE/NAME.yaml`: what differs by hardware or site (see docs/topology.md)."""
