"""HTTP/1.1 on raw asyncio protocols: the server side for untrusted clients, the pooled client side for engines."""
