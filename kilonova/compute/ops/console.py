"""What a guest wrote to its serial console."""
from __future__ import annotations

from typing import Any

from kilonova import objects
from kilonova.compute.dispatch import answer
from kilonova.compute.host import Host
from kilonova.rpc.compute import Compute

# Control characters that text may hold; a guest writes others to colour a terminal, and JSON readers choke on them.
_KEPT = frozenset('\t\n\r')


@answer(Compute.get_console_output)
def output(host: Host, ctxt: Any, instance: objects.Instance, tail_length: int | None) -> str:
    """The last ``tail_length`` lines of it (None: all that the driver keeps). ConsoleNotAvailable (404) where there is
    none to read."""
    text = ''.join(char for char in host.driver.get_console_output(instance) if char >= ' ' or char in _KEPT)
    if tail_length is None:
        return text
    return '\n'.join(text.split('\n')[-tail_length:]) if tail_length else ''
