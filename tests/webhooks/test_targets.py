"""No webhook reaches into the network that Octavo runs in, however its address is written or its name resolved."""

from __future__ import annotations

import ipaddress
import socket
from typing import Any

import pytest

from chatapp.errors import BadInput
from chatapp.webhooks import posting, targets
from tests.webhooks.conftest import Receiver

PRIVATE = [
    "127.0.0.1", "127.8.9.1", "0.0.0.0", "10.1.2.3", "172.16.0.1", "172.31.255.255", "192.168.1.1", "169.254.169.254",
    "100.64.0.1", "192.0.0.1", "192.0.2.7", "198.18.0.1", "203.0.113.9", "224.0.0.1", "239.1.1.1", "240.0.0.1",
    "255.255.255.255", "192.88.99.1",
    "::", "::1", "fe80::1", "fc00::1", "fd12:3456::1", "ff02::1", "fec0::1", "2001:db8::1", "100::1",
    "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "::127.0.0.1",
    "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::a00:1", "2002:7f00:1::", "2002:a9fe:a9fe::1",
    "2001:0:53aa:64c::1", "::ffff:0:7f00:1", "5f00::1", "4000::1", "fe80::1%eth0",
]  # fmt: skip
PUBLIC = ["8.8.8.8", "1.1.1.1", "93.184.215.14", "2606:4700:4700::1111", "2a00:1450:4001:82a::200e", "::ffff:8.8.8.8"]


@pytest.mark.parametrize("text", PRIVATE)
def test_every_kind_of_private_address_is_refused(text: str) -> None:
    assert targets.refusal(ipaddress.ip_address(text))


@pytest.mark.parametrize("text", PUBLIC)
def test_public_addresses_are_fine(text: str) -> None:
    assert targets.refusal(ipaddress.ip_address(text)) == ""


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://hooks.acme.com/", "begins with https://"),
        ("ftp://hooks.acme.com/", "begins with https://"),
        ("file:///etc/passwd", "begins with https://"),
        ("hooks.acme.com/x", "begins with https://"),
        ("https://", "begins with https://"),
        ("", "Write the address"),
        ("https://user:pass@hooks.acme.com/", "name and password"),
        ("https://user@hooks.acme.com/", "name and password"),
        ("https://@hooks.acme.com/", "name and password"),
        ("https://hooks.acme.com/#part", "behind the #"),
        ("https://hooks.acme.com:22/", "port 443"),
        ("https://hooks.acme.com:99999/", "no address"),
        ("https://127.0.0.1/", "an address of this machine"),
        ("https://[::1]/", "an address of this machine"),
        ("https://[::ffff:10.0.0.1]/", "an address of a local network"),
        ("https://[fe80::1%25eth0]/", "zone"),
        ("https://[fe80::1%eth0]/", "zone"),
        ("https://169.254.169.254/latest/meta-data/", "an address of a local network"),
        ("https://2130706433/", "usual form"),
        ("https://0x7f000001/", "usual form"),
        ("https://0x7f.1/", "usual form"),
        ("https://0177.0.0.1/", "usual form"),
        ("https://127.1/", "usual form"),
        ("https://①②⑦.⓪.⓪.①/", "usual form|this machine"),
        ("https://127。0。0。1/", "usual form|this machine"),
        ("https://localhost/", "a local network"),
        ("https://localhost./", "a local network"),
        ("https://LOCALHOST/", "a local network"),
        ("https://metadata.google.internal/", "a local network"),
        ("https://printer.local/", "a local network"),
        ("https://redis/", "a local network"),
        ("https://hooks.acme.com\\@127.0.0.1/", "a blank or a character"),
        ("https://hooks.acme.com/a b", "a blank or a character"),
        ("https://hooks.acme.com/\r\nHost: x", "a blank or a character"),
        ("https://hooks.acme.com/\0", "a blank or a character"),
        ("https://hooks.acme.com/é", "percent signs"),
        ("https://-bad-.acme.com/", "is none"),
        ("https://a..acme.com/", "is none"),
        ("https://" + "a" * 64 + ".com/", "is none"),
        ("https://hooks.acme.com/" + "x" * 1000, "1000 are the most"),
        ("https://[::1/", "no address"),
    ],
)
def test_an_address_that_cannot_be_is_refused_with_words(url: str, words: str) -> None:
    with pytest.raises(BadInput, match=words) as refusal:
        targets.checked(url)
    assert refusal.value.param == "url"


