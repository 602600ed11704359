"""The mutants: what is broken, where, and which tests must notice. Rules are those of docs/contributor/operations.md.

Name the smallest test that notices: the whole run takes as long as they do.
"""

# ruff: noqa: E501 - texts of other files, as they stand there
from __future__ import annotations

from typing import NamedTuple

RUNNER, WORK, WORKERS = (f'kilonova/conductor/{name}.py' for name in ('runner', 'work', 'workers'))
LEASES, SWEEP = 'kilonova/conductor/leases.py', 'kilonova/conductor/sweep.py'
FLOW, BOOT = 'kilonova/conductor/flow.py', 'kilonova/conductor/flows/boot.py'
ROWS, CLAIMS = 'kilonova/db/queries/operation_leases.py', 'kilonova/db/queries/claims.py'
OPERATION, OPS = 'kilonova/compute/operation.py', 'kilonova/compute/ops'
RESUMES, HOST_BOOT = 'kilonova/db/queries/resumes.py', 'tests/unit/conductor/flows/test_host_boot.py'
FENCING, WAITING = 'tests/flows/test_fencing.py', 'tests/flows/test_waiting.py'
UNIT, STORED = 'tests/unit/conductor/test_runner.py', 'tests/unit/db/test_operations.py'


class Mutant(NamedTuple):
    """``old`` stands once in ``path``; with ``new`` in its place one of ``tests`` must fail."""

    rule: str
    name: str
    path: str
    old: str
    new: str
    tests: tuple[str, ...]


