"""What is installed is listed whole, under licences that we take; what nobody could look up is never called fine."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from ops import vendor
from ops.lock import pinned
from ops.setup import MODEL_SHA256, REQUIREMENTS
from ops.supply import __main__ as command
from ops.supply import audit, bom, licences
from ops.supply.parts import Part, everything


@pytest.fixture(scope="module")
def parts() -> list[Part]:
    return everything()


def part(licence: str | tuple[str, ...], name: str = "thing") -> Part:
    return Part("python", name, "1.0", (licence,) if isinstance(licence, str) else licence, served=True)


def test_every_locked_package_every_served_library_and_the_model_are_parts(parts: list[Part]) -> None:
    found = {(one.kind, one.name): one for one in parts}
    for name, version in pinned(REQUIREMENTS / "lock.txt").items():
        assert found["python", name].version == version
        assert found["python", name].served
        assert found["python", name].hashes
    for name in pinned(REQUIREMENTS / "lock-dev.txt"):
        assert not found["python", name].served
    assert found["python", "torch"].served
    for path in vendor.FILES.values():
        name = "/".join(path.split("/")[: 2 if path.startswith("@") else 1])
        assert found["browser", name].served
        assert found["browser", name].hashes[0][0] == "sha512"
    assert ("sha256", MODEL_SHA256) in next(one.hashes for one in parts if one.kind == "model")


def test_all_that_we_install_is_under_licences_that_we_take(parts: list[Part]) -> None:
    assert licences.refused(parts) == []
    assert command.main(["licences"]) == 0


@pytest.mark.parametrize(
    ("said", "taken"),
    [
        ("MIT", True),
        ("BSD License", True),
        ("(MPL-2.0 OR Apache-2.0)", True),
        ("MPL-2.0 AND MIT", False),
        ("GPL-3.0-or-later", False),
        ("AGPL-3.0-only", False),
        ("GPL-2.0-only OR MIT", True),
        ("Apache-2.0 WITH LLVM-exception", True),
        ("Apache-2.0 AND GPL-3.0-only WITH GCC-exception-3.1", False),
        ("Free for universities", False),
        ((), False),
        (("MIT License", "GNU General Public License v3 (GPLv3)"), False),
        (("MIT OR GPL-2.0-only", "BSD License"), True),
        (("LGPL-3.0-only OR GPL-2.0-only", "MIT"), False),
    ],
)
def test_a_licence_is_taken_only_where_each_word_of_it_is(said: Any, taken: bool) -> None:
    assert licences.allowed(licences.expression(part(said))) is taken


def test_a_part_that_is_refused_is_named_and_fails_the_check(
    parts: list[Part], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "everything", lambda: [*parts, part("AGPL-3.0-only"), part("nobody knows", "odd")])
    assert command.main(["licences"]) == 1
    said = capsys.readouterr().err.splitlines()
    assert said == [
        "thing 1.0: AGPL-3.0-only is not among the licences that we take.",
        "odd 1.0: NOASSERTION (it says nobody knows) is not among the licences that we take.",
    ]


def test_an_exception_that_nothing_needs_is_refused(parts: list[Part]) -> None:
    without = [one for one in parts if one.name != "psycopg"]
    assert licences.refused(without) == ["psycopg needs no exception any more: take it out of ops/supply/licences.py."]


def test_the_bill_of_materials_is_valid_cyclonedx_and_whole(parts: list[Part]) -> None:
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    text = bom.document(parts)
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    data = json.loads(text)
    assert len(data["components"]) == len(parts)
    found = {one["purl"]: one for one in data["components"]}
    django = next(one for purl, one in found.items() if purl.startswith("pkg:pypi/django@"))
    assert django["licenses"] == [{"license": {"id": "BSD-3-Clause"}}]
    assert django["scope"] == "required"
    assert django["externalReferences"][0]["hashes"]
    assert next(one for purl, one in found.items() if purl.startswith("pkg:pypi/pytest@"))["scope"] == "excluded"
    (model,) = (one for one in data["components"] if one["type"] == "machine-learning-model")
    assert model["hashes"] == [{"alg": "SHA-256", "content": MODEL_SHA256}]
    needs = {one["ref"]: one.get("dependsOn", []) for one in data["dependencies"]}
    assert any(ref.startswith("pkg:pypi/sqlparse@") for ref in needs[django["purl"]])


@contextmanager
def database(answer: Callable[[str, Any], tuple[int, Any]]) -> Iterator[str]:
    """A server that answers POSTs: (path, body) -> (status, answer)."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if self.headers.get("Content-Encoding") == "gzip":
                import gzip

                body = gzip.decompress(body)
            status, said = answer(self.path, json.loads(body))
            data = json.dumps(said).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def test_what_pip_audit_finds_is_told_with_where_it_is_mended(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real pip-audit, asking a database of our own in OSV's form."""
    known = {
        "id": "PYSEC-2026-1",
        "aliases": ["CVE-2026-1"],
        "modified": "2026-01-01T00:00:00Z",
        "affected": [
            {
                "package": {"name": "thing", "ecosystem": "PyPI"},
                "ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "1.1"}]}],
                "versions": ["1.0"],
            }
        ],
    }

    def answer(path: str, body: Any) -> tuple[int, Any]:
        return 200, {"vulns": [known]} if body["package"]["name"] == "thing" else {}

    monkeypatch.setattr(audit, "SERVICES", ("osv",))
    with database(answer) as url:
        report = audit.python([part("MIT"), part("MIT", "other")], "--osv-url", url)
    assert report.lines() == [
        "Python packages: thing 1.0: PYSEC-2026-1, CVE-2026-1; mended in 1.1",
        "Python packages: 2 checked, 1 known against them.",
    ]


def test_a_database_that_cannot_be_reached_is_not_checked_and_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "SERVICES", ("osv",))
    report = audit.python([part("MIT")], "--osv-url", "http://127.0.0.1:1/query")
    assert (report.checked, report.found) == (0, [])
    assert report.lines() == ["Python packages: NOT CHECKED: none of 1 (the database cannot be reached)"]


