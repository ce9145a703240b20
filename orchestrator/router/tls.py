"""TLS between clients and the router: a context from the plan's files, and new certificates for it."""

from __future__ import annotations

import ssl
from pathlib import Path

from orchestrator.errors import Problem, TopologyError
from orchestrator.topology.plan import Tls


def context(files: Tls) -> ssl.SSLContext:
    """What to serve with: TLS 1.2 and 1.3, HTTP/1.1. Raises TopologyError that names the file at fault."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    made.set_alpn_protocols(["http/1.1"])
    load(made, files)
    return made


def load(made: ssl.SSLContext, files: Tls) -> None:
    """Have connections made from now on use what the files hold now. Raises TopologyError; then the ones
    in use stay."""
    # First into one of its own: a certificate may be there before the key that belongs to it.
    for target in (ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), made):
        try:
            # An encrypted key would ask for its passphrase on a terminal: there is none.
            target.load_cert_chain(files.certificate, files.key, password=lambda: "")
        except (OSError, ValueError) as error:
            raise _unusable("certificate", f"{files.certificate} with {files.key}", error) from error
        if files.client_ca is not None:
            try:
                target.load_verify_locations(cadata=Path(files.client_ca).read_text())
            except (OSError, ValueError) as error:
                raise _unusable("client_ca", files.client_ca, error) from error
            target.verify_mode = ssl.CERT_REQUIRED


def _unusable(field: str, what: str, error: Exception) -> TopologyError:
    why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    hint = "PEM files are needed: a certificate chain, and its own private key without a passphrase"
    problem = Problem(f"cannot be used: {what}: {why}", field=f"router.tls.{field}", hint=hint)
    return TopologyError([problem])
