"""Whatever is planned, written, lost, aborted and discovered in which order: nothing is given out twice, totals are
those of the entries, rows follow."""

from __future__ import annotations

import contextlib

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kilonova import errors, objects
from kilonova.compute.tracker import RUN, ClaimPlan, Tracker, Usage
from kilonova.context import RequestContext
from kilonova.pci.devices import Change, Changes, NodeDevices
from tests.unit.compute.cell import flavor
from tests.unit.pci.builders import NODE, found, functions, ledger, request, statuses

CTXT = RequestContext()
PFS = ('0000:91:00.0', '0000:92:00.0')
HOST = [
    found('0000:81:00.0'),
    found('0000:82:00.0'),
    *(found(pf, dev_type='type-PF') for pf in PFS),
    *(one for pf in PFS for one in functions(pf, 2)),
]
SERVERS = st.sampled_from([f'{letter * 8}-0000-4000-8000-000000000000' for letter in 'abc'])
SIDES = st.sampled_from([RUN, 'migration-1'])
TYPES = st.sampled_from(['type-PCI', 'type-PF', 'type-VF'])
# written: and the answer came; refused: not written; lost: written, and nobody knows; silent: not, and nobody knows
ENDS = st.sampled_from(['written', 'written', 'refused', 'lost', 'silent'])


class Database:
    """Rows with the same compare-and-swap as the real ones."""

    def __init__(self, devices: NodeDevices) -> None:
        self.rows = {device.id: device for device in devices.all()}

    def write(self, changes: list[Change]) -> None:
        for change in changes:
            row, owner = self.rows[change['id']], change['instance_uuid']
            assert row.status == change['from'], change
            if change['to'] in ('claimed', 'allocated'):
                assert row.instance_uuid in (None, owner), change
                row.status, row.instance_uuid, row.request_id = change['to'], owner, change['request_id']
            else:
                assert row.instance_uuid in (None, owner), change
                row.status, row.instance_uuid, row.request_id = change['to'], None, None

    def save(self, changes: Changes) -> dict[str, int]:
        """As ``PciDeviceList.save_all``: what was written before is there."""
        for device in changes.removed:
            self.rows.pop(device.id, None)
        for device in changes.updated:
            self.rows[device.id].numa_node = device.numa_node
        for change in changes.statuses:
            self.rows[change['id']].status = change['to']
        ids = {row.address: number for number, row in self.rows.items()}
        for device in changes.created:
            if device.address not in ids:
                number = max([0, *self.rows]) + 1
                self.rows[number] = device.obj_clone()
                self.rows[number].id = ids[device.address] = number
        return {device.address: ids[device.address] for device in changes.created}


