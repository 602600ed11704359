"""The programs: parse, build, serve. Nothing else imports this package.

The choice of eventlet or threads falls before anything is imported (``early``), so the programs import what they are
made of inside their functions.
"""
