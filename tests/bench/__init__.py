"""Measurements of the one-machine cloud; they print and hold nothing, as times depend on the machine."""
