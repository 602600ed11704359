"""Nouns of Kilonova's own API, below /kilonova/v1, made as those of ``api.v2`` are. There are no microversions: fields
are added, and none is taken away.
"""
