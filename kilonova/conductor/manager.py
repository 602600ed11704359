"""The conductor: objects' remote calls, hosts' claims and saves, and the wake-up calls of compute tasks.

    manager = ConductorManager(conf, transport=transport, databases=databases, cells=cells, scheduler=…, compute=…,
                               placement=…, images=…)
    manager.start()

No handler runs a flow: each only wakes the runner (operations.md rule 5).
"""
from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from oslo_config import cfg

from kilonova.accel.client import AcceleratorClient
from kilonova.clients.image import ImageClient
from kilonova.clients.network import NetworkClient
from kilonova.clients.placement import PlacementClient
from kilonova.clients.volume import VolumeClient
from kilonova.conductor.environment import Environment
from kilonova.conductor.expiry import Expiry
from kilonova.conductor.flows import ports
from kilonova.conductor.indirection import ObjectCalls
from kilonova.conductor.reports import Reports
from kilonova.conductor.runner import Runner
from kilonova.context import RequestContext, get_admin_context
from kilonova.db import engine
from kilonova.db.engine import Databases
from kilonova.db.queries import claims, group_claims, resumes
from kilonova.db.queries.cells import Cells
from kilonova.objects import Claim, Save
from kilonova.rpc.baseapi import ping
from kilonova.rpc.compute import Compute
from kilonova.rpc.conductor import ComputeTask, Conductor
from kilonova.rpc.interface import Client, Server
from kilonova.rpc.notify import OFF, Notifications
from kilonova.rpc.reports import PERIOD, Broker, Collector

LOG = logging.getLogger(__name__)


class ConductorEndpoint(ObjectCalls):
    """``rpc.conductor.Conductor``: what computes call. Every call works in the cell of this conductor; a database that
    is silent makes the conductor silent, so that hosts ask again and undo nothing (operations.md rules 13 and 16)."""

    def __init__(self, databases: Databases, cells: Cells, networks: NetworkClient | None = None) -> None:
        super().__init__(databases)
        self._own, self._cells, self._networks = databases, cells, networks

    @engine.silence()
    def check_key(self, ctxt: RequestContext, key: str, undo: bool, host: str) -> Any:
        """KeyGone when no operation stands at the key, or, for an ``undo``, is being undone there."""
        with self._own.main().read() as conn:
            claims.check(conn, key, undo, host)
        return {}

    @engine.silence()
    def claim_instance(self, ctxt: RequestContext, claim: Claim) -> Any:
        request = claims.Claim(**claim.primitive_data())
        if request.group:
            return group_claims.claim(self._own.api(), self._cells, self._own.main(), request,
                                      request.group)
        return claims.claim(self._own.main(), request)

    @engine.silence()
    def save_instance(self, ctxt: RequestContext, save: Save) -> Any:
        return claims.save(self._own.main(), claims.Save(**{'request_id': ctxt.request_id, **save.primitive_data()}))

    @engine.silence()
    def bind_ports(self, ctxt: RequestContext, key: str, instance_uuid: str, host: str,
                   profiles: dict[str, dict[str, Any]]) -> Any:
        """See ``flows.ports.bind_devices``."""
        return ports.bind_devices(self._networks, self._own.main(), key, instance_uuid, host, profiles)

    @engine.silence()
    def resume_later(self, ctxt: RequestContext, host: str, reasons: dict[str, str], is_off: bool) -> Any:
        """See ``queries.resumes.plan``."""
        resumes.plan(self._own.main(), ctxt, host, reasons, is_off)
        return {}


class ComputeTaskEndpoint:
    """``rpc.conductor.ComputeTask``: each method wakes the runner for the row that says what to do."""

    def __init__(self, runner: Runner, databases: Databases) -> None:
        self._runner, self._databases = runner, databases

    def schedule_and_build_instances(self, ctxt: RequestContext, operations: Sequence[str]) -> Any:
        """These rows wait in the api database, and are taken together."""
        self._runner.wake(self._databases.api(), operations, fresh=True)

    def run_operation(self, ctxt: RequestContext, operation: str) -> Any:
        """The row is in one of the cells, most often the main one; the runner looks further when it isn't there."""
        self._runner.wake(self._databases.main(), [operation], urgent=False)

    migrate_server = live_migrate_instance = confirm_resize = revert_resize = rebuild_instance = run_operation

    def terminate_instance(self, ctxt: RequestContext, operation: str) -> Any:
        """As the others, before them."""
        self._runner.wake(self._databases.main(), [operation], urgent=True)


class ConductorManager:
    """Builds and runs what a conductor process is made of. ``broker``: where hosts report together."""

    def __init__(self, conf: cfg.ConfigOpts, *, transport: Server, databases: Databases, cells: Cells,
                 scheduler: Client, compute: Client, placement: PlacementClient, images: ImageClient,
                 accelerators: AcceleratorClient | None = None, networks: NetworkClient | None = None,
                 volumes: VolumeClient | None = None, notify: Notifications = OFF,
                 broker: Broker | None = None) -> None:
        self._transport, self._host = transport, conf.host
        self.env = Environment(conf=conf, databases=databases, cells=cells, scheduler=scheduler, compute=compute,
                               placement=placement, images=images, max_attempts=conf.scheduler.max_attempts,
                               ping=lambda: ping(transport, 'conductor', conf.host, get_admin_context()),
                               host=conf.host, accelerators=accelerators, networks=networks, volumes=volumes,
                               notify=notify)
        self.runner = Runner(self.env, slots=conf.conductor.flow_slots,
                             slots_per_host=conf.conductor.flow_slots_per_host,
                             lease_time=conf.conductor.lease_time, sweep_interval=conf.conductor.sweep_interval,
                             host=conf.host)
        self.expiry = Expiry(self.env, conf)
        self.endpoint = ConductorEndpoint(databases, cells, networks)
        self.tasks = ComputeTaskEndpoint(self.runner, databases)
        self.reports = Reports(databases, Client(Compute, transport), conf.service_down_time)
        self._collector = Collector(
            broker, self.reports.write, min(PERIOD, conf.report_interval)) if broker else None
        self._server: Any = None

    def start(self) -> None:
        """Serve, then look for rows that a predecessor left."""
        self.runner.start()
        self._server = self._transport.serve('conductor', self._host,
                                             [(Conductor, self.endpoint), (ComputeTask, self.tasks)])
        self._server.start()
        if self._collector is not None:
            self._collector.start()
        self.expiry.start()

    def stop(self, timeout: float = 30.0) -> None:
        """Start no more work, let what is under way end, give the rows free; then stop taking messages: the hosts that
        work for us claim and save here."""
        self.expiry.stop()
        self.runner.stop(timeout)
        if self._collector is not None:
            self._collector.stop()
        if self._server is not None:
            self._server.stop()
            self._server.wait()
