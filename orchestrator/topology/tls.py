"""Whether the files of `router.tls` can be used: read, parsed, and held against each other."""

from __future__ import annotations

import ssl
from pathlib import Path

from orchestrator.topology.plan import Tls

HINT = "PEM is needed: a certificate with its chain, and its own private key without a passphrase"

_WHY = {
    "KEY_VALUES_MISMATCH": "the key belongs to another certificate",
    "EE_KEY_TOO_SMALL": "the certificate's key is too short for TLS",
    "CA_MD_TOO_WEAK": "the certificate is signed with a hash that is not taken any more",
}


def unusable(files: Tls) -> tuple[str, str] | None:
    """The first field of `router.tls` whose file cannot be used, and why; None if all can."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    for field, path in (("certificate", files.certificate), ("client_ca", files.client_ca)):
        if path is not None and (why := _authority(made, path)) is not None:
            return field, f"{path}: {why}"
    try:
        if b"ENCRYPTED" in Path(files.key).read_bytes():
            return "key", f"{files.key}: the key has a passphrase"
        chain(made, files)
    except (OSError, ValueError) as error:
        return "key", f"{files.key}: {_words(error)}"
    return None


def chain(made: ssl.SSLContext, files: Tls) -> None:
    """Have `made` show the certificate. Raises OSError or ValueError."""
    # An encrypted key would ask for its passphrase on a terminal: there is none.
    made.load_cert_chain(files.certificate, files.key, password=lambda: "")


def _authority(made: ssl.SSLContext, path: str) -> str | None:
    """Why the file holds no certificate, if it does not."""
    try:
        Path(path).read_bytes()
        made.load_verify_locations(cafile=path)
    except (OSError, ValueError) as error:
        return "no certificate in PEM" if isinstance(error, ssl.SSLError) else _words(error)
    return None


def _words(error: OSError | ValueError) -> str:
    if isinstance(error, ssl.SSLError):
        return _WHY.get(error.reason or "", "no private key in PEM")
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
