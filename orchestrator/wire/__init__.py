"""HTTP/1.1 on raw asyncio protocols: a server for untrusted clients, a pooled client for engines."""
