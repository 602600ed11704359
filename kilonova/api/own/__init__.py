"""Resources of Kilonova's own API, below /kilonova/v1, in the same form as the modules of ``api.v2``.

This API has no microversions. Fields may be added, but none is removed.
"""
