"""Hosts, ports and URLs: IPv6 in brackets everywhere (case 10), and every misfit refused by name."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.address import (
    check_host,
    check_port,
    http_url,
    is_loopback,
    is_wildcard,
    join_host_port,
    split_host_port,
    split_http_url,
)


@given(
    st.one_of(
        st.ip_addresses().map(str), st.from_regex(r"[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?\.lan", fullmatch=True)
    ),
    st.integers(1, 65535),
)
def test_what_is_joined_splits_again(host: str, port: int) -> None:
    assert split_host_port(join_host_port(host, port)) == (host, port)
    assert split_http_url(http_url(host, port) + "/") == (host, port)


def test_case_10_ipv6_literals() -> None:
    assert split_host_port("[::1]:8000") == ("::1", 8000)
    assert http_url("2001:db8::7", 30000) == "http://[2001:db8::7]:30000"
    assert split_http_url("http://[2001:db8::7]:30000") == ("2001:db8::7", 30000)
    assert split_http_url("http://[::1]") == ("::1", 80)
    assert check_host("[fe80::1%eth0]") == "fe80::1%eth0"
    with pytest.raises(ValueError, match=r"in brackets, \[::1\]:8000"):
        split_host_port("::1:8000")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("localhost", "has no port"),
        (":8000", "has no host"),
        ("a b:1", "not a host name"),
        ("host:0", "between 1 and 65535"),
        ("host:99999", "between 1 and 65535"),
        ("host:http", "not a port"),
        ("host:-1", "not a port"),
        ("300.1.1.1:80", "not an IPv4 address"),
        ("[zz::1]:80", "not a host name or address"),
        ("[1.2.3.4]:80", "not a host name or address"),
        ("-x:80", "not a host name"),
    ],
)
def test_bad_addresses_say_why(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        split_host_port(text)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("10.0.0.1:8000", "not a URL"),
        ("https://h:1", "only http://"),
        ("http://h:1/v1", "has a path"),
        ("http://h:1?x=1", "has a path"),
        ("http://u:p@h:1", "holds credentials"),
        ("http://", "not a host name"),
        ("http://h:", "not a port"),
    ],
)
def test_bad_urls_say_why(url: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        split_http_url(url)


def test_a_port_may_be_left_out_of_a_url() -> None:
    assert split_http_url("HTTP://engine.lan") == ("engine.lan", 80)


def test_ports_are_whole_numbers() -> None:
    assert check_port(8000) == check_port("8000") == 8000
    with pytest.raises(ValueError, match="not a port"):
        check_port("８０")  # digits, but not ASCII ones


@given(st.ip_addresses())
def test_loopback_and_wildcard_agree_with_the_standard_library(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> None:
    assert is_loopback(str(address)) == address.is_loopback
    assert is_wildcard(str(address)) == address.is_unspecified


def test_names_are_no_wildcards_and_localhost_is_loopback() -> None:
    assert is_loopback("localhost")
    assert is_loopback("LOCALHOST.")
    assert not is_loopback("localhost.example.org")
    assert not is_wildcard("any")
    assert is_wildcard("::")
