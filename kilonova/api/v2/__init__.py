"""Nouns, a file each: rules, what may be said (schemas), what is shown, handlers, routes.

A handler is called when schema, server and rule were checked; it returns a body. ``routes`` puts the nouns together.
"""
