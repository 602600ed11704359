"""The parts of ``virt.fake``, by the subjects of ``virt.parts``, on one ``state``."""
