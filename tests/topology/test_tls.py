"""The files of `router.tls`: what is said of those that cannot be used, and where the rest is planned."""

from __future__ import annotations

from pathlib import Path
from shutil import copyfile

import pytest

from orchestrator.topology.plan import Tls

TLS = Path(__file__).resolve().parent.parent / "data" / "router" / "tls"


@pytest.mark.parametrize(
    ("tls", "told"),
    [
        ("certificate: ./no.pem, key: ./one.key", "certificate: no.pem: No such file or directory"),
        ("certificate: ./one.pem, key: ./no.key", "key: no.key: No such file or directory"),
        ("certificate: ./one.key, key: ./one.key", "certificate: one.key: no certificate in PEM"),
        ("certificate: ./one.pem, key: ./one.pem", "key: one.pem: no private key in PEM"),
        (
            "certificate: ./one.pem, key: ./two.key",
            "key: two.key: the key belongs to another certificate",
        ),
        (
            "certificate: ./one.pem, key: ./locked.key",
            "key: locked.key: the key has a passphrase",
        ),
        (
            "certificate: ./one.pem, key: ./one.key, client_ca: ./one.key",
            "client_ca: one.key: no certificate in PEM",
        ),
        ("certificate: ., key: ./one.key", "certificate: SITE: Is a directory"),
    ],
)
def test_files_of_tls_that_cannot_be_used(site, pair: str, tls: str, told: str) -> None:
    for file in TLS.iterdir():
        copyfile(file, site.folder / file.name)
    text = f"{pair}router:\n  tls: {{{tls}}}\n"
    line = 1 + text[: text.index("tls: {")].count("\n")
    [said] = site.told(text)
    assert said.startswith(
        f"t.yaml:{line}: router.tls.{told.replace('SITE', str(site.folder))} [tls-files] (PEM is needed: "
    )


def test_files_of_tls_that_can_be_used_are_planned_by_absolute_path(site, pair: str) -> None:
    for file in TLS.iterdir():
        copyfile(file, site.folder / file.name)
    text = f"{pair}router: {{tls: {{certificate: one.pem, key: ./one.key, client_ca: ./two.pem}}}}\n"
    router = site.plan(text).router
    names = ("one.pem", "one.key", "two.pem")
    assert router.tls == Tls(*(str(site.folder / name) for name in names))
    assert router.url == "https://127.0.0.1:8000"
    assert router.admin_url == "http://127.0.0.1:8001"
    assert (
        router.digest
        != site.plan(f"{pair}router: {{tls: {{certificate: one.pem, key: one.key}}}}").router.digest
    )
    foreign = site.told(text.replace("{tls", "{kind: vllm-router, tls"))
    assert "is pdctl's own; vllm-router takes its settings by `flags`" in " ".join(foreign)
