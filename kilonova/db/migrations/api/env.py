"""Alembic's environment for the API schema. It runs revisions on the connection of ``kilonova.db.migration``."""

from __future__ import annotations

from alembic import context

from kilonova.db.models import api

context.configure(
    connection=context.config.attributes['connection'],
    target_metadata=api.Base.metadata,
    # Let alembic copy a table to alter it, because SQLite supports only few kinds of ALTER TABLE.
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
