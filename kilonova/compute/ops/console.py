"""What a guest wrote to its serial console."""
from __future__ import annotations

from kilonova import objects
from kilonova.compute.host import Host

# Control characters that text may hold; a guest writes others to colour a terminal, and JSON readers choke on them.
_KEPT = frozenset('\t\n\r')


def output(host: Host, instance: objects.Instance, lines: int | None) -> str:
    """The last ``lines`` of it (None: all that the driver keeps). ConsoleNotAvailable (404) where it can't be read."""
    text = ''.join(char for char in host.driver.get_console_output(instance) if char >= ' ' or char in _KEPT)
    if lines is None:
        return text
    return '\n'.join(text.split('\n')[-lines:]) if lines else ''
