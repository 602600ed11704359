"""Record the scheduler's decisions and their reasons in the API database.

    decisions = Decisions(conf, databases); decisions.start()
    trace = decisions.trace()               # records the steps of one choice
    decisions.record(ctxt, spec, uuids, trace, plan=plan)
    decisions.stop()                        # writes the decisions that are left

While hosts are chosen, only a few facts are kept in memory. A separate thread makes the texts of the records,
compresses them, and writes many records with one INSERT about once a second. A record names up to
[scheduler]decisions_hosts hosts that a filter rejected, as many that passed all filters, and as many whose claim was
refused. ``kilonova-manage scheduler explain`` shows the records.
"""

from __future__ import annotations

import datetime as dt
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from oslo_config import cfg
from oslo_log import log as logging

from kilonova import concurrency, errors
from kilonova.context import RequestContext
from kilonova.db.engine import Databases
from kilonova.db.queries import decisions as rows
from kilonova.objects import RequestSpec
from kilonova.scheduler.explain.reasons import RefusalReport
from kilonova.scheduler.hosts.columns import Mask, Values
from kilonova.scheduler.hosts.table import Table
from kilonova.scheduler.plan import SelectionPlan

LOG = logging.getLogger(__name__)

# FLUSH_EVERY: seconds between two writes. FLUSH_AT: number of waiting decisions that causes an earlier write.
FLUSH_EVERY = 1.0
FLUSH_AT = 200
# Maximum number of decisions in memory while the database does not answer. More decisions replace the oldest ones.
MOST = 5000
# Seconds between two deletions of records that are too old or too many.
PRUNE_EVERY = 600.0
STOP_TIMEOUT = 5.0
# Values of several hosts: {name of the value: list with one entry for each host}.
Columns = dict[str, list[Any]]
# Columns of the host table whose values are recorded for each host that a record names.
VALUES = ('free_ram_mb', 'free_disk_mb', 'vcpus_total', 'vcpus_used', 'num_instances', 'num_io_ops')
_FLAGS = ('disabled', 'up', 'pci_free')


