"""``Reports``, which writes the reports by which many hosts say that they are up, in one transaction.

``rpc.reports.Collector`` receives the reports, and ``manager.ConductorManager`` connects it with ``Reports``:

    reports = Reports(databases, compute, service_down_time=60)
    reports.write({17: 'gpu1', 18: 'gpu2'})         # service id: host

A host that counts as down when its report arrives must report by an RPC call, and is sent a message that says so.
"""

from __future__ import annotations

from kilonova.context import get_admin_context
from kilonova.db.engine import Databases
from kilonova.db.queries import services
from kilonova.rpc.interface import Client


class Reports:
    """Writes the reports, by which hosts say that they are up, to the cell database.

    ``compute`` is the RPC client for computes. Its RPC version is not pinned to that of the oldest host, because each
    host that sends such reports understands the message ``report_again``, the only one that is sent here.
    """

    def __init__(self, databases: Databases, compute: Client, service_down_time: float) -> None:
        self._databases, self._compute, self._down_time = databases, compute, service_down_time

    def write(self, reports: dict[int, str]) -> None:
        """Write the reports of hosts in one transaction. ``reports`` is a dict from service id to host.

        A report is not written if its host counts as down or its service record is deleted, because the report may have
        waited in the message queue while the host died. Instead, the host gets the RPC message ``report_again``. If it
        is up, it then reports by an RPC call. The reply to this call tells the host what it must check.
        """
        with self._databases.main().write() as conn:
            silent = services.report_together(conn, list(reports), self._down_time)
        for service_id, host in reports.items():
            if silent.get(service_id, True):
                self._compute.report_again(get_admin_context(), server=host)