def test_packages_that_the_database_does_not_know_are_not_checked() -> None:
    """What pip-audit 2.10 says, which ends with status 0."""
    skipped = {"name": "thing", "skip_reason": "Dependency not found on PyPI and could not be audited: thing (1.0)"}
    fine = {"name": "other", "version": "1.0", "vulns": []}
    none = audit.read_pip_audit({"dependencies": [skipped]}, "", 1)
    assert (none.checked, len(none.unchecked)) == (0, 1)
    some = audit.read_pip_audit({"dependencies": [skipped, fine]}, "", 2)
    assert some.lines() == [
        "Python packages: 1 checked, nothing known against them.",
        f"Python packages: NOT CHECKED: thing ({skipped['skip_reason']})",
    ]


needs_npm = pytest.mark.skipif(not shutil.which("npm"), reason="there is no npm")


@needs_npm
def test_what_npm_audit_finds_is_told(parts: list[Part]) -> None:
    """The real npm, asking a registry of our own."""
    about = {
        "id": 1, "url": "https://example.org/1", "title": "Scripts run", "severity": "high",
        "vulnerable_versions": "<99.0.0", "cwe": [], "cvss": {"score": 0, "vectorString": None},
    }  # fmt: skip

    def answer(path: str, body: Any) -> tuple[int, Any]:
        assert path == "/-/npm/v1/security/advisories/bulk"
        assert body["dompurify"]
        return 200, {"dompurify": [about]}

    with database(answer) as url:
        report = audit.browser(parts, f"--registry={url}")
    assert report.found == ["dompurify: Scripts run (high, <99.0.0)"]
    assert report.checked == sum(one.kind == "browser" for one in parts)


@needs_npm
def test_a_registry_that_refuses_is_not_checked(parts: list[Part]) -> None:
    with database(lambda path, body: (405, {"error": "no"})) as url:
        report = audit.browser(parts, f"--registry={url}")
    (line,) = report.lines()
    assert line.startswith("Browser libraries: NOT CHECKED: none of ")
    assert report.found == []


def test_make_supply_fails_for_what_is_found_and_not_for_what_is_not_checked(
    parts: list[Part], tmp_path: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "everything", lambda: parts)
    nothing = audit.Report("Browser libraries", unchecked=["none of 16 (no network)"])
    bad = audit.Report("Python packages", checked=1, found=["thing 1.0: CVE-2026-1; mended in 1.1"])
    monkeypatch.setattr(audit, "browser", lambda parts: nothing)
    monkeypatch.setattr(audit, "python", lambda parts: nothing)
    assert command.main([str(tmp_path / "out")]) == 0
    assert "NOT CHECKED" in (tmp_path / "out" / "audit.txt").read_text()
    assert "NOT CHECKED" in capsys.readouterr().out
    monkeypatch.setattr(audit, "python", lambda parts: bad)
    assert command.main([str(tmp_path / "out")]) == 1
    assert "CVE-2026-1" in (tmp_path / "out" / "audit.txt").read_text()
    assert "| psycopg (python) |" in (tmp_path / "out" / "licences.md").read_text()
    assert json.loads((tmp_path / "out" / "octavo.cdx.json").read_text())["bomFormat"] == "CycloneDX"


def test_a_folder_that_cannot_be_written_to_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "everything", list)
    assert command.main(["/proc/nowhere"]) == 1
    assert capsys.readouterr().err.startswith("Nothing can be written to /proc/nowhere: No such file")


def test_every_browser_library_is_installed_by_the_hash_of_its_files() -> None:
    """npm ci refuses what does not fit; this holds the lock to having one for each."""
    packages = json.loads((vendor.ROOT / "package-lock.json").read_text())["packages"]
    assert all(about["integrity"].startswith("sha512-") for path, about in packages.items() if path)
