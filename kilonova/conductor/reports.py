"""``Reports``, which writes the reports of many hosts together.

``manager.ConductorManager`` passes it what ``rpc.reports.Collector`` has received:

    reports = Reports(databases, compute, service_down_time=60)
    reports.write({17: 'gpu1', 18: 'gpu2'})         # service id: host

A host that counted as down when its report arrived is sent a message, so that it reports by an RPC call.
"""

from __future__ import annotations

from kilonova.context import get_admin_context
from kilonova.db.engine import Databases
from kilonova.db.queries import services
from kilonova.rpc.interface import Client


class Reports:
    """Writes the reports of hosts to the database.

    ``compute`` is a client of ``rpc.compute.Compute`` without a version cap: each host that sends such reports
    understands the message that is sent here.
    """

    def __init__(self, databases: Databases, compute: Client, service_down_time: float) -> None:
        self._databases, self._compute, self._down_time = databases, compute, service_down_time

    def write(self, reports: dict[int, str]) -> None:
        """Write the reports of these hosts in one transaction.

        A host that counts as down, or whose service record is gone, is not written. It is sent ``report_again``, so
        that it reports by an RPC call: its report may have waited in the queue, or here, after the host itself had
        died. The reply to the call tells the host what it must check.
        """
        with self._databases.main().write() as conn:
            silent = services.report_together(conn, list(reports), self._down_time)
        for service_id, host in reports.items():
            if silent.get(service_id, True):
                self._compute.report_again(get_admin_context(), server=host)
