"""The database itself refuses to change or delete entries; only those of a tenant that is being purged may go."""

from __future__ import annotations

from typing import Any

from django.db import migrations

POSTGRESQL = """
CREATE FUNCTION audit_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' AND EXISTS (SELECT 1 FROM audit_auditpurge WHERE tenant_id = OLD.tenant_id) THEN
        RETURN OLD;
    END IF;
    RAISE EXCEPTION 'the audit log is append-only';
END $$;
CREATE TRIGGER audit_append_only BEFORE UPDATE OR DELETE ON audit_auditentry
    FOR EACH ROW EXECUTE FUNCTION audit_append_only();
"""

SQLITE = (
    """
    CREATE TRIGGER audit_no_update BEFORE UPDATE ON audit_auditentry
    BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END
    """,
    """
    CREATE TRIGGER audit_no_delete BEFORE DELETE ON audit_auditentry
    WHEN NOT EXISTS (SELECT 1 FROM audit_auditpurge WHERE tenant_id = OLD.tenant_id)
    BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END
    """,
)


def guard(apps: Any, editor: Any) -> None:
    for statement in [POSTGRESQL] if editor.connection.vendor == "postgresql" else SQLITE:
        editor.execute(statement)


def unguard(apps: Any, editor: Any) -> None:
    if editor.connection.vendor == "postgresql":
        editor.execute("DROP TRIGGER audit_append_only ON audit_auditentry; DROP FUNCTION audit_append_only();")
        return
    for name in ("audit_no_update", "audit_no_delete"):
        editor.execute(f"DROP TRIGGER {name}")


class Migration(migrations.Migration):
    dependencies = [("audit", "0001_initial")]
    operations = [migrations.RunPython(guard, unguard)]
