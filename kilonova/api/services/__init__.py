"""Implement the operations of the compute API: checks, decisions and the requests to conductors.

A module is here if several resources or daemons use it, or if it is too long for the file of its resource in
``api/v2``. The modules contain neither HTTP nor SQL. Most functions take the ``Backend`` first and the request context
second.
"""