def test_an_address_is_kept_in_one_form() -> None:
    assert targets.checked("  https://Hooks.ACME.com.:443 ") == "https://hooks.acme.com/"
    assert targets.checked("https://hooks.acme.com:8443/x?y=1") == "https://hooks.acme.com:8443/x?y=1"
    assert targets.checked("https://bücher.acme.com/") == "https://xn--bcher-kva.acme.com/"
    assert targets.checked("https://[2606:4700::1]:4443/") == "https://[2606:4700::1]:4443/"
    assert targets.checked(targets.checked("https://8.8.8.8/")) == "https://8.8.8.8/"


def test_the_operators_own_networks_are_reached_where_the_settings_name_them(settings: Any) -> None:
    settings.OCTAVO_WEBHOOK_ALLOW = ["10.1.0.0/16", "fd00::/8"]
    for text in ("10.1.2.3", "fd12::1", "::ffff:10.1.2.3"):
        assert targets.refusal(ipaddress.ip_address(text)) == ""
    for text in ("10.2.0.1", "127.0.0.1", "fe80::1"):
        assert targets.refusal(ipaddress.ip_address(text))


def resolves(monkeypatch: pytest.MonkeyPatch, *turns: list[str]) -> list[str]:
    """A resolver that says each of `turns` once, the last one from then on."""
    asked: list[str] = []

    def getaddrinfo(host: Any, port: Any, *args: Any, **kwargs: Any) -> Any:
        asked.append(host)
        said = turns[min(len(asked), len(turns)) - 1]
        return [
            (socket.AF_INET6 if ":" in text else socket.AF_INET, socket.SOCK_STREAM, 6, "", (text, port))
            for text in said
        ]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return asked


def connects(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    made: list[Any] = []

    def create_connection(where: Any, timeout: float) -> socket.socket:
        made.append(where)
        raise OSError("only noted")

    monkeypatch.setattr(socket, "create_connection", create_connection)
    return made


@pytest.mark.parametrize("text", ["127.0.0.1", "::1", "169.254.169.254", "64:ff9b::a00:1", "::ffff:192.168.0.1"])
def test_a_name_that_leads_into_the_own_network_is_never_connected_to(
    monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    resolves(monkeypatch, [text])
    made = connects(monkeypatch)
    outcome = posting.post("https://hooks.acme.com/", headers={}, body=b"{}")
    assert "public addresses only" in outcome.error
    assert made == []


def test_one_private_address_among_public_ones_is_enough_to_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    resolves(monkeypatch, ["8.8.8.8", "10.0.0.1"])
    made = connects(monkeypatch)
    assert "public addresses only" in posting.post("https://hooks.acme.com/", headers={}, body=b"{}").error
    assert made == []


def test_a_name_that_changes_behind_the_check_leads_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """DNS rebinding: it is asked once, and the connection goes to what was said then."""
    asked = resolves(monkeypatch, ["8.8.8.8"], ["127.0.0.1"])
    made = connects(monkeypatch)
    assert "no way there" in posting.post("https://hooks.acme.com/", headers={}, body=b"{}").error
    assert (asked, made) == (["hooks.acme.com"], [("8.8.8.8", 443)])
    # The next attempt asks anew, and is refused.
    assert "public addresses only" in posting.post("https://hooks.acme.com/", headers={}, body=b"{}").error
    assert made == [("8.8.8.8", 443)]


def test_all_addresses_of_a_name_are_tried_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    resolves(monkeypatch, ["2606:4700::1", "8.8.8.8"])
    made = connects(monkeypatch)
    posting.post("https://hooks.acme.com:8443/", headers={}, body=b"{}")
    assert made == [("2606:4700::1", 8443), ("8.8.8.8", 8443)]


@pytest.mark.parametrize("host", ["2130706433", "0x7f.1", "0177.0.0.1", "127.1", "localhost"])
def test_what_the_systems_own_resolver_takes_for_this_machine_is_refused_at_the_attempt_too(
    receiver: Receiver, settings: Any, host: str
) -> None:
    """Should such an address ever have been kept."""
    settings.OCTAVO_WEBHOOK_ALLOW = []
    outcome = posting.post(f"http://{host}:{receiver.port}/", headers={}, body=b"{}")
    assert outcome.status is None
    assert outcome.error
    assert receiver.got == []


def test_a_name_without_an_address_is_said_to_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def getaddrinfo(*args: Any, **kwargs: Any) -> Any:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    assert (
        posting.post("https://gone.acme.com/", headers={}, body=b"").error == "There is no address for gone.acme.com."
    )
