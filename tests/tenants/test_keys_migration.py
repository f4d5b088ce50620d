"""Keys of an earlier version's data folder keep their rights, and keys in use with one name get two."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TENANT = "1" * 32


def migrate(data: Path, *to: str) -> None:
    env = {name: value for name, value in os.environ.items() if name != "DATABASE_URL"}
    subprocess.run(
        [sys.executable, "manage.py", "migrate", "-v", "0", *to, "--settings", "chatapp.settings.local"],
        cwd=ROOT,
        env={**env, "OCTAVO_DATA": str(data)},
        check=True,
        timeout=120,
    )


@pytest.mark.long
def test_rights_become_scopes_and_names_are_told_apart(tmp_path: Path) -> None:
    migrate(tmp_path, "tenants", "0002")
    keys = [("Site", 1, None), ("site", 0, None), ("Site (2)", 0, None), ("Site", 0, None), ("Site", 0, "2026-01-01")]
    with contextlib.closing(sqlite3.connect(tmp_path / "db.sqlite3")) as database, database:
        database.execute(
            "INSERT INTO tenants_tenant (id, slug, name, accent, salt, default_model, weight, max_output_tokens,"
            " max_queued, created_at) VALUES (?, 'acme', 'Acme', 'teal', 'x', '', 1, 1, 1, '2026-01-01')",
            (TENANT,),
        )
        for number, (name, own, revoked) in enumerate(keys):
            database.execute(
                "INSERT INTO tenants_apikey (id, tenant_id, name, prefix, hash, salt, own_system_message, created_at,"
                " revoked_at) VALUES (?, ?, ?, 'octv_abcd', ?, 'x', ?, ?, ?)",
                (f"{number:032}", TENANT, name, str(number), own, f"2026-01-01 00:00:0{number}", revoked),
            )
    migrate(tmp_path)
    with contextlib.closing(sqlite3.connect(tmp_path / "db.sqlite3")) as database:
        rows = database.execute("SELECT name, scopes FROM tenants_apikey ORDER BY id").fetchall()
    assert [name for name, _ in rows] == ["Site", "site (2)", "Site (2) (2)", "Site (3)", "Site"]
    assert [json.loads(scopes) for _, scopes in rows] == [["chat", "system"], *[["chat"]] * 4]
