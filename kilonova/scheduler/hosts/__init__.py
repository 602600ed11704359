"""The hosts as the scheduler sees them: arrays in memory, read from the databases of the cells."""
