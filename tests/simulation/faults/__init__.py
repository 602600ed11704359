"""Faults put back: each module replaces a function of Kilonova by one that is wrong, for the simulator to find.

    python -m tests.simulation --fault lost_undo --seeds 1-200

A module has ``install()``, which patches, and says in its docstring what is wrong and what the simulator should see.
"""
