"""Hosts that report: their rows are written together, and who counts as down is told so.

    reports = Reports(databases, compute, service_down_time=60)
    reports.write({17: 'gpu1', 18: 'gpu2'})         # service id: host
"""
from __future__ import annotations

from kilonova.context import get_admin_context
from kilonova.db.engine import Databases
from kilonova.db.queries import services
from kilonova.rpc.interface import Client


class Reports:
    """``compute``: a client of ``rpc.compute.Compute`` without a cap: who sends such reports understands what is said
    here."""

    def __init__(self, databases: Databases, compute: Client, service_down_time: float) -> None:
        self._databases, self._compute, self._down_time = databases, compute, service_down_time

    def write(self, reports: dict[int, str]) -> None:
        """One transaction. A host that counts as down, or whose record is gone, is asked to report by a call: its
        report may have waited in the queue, or here, for longer than the host has lived, and by the answer to a call
        it knows what it must look at."""
        with self._databases.main().write() as conn:
            silent = services.report_together(conn, list(reports), self._down_time)
        for service_id, host in reports.items():
            if silent.get(service_id, True):
                self._compute.report_again(get_admin_context(), server=host)
