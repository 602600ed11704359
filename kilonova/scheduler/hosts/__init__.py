"""The hosts that the scheduler knows: arrays in memory, which are filled from the databases of the cells."""
