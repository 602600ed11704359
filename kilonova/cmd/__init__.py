"""The programs of Kilonova: daemons and command-line tools.

Only ``kilonova.wsgi`` imports this package from outside. A daemon must choose between eventlet and threads before it
imports anything else (``early``). So the programs import most modules inside functions.
"""
