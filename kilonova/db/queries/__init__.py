"""SQL statements on the databases: each module holds those of one table or one subject.

Functions take a connection as first argument, then plain values, and return dicts or lists of dicts. The caller decides
about the transaction. A function opens one itself only if it takes ``Database``, ``Databases`` or ``Cells``.
"""
