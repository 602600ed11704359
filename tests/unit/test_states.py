"""The table of transitions: every in-flight task state has an exit besides delete; what REST shows."""

from __future__ import annotations

import ast
import functools
import pathlib
import re

import pytest

from kilonova import states
from kilonova.states import TRANSITIONS, TaskState, VmState
from tests.house.tree import Tree

OWN_EXITS = {name: rule for name, rule in TRANSITIONS.items() if not name.startswith(('delete.', 'reset.'))}
ENTERED = sorted({rule.to_task for rule in TRANSITIONS.values() if rule.to_task} - {TaskState.DELETING})


@pytest.mark.parametrize('task', ENTERED)
def test_every_task_state_has_an_exit_besides_delete(task):
    exits = [
        name
        for name, rule in OWN_EXITS.items()
        if rule.task is not states.ANY and task in rule.task and rule.to_task is None
    ]
    assert exits, f'nothing leads out of {task}'


@pytest.mark.parametrize('task', ENTERED)
def test_every_task_state_can_fail_without_changing_anything_but_itself_or_to_error(task):
    failures = [
        rule
        for name, rule in OWN_EXITS.items()
        if name.endswith('.failed') and rule.task is not states.ANY and task in rule.task
    ]
    # A revert and a soft delete only go forward; everything else can be given up.
    assert failures or task in (TaskState.RESIZE_REVERTING, TaskState.SOFT_DELETING)


def test_states_have_one_writer():
    """Everything else goes through it: it alone compares what is there with the table, and says what was written."""
    writers = Tree(pathlib.Path(states.__file__).parents[1]).writers_of_states()
    assert writers == ['kilonova/db/queries/instances.py:_move']


@functools.cache
def named_in_code() -> re.Pattern[str]:
    """The texts in the code. Into f'{verb}.done' the texts of the same file are filled: 'stop', 'start'; f'{one}.{two}'
    names nothing. ``moved=`` only tells what somebody else is to write."""
    root, found = pathlib.Path(states.__file__).parent, set()
    for path in set(root.rglob('*.py')) - {pathlib.Path(states.__file__)}:
        tree = ast.parse(path.read_text(encoding='utf-8'))
        told = {
            inner
            for node in ast.walk(tree)
            if isinstance(node, ast.keyword) and node.arg == 'moved'
            for inner in ast.walk(node)
        }
        words = {
            node.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.fullmatch('[a-z_]+', node.value)
        }
        word = f'(?:{"|".join(sorted(words))})'
        for node in set(ast.walk(tree)) - told:
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.add(re.escape(node.value))
            elif isinstance(node, ast.JoinedStr):
                known = [part.value for part in node.values if isinstance(part, ast.Constant)]
                if re.search('[a-z]', ''.join(known)):
                    found.add(
                        ''.join(
                            re.escape(part.value) if isinstance(part, ast.Constant) else word for part in node.values
                        )
                    )
    return re.compile('|'.join(sorted(one for one in found if r'\.' in one)))


@pytest.mark.parametrize('event', TRANSITIONS)
def test_every_row_of_the_table_is_used(event):
    named = named_in_code().fullmatch(event) is not None
    assert named, 'no code names it'


def test_every_event_that_code_names_has_a_row():
    """A row that is missing is found here, not by the first server that comes to it. rpc/notify.py has old names of
    notifications."""
    root, named = pathlib.Path(states.__file__).parent, set()
    verbs = '|'.join({event.partition('.')[0] for event in TRANSITIONS})
    for path in set(root.rglob('*.py')) - {pathlib.Path(states.__file__), root / 'rpc' / 'notify.py'}:
        named |= set(re.findall(rf"'((?:{verbs})\.[a-z_]+)'", path.read_text(encoding='utf-8')))
    assert len(named) > 30 and named - TRANSITIONS.keys() == set()


@pytest.mark.parametrize(
    ('event', 'vm', 'task', 'allowed'),
    [
        ('stop.start', 'active', None, True),
        ('stop.start', 'error', None, True),
        ('stop.start', 'stopped', None, False),
        ('stop.start', 'active', 'rebooting', False),
        ('start.start', 'stopped', None, True),
        ('resize.start', 'stopped', None, True),
        ('resize.start', 'resized', None, False),
        ('live_migrate.start', 'active', None, True),
        ('live_migrate.start', 'paused', None, True),
        ('live_migrate.start', 'stopped', None, False),
        ('live_migrate.start', 'active', 'migrating', False),
        ('confirm.start', 'resized', None, True),
        ('confirm.start', 'active', None, False),
        ('snapshot.start', 'paused', None, True),
        ('snapshot.start', 'resized', None, False),
        ('soft_delete.start', 'active', 'rebooting', True),
        ('soft_delete.start', 'active', 'deleting', False),
        ('soft_delete.start', 'building', 'spawning', False),
        ('soft_delete.start', 'soft-delete', None, False),
        ('restore.start', 'soft-delete', None, True),
        ('restore.start', 'active', None, False),
        ('delete.start', 'building', 'spawning', True),
        ('reset.error', 'resized', 'resize_reverting', True),
    ],
)
def test_what_is_allowed_when(event, vm, task, allowed):
    assert TRANSITIONS[event].allows(vm, task) is allowed


