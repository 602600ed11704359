"""The conductor's RPC endpoints, and ``ConductorManager``, which builds and runs the parts of a conductor process.

    manager = ConductorManager(conf, transport=transport, databases=databases, cells=cells, scheduler=…, compute=…,
                               placement=…, images=…)
    manager.start()

Hosts call the endpoints to read and write objects, to claim resources and to save results. The API and other daemons
send casts for new operation rows. No handler runs the steps of an operation itself: worker threads do this
(operations.md, rule 5).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from oslo_config import cfg
from oslo_log import log as logging

from kilonova.accel.client import AcceleratorClient
from kilonova.clients.image import ImageClient
from kilonova.clients.network import NetworkClient
from kilonova.clients.placement import PlacementClient
from kilonova.clients.volume import VolumeClient
from kilonova.conductor.environment import Environment
from kilonova.conductor.expiry import Expiry
from kilonova.conductor.flows.network import ports
from kilonova.conductor.indirection import ObjectCalls
from kilonova.conductor.reports import Reports
from kilonova.conductor.runner import Runner
from kilonova.context import RequestContext, get_admin_context
from kilonova.db import engine
from kilonova.db.engine import Databases
from kilonova.db.queries import claims, group_claims, resumes
from kilonova.db.queries.cells import CellDatabases
from kilonova.objects import Claim, Save
from kilonova.rpc.baseapi import ping
from kilonova.rpc.compute import Compute
from kilonova.rpc.conductor import ComputeTask, Conductor
from kilonova.rpc.interface import Client, ServerTransport
from kilonova.rpc.notify import OFF, Notifications
from kilonova.rpc.reports import PERIOD, Broker, Collector

LOG = logging.getLogger(__name__)


class ConductorEndpoint(ObjectCalls):
    """The RPC endpoint ``rpc.conductor.Conductor``, which computes call to read and write the databases.

    Every call uses the database of this conductor's cell. If the database doesn't answer, Unanswered is raised. The
    host then repeats the call and undoes nothing (operations.md, rules 13 and 16).
    """

    def __init__(self, databases: Databases, cells: CellDatabases, networks: NetworkClient | None = None) -> None:
        super().__init__(databases)
        self._own, self._cells, self._networks = databases, cells, networks

    @engine.silence()
    def check_key(self, ctxt: RequestContext, key: str, undo: bool, host: str) -> Any:
        """Check that an operation is still at the step with this key, so that the host may begin the step. Return {}.

        The key has the form ``<operation uuid>/<position>.<step name>/<attempt>``. If ``undo`` is True, the host is
        about to undo the step.

        Raises:
            KeyGone: The operation has ended, was cancelled, or is at another step or attempt.
            HostRejected: The host did this step before and undid it.
            ReleasePending: The host has a pending release of an earlier operation of the server, which must be done
                first, or an operator has forced the host down.
        """
        with self._own.main().read() as conn:
            claims.check(conn, key, undo, host)
        return {}

    @engine.silence()
    def claim_instance(self, ctxt: RequestContext, claim: Claim) -> Any:
        """Claim resources of a host for a server in one transaction.

        ``db.queries.claims.claim`` describes the reply and the errors. If the claim names a server group, the group's
        policy is checked as well (``db.queries.group_claims``).
        """
        request = claims.ClaimWrite(**claim.primitive_data())
        if request.group:
            return group_claims.claim(self._own.api(), self._cells, self._own.main(), request, request.group)
        return claims.claim(self._own.main(), request)

    @engine.silence()
    def save_instance(self, ctxt: RequestContext, save: Save) -> Any:
        """Write the values that a host has changed while it did a step of an operation, in one transaction.

        ``db.queries.claims.save`` describes the reply and the errors.
        """
        return claims.save(
            self._own.main(), claims.SaveWrite(**{'request_id': ctxt.request_id, **save.primitive_data()})
        )

    @engine.silence()
    def bind_ports(
        self, ctxt: RequestContext, key: str, instance_uuid: str, host: str, profiles: dict[str, dict[str, Any]]
    ) -> Any:
        """Bind Neutron ports of a server to devices that the host has claimed, and return the server's interfaces.

        ``flows.network.ports.bind_devices`` describes the arguments and the errors.
        """
        return ports.bind_devices(self._networks, self._own.main(), key, instance_uuid, host, profiles)

    @engine.silence()
    def resume_later(self, ctxt: RequestContext, host: str, reasons: dict[str, str], is_off: bool) -> Any:
        """Add operations that start servers later which their host could not start when it was started itself.

        ``reasons`` is a dict from the uuid of a server to the reason why it was not started. ``is_off`` is explained in
        ``db.queries.resumes.plan``.
        """
        resumes.plan(self._own.main(), ctxt, host, reasons, is_off)
        return {}


class ComputeTaskEndpoint:
    """The RPC endpoint ``rpc.conductor.ComputeTask``: each method makes this process run operations."""

    def __init__(self, runner: Runner, databases: Databases) -> None:
        self._runner, self._databases = runner, databases

    def schedule_and_build_instances(self, ctxt: RequestContext, operations: Sequence[str]) -> Any:
        """Run the boot operations of one create request. ``operations`` are uuids in the API database.

        The runner takes the rows together, so that the servers are scheduled together.
        """
        self._runner.wake(self._databases.api(), operations, fresh=True)

    def run_operation(self, ctxt: RequestContext, operation: str) -> Any:
        """Run an operation of a cell.

        The runner looks for the operation row in the main database first, and then in the other databases.
        """
        self._runner.wake(self._databases.main(), [operation], urgent=False)

    migrate_server = live_migrate_instance = confirm_resize = revert_resize = rebuild_instance = run_operation

    def terminate_instance(self, ctxt: RequestContext, operation: str) -> Any:
        """Run the operation of a delete, which workers run before ordinary operations."""
        self._runner.wake(self._databases.main(), [operation], urgent=True)


class ConductorManager:
    """Builds and runs the parts of a conductor process.

    ``broker`` is the message queue on which hosts send their reports. If it is None, no reports are collected.
    """

    def __init__(
        self,
        conf: cfg.ConfigOpts,
        *,
        transport: ServerTransport,
        databases: Databases,
        cells: CellDatabases,
        scheduler: Client,
        compute: Client,
        placement: PlacementClient,
        images: ImageClient,
        accelerators: AcceleratorClient | None = None,
        networks: NetworkClient | None = None,
        volumes: VolumeClient | None = None,
        notify: Notifications = OFF,
        broker: Broker | None = None,
    ) -> None:
        self._transport, self._host = transport, conf.host
        self.env = Environment(
            conf=conf,
            databases=databases,
            cells=cells,
            scheduler=scheduler,
            compute=compute,
            placement=placement,
            images=images,
            max_attempts=conf.scheduler.max_attempts,
            ping=lambda: ping(transport, 'conductor', conf.host, get_admin_context()),
            host=conf.host,
            accelerators=accelerators,
            networks=networks,
            volumes=volumes,
            notify=notify,
        )
        self.runner = Runner(
            self.env,
            slots=conf.conductor.flow_slots,
            slots_per_host=conf.conductor.flow_slots_per_host,
            lease_time=conf.conductor.lease_time,
            sweep_interval=conf.conductor.sweep_interval,
            host=conf.host,
        )
        self.expiry = Expiry(self.env, conf)
        self.endpoint = ConductorEndpoint(databases, cells, networks)
        self.tasks = ComputeTaskEndpoint(self.runner, databases)
        self.reports = Reports(databases, Client(Compute, transport), conf.service_down_time)
        self._collector = Collector(broker, self.reports.write, min(PERIOD, conf.report_interval)) if broker else None
        self._server: Any = None

    def start(self) -> None:
        """Start the runner, the RPC server, the collector of reports and the periodic tasks.

        The runner also takes operation rows that an earlier process left unfinished.
        """
        self.runner.start()
        self._server = self._transport.serve(
            'conductor', self._host, [(Conductor, self.endpoint), (ComputeTask, self.tasks)]
        )
        self._server.start()
        if self._collector is not None:
            self._collector.start()
        self.expiry.start()

    def stop(self, timeout: float = 30.0) -> None:
        """Stop the periodic tasks, the runner and the RPC server, in this order.

        Running steps may take up to ``timeout`` seconds to end. Then this process stops owning operation rows, so that
        other conductors can take them. The RPC server is stopped last, because hosts that work for this conductor's
        operations send their claims and saves to it.
        """
        self.expiry.stop()
        self.runner.stop(timeout)
        if self._collector is not None:
            self._collector.stop()
        if self._server is not None:
            self._server.stop()
            self._server.wait()
