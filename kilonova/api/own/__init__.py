"""Resources of Kilonova's own API, below /kilonova/v1. The modules have the same form as the modules of ``api.v2``.

Kilonova's own API has no microversions. Later releases may add fields, but remove none.
"""
