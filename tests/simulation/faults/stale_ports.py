"""A server moves and comes back with the devices of those ports that its stored request names: of its create, or of its
last move.

The simulator should see servers that aren't unshelved once such a port was attached or detached.
"""

from __future__ import annotations

from typing import Any

from kilonova.api.services import resize
from kilonova.pci import ports as pci_ports
from tests.simulation.faults import replace


def install() -> None:
    """See the module."""
    stored: dict[str, Any] = {}

    def stored_spec(backend: Any, ctxt: Any, instance: Any, image: dict[str, Any]) -> Any:
        found = stored[instance.uuid] = real(backend, ctxt, instance, image)
        return found

    def requests_of_ports(instance: Any) -> list[Any]:
        return list(pci_ports.requests_of_ports(stored[instance.uuid].pci_requests))

    real = replace(resize, 'stored_spec', stored_spec)
    replace(resize, 'requests_of_ports', requests_of_ports)
