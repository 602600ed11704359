"""The whole cloud in one process under virtual time: one seed, one run.

    python -m tests.simulation --seeds 1-100            # make simulate SEEDS=1-100
    python -m tests.simulation --seeds 17 --log         # one seed again, with the daemons' logs

See docs/contributor/simulation.md. ``nursery`` runs seeds, ``timeline`` is the clock and who runs next, ``bus``,
``stores`` and ``hosts`` are what the daemons talk to, ``cloud`` puts them together, ``story`` and ``plots`` make what
users do and what breaks, ``checks`` and ``prompt`` say what must hold, ``shrink`` makes a failing story small.
"""