class Ledger(RuleBasedStateMachine):
    """``entries``: what the ledger should hold, {(server, side): its vCPUs and addresses}."""

    def __init__(self) -> None:
        super().__init__()
        self.tracker = ledger(HOST)
        self.tracker.reload = self.reload
        self.database = Database(self.tracker.host_devices)
        self.entries: dict[tuple[str, str], tuple[int, set[str]]] = {}

    def reload(self, ctxt: RequestContext) -> None:
        kinds = self.tracker.host_devices.kinds
        self.tracker.load(NodeDevices.of(kinds, [row.obj_clone() for row in self.database.rows.values()], NODE))

    def end(self, plan: ClaimPlan, how: str, after: dict[tuple[str, str], tuple[int, set[str]]]) -> None:
        """The plan's write ends so; the caller holds ``writing``. A claim that was written though nobody knows it
        leaves devices without a side."""
        if how in ('written', 'lost'):
            self.database.write(plan.changes)
        if how == 'written':
            self.tracker.commit(plan)
            self.entries = after
        elif how == 'refused':
            self.tracker.abort(plan)

    @rule(server=SERVERS, side=SIDES, vcpus=st.integers(1, 4), dev_type=TYPES, count=st.integers(0, 2), how=ENDS)
    def claim(self, server: str, side: str, vcpus: int, dev_type: str, count: int, how: str) -> None:
        requests = objects.InstancePCIRequests(
            requests=[request(count, vendor_id='10de', dev_type=dev_type)] if count else []
        )
        with self.tracker.writing(CTXT):
            before = statuses(self.tracker.host_devices)
            try:
                plan = self.tracker.plan(server, side, flavor(vcpus=vcpus), requests)
            except errors.HostRejected:
                return
            finally:
                assert statuses(self.tracker.host_devices) == before
            addresses = {device.address for device in plan.devices}
            assert len(addresses) == count
            amount = self.entries[server, side][0] if (server, side) in self.entries else vcpus
            assert self.tracker.usage(plan)['vcpus_used'] - self.tracker.usage()['vcpus_used'] == (
                0 if (server, side) in self.entries else vcpus
            )
            self.end(plan, how, {**self.entries, (server, side): (amount, addresses)})

    @rule(server=SERVERS, sides=st.sets(SIDES), unsided=st.booleans(), how=ENDS)
    def free(self, server: str, sides: set[str], unsided: bool, how: str) -> None:
        with self.tracker.writing(CTXT):
            plan = self.tracker.plan_free(server, lambda side: side in sides, unsided=unsided)
            stay = {key: entry for key, entry in self.entries.items() if key[0] != server or key[1] not in sides}
            # As the ledger has it: of a free that was written, and nobody knows it, ``entries`` knows nothing either.
            kept = {
                device.address for key in stay if key[0] == server for device in self.tracker.devices(server, key[1])
            }
            assert not kept & set(plan.freed)
            self.end(plan, how, stay)

    @rule(server=SERVERS, side=st.none() | SIDES, how=ENDS)
    def allocate(self, server: str, side: str | None, how: str) -> None:
        with self.tracker.writing(CTXT):
            plan = self.tracker.plan_allocate(server, side)
            assert {change['to'] for change in plan.changes if change['instance_uuid']} <= {'allocated'}
            self.end(plan, how, self.entries)

    @rule(
        left_out=st.sets(st.sampled_from(range(len(HOST)))),
        numa=st.integers(0, 1),
        how=st.sampled_from(['written', 'lost', 'silent']),
    )
    def look(self, left_out: set[int], numa: int, how: str) -> None:
        """Devices come, go and change."""
        now = [{**one, 'numa_node': numa} for number, one in enumerate(HOST) if number not in left_out]
        with self.tracker.writing(CTXT):
            devices = self.tracker.host_devices.looked(now)
            self.tracker.host_devices, changes = devices, devices.unwritten()
            ids = self.database.save(changes) if how != 'silent' else {}
            if how == 'written':
                self.tracker.host_devices = devices.written(changes, ids)
                assert not self.tracker.host_devices.unwritten()
                return
        self.tracker.distrust()

    @rule()
    def restart(self) -> None:
        again = Tracker()
        again.node, again.host_devices = self.tracker.node, self.tracker.host_devices
        self.tracker, again.reload = again, self.reload
        self.reload(CTXT)
        for (server, side), (vcpus, addresses) in self.entries.items():
            again.adopt(server, side, flavor(vcpus=vcpus), addresses)

    @rule(server=SERVERS, count=st.integers(1, 3), dev_type=TYPES)
    def try_and_undo(self, server: str, count: int, dev_type: str) -> None:
        """Undo after do is as if nothing had been."""
        before, held = self.tracker.usage(), statuses(self.tracker.host_devices)
        with contextlib.suppress(errors.HostRejected):
            self.tracker.abort(
                self.tracker.plan(
                    server,
                    'migration-2',
                    flavor(),
                    objects.InstancePCIRequests(requests=[request(count, vendor_id='10de', dev_type=dev_type)]),
                )
            )
        assert (self.tracker.usage(), statuses(self.tracker.host_devices)) == (before, held)

    @invariant()
    def families_are_given_out_once(self) -> None:
        held = {device.address for device in self.tracker.host_devices.held()}
        for device in self.tracker.host_devices.all():
            assert not (device.address in held and device.parent_addr in held)
            assert (device.instance_uuid is not None) == (device.address in held)

    @invariant()
    def totals_are_those_of_the_entries(self) -> None:
        usage = self.tracker.usage()
        amounts = Usage(
            sum(vcpus for vcpus, _ in self.entries.values()), 32768 * len(self.entries), 16 * len(self.entries)
        )
        assert self.tracker.used == amounts
        assert (usage['vcpus_used'], usage['running_vms']) == (amounts.vcpus, len({key[0] for key in self.entries}))

    @invariant()
    def a_device_has_one_side(self) -> None:
        sided: list[str] = []
        for server, side in self.entries:
            mine = {device.address for device in self.tracker.devices(server, side)}
            assert mine <= self.entries[server, side][1]
            sided += mine
        assert len(sided) == len(set(sided))

    @invariant()
    def pools_hold_what_is_free(self) -> None:
        pools = self.tracker.host_devices.pools
        offered = [device.address for pool in pools.pools for device in pool.devices or ()]
        free = {address for address, status in statuses(self.tracker.host_devices).items() if status == 'available'}
        assert len(offered) == len(set(offered))
        assert set(offered) <= free
        assert all(pool.count == len(pool.devices or ()) for pool in pools.pools)

    def teardown(self) -> None:
        """When all is given back and the host has all its devices, rows and ledger agree, and all are available."""
        self.tracker.distrust()
        with self.tracker.writing(CTXT):
            for device in self.tracker.host_devices.held():
                plan = self.tracker.plan_free(device.instance_uuid)
                self.database.write(plan.changes)
                self.tracker.commit(plan)
        self.entries = {}
        for _ in range(2):
            self.look(set(), 0, 'written')
        assert set(statuses(self.tracker.host_devices).values()) == {'available'}
        assert {(row.status, row.instance_uuid) for row in self.database.rows.values()} == {('available', None)}
        assert self.tracker.host_devices.pools.free == len(HOST) == len(self.database.rows)


TestLedger = Ledger.TestCase
TestLedger.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)
