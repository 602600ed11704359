"""Handlers, one file a resource: what a request says → a use case → a body. Policy and schema were checked before."""