MUTANTS = (
    # 5. Slots.
    Mutant(
        '5',
        'no limit of calls to a host',
        WORKERS,
        'return slots.taken[urgent] < (1 if slots.silent else self._a_host)',
        'return True',
        (f'{UNIT}::test_slots_of_a_host',),
    ),
    Mutant(
        '5',
        'urgent work has no limit a host',
        WORKERS,
        '            if self._has_slot(slots, urgent):',
        '            if urgent or self._has_slot(slots, urgent):',
        (f'{UNIT}::test_slots_of_a_host',),
    ),
    Mutant(
        '5',
        'no worker is kept for urgent work',
        WORKERS,
        'not self._urgent and (reserved or not self._normal)',
        'not self._urgent and not self._normal',
        (f'{WAITING}::test_urgent_work_finds_a_worker_however_many_calls_are_slow',),
    ),
    Mutant(
        '5',
        "a slot that gets free is nobody's",
        WORKERS,
        '            slots.taken[work.slot_urgent] -= 1\n            self._next(host, slots)',
        '            slots.taken[work.slot_urgent] -= 1',
        (f'{UNIT}::test_slots_of_a_host',),
    ),
    Mutant(
        '5',
        'resumed work must find a slot anew',
        WORKERS,
        '                work.slot_urgent, work.held_host = urgent, host',
        '                work.slot_urgent = urgent',
        (f'{UNIT}::test_slots_of_a_host',),
    ),
    Mutant(
        '5',
        'a silent host is asked by all at once',
        WORKERS,
        '(1 if slots.silent else self._a_host)',
        'self._a_host',
        (f'{UNIT}::test_one_call_finds_out_whether_a_silent_host_is_back',),
    ),
    # 6. Leases.
    Mutant(
        '6',
        'a lease that ran out is renewed',
        ROWS,
        "leases.c.owner == sa.bindparam('renewed'), leases.c.expires > engine.db_now())",
        "leases.c.owner == sa.bindparam('renewed'))",
        (f'{UNIT}::test_a_lease_that_ran_out_is_never_renewed',),
    ),
    Mutant(
        '6',
        'the process stays the same owner',
        LEASES,
        'lost, lease.owner, lease.renewed = lease.owner, uuidutils.generate_uuid(), None',
        'lost, lease.renewed = lease.owner, None',
        (f'{UNIT}::test_a_lease_that_ran_out_is_never_renewed',),
    ),
    Mutant(
        '6',
        'what is parked as another owner stays',
        LEASES,
        '                self._lost(lost)\n',
        '',
        (f'{FENCING}::test_what_a_conductor_parked_before_it_stood_still_is_never_sent',),
    ),
    Mutant(
        '6',
        'leases are not looked at before a step',
        LEASES,
        '        if lease.owner != owner:\n            raise LeaseLost',
        '        if False:\n            raise LeaseLost',
        (f'{UNIT}::test_a_lease_that_ran_out_is_never_renewed',),
    ),
    Mutant(
        '6',
        'whoever could not renew goes on',
        LEASES,
        'time.monotonic() - lease.renewed > self._seconds * 2 / 3',
        'False',
        (f'{UNIT}::test_no_step_is_begun_by_who_could_not_renew',),
    ),
    Mutant(
        '6',
        'a decision compares no owner',
        ROWS,
        '        operations.c.owner == _OWNER,\n        sa.exists()',
        '        sa.exists()',
        (f'{UNIT}::test_decisions_compare_owner_lease_position_and_attempt',),
    ),
    Mutant(
        '6',
        'a decision compares no lease',
        ROWS,
        '        operations.c.owner == _OWNER,\n        sa.exists().where(leases.c.owner == _OWNER, leases.c.expires > engine.db_now()),\n    ]',
        '        operations.c.owner == _OWNER,\n    ]',
        (f'{UNIT}::test_decisions_compare_owner_lease_position_and_attempt',),
    ),
    Mutant(
        '6',
        'a decision compares no place',
        ROWS,
        '    if placed:\n',
        '    if False:\n',
        (f'{UNIT}::test_decisions_compare_owner_lease_position_and_attempt',),
    ),
    Mutant(
        '6',
        'an end compares no place',
        ROWS,
        'operations.delete().where(*_owned(placed, cancelled))',
        'operations.delete().where(*_owned(False, cancelled))',
        (f'{UNIT}::test_decisions_compare_owner_lease_position_and_attempt',),
    ),
    Mutant(
        '6',
        'a cancelled row is ended as a success',
        ROWS,
        '    if not cancelled:\n        conditions.append',
        '    if False:\n        conditions.append',
        (f'{UNIT}::test_decisions_compare_owner_lease_position_and_attempt',),
    ),
    Mutant(
        '6',
        'messages and undos compare nothing',
        'kilonova/conductor/row.py',
        '        self._compared = False\n        self.compare()',
        '        self.check()',
        (f'{UNIT}::test_decisions_compare_owner_lease_position_and_attempt',),
    ),
    Mutant(
        '6',
        'an attempt is undone before that is written',
        FLOW,
        '        work.undo_attempt(self.index(step.again_from), error)\n        self._undo_attempt(work)',
        '        work.outputs.back_to = self.index(step.again_from)\n        self._undo_attempt(work)',
        (f'{FENCING}::test_a_stale_owner_undoes_no_attempt_of_the_new_owner[boot]',),
    ),
    Mutant(
        '6',
        'the undo at Placement is not compared',
        'kilonova/clients/placement.py',
        "            check()\n            try:\n                self._send(\n                    'PUT'",
        "            try:\n                self._send(\n                    'PUT'",
        ('tests/unit/clients/test_placement.py::test_what_is_dropped_is_compared_after_it_was_read',),
    ),
    Mutant(
        '6',
        'a dead owner takes rows',
        ROWS,
        '        operations.c.not_before <= engine.db_now(),\n        _OWNER.in_(_living()),\n',
        '        operations.c.not_before <= engine.db_now(),\n',
        (f'{STORED}::test_an_owner_whose_lease_ran_out_takes_nothing',),
    ),
    Mutant(
        '6',
        'rows of the living are taken',
        ROWS,
        '        sa.or_(operations.c.owner.is_(None), operations.c.owner == _OWNER, operations.c.owner.not_in(_living())),\n        operations.c.not_before',
        '        operations.c.not_before',
        (f'{STORED}::test_a_row_is_taken_once_until_its_owners_lease_ends',),
    ),
    # 7. Sweep.
    Mutant(
        '7',
        'own rows that nobody holds are not found',
        ROWS,
        'operations.c.owner == _ME, operations.c.owner.not_in(_living())',
        'operations.c.owner.not_in(_living())',
        (f'{UNIT}::test_own_rows_in_no_runner_are_found',),
    ),
    Mutant(
        '7',
        'held rows count in a batch',
        SWEEP,
        'if len(rows) < SWEEP_BATCH',
        'if True',
        (f'{WAITING}::test_a_sweep_sees_what_is_behind_its_own_rows',),
    ),
    Mutant(
        '7',
        'a row given back keeps its owner',
        ROWS,
        '                owner=None,\n                outputs=json.dumps(outputs),',
        '                outputs=json.dumps(outputs),',
        (f'{UNIT}::test_rows_given_back_belong_to_nobody',),
    ),
    Mutant(
        '7',
        'a lost cancel is not sent again',
        SWEEP,
        '            for uuid in cancelled:\n                self._cancels.again(db, uuid)',
        '',
        (f'{WAITING}::test_a_reset_stops_what_a_host_is_at',),
    ),
    Mutant(
        '7',
        'a lost wake of a delete is not repeated',
        SWEEP,
        '            for uuid in waiting:\n                self._cancels.before(db, uuid)\n',
        '',
        (f'{UNIT}::test_a_waiting_delete_behind_nothing_goes_on',),
    ),
    Mutant(
        '7',
        'one thread renews for all databases',
        RUNNER,
        "                    concurrency.spawn(self._renew_forever, db, name=f'lease-{db.name}')\n",
        '                    if len(known) == 1:\n                        concurrency.spawn(lambda: [self.leases.renew(one) for _ in iter(lambda: self._tick.wait(0.5), True) for one in self.env.all_databases()])\n',
        (f'{UNIT}::test_a_database_that_hangs_holds_up_no_other',),
    ),
    # 9. Selects.
    Mutant(
        '9',
        'an unanswered select is not undone again later',
        BOOT,
        '    if work.outputs.select is None and not work.select_answered:',
        '    if False:',
        ('tests/functional/test_late_selects.py::test_what_placement_writes_when_its_server_is_gone_is_given_back',),
    ),
    # 11. Refusals.
    Mutant(
        '11',
        'the alternate of a refused host is not claimed',
        BOOT,
        "    if same_allocations(held['allocations'], host.allocations):",
        "    if held['allocations']:",
        ('tests/functional/test_boot_delete.py::test_a_host_that_refuses_sends_the_server_to_the_next',),
    ),
    # 12 to 15. Keys, silence.
    Mutant(
        '14',
        'no order asks whether it stands',
        OPERATION,
        'if self._checks is not StepCheck.WRITE:',
        'if False:',
        (f'{FENCING}::test_late_orders_of_an_operation_that_ended_change_nothing',),
    ),
    Mutant(
        '14',
        'undos ask nothing',
        OPERATION,
        'if self._checks is not StepCheck.WRITE:',
        'if self._checks is StepCheck.STEP:',
        (f'{FENCING}::test_late_orders_of_an_operation_that_ended_change_nothing',),
    ),
    Mutant(
        '14',
        'it is asked before the lock',
        OPERATION,
        '        with host.locks.hold(uuid):\n            self.check()\n            if self._checks is not StepCheck.WRITE:\n                host.upcalls.check_key(self.ctxt, self.key, host.name, undo=self._checks is StepCheck.UNDO)\n',
        '        self.check()\n        if self._checks is not StepCheck.WRITE:\n            host.upcalls.check_key(self.ctxt, self.key, host.name, undo=self._checks is StepCheck.UNDO)\n        with host.locks.hold(uuid):\n',
        ('tests/unit/compute/test_keys.py::test_an_order_asks_behind_the_lock_whether_it_stands',),
    ),
    Mutant(
        '14',
        'a failed row still stands',
        CLAIMS,
        'operations.c.failed == sa.false(),\n    operations.c.undoing',
        'operations.c.undoing',
        (f'{STORED}::test_an_operation_that_is_given_up_does_nothing_more[failed]',),
    ),
    Mutant(
        '14',
        'a row that is being undone still stands',
        CLAIMS,
        'operations.c.failed == sa.false(),\n    operations.c.undoing == sa.false(),\n',
        'operations.c.failed == sa.false(),\n',
        (f'{STORED}::test_an_operation_that_is_given_up_does_nothing_more[undoing]',),
    ),
    Mutant(
        '14',
        'a cancelled row still stands',
        CLAIMS,
        '    *_AT,\n    operations.c.cancelled == sa.false(),\n    operations.c.failed',
        '    *_AT,\n    operations.c.failed',
        (f'{STORED}::test_an_operation_that_is_given_up_does_nothing_more[cancelled]',),
    ),
    Mutant(
        '14',
        'any attempt stands',
        CLAIMS,
        "    operations.c.attempt == sa.bindparam('of_attempt'),\n)\n_STANDING",
        ')\n_STANDING',
        (f'{STORED}::test_an_old_message_does_nothing',),
    ),
    Mutant(
        '14',
        'an undo of another attempt is done',
        CLAIMS,
        '            operations.c.uuid == operation,\n            operations.c.attempt == attempt,\n',
        '            operations.c.uuid == operation,\n',
        (f'{STORED}::test_an_undo_asks_for_the_attempt_that_is_being_undone',),
    ),
    Mutant(
        '14',
        'what was undone counts as done',
        CLAIMS,
        'operations.c.written != mark, sa.not_(operations.c.written.startswith(key + _UNDONE, autoescape=True))\n',
        'operations.c.written != mark\n',
        (f'{FENCING}::test_a_build_that_its_host_undid_goes_to_the_next_host',),
    ),
    Mutant(
        '14',
        'a host does not note what it undid',
        f'{OPS}/build.py',
        'destroy(op, event=op.event(op.error), undone=op.undone)',
        'destroy(op, event=op.event(op.error))',
        (f'{FENCING}::test_a_build_that_its_host_undid_goes_to_the_next_host',),
    ),
    Mutant(
        '14',
        'a refused move undoes more than its own acts',
        f'{OPS}/resize.py',
        "    with op.exclusive(), op.undoing('prep_resize'):\n",
        "    with op.undoing('prep_resize'), op.undo(move.free, op, migration) or op.exclusive():\n",
        (f'{FENCING}::test_a_late_order_takes_nothing_from_a_later_step',),
    ),
    Mutant(
        '13',
        'a claim that is sent again is written again',
        CLAIMS,
        'operations.c.written != mark, sa.not_',
        'sa.not_',
        (f'{STORED}::test_a_claim_is_one_transaction_and_may_be_sent_again',),
    ),
    Mutant(
        '15',
        'a dead host is sent messages',
        WORK,
        'else liveness.known_down(self.db, host):',
        'else False:',
        (f'{WAITING}::test_a_boot_beside_a_dead_host',),
    ),
    Mutant(
        '15',
        'a host that cannot undo keeps the server',
        'kilonova/conductor/flows/releases.py',
        '        if not work.undoing and work.outputs.tries < UNDO_TRIES:',
        '        if True:',
        (f'{FENCING}::test_a_host_that_cannot_undo_does_not_keep_the_server_from_the_next',),
    ),
    Mutant(
        '23',
        'claims where something is to be given back',
        CLAIMS,
        '        statement = statement.where(_NO_RELEASE, sa.not_(_FORCED_DOWN))\n        values.update(of_instance=free_of[0], of_host=free_of[1])\n',
        '        pass\n',
        (f'{FENCING}::test_nothing_new_comes_to_a_host_that_has_still_to_give_back',),
    ),
    Mutant(
        '15',
        'a host that is forced down claims',
        CLAIMS,
        ', sa.not_(_FORCED_DOWN))',
        ')',
        (f'{STORED}::test_a_host_that_is_forced_down_claims_nothing[False]',),
    ),
    Mutant(
        '15',
        'a host that is forced down goes on with what it claimed',
        CLAIMS,
        'if row is not None and row.forced:',
        'if False:',
        (f'{STORED}::test_a_host_that_is_forced_down_claims_nothing[True]',),
    ),
    # 17. Delete.
    Mutant(
        '17',
        'the host is not told to stop',
        'kilonova/conductor/cancels.py',
        "            self._env.compute.cancel(ctxt, server=host, key_prefix=f'{row.uuid}/')\n",
        '            pass\n',
        (f'{WAITING}::test_a_cancel_that_was_lost_is_sent_again[cancel]',),
    ),
    Mutant(
        '17',
        'parked work is not woken',
        RUNNER,
        '            parked = self.slots.unpark(set(uuids).difference(wanted))',
        '            parked: list[Work[Any]] = []',
        (f'{WAITING}::test_a_delete_reaches_an_operation_that_waits_for_a_slot',),
    ),
    # 19. Two databases.
    Mutant(
        '19',
        'a twin is taken by the sweep',
        SWEEP,
        'return [row for row in rows if row.uuid not in twins]',
        'return rows',
        (f'{UNIT}::test_a_boot_in_a_cell_waits_for_its_twin',),
    ),
    Mutant(
        '19',
        'a hand-over takes rows of the living',
        ROWS,
        '            sa.or_(operations.c.owner.is_(None), operations.c.owner.not_in(living)),\n        )\n        .values(owner=owner)',
        '        )\n        .values(owner=owner)',
        (f'{UNIT}::test_a_hand_over_takes_no_row_from_somebody_living',),
    ),
    Mutant(
        '19',
        'a row left in a cell is built',
        BOOT,
        '                if _is_orphan(work):',
        '                if False:',
        (f'{FENCING}::test_a_row_that_a_hand_over_left_in_a_cell_builds_nothing',),
    ),
    # 20. Request specs.
    Mutant(
        '20',
        'the old request spec is not stored again',
        'kilonova/conductor/flows/resize.py',
        '    if spec := work.arguments(ResizeArguments).old_request_spec:',
        '    if False:',
        ('tests/flows/test_every_step.py::test_a_step_fails[resize-before]',),
    ),
    Mutant(
        '20',
        'a late owner writes an older spec',
        'kilonova/db/queries/request_specs.py',
        "request_specs.c.id == seen['id'], same)",
        "request_specs.c.id == seen['id'])",
        (f'{FENCING}::test_a_late_owner_does_not_write_an_older_request_spec',),
    ),
    # 2, 22. Servers that wait for their host to start them.
    Mutant(
        '2',
        'a server that waits for its host is busy',
        RESUMES,
        'beside=True',
        'beside=False',
        (f'{HOST_BOOT}::test_an_operation_of_its_user_is_waited_for',),
    ),
    Mutant(
        '22',
        'the time of a host that starts again does not begin anew',
        RESUMES,
        'not_before=0, created_at=engine.db_utcnow())\n',
        'not_before=0)\n',
        (f'{HOST_BOOT}::test_a_host_that_is_down_is_waited_for',),
    ),
    Mutant(
        '22',
        'a host starts what is not to run any more',
        'kilonova/conductor/flows/host_boot.py',
        'if server.vm_state not in resumes.WANTED_RUNNING:',
        'if False:',
        (f'{HOST_BOOT}::test_a_server_that_is_not_to_run_there_any_more_is_left',),
    ),
    # 25. Several stores.
    Mutant(
        '25',
        'a host registers while one of its name is removed',
        'kilonova/db/queries/host_removals.py',
        'if row is not None:',
        'if False:',
        ('tests/functional/test_host_removal.py::test_a_new_machine_of_that_name_waits[another]',),
    ),
    # 15. Silence.
    Mutant(
        '15',
        'a host that is no longer forced down is evacuated',
        'kilonova/conductor/flows/evacuate.py',
        'if not work.env.liveness.is_fenced(work.db, source):',
        'if False:',
        ('tests/unit/conductor/flows/test_evacuate.py::test_a_host_that_is_not_fenced_any_more',),
    ),
)
