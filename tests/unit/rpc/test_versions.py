"""The history of service versions says what this release speaks."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from kilonova.rpc import compute, conductor, scheduler, versions
from kilonova.rpc.interface import Client, within

INTERFACES = {
    'compute': compute.Compute,
    'conductor': conductor.Conductor,
    'compute_task': conductor.ComputeTask,
    'scheduler': scheduler.Scheduler,
}

# Methods that came with this release: under the older pin the operation ends with a fault that names both versions.
NEWER: dict[str, set[str]] = {
    'compute': {
        'pause_instance',
        'unpause_instance',
        'suspend_instance',
        'resume_instance',
        'trigger_crash_dump',
        'rescue_instance',
        'unrescue_instance',
        'set_admin_password',
        'rebuild_instance',
        'stop_to_reimage',
        'undo_stop_to_reimage',
        'check_can_live_migrate_source',
        'check_can_live_migrate_destination',
        'pre_live_migration',
        'live_migration',
        'post_live_migration_at_destination',
        'post_live_migration',
        'live_migration_force_complete',
        'undo_live_migration',
        'rollback_live_migration_at_destination',
        'backup_instance',
        'shelve_instance',
        'shelve_offload_instance',
        'unshelve_instance',
        'start_shelved_instance',
        'undo_shelve_instance',
        'undo_unshelve_instance',
        'undo_start_shelved_instance',
        'evacuate_instance',
        'undo_evacuate_instance',
        'clean_evacuated',
        'get_serial_console',
        'get_spice_console',
        'get_vnc_console',
        'validate_console_port',
        'set_device_disabled',
        'set_mdev_type',
        'attach_interface',
        'undo_attach_interface',
        'detach_interface',
        'undo_detach_interface',
        'claim_function',
        'undo_claim_function',
        'free_function',
        'unplug_functions',
        'undo_unplug_functions',
        'plug_functions',
        'prepare_volumes',
        'attach_volume',
        'undo_attach_volume',
        'detach_volume',
        'undo_detach_volume',
        'copy_volume',
        'undo_copy_volume',
        'swap_volume',
        'undo_swap_volume',
        'extend_volume',
        'snapshot_volume',
        'undo_snapshot_volume',
        'withdraw_volume_snapshot',
        'merge_volume',
        'undo_merge_volume',
        'resume_guest',
    },
    'conductor': {'bind_ports', 'resume_later'},
    'compute_task': {'rebuild_instance', 'live_migrate_instance'},
    'scheduler': set(),
}


def test_the_newest_line_is_this_release():
    """A new version of an interface needs a new service version (once a release)."""
    assert max(versions.HISTORY) == versions.SERVICE_VERSION
    assert versions.HISTORY[versions.SERVICE_VERSION] == {
        name: interface.version for name, interface in INTERFACES.items()
    }
    assert versions.OLDEST_SUPPORTED in versions.HISTORY


def test_versions_only_grow():
    lines = [line for _, line in sorted(versions.HISTORY.items())]
    for older, newer in itertools.pairwise(lines):
        for name in INTERFACES:
            before, after = (tuple(map(int, line[name].split('.'))) for line in (older, newer))
            assert before <= after and before[0] == after[0]


@pytest.mark.parametrize(
    ('minimum', 'cap'),
    [(0, None), (78, '6.12'), (79, '6.12'), (versions.SERVICE_VERSION, None), (versions.SERVICE_VERSION + 1, None)],
)
def test_cap(minimum, cap):
    assert versions.cap('compute', minimum) == cap


def test_a_client_asks_for_its_cap_with_each_message():
    known = ['4.6', None]

    class Sink:
        def send(self, kind, topic, namespace, server, version, ctxt, method, args):
            return version

    client = Client(scheduler.Scheduler, Sink(), lambda: known[0])
    arguments = {'spec_obj': None, 'instance_uuids': [], 'claim': True, 'time_left': 1.0}
    assert client.select_destinations(None, **arguments) == '4.6'
    known[0] = None
    assert client.select_destinations(None, **arguments) == '4.7'


@pytest.mark.parametrize('name', INTERFACES)
def test_every_method_can_be_sent_under_every_pin(name):
    """An operation of the release before works under each version that [upgrade_levels] accepts."""
    for pin in versions.accepted(name):
        refused = {method for method, func in INTERFACES[name].methods().items() if not within(func.rpc.since, pin)}
        assert refused == (set() if pin == INTERFACES[name].version else NEWER[name]), pin


def test_the_documentation_has_the_history():
    text = (Path(__file__).parents[3] / 'docs' / 'admin' / 'running.md').read_text()
    for number, line in versions.HISTORY.items():
        cells = (str(number), line['compute'], line['conductor'], line['compute_task'], line['scheduler'])
        assert f'| {" | ".join(cells)} |' in text


def test_every_server_answers_a_ping():
    """On both transports; nobody there is silence."""
    from kilonova.context import get_admin_context
    from kilonova.errors import Unanswered
    from kilonova.rpc import baseapi
    from kilonova.rpc.transport import DirectTransport

    transport, ctxt = DirectTransport(), get_admin_context()
    server = transport.serve('scheduler', 'ctl1', [])
    with pytest.raises(Unanswered):
        baseapi.ping(transport, 'scheduler', 'ctl1', ctxt)
    server.start()
    baseapi.ping(transport, 'scheduler', None, ctxt)
    assert transport.send('call', 'scheduler', 'baseapi', None, '1.0', ctxt, 'ping', {'arg': 'x'}) == {
        'service': 'scheduler',
        'arg': 'x',
    }
    assert transport.send('call', 'scheduler', 'baseapi', None, '1.1', ctxt, 'get_backdoor_port', {}) is None
