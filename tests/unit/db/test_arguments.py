"""The arguments of operations keep the keys of their JSON, which conductors of the release before read and write.

A rolling upgrade mixes the two releases. If a test here fails because an attribute was renamed, keep the old name. If
an attribute was added, it needs a default, and the release before must be able to do without it.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from kilonova.conductor.flows import FLOWS
from kilonova.conductor.flows.releases import RELEASES
from kilonova.context import RequestContext
from kilonova.db.arguments import kinds, releases
from kilonova.db.arguments.attachments import NetworkChangedArguments, VolumeArguments
from kilonova.db.arguments.base import LEFT_OUT, Arguments
from kilonova.db.arguments.moves import ConfirmArguments, SoftDeleteArguments
from kilonova.db.arguments.servers import RebootArguments, StopArguments
from kilonova.db.queries.operations import OperationRow
from tests.unit.test_release_before import OPERATIONS, as_written

# The keys in the rows of each class: those that each row must have, and in brackets those that a row may lack.
KEYS = {
    'boot': 'image instance request_spec [bdms] [sealed] [tags]',
    'rebuild': 'check_host old old_request_spec preserve_ephemeral request_spec [image] [sealed]',
    'reimage': 'check_host old old_request_spec preserve_ephemeral reimage request_spec [image] [sealed]',
    'stop': '[clean_shutdown]',
    'reboot': 'reboot_type',
    'rescue': 'image sealed',
    'set_admin_password': 'sealed',
    'snapshot': 'image_id',
    'backup': 'backup_type image_id rotation',
    'shelve': 'image_id',
    'shelve_offload': '[shelving]',
    'resume_on_host_boot': 'host',
    'resize': 'flavor migration_type migration_uuid request_spec [clean_shutdown] [host] [image] [old_request_spec]',
    'live_migrate': 'block flavor migration_type migration_uuid over_commit request_spec',
    'evacuate': 'flavor migration_type migration_uuid power_state request_spec stays_off [image] [sealed] [shared]',
    'unshelve': 'request_spec [new_request_spec] [old_request_spec]',
    'confirm': 'migration_uuid',
    'revert': 'migration_uuid [request_spec]',
    'soft_delete': '[migration_uuid]',
    'attach_interface': 'wish [request] [resources]',
    'detach_interface': 'vif [port_id]',
    'network_changed': '[at_rest] [renamed]',
    'attach_volume': 'row volume_id',
    'detach_volume': 'volume_id',
    'volume_extended': 'volume_id',
    'swap_volume': 'attachment columns copy row volume_id',
    'volume_snapshot_create': 'files snapshot_id volume_id',
    'volume_snapshot_delete': 'merge snapshot_id volume_id',
    'release': '',
    'mirror': 'aggregate host',
    'host_removal': 'host nodes',
    'ConsumerRelease': 'consumer',
    'BackupsRelease': 'backup_type image_id rotation',
    'ImageRelease': 'image_id',
    'AcceleratorRequestsRelease': 'accelerator_requests [accelerators_at]',
    'PortsRelease': 'ports_given ports_of',
    'PortResourcesRelease': 'classes resources_of',
    'SwapRelease': 'volume_swapped volumes_of',
    'VolumesRelease': 'volumes_deleted volumes_of [volumes_made]',
    'SnapshotsRelease': 'snapshots_of',
    'SnapshotStatusRelease': 'snapshot_told',
    'AcceleratorsRelease': 'accelerators_of',
    'HostRelease': 'host kwargs method',
}
# Keys that are not written while they have their default: rows without them mean the same.
NOT_WRITTEN = {
    'stop': {'clean_shutdown': True},
    'resize': {'clean_shutdown': True},
    'shelve_offload': {'shelving': False},
    'unshelve': {'new_request_spec': None, 'old_request_spec': None},
    'soft_delete': {'migration_uuid': ''},
    'detach_interface': {'port_id': None},
    'network_changed': {'at_rest': None, 'renamed': False},
    'AcceleratorRequestsRelease': {'accelerators_at': None},
    'VolumesRelease': {'volumes_made': False},
}
CLASSES: dict[str, type[Arguments]] = {
    **kinds.KINDS,
    **{cls.__name__: cls for cls in releases.ReleaseArguments.__subclasses__()},
}


def keys_of(cls: type[Arguments]) -> str:
    """Return the keys of a class in the form of ``KEYS``."""
    found = dataclasses.fields(cls)
    required = sorted(one.name for one in found if one.default is dataclasses.MISSING)
    return ' '.join([*required, *sorted(f'[{one.name}]' for one in found if one.name not in required)])


@pytest.mark.parametrize('name', CLASSES)
def test_a_kind_of_operations_keeps_the_keys_of_its_arguments(name: str) -> None:
    assert keys_of(CLASSES[name]) == KEYS[name]
    not_written = {one.name: one.default for one in dataclasses.fields(CLASSES[name]) if one.metadata == LEFT_OUT}
    assert not_written == NOT_WRITTEN.get(name, {})


def test_each_kind_with_arguments_has_a_flow() -> None:
    assert set(kinds.KINDS) <= set(FLOWS)
    assert set(KEYS) == set(CLASSES)


@pytest.mark.parametrize(
    'number', range(len(OPERATIONS)), ids=[f'{one["kind"]}-{number}' for number, one in enumerate(OPERATIONS)]
)
def test_recorded_arguments_are_read_and_written_as_they_were(number: int) -> None:
    """Only a key with the value that its absence means may be left out."""
    record = OPERATIONS[number]
    stored = json.loads(as_written(record['row'])['args'])
    read = kinds.read(record['kind'], stored)
    assert read.is_complete
    assert {**NOT_WRITTEN.get(record['kind'], {}), **read.stored()} == {
        **NOT_WRITTEN.get(record['kind'], {}),
        **stored,
    }


@pytest.mark.parametrize('name', CLASSES)
def test_keys_of_a_newer_release_are_ignored(name: str) -> None:
    made = CLASSES[name].read({'unknown': 1})
    assert 'unknown' not in vars(made)


def test_a_missing_argument_is_missed_where_it_is_read() -> None:
    """The other arguments of the row can be read, so that the operation can be undone."""
    read = kinds.read('evacuate', {'migration_uuid': 'm', 'stays_off': True})
    assert vars(read) == {'migration_uuid': 'm', 'stays_off': True, 'image': None, 'sealed': None, 'shared': None}
    assert not read.is_complete
    name: Any = 'power_state'
    with pytest.raises(KeyError, match='power_state'):
        getattr(read, name)
    with pytest.raises(AttributeError):
        getattr(read, f'{name}_')


@pytest.mark.parametrize(
    ('stored', 'name'),
    [
        ({'image_id': 'i', 'rotation': 1, 'backup_type': 'daily'}, 'BackupsRelease'),
        ({'image_id': 'i'}, 'ImageRelease'),
        ({'volumes_of': 's', 'volume_swapped': ['a', 'b', True]}, 'SwapRelease'),
        ({'volumes_of': 's', 'volumes_deleted': []}, 'VolumesRelease'),
        ({'host': 'h', 'method': 'm', 'kwargs': {}}, 'HostRelease'),
        ({'consumer': 'c', 'host': 'h'}, 'ConsumerRelease'),
        ({'of a newer release': 1}, 'ReleaseArguments'),
    ],
)
def test_a_key_says_what_a_release_releases(stored: dict[str, Any], name: str) -> None:
    read = kinds.read('release', stored)
    assert type(read).__name__ == name
    assert read.stored().items() <= stored.items()


def test_each_release_is_recognised() -> None:
    assert set(RELEASES) == set(releases.ReleaseArguments.__subclasses__())
    for cls in releases.ReleaseArguments.__subclasses__():
        required = [one.name for one in dataclasses.fields(cls) if one.default is dataclasses.MISSING]
        assert type(releases.ReleaseArguments.read(dict.fromkeys(required))) is cls


def row(kind: str, args: Arguments | None = None) -> OperationRow:
    return OperationRow.new(RequestContext(), kind, 'server', args)


def test_a_row_has_the_arguments_of_its_kind() -> None:
    assert row('reboot', RebootArguments(reboot_type='HARD')).args == {'reboot_type': 'HARD'}
    assert row('stop', StopArguments()).args == row('pause').args == {}
    assert row('stop').arguments(StopArguments).clean_shutdown is True
    with pytest.raises(TypeError, match='stop does not have arguments of class RebootArguments'):
        row('stop', RebootArguments(reboot_type='HARD'))
    with pytest.raises(TypeError, match='has arguments of class StopArguments, not RebootArguments'):
        row('stop').arguments(RebootArguments)


def test_a_row_gets_other_arguments() -> None:
    made = row('confirm').with_arguments(ConfirmArguments(migration_uuid='m'), not_before=3.0)
    assert (made.args, made.not_before) == ({'migration_uuid': 'm'}, 3.0)
    with pytest.raises(TypeError):
        made.with_arguments(SoftDeleteArguments(migration_uuid='m'))


def test_rows_are_alike_by_what_identifies_them() -> None:
    told = releases.SnapshotStatusRelease(snapshot_told=('s', 'error', None))
    read = dataclasses.replace(row('release', told), args=json.loads(json.dumps(told.stored())))
    assert row('release', told).is_like(read)
    at_rest = NetworkChangedArguments(at_rest='p')
    assert row('network_changed', at_rest).is_like(row('network_changed', at_rest))
    assert not row('network_changed', at_rest).is_like(row('network_changed'))
    assert not row('release', releases.ImageRelease(image_id='i')).is_like(
        row('release', releases.ConsumerRelease(consumer='i'))
    )
    volume = VolumeArguments(volume_id='v')
    assert not row('volume_extended', volume).is_like(row('volume_extended', volume))


@pytest.mark.parametrize(
    ('kind', 'text', 'name'),
    [
        ('host_removal', '{"host": "h", "nodes": []}', 'HostRemovalArguments'),
        ('host_removal', '{"host": "h"}', None),
        ('release', '{"consumer": "c"}', 'ConsumerRelease'),
        ('release', '{"consu', None),
        ('release', '[]', None),
    ],
)
def test_the_audit_reads_a_row_if_it_can(kind: str, text: str, name: str | None) -> None:
    read = kinds.of_row({'kind': kind, 'args': text})
    assert (type(read).__name__ if read is not None else None) == name
