"""The programs of Kilonova: daemons and command-line tools.

Only ``kilonova.wsgi`` imports this package from outside. A daemon chooses between eventlet and threads before anything
else is imported (``early``). The programs therefore import most modules inside functions.
"""
