"""What this node really has: ports and who holds them, Unix sockets, versions in its environments."""
