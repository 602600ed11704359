"""Whatever is planned, committed, aborted and discovered in which order: nothing is given out twice, and rows
follow."""

from __future__ import annotations

import contextlib

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kilonova.pci.pools import PciDeviceRequestFailed
from kilonova.pci.tracker import PciClaimExists, PciDeviceInvalidStatus, PciLedger
from tests.unit.pci.builders import NODE, found, functions, ledger, request, statuses

PFS = ('0000:91:00.0', '0000:92:00.0')
HOST = [
    found('0000:81:00.0'),
    found('0000:82:00.0'),
    *(found(pf, dev_type='type-PF') for pf in PFS),
    *(one for pf in PFS for one in functions(pf, 2)),
]
SERVERS = [f'{letter * 8}-0000-4000-8000-000000000000' for letter in 'abc']
TYPES = st.sampled_from(['type-PCI', 'type-PF', 'type-VF'])


class Database:
    """Rows with the same compare-and-swap as the real ones."""

    def __init__(self, made: PciLedger) -> None:
        self.rows = {device.id: (device.status, device.instance_uuid) for device in made.devices()}

    def write(self, changes) -> None:
        for change in changes:
            status, owner = self.rows[change['id']]
            assert status == change['from'], change
            if change['to'] in ('claimed', 'allocated'):
                assert status == 'available' or owner == change['instance_uuid'], change
                self.rows[change['id']] = (change['to'], change['instance_uuid'])
            else:
                assert owner in (None, change['instance_uuid']), change
                self.rows[change['id']] = (change['to'], None)


class Ledger(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.ledger = ledger(HOST)
        self.database = Database(self.ledger)
        self.open: list = []

    def keep(self, plan) -> None:
        if plan.changes and plan not in self.open:
            self.open.append(plan)

    @rule(
        server=st.sampled_from(SERVERS),
        side=st.sampled_from(['run', 'move']),
        dev_type=TYPES,
        count=st.integers(1, 2),
        allocate=st.booleans(),
    )
    def claim(self, server, side, dev_type, count, allocate):
        before = statuses(self.ledger)
        try:
            self.keep(
                self.ledger.plan_claim(
                    server,
                    [request(count, vendor_id='10de', dev_type=dev_type)],
                    side=side,
                    allocate=allocate,
                )
            )
        except (PciDeviceRequestFailed, PciClaimExists):
            assert statuses(self.ledger) == before

    @rule(server=st.sampled_from(SERVERS), side=st.sampled_from([None, 'run', 'move']))
    def free(self, server, side):
        try:
            self.keep(self.ledger.plan_free(server, side=side))
        except PciDeviceInvalidStatus:
            assert any(plan.instance_uuid == server for plan in self.open)

    @rule(server=st.sampled_from(SERVERS))
    def allocate(self, server):
        try:
            self.keep(self.ledger.plan_allocate(server))
        except PciDeviceInvalidStatus:
            assert any(plan.instance_uuid == server for plan in self.open)

    @precondition(lambda self: self.open)
    @rule(data=st.data(), written=st.booleans())
    def end(self, data, written):
        plan = data.draw(st.sampled_from(self.open))
        self.open.remove(plan)
        if written:
            self.database.write(plan.changes)
            self.ledger.commit(plan)
        else:
            self.ledger.abort(plan)

    @rule(written=st.booleans())
    def audit(self, written):
        changes = self.ledger.sync(HOST)
        assert changes.created == changes.updated == changes.removed == []
        if written:
            self.database.write(changes.statuses)
            self.ledger.saved(changes)

    @rule(server=st.sampled_from(SERVERS), dev_type=TYPES)
    def try_and_undo(self, server, dev_type):
        """undo after do is as if nothing had been."""
        if any(plan.instance_uuid == server for plan in self.open) or self.ledger.devices_of(server):
            return
        before, free = statuses(self.ledger), self.ledger.pools.free
        with contextlib.suppress(PciDeviceRequestFailed):
            self.ledger.abort(
                self.ledger.plan_claim(server, [request(1, vendor_id='10de', dev_type=dev_type)])
            )
        assert statuses(self.ledger) == before
        assert self.ledger.pools.free == free

    @invariant()
    def families_are_given_out_once(self):
        held = {
            device.address for device in self.ledger.devices() if device.status in ('claimed', 'allocated')
        }
        for device in self.ledger.devices():
            assert not (device.address in held and device.parent_addr in held)
            assert (device.instance_uuid is not None) == (device.address in held)

    @invariant()
    def pools_hold_what_is_free(self):
        offered = [device.address for pool in self.ledger.pools.pools for device in pool.devices]
        free = {address for address, status in statuses(self.ledger).items() if status == 'available'}
        assert len(offered) == len(set(offered))
        assert set(offered) <= free
        assert all(pool.count == len(pool.devices) for pool in self.ledger.pools.pools)

    def teardown(self):
        """With everything ended and written, rows and ledger agree, and freeing all makes all available."""
        for plan in self.open:
            self.database.write(plan.changes)
            self.ledger.commit(plan)
        for server in SERVERS:
            plan = self.ledger.plan_free(server)
            self.database.write(plan.changes)
            self.ledger.commit(plan)
        changes = self.ledger.sync(HOST)
        self.database.write(changes.statuses)
        self.ledger.saved(changes)
        assert set(statuses(self.ledger).values()) == {'available'}
        assert set(self.database.rows.values()) == {('available', None)}
        assert self.ledger.pools.free == len(HOST)
        again = PciLedger.from_devices(self.ledger.specs, self.ledger.devices(), NODE)
        assert again.pools.free == len(HOST)


TestLedger = Ledger.TestCase
TestLedger.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)
