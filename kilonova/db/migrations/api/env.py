"""Alembic's environment for the API schema. It runs revisions on the connection of ``kilonova.db.migration``."""

from __future__ import annotations

from alembic import context

from kilonova.db.models import api

context.configure(
    connection=context.config.attributes['connection'],
    target_metadata=api.Base.metadata,
    # SQLite can alter a table only by copying it.
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
