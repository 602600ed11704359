"""One sort order of texts for all databases.

    select(...).order_by(by_code_point(instances.c.display_name))

Rows of several cells are merged in Python, where texts are compared by code points. SQLite and the MySQL tables
(utf8mb4_bin) compare texts in the same way. PostgreSQL compares texts by the locale with which its database was
created, unless a collation is given.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql import expression
from sqlalchemy.sql.compiler import SQLCompiler


class by_code_point(expression.FunctionElement[str]):  # noqa: N801 - it reads as a function
    """An SQL expression for a text column that every database compares and sorts by code points."""

    type = sa.String()
    inherit_cache = True
    name = 'by_code_point'


@compiles(by_code_point)
def _plain(element: by_code_point, compiler: SQLCompiler, **options: Any) -> str:
    return compiler.process(element.clauses, **options)


@compiles(by_code_point, 'postgresql')
def _collated(element: by_code_point, compiler: SQLCompiler, **options: Any) -> str:
    return f'({compiler.process(element.clauses, **options)} COLLATE "C")'
