"""PostgreSQL that knows whose rows the running code may touch.

Before a statement the connection's settings `octavo.tenant` and `octavo.all` are made to say what chatapp.scope says;
the policies (chatapp.postgresql.policies) read them. They are sent only when the scope has changed since the last
statement. A session's settings must stay with its client: in front of this a pooler has to pool sessions.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db.backends.postgresql import base, schema

from chatapp import scope

SEES_ALL = ("", "on")


def _settings() -> tuple[str, str]:
    """(octavo.tenant, octavo.all) of the current scope; without one, nobody's rows."""
    current = scope.current()
    if current is None:
        return ("", "")
    return SEES_ALL if current.tenant is None else (str(current.tenant), "")


class SchemaEditor(schema.DatabaseSchemaEditor):
    """Migrations change rows of all tenants. They use models of their own, which know no scope."""

    def __enter__(self) -> Any:
        self.connection.sees_all += 1  # type: ignore[attr-defined]
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        try:
            super().__exit__(*error)
        finally:
            self.connection.sees_all -= 1  # type: ignore[attr-defined]


class DatabaseWrapper(base.DatabaseWrapper):
    SchemaEditorClass = SchemaEditor

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.sees_all = 0  # open schema editors
        self._said: tuple[str, str] | None = None  # what the server has been told, None: unknown
        self._silent = False

    def get_new_connection(self, parameters: Any) -> Any:
        self._said = None
        return super().get_new_connection(parameters)

    def _cursor(self, name: str | None = None) -> Any:
        cursor = super()._cursor(name)  # type: ignore[misc]
        if not self._silent:
            self._say_scope()
        return cursor

    def _say_scope(self) -> None:
        wanted = SEES_ALL if self.sees_all else _settings()
        if wanted == self._said:
            return
        assert self.connection is not None
        with self.connection.cursor() as plain:
            plain.execute("SELECT set_config('octavo.tenant', %s, false), set_config('octavo.all', %s, false)", wanted)
        self._said = wanted

    def _rollback(self) -> None:
        self._said = None  # what was set within the transaction is undone with it
        super()._rollback()  # type: ignore[misc]

    def _savepoint_rollback(self, sid: str) -> None:
        with self._without_saying():  # a failed transaction takes no other statement before this one
            super()._savepoint_rollback(sid)  # type: ignore[misc]
        self._said = None

    def close(self) -> None:
        self._said = None
        super().close()

    @contextmanager
    def _without_saying(self) -> Iterator[None]:
        self._silent = True
        try:
            yield
        finally:
            self._silent = False
