"""A database backend: Django's PostgreSQL with row-level security that follows chatapp.scope."""
