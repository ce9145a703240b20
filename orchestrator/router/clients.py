"""Who a client is: keys to tenants, compared in time that tells nothing of them."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, NamedTuple

from orchestrator.errors import Unauthorized
from orchestrator.wire.exchange import Exchange

_SALT = secrets.token_bytes(16)


class Client(NamedTuple):
    """Who sends a request: the tenant of its key, if any, and the key hashed, empty where none is asked."""

    tenant: str | None = None
    key: bytes = b""


NOBODY = Client()


class Clients:
    """The client keys of a plan, those of its tenants among them; without any key, everyone may come in.

    Keys are held and looked up as hashes keyed anew by each process, so that neither time nor memory
    shows one; a reload changes none.
    """

    def __init__(self, keys: tuple[str, ...], tenants: Mapping[str, Any]) -> None:
        self._clients: dict[bytes, Client] = {}
        for key in keys:
            self._add(key, None)
        for name, tenant in tenants.items():
            for key in tenant.get("keys", ()):
                self._add(key, name)

    def _add(self, key: str, tenant: str | None) -> None:
        digest = _digest(key.encode())
        self._clients[digest] = Client(tenant, digest)

    def who(self, exchange: Exchange) -> Client:
        """Whose key the request carries. Raises Unauthorized.

        The key is taken from `Authorization: Bearer` or, as clients of `/v1/messages` send it, `x-api-key`.
        """
        if not self._clients:
            return NOBODY
        given = exchange.header(b"authorization")
        if given is not None:
            scheme, _, key = given.partition(b" ")
            key = key.strip() if scheme.lower() == b"bearer" else b""
        else:
            key = exchange.header(b"x-api-key") or b""
        if not key:
            raise Unauthorized("a key is required: send `Authorization: Bearer KEY`", reason="missing-key")
        found = self._clients.get(_digest(key))
        if found is None:
            raise Unauthorized("the key is not known here", reason="wrong-key")
        return found


def _digest(key: bytes) -> bytes:
    return blake2b(key, key=_SALT, digest_size=32).digest()
