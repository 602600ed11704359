"""Parts of ``virt.fake``, one for each protocol in ``virt.parts``; all use the same ``state``."""
