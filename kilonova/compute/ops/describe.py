"""What really is on this host, for the audit and for administrators."""
from __future__ import annotations

from typing import Any

from kilonova.compute.dispatch import answer
from kilonova.compute.host import Host
from kilonova.rpc.compute import Compute


@answer(Compute.describe_host)
def describe(host: Host, ctxt: Any) -> dict[str, Any]:
    """Domains with their devices, the servers' directories, and which devices that servers hold are not here any
    more."""
    held = sorted(address for addresses in host.tracker.ledger.owners().values() for address in addresses)
    return {'missing_devices': host.driver.missing_devices(held), 'host': host.name, 'node': host.tracker.nodename,
            'instances_path': host.conf.instances_path, 'domains': host.driver.describe(),
            'directories': host.driver.list_directories()}


@answer(Compute.get_host_uptime)
def uptime(host: Host, ctxt: Any) -> str | None:
    """What uptime(1) says here; None: the driver can't tell."""
    return host.driver.uptime()
