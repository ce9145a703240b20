"""Who a client is: keys to tenants, compared in time that tells nothing of them."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

from orchestrator.errors import Unauthorized
from orchestrator.wire.exchange import Exchange


class Clients:
    """The client keys of a plan, those of its tenants among them; without any key, everyone may come in.

    Keys are held and looked up as hashes keyed anew by each process, so that neither time nor memory
    shows one.
    """

    def __init__(self, keys: tuple[str, ...], tenants: Mapping[str, Any]) -> None:
        self._salt = secrets.token_bytes(16)
        self._tenants: dict[bytes, str | None] = {self._digest(key.encode()): None for key in keys}
        for name, tenant in tenants.items():
            for key in tenant.get("keys", ()):
                self._tenants[self._digest(key.encode())] = name

    def tenant(self, exchange: Exchange) -> str | None:
        """The tenant that the request's key belongs to, if any. Raises Unauthorized.

        The key is taken from `Authorization: Bearer` or, as clients of `/v1/messages` send it, `x-api-key`.
        """
        if not self._tenants:
            return None
        given = exchange.header(b"authorization")
        if given is not None:
            scheme, _, key = given.partition(b" ")
            key = key.strip() if scheme.lower() == b"bearer" else b""
        else:
            key = exchange.header(b"x-api-key") or b""
        if not key:
            raise Unauthorized("a key is required: send `Authorization: Bearer KEY`", reason="missing-key")
        digest = self._digest(key)
        if digest not in self._tenants:
            raise Unauthorized("the key is not known here", reason="wrong-key")
        return self._tenants[digest]

    def _digest(self, key: bytes) -> bytes:
        return blake2b(key, key=self._salt, digest_size=32).digest()
