"""A deployment whose router speaks TLS: brought up, shown, reloaded and stopped as any other."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path
from shutil import copyfile

import httpx
import pytest
from deployment import GUARD_S, MODEL, Deployment, sim

pytestmark = pytest.mark.integration

FILES = Path(__file__).resolve().parent.parent / "data" / "router" / "tls"


def client(url: str, trusts: str, shows: str | None) -> httpx.Client:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.load_verify_locations(FILES / f"{trusts}.pem")
    if shows is not None:
        made.load_cert_chain(FILES / f"{shows}.pem", FILES / f"{shows}.key")
    return httpx.Client(base_url=url, verify=made, timeout=GUARD_S, trust_env=False)


@pytest.mark.parametrize("shows", [None, "two"], ids=["https", "with client certificates"])
def test_up_ps_reload_and_down(deploy: Callable[..., Deployment], shows: str | None) -> None:
    tls = {"certificate": "./crt.pem", "key": "./key.pem"}
    if shows is not None:
        tls["client_ca"] = f"{FILES}/{shows}.pem"
    deployment = deploy({"all": sim("unified")}, router={"tls": tls})

    def install(certificate: str, key: str) -> None:
        copyfile(FILES / f"{certificate}.pem", deployment.folder / "crt.pem")
        copyfile(FILES / f"{key}.key", deployment.folder / "key.pem")

    install("one", "one")
    deployment.up()
    url = deployment.url.replace("http:", "https:")
    ask = {"model": MODEL, "prompt": "Hello", "max_tokens": 4}
    with client(url, "one", shows) as one:
        assert one.post("/v1/completions", json=ask).status_code == 200
    assert url in deployment.pdctl("ps").stdout
    pids = deployment.pids()

    install("two", "one")
    refused = deployment.pdctl("reload")
    assert refused.returncode == 2
    assert "router.tls.key" in refused.stderr
    assert "belongs to another certificate" in " ".join(refused.stderr.split())
    install("two", "two")
    assert deployment.pdctl("reload").returncode == 0
    with client(url, "two", shows) as two:
        assert two.post("/v1/completions", json=ask).status_code == 200
    assert deployment.pids() == pids, "nothing was restarted"
    assert deployment.pdctl("down").returncode == 0
