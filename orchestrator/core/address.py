"""Hosts, ports and URLs as text: the one bracket-aware parser and printer, IPv6 literals included."""

from __future__ import annotations

import ipaddress
import re

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?\.?")


def check_host(text: str) -> str:
    """`text` as a bare host: a DNS name or an IP literal, brackets removed. Raises ValueError."""
    host = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    if ":" in host or text.startswith("["):
        address, _, zone = host.partition("%")
        try:
            ipaddress.IPv6Address(address)
        except ValueError:
            raise ValueError(f"{text!r} is not a host name or address") from None
        return f"{address}%{zone}" if zone else address
    if not _NAME.fullmatch(host) or len(host) > 253:
        raise ValueError(f"{text!r} is not a host name or address")
    if re.fullmatch(r"[0-9.]+", host):
        try:
            ipaddress.IPv4Address(host)
        except ValueError:
            raise ValueError(f"{text!r} is not an IPv4 address") from None
    return host


def check_port(text: str | int) -> int:
    """`text` as a TCP port, 1 to 65535. Raises ValueError."""
    if isinstance(text, str) and not re.fullmatch(r"[0-9]{1,5}", text):
        raise ValueError(f"{text!r} is not a port number")
    port = int(text)
    if not 1 <= port <= 65535:
        raise ValueError(f"port {port} is not between 1 and 65535")
    return port


def split_host_port(text: str) -> tuple[str, int]:
    """`127.0.0.1:8000` or `[::1]:8000` as host (without brackets) and port. Raises ValueError."""
    host, colon, port = text.rpartition(":")
    if not colon:
        raise ValueError(f"{text!r} has no port; write HOST:PORT")
    if ":" in host and not host.startswith("["):
        raise ValueError(f"{text!r} is ambiguous; write an IPv6 address in brackets, [{host}]:{port}")
    if not host:
        raise ValueError(f"{text!r} has no host; write 127.0.0.1:{port} or 0.0.0.0:{port}")
    return check_host(host), check_port(port)


def join_host_port(host: str, port: int) -> str:
    """The text that `split_host_port` reads."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def http_url(host: str, port: int, *, secure: bool = False) -> str:
    """`http://host:port` (`secure`: https), with brackets where the host needs them."""
    return f"http{'s' if secure else ''}://{join_host_port(host, port)}"


def split_http_url(text: str) -> tuple[str, int]:
    """Host and port of `http://host[:port][/]`. Raises ValueError for any other scheme, path or query."""
    scheme, separator, rest = text.partition("://")
    if not separator:
        raise ValueError(f"{text!r} is not a URL; write http://HOST:PORT")
    if scheme.lower() != "http":
        raise ValueError(f"{text!r}: only http:// is spoken to engines; end TLS in front of pdctl")
    rest = rest.removesuffix("/")
    if "/" in rest or "?" in rest or "#" in rest:
        raise ValueError(f"{text!r} has a path; give the server's root, http://HOST:PORT")
    if "@" in rest:
        raise ValueError(f"{text!r} holds credentials; keys belong in router.credentials")
    if re.fullmatch(r"\[[^\]]*\]|[^:]*", rest):
        return check_host(rest), 80
    return split_host_port(rest)


def url_host(text: str) -> str:
    """The host of a process's own URL: engines' is http, the router's may be https. Raises ValueError."""
    return split_http_url(text.replace("https:", "http:", 1))[0]


def is_loopback(host: str) -> bool:
    """Whether only processes on the same machine can reach `host`."""
    if host.rstrip(".").lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False


def is_wildcard(host: str) -> bool:
    """Whether `host` is every interface at once (0.0.0.0, ::): good to listen on, of no use to connect to."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False
