"""How alembic runs the revisions: over the connection that ``kilonova.db.migration`` hands in."""
from __future__ import annotations

from alembic import context

from kilonova.db.models import cell

context.configure(connection=context.config.attributes['connection'], target_metadata=cell.Base.metadata,
                  # SQLite alters a table by copying it.
                  render_as_batch=True)
with context.begin_transaction():
    context.run_migrations()
