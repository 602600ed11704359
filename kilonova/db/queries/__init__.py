"""One file a table or noun. Functions take a connection first, plain values after it, and return dicts or
lists of them.

Who calls decides about the transaction; nothing here opens one, except where a function takes ``Databases``
or ``Cells``.
"""
