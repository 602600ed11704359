"""SQL statements on the databases: each module has the statements of one table or one subject.

Functions take a connection as first argument, then plain values, and return dicts or lists of dicts. The caller opens
and commits the transaction. A function opens a transaction itself only if it takes ``Database``, ``Databases`` or
``CellDatabases``.
"""
