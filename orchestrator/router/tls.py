"""TLS between clients and the router: what connections are secured with, and new certificates for it."""

from __future__ import annotations

import ssl

from orchestrator.errors import Problem, TopologyError
from orchestrator.topology.plan import Tls
from orchestrator.topology.tls import HINT, chain, unusable


class Secured:
    """`context` is what to listen with: TLS 1.2 and 1.3, HTTP/1.1, by what the files held at the last `load`.

    Raises TopologyError that names the file at fault.
    """

    def __init__(self, files: Tls) -> None:
        self._files = files
        self.context = self._now = self._made()
        self.context.sni_callback = self._choose

    def load(self) -> None:
        """Have connections made from now on use what the files hold now; certificates and authorities that
        are gone from them count no more. Raises TopologyError; those in use stay then."""
        self._now = self._made()

    def _made(self) -> ssl.SSLContext:
        files = self._files
        if (found := unusable(files)) is not None:
            field, why = found
            raise TopologyError([Problem(why, field=f"router.tls.{field}", hint=HINT)])
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        made.minimum_version = ssl.TLSVersion.TLSv1_2
        made.set_alpn_protocols(["http/1.1"])
        try:
            chain(made, files)
            if files.client_ca is not None:
                made.load_verify_locations(cafile=files.client_ca)
                made.verify_mode = ssl.CERT_REQUIRED
                # A resumed session is not asked for its certificate again, whatever has become of that.
                made.options |= ssl.OP_NO_TICKET
                made.num_tickets = 0
        except (OSError, ValueError) as error:
            # They changed since they were looked at.
            raise TopologyError([Problem(str(error), field="router.tls", hint=HINT)]) from error
        return made

    def _choose(
        self, connection: ssl.SSLObject | ssl.SSLSocket, name: str | None, context: ssl.SSLContext
    ) -> None:
        """Called in every handshake, also where the client names no server."""
        connection.context = self._now
