"""The programs of Kilonova: daemons and command-line tools. No other package imports this one.

A daemon chooses between eventlet and threads before anything else is imported (``early``). The programs therefore
import most modules inside functions.
"""
