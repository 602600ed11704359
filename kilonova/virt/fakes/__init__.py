"""Parts of the fake driver, one for each protocol in ``virt.parts``. All parts of a driver share one ``FakeState``."""
