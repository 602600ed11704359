"""The programs of Kilonova: daemons and command-line tools.

Outside of this package, only ``kilonova.wsgi`` imports it. A daemon must choose between eventlet and threads before it
imports anything else (``early``). So the programs import most modules inside functions.
"""
