"""``adopt host`` gives the files of a host of Nova the form of Kilonova, and back; guests and disks are not touched."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
import uuid as uuids
from collections.abc import Callable
from typing import Any

import pytest

from kilonova.adopt import host
from kilonova.cmd.manage import main as manage
from kilonova.virt import identity
from kilonova.virt.libvirt.storage.instance import InstanceDirectory

NODE = '90ea1b2c-3d4e-4f5a-8b9c-0d1e2f3a4b5c'


class NovaHost:
    """The files of a host of Nova."""

    def __init__(self, directory: pathlib.Path) -> None:
        self.place = host.HostFiles('kvm-1', directory / 'instances', directory / 'nova', directory / 'kilonova')
        self.place.instances.mkdir()
        self.place.nova_state.mkdir()
        (self.place.nova_state / 'compute_id').write_text(NODE)
        self.guests: dict[str, str] = {}

    def server(self, *disks: str, suffix: str = '', uuid: str | None = None, inside: str = '') -> pathlib.Path:
        """Add a server's directory with these qcow2 disks and a config drive; ``inside``: further XML of devices."""
        uuid = uuid or str(uuids.uuid4())
        path = self.place.instances / f'{uuid}{suffix}'
        path.mkdir()
        for name in (*disks, 'disk.config', 'console.log'):
            (path / name).write_text(name)
        home = self.place.instances / uuid
        (path / 'disk.info').write_text(json.dumps({f'{home}/{name}': 'qcow2' for name in disks}))
        if not suffix:
            self.guests[uuid] = domain(inside)
        return path

    def plan(self) -> host.Plan:
        return host.plan(self.place, self.guests)

    def content(self) -> dict[str, str]:
        """{path of each file: its text}."""
        return {
            str(path.relative_to(self.place.instances)): path.read_text()
            for path in sorted(self.place.instances.rglob('*'))
            if path.is_file()
        }


def domain(inside: str = '', around: str = '') -> str:
    nova = '<nova:instance xmlns:nova="http://openstack.org/xmlns/libvirt/nova/1.1"/>'
    return (
        f'<domain><name>instance-0000002a</name><metadata>{nova}</metadata>{around}<devices>{inside}</devices></domain>'
    )


@pytest.fixture
def nova(tmp_path: pathlib.Path) -> NovaHost:
    return NovaHost(tmp_path)


def test_kilonova_finds_the_disks_and_the_node(nova):
    path = nova.server('disk', 'disk.eph0')
    before = nova.content()
    host.adopt(nova.plan())
    directory = InstanceDirectory(str(nova.place.instances), path.name)
    assert directory.formats() == {'disk': 'qcow2', 'disk.eph0': 'qcow2', 'disk.config': 'raw'}
    assert directory.owner() == 'kvm-1'
    assert identity.node_uuid(str(nova.place.state)) == NODE
    changed = {name for name, text in nova.content().items() if before.get(name) != text}
    assert changed == {f'{path.name}/disk.info', f'{path.name}/owner'}


def test_a_second_run_has_nothing_to_do(nova):
    nova.server('disk')
    host.adopt(nova.plan())
    plan = nova.plan()
    assert (plan.infos, plan.identity, plan.problems) == ({}, None, [])


def test_nova_finds_all_as_it_was(nova):
    first = nova.server('disk')
    kept = nova.server('disk', suffix='_resize')
    before = nova.content()
    host.adopt(nova.plan())
    assert host.give_back(nova.place) == 2
    assert nova.content() == before
    assert (first / 'disk.info').stat().st_mode & 0o777 == 0o644 and kept.exists()


def test_nova_finds_a_server_that_kilonova_made(nova):
    path = nova.place.instances / str(uuids.uuid4())
    path.mkdir()
    directory = InstanceDirectory(str(nova.place.instances), path.name)
    for name, format_ in (('disk', 'qcow2'), ('disk.config', 'raw')):
        (path / name).touch()
        directory.record(name, format_)
    directory.own('kvm-1')
    directory.show_domain('<domain/>')
    host.give_back(nova.place)
    assert json.loads((path / 'disk.info').read_text()) == {f'{path}/disk': 'qcow2'}
    assert sorted(entry.name for entry in path.iterdir()) == ['disk', 'disk.config', 'disk.info']