# The operation that a refusal names, by its event or the first word of it, where it isn't that word.
METHODS = {
    'live_migrate.force': 'force_complete',
    'live_migrate.abort': 'abort live migration',
    'live_migrate': 'os-migrateLive',
    'reclaim': 'delete',
    'backup': 'createBackup',
    'reboot_hard': 'reboot',
    'set_admin_password': 'changePassword',
    'snapshot': 'createImage',
    'confirm': 'confirmResize',
    'unshelve_start': 'unshelve',
    'revert': 'revertResize',
    'reset': 'reset_state',
    'host': 'host boot',
}


@pytest.mark.parametrize('event', sorted(TRANSITIONS))
def test_a_row_of_the_table(event):
    """Vm states stand with vm states and task states with task states; a refusal names the operation."""
    rule = TRANSITIONS[event]
    assert rule.vm is states.ANY or rule.vm <= {*VmState}
    assert rule.task is states.ANY or rule.task <= {*TaskState, None}
    assert rule.vm or rule.vm is states.NEW
    assert rule.to_vm is None or isinstance(rule.to_vm, VmState)
    assert rule.to_task is None or isinstance(rule.to_task, TaskState)
    word = event.partition('.')[0]
    assert rule.method == METHODS.get(event, METHODS.get(word, word))


def test_numbers_of_power_states():
    """They are stored, and shown as OS-EXT-STS:power_state."""
    assert {state.name: state.value for state in states.PowerState} == {
        'NOSTATE': 0,
        'RUNNING': 1,
        'PAUSED': 3,
        'SHUTDOWN': 4,
        'CRASHED': 6,
        'SUSPENDED': 7,
    }
    assert {state.name: word for state, word in states.POWER_WORDS.items()} == {
        'NOSTATE': 'pending',
        'RUNNING': 'running',
        'PAUSED': 'paused',
        'SHUTDOWN': 'shutdown',
        'CRASHED': 'crashed',
        'SUSPENDED': 'suspended',
    }


def test_words_of_states():
    """They are stored, and shown as OS-EXT-STS:vm_state and task_state."""
    odd = {
        'SOFT_DELETED': 'soft-delete',
        'POWERING_OFF': 'powering-off',
        'POWERING_ON': 'powering-on',
        'SOFT_DELETING': 'soft-deleting',
    }
    assert all(state == odd.get(state.name, state.name.lower()) for state in (*VmState, *TaskState))


@pytest.mark.parametrize(
    ('vm', 'task', 'shown'),
    [
        ('paused', None, 'PAUSED'),
        ('suspended', None, 'SUSPENDED'),
        ('rescued', None, 'RESCUE'),
        ('soft-delete', None, 'SOFT_DELETED'),
        ('shelved', None, 'SHELVED'),
        ('shelved_offloaded', None, 'SHELVED_OFFLOADED'),
        ('active', None, 'ACTIVE'),
        ('active', 'resize_prep', 'RESIZE'),
        ('stopped', 'resize_finish', 'RESIZE'),
        ('resized', None, 'VERIFY_RESIZE'),
        ('resized', 'resize_reverting', 'REVERT_RESIZE'),
        ('building', 'spawning', 'BUILD'),
        ('active', 'rebooting_hard', 'HARD_REBOOT'),
        ('active', 'rebooting', 'REBOOT'),
        ('active', 'reboot_pending', 'REBOOT'),
        ('active', 'reboot_started', 'REBOOT'),
        ('active', 'reboot_pending_hard', 'HARD_REBOOT'),
        ('active', 'reboot_started_hard', 'HARD_REBOOT'),
        ('active', 'updating_password', 'PASSWORD'),
        ('active', 'migrating', 'MIGRATING'),
        ('paused', 'migrating', 'MIGRATING'),
        ('error', 'rebuilding', 'REBUILD'),
        ('stopped', 'rebuild_spawning', 'REBUILD'),
        ('active', 'deleting', 'ACTIVE'),
        ('stopped', None, 'SHUTOFF'),
        ('error', None, 'ERROR'),
        ('deleted', None, 'DELETED'),
        ('nonsense', None, 'UNKNOWN'),
    ],
)
def test_status_shown(vm, task, shown):
    assert states.status(vm, task) == shown


def test_status_filter_finds_all_states_that_show_it():
    assert (VmState.ACTIVE.value, None) in states.from_status('active')
    found = dict(states.from_status('RESIZE'))
    assert set(found) == {'active', 'stopped'}
    assert found['stopped'] == {'resize_prep', 'resize_migrating', 'resize_migrated', 'resize_finish'}
    assert states.from_status('NOSUCH') == []


def test_no_console_is_opened_while_the_guest_ends_or_moves():
    assert {TaskState.DELETING, TaskState.SOFT_DELETING, TaskState.MIGRATING} == states.NO_CONSOLE