class Trace:
    """Record of one choice of hosts: results of the filters, weights of the hosts, refused claims.

    Each part of the record names at most ``most`` hosts.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._began = time.perf_counter()
        self.took = 0.0
        self.considered: int | None = None
        self.steps: list[dict[str, Any]] = []
        self.survivors: Columns = {}
        self.refused: list[str] = []
        self.report: RefusalReport | None = None

    def restart(self) -> None:
        """Discard the recorded steps. Called before hosts are chosen again, with new candidates from Placement."""
        self.considered, self.steps, self.survivors = None, [], {}

    def start(self, considered: int) -> None:
        """Record the number of hosts before the first filter."""
        if self.considered is None:
            self.considered = considered

    def masked(self, name: str, table: Table, before: Mask, after: Mask) -> None:
        """Record how many hosts a filter received and passed, and the first hosts that it rejected.

        ``before`` is True for the hosts that the filter received, ``after`` for the hosts that passed it.
        """
        count, left = int(np.count_nonzero(before)), int(np.count_nonzero(after))
        self.steps.append(
            {
                'filter': name,
                'before': count,
                'after': left,
                'fell': self._told(table, np.flatnonzero(before & ~after)[: self._most]) if left != count else {},
            }
        )

    def weighed(self, table: Table, places: NDArray[np.int64], weights: Values) -> None:
        """Record the weights of hosts. Only the first call has an effect.

        ``places`` has the hosts' indexes in the host table, the best host first. ``weights`` has their weights.
        """
        if not self.survivors:
            self.survivors = {**self._told(table, places[: self._most]), 'weight': weights[: self._most].tolist()}

    def refuse(self, host: str) -> None:
        """Record a host whose claim was refused."""
        if len(self.refused) < self._most:
            self.refused.append(host)

    def end(self) -> None:
        """Record how long the choice took."""
        self.took = time.perf_counter() - self._began

    @staticmethod
    def _told(table: Table, places: NDArray[np.int64]) -> Columns:
        return {
            'host': [table.host(host_index) for host_index in places.tolist()],
            **{name: table[name][places].tolist() for name in (*VALUES, *_FLAGS)},
        }


def asked(spec: RequestSpec) -> dict[str, Any]:
    """Return the requested flavor, resources, devices, zone and hints as a dict, to show them to administrators."""
    requests = spec.pci_requests if 'pci_requests' in spec else None
    return {
        'flavor': spec.flavor.name if 'name' in spec.flavor else None,
        'vcpus': spec.vcpus,
        'memory_mb': spec.memory_mb,
        'disk_gb': spec.root_gb + spec.ephemeral_gb,
        'devices': {one.alias_name or 'pci': one.count for one in (requests.requests if requests else ())},
        'availability_zone': spec.availability_zone if 'availability_zone' in spec else None,
        'hints': dict((spec.scheduler_hints if 'scheduler_hints' in spec else None) or {}),
    }


def story(
    spec: RequestSpec,
    trace: Trace,
    most: int,
    *,
    plan: SelectionPlan | None = None,
    index: int = 0,
    failure: Exception | None = None,
) -> dict[str, Any]:
    """Return the complete record of the decision for one server, as a dict for JSON.

    ``index`` is the server's number in its request, from 0. Values of hosts are stored in columns: for each kind of
    value, a list with one entry for each host.
    """
    told: dict[str, Any] = {
        'asked': asked(spec),
        'considered': trace.considered,
        'filters': trace.steps,
        'weighed': trace.survivors,
        'claims_refused': trace.refused,
        'seconds': round(trace.took, 6),
    }
    if plan is not None:
        told |= {
            'chosen': plan.choices[index].host.host,
            'alternates': [one.host.host for one in plan.alternates[index]],
        }
    if failure is not None:
        told |= {'chosen': None, 'failure': str(failure)}
    if trace.report is not None:
        told |= {'considered': len(trace.report.names), 'hosts': trace.report.hosts(most)}
    return told


class Decisions:
    """Writer of the scheduler's decisions, one for each scheduler process.

    Before ``start`` is called, decisions are only kept in memory.
    """

    def __init__(self, conf: cfg.ConfigOpts, databases: Databases) -> None:
        self._section, self._databases = conf.scheduler, databases
        self._waiting: deque[tuple[dict[str, Any], Callable[[], dict[str, Any]]]] = deque(maxlen=MOST)
        self._wake, self._stopping = threading.Event(), threading.Event()
        self._writing = threading.Lock()
        self._thread: threading.Thread | None = None
        self._pruned = time.monotonic()
        self._lost = False

    def trace(self) -> Trace | None:
        """Return a new trace for one choice of hosts, or None if the configuration turns decision records off."""
        return Trace(self._section.decisions_hosts) if self._section.decisions_keep else None

    def start(self) -> None:
        """Start the thread that writes decisions, unless the configuration turns decision records off."""
        if self._section.decisions_keep:
            self._thread = concurrency.spawn(self._loop, name='decisions')

    def stop(self) -> None:
        """Stop the thread that writes decisions, and write the decisions that are still in memory."""
        self._stopping.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(STOP_TIMEOUT)
            self.flush()

    def record(
        self,
        ctxt: RequestContext,
        spec: RequestSpec,
        uuids: Sequence[str],
        trace: Trace | None,
        *,
        plan: SelectionPlan | None = None,
        failure: errors.NoValidHost | None = None,
    ) -> None:
        """Keep the outcome for each server in memory, until the thread of this object writes it to the database.

        Never raises an error, and never waits for the database.
        """
        if trace is None:
            return
        trace.end()
        now = dt.datetime.now(dt.UTC).replace(tzinfo=None)
        request_id, most = getattr(ctxt, 'request_id', None), self._section.decisions_hosts
        for index, uuid in enumerate(uuids):
            chosen = plan.choices[index].host.host if plan is not None else None
            self._waiting.append(
                (
                    {'request_id': request_id, 'instance_uuid': uuid, 'created_at': now, 'chosen': chosen},
                    partial(story, spec, trace, most, plan=plan, index=index, failure=failure),
                )
            )
        if len(self._waiting) >= FLUSH_AT:
            self._wake.set()

    def flush(self) -> None:
        """Write all waiting decisions in one statement.

        If the database does not answer, a warning is logged once, and the decisions are kept for the next write.
        """
        with self._writing:
            taken = [self._waiting.popleft() for _ in range(len(self._waiting))]
            try:
                self._write(taken)
            except Exception as error:  # noqa: BLE001 - scheduling goes on without its diary
                room = MOST - len(self._waiting)
                self._waiting.extendleft(reversed(taken[-room:] if room else []))
                if not self._lost:
                    LOG.warning(
                        'Decisions of the scheduler cannot be written to the database, retrying later: %s', error
                    )
                self._lost = True
            else:
                self._lost = False

    def _write(self, taken: list[tuple[dict[str, Any], Callable[[], dict[str, Any]]]]) -> None:
        prune = time.monotonic() - self._pruned > PRUNE_EVERY
        if not taken and not prune:
            return
        told = [{**row, 'body': body()} for row, body in taken]
        with self._databases.api().write() as connection:
            if told:
                rows.add(connection, told)
            if prune:
                oldest = dt.datetime.now(dt.UTC).replace(tzinfo=None) - dt.timedelta(
                    seconds=self._section.decisions_max_age
                )
                rows.prune(connection, oldest, self._section.decisions_keep)
        if prune:
            self._pruned = time.monotonic()

    def _loop(self) -> None:
        while not self._stopping.is_set():
            self._wake.wait(FLUSH_EVERY)
            self._wake.clear()
            self.flush()