def test_the_kept_original_of_a_resize_is_converted(nova):
    kept = nova.server('disk', suffix='_resize')
    host.adopt(nova.plan())
    assert json.loads((kept / 'disk.info').read_text()) == {'disk': 'qcow2', 'disk.config': 'raw'}
    assert not (kept / 'owner').exists()


def test_a_disk_that_is_gone_is_left_out(nova):
    path = nova.server('disk', 'disk.rescue')
    (path / 'disk.rescue').unlink()
    host.adopt(nova.plan())
    assert json.loads((path / 'disk.info').read_text()) == {'disk': 'qcow2', 'disk.config': 'raw'}


# --- what stands in the way
def test_a_resize_on_one_host_must_be_confirmed(nova):
    path = nova.server('disk')
    nova.server('disk', suffix='_resize', uuid=path.name)
    assert nova.plan().problems == [
        f'server {path.name} waits for the confirmation of a resize on this same host: confirm or revert it first'
    ]


@pytest.mark.parametrize(
    ('inside', 'around', 'what'),
    [
        ('<tpm model="tpm-crb"/>', '', 'an emulated TPM'),
        ('<filesystem type="mount"/>', '', 'a file share'),
        ('<memory model="nvdimm"/>', '', 'persistent or added memory'),
        ('', '<launchSecurity type="sev"/>', 'encrypted memory'),
        ('<disk type="file"><source><encryption format="luks"/></source></disk>', '', 'an encrypted disk'),
        ('<disk type="file"><encryption format="luks"/></disk>', '', 'an encrypted disk'),
    ],
)
def test_what_kilonova_does_not_give(nova, inside, around, what):
    path = nova.server('disk')
    nova.guests[path.name] = domain(inside, around)
    assert nova.plan().problems == [f'server {path.name} (instance-0000002a) has {what}, which Kilonova does not give']


def test_an_encrypted_volume_is_no_encrypted_disk(nova):
    nova.server('disk', inside='<disk type="block"><encryption format="luks"/></disk>')
    assert nova.plan().problems == []


def test_disks_in_ceph(nova):
    path = nova.server()
    nova.guests[path.name] = domain(f'<disk type="network"><source protocol="rbd" name="vms/{path.name}_disk"/></disk>')
    assert 'has its disks in Ceph' in nova.plan().problems[0]


@pytest.mark.parametrize(
    ('text', 'said'),
    [
        ('{', 'this is no JSON'),
        ('[]', 'this is no JSON object from disk to format'),
        ('{"/x/disk": "vmdk"}', "/x/disk has the format 'vmdk'; raw and qcow2 are known"),
    ],
)
def test_a_record_of_disks_that_is_none(nova, text, said):
    path = nova.server('disk')
    (path / 'disk.info').write_text(text)
    (problem,) = nova.plan().problems
    assert said in problem and str(path / 'disk.info') in problem
    with pytest.raises(host.HostUnusable, match=r'disk\.info'):
        host.give_back(nova.place)


@pytest.mark.parametrize(
    ('theirs', 'ours', 'said'),
    [
        (None, None, 'compute_id does not exist'),
        ('nonsense', None, 'has no uuid'),
        (NODE, str(uuids.UUID(int=1)), 'has another uuid'),
    ],
)
def test_the_uuid_of_the_node(nova, theirs, ours, said):
    (nova.place.nova_state / 'compute_id').unlink()
    if theirs is not None:
        (nova.place.nova_state / 'compute_id').write_text(theirs)
    if ours is not None:
        nova.place.state.mkdir()
        (nova.place.state / 'compute_id').write_text(ours)
    (problem,) = nova.plan().problems
    assert said in problem


def test_a_plan_with_problems_is_not_carried_out(nova):
    (nova.place.nova_state / 'compute_id').unlink()
    path = nova.server('disk')
    before = nova.content()
    with pytest.raises(ValueError, match='problems'):
        host.adopt(nova.plan())
    assert nova.content() == before and path.exists()


# --- what an operator should know
def test_what_is_told(nova):
    rescued, stray = nova.server('disk'), nova.server('disk')
    (rescued / 'unrescue.xml').touch()
    del nova.guests[stray.name]
    nova.guests['0a1b'] = '<domain><name>mine</name></domain>'
    (nova.place.instances / 'compute_nodes').write_text(json.dumps({'kvm-1': 1.0, 'kvm-2': 2.0}))
    plan = nova.plan()
    assert plan.problems == [] and plan.owned == [rescued]
    told = '\n'.join(plan.notes)
    assert 'domain mine (0a1b) is none of Nova: it is left alone' in told
    assert f'server {rescued.name} runs its rescue system' in told
    assert f'{stray} has no domain on this host: it gets no owner' in told
    assert f'{nova.place.instances} is shared with kvm-2' in told


def test_a_program_that_runs_is_found(tmp_path):
    program = tmp_path / 'nova-compute'
    program.write_text('import time; print(flush=True); time.sleep(60)')
    process = subprocess.Popen([sys.executable, str(program)], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None and process.stdout.readline()
        assert host.running('nova-compute') == process.pid
        assert host.running('nova-computer') is None
    finally:
        process.kill()
        process.wait()


# --- the command
@pytest.fixture
def adopt(nova, tmp_path, capsys, monkeypatch) -> Callable[..., tuple[int, str]]:
    monkeypatch.setattr(host, 'guests_of', lambda conf: nova.guests)
    monkeypatch.setattr(host, 'running', lambda program: None)
    common = f'host = kvm-1\ninstances_path = {nova.place.instances}\n'
    (tmp_path / 'nova.conf').write_text(f'[DEFAULT]\nstate_path = {nova.place.nova_state}\n{common}')
    ours = tmp_path / 'kilonova.conf'
    ours.write_text(f'[DEFAULT]\nstate_path = {nova.place.state}\n{common}')

    def adopt(*more: str) -> tuple[int, str]:
        code = manage.main(['--config-file', str(ours), 'adopt', 'host', str(tmp_path / 'nova.conf'), *more])
        return code, capsys.readouterr().out

    return adopt


def test_a_host_is_checked_adopted_and_given_back(nova, adopt):
    nova.server('disk')
    before = nova.content()
    code, printed = adopt('--check')
    assert code == 0 and nova.content() == before
    assert printed.endswith(
        'Nothing was changed. 1 records of disks, 1 directories of guests of kvm-1 are to be adopted.\n'
    )
    code, printed = adopt()
    assert code == 0 and printed.endswith('are adopted. Start kilonova-compute now.\n')
    assert nova.content() != before
    code, printed = adopt('--back')
    assert code == 0 and printed == '1 servers have the files of Nova again. Start nova-compute now.\n'
    assert nova.content() == before


def test_a_compute_that_runs_stands_in_the_way(nova, adopt, monkeypatch):
    nova.server('disk')
    before = nova.content()
    monkeypatch.setattr(host, 'running', lambda program: 4711)
    code, printed = adopt()
    assert code == 1 and 'nova-compute runs on this machine (process 4711): stop it first' in printed
    assert adopt('--check')[0] == 0
    code, printed = adopt('--back')
    assert code == 1 and 'kilonova-compute runs on this machine (process 4711): stop it first' in printed
    assert nova.content() == before


@pytest.mark.parametrize('option', ['host = other', 'instances_path = /nowhere'])
def test_another_host_or_path_stands_in_the_way(nova, adopt, tmp_path, option):
    name = option.partition(' ')[0]
    path = tmp_path / 'nova.conf'
    lines = [line for line in path.read_text().splitlines() if not line.startswith(f'{name} ')]
    path.write_text('\n'.join([*lines, option]))
    code, printed = adopt()
    assert code == 1 and f'[DEFAULT]{name} is ' in printed and 'it must be the same' in printed


def test_a_file_that_cannot_be_written(nova, adopt, monkeypatch):
    nova.server('disk')

    def full(path: str, text: str, mode: int = 0o600) -> Any:
        raise OSError(28, 'No space left on device')

    monkeypatch.setattr(host.files, 'write_whole', full)
    code, printed = adopt()
    assert code == 1 and 'No space left on device' in printed
