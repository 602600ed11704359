"""[libvirt] as guests need it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kilonova.virt import identity
from kilonova.virt.libvirt.hostinfo import settings
from kilonova.virt.libvirt.hostinfo.capabilities import GuestCapabilities, HostCapabilities
from kilonova.virt.parts.host import DriverMisconfigured
from tests.unit.virt.builders import new_conf

HOST = HostCapabilities('x86_64', '', '', (), (), (('x86_64', ('kvm', 'qemu')),), uuid='board')


def read(path: Path, test: bool = False, host: HostCapabilities = HOST, **options: Any) -> Any:
    conf = new_conf(path, libvirt=options)
    Path(conf.instances_path).mkdir(parents=True)
    return settings.read(conf, host, test)


@pytest.mark.parametrize(('test', 'kind'), [(False, 'kvm'), (True, 'test')])
def test_domain_type(tmp_path: Path, test: bool, kind: str) -> None:
    assert read(tmp_path, test).domain_type == kind


def test_connection_uri(tmp_path: Path) -> None:
    assert settings.connection_uri(new_conf(tmp_path)) == 'qemu:///system'
    assert settings.connection_uri(new_conf(tmp_path, libvirt={'connection_uri': 'test:///x'})) == 'test:///x'


@pytest.mark.parametrize(
    ('options', 'said'),
    [
        ({'virt_type': 'lxc'}, 'virt_type lxc'),
        ({'cpu_mode': 'custom'}, 'cpu_models is empty'),
        ({'hw_machine_type': ['q35']}, "'q35' is not of the form"),
        ({'disk_cachemodes': ['file=fast']}, "'fast' is not a cache mode"),
    ],
)
def test_what_cannot_be_is_refused_at_start(tmp_path: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(DriverMisconfigured, match=said):
        read(tmp_path, **options)


def test_a_host_without_kvm_says_so(tmp_path: Path) -> None:
    host = HostCapabilities('x86_64', '', '', (), (), (('x86_64', ('qemu',)),))
    with pytest.raises(DriverMisconfigured, match='virt_type is kvm, but this host supports qemu'):
        read(tmp_path, host=host)


def test_lists_become_tables(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        hw_machine_type=['x86_64=q35', 'aarch64=virt'],
        cpu_model_extra_flags=['+PCID', '-mtrr'],
        cpu_mode='custom',
        cpu_models=['Haswell', 'EPYC'],
        disk_cachemodes=['block=none', 'file=writeback'],
        rng_dev_path='',
    )
    assert found.machines == {'x86_64': 'q35', 'aarch64': 'virt'}
    assert found.cpu_flags == (('pcid', 'require'), ('mtrr', 'disable'))
    assert (list(found.cpu_models), found.disk_cache, found.rng_source) == (['Haswell', 'EPYC'], 'writeback', None)


@pytest.mark.parametrize(
    ('options', 'modes'),
    [
        ({}, {'emulate'}),
        ({'cpu_mode': 'host-passthrough'}, {'emulate', 'passthrough'}),
        ({'cpu_mode': 'maximum'}, {'emulate', 'passthrough'}),
        ({'cpu_mode': 'none'}, set()),
        ({'cpu_mode': 'maximum', 'virt_type': 'qemu'}, {'emulate'}),
    ],
)
def test_its_own_addresses_come_with_its_own_cpu(tmp_path: Path, options: dict[str, Any], modes: set[str]) -> None:
    assert read(tmp_path, **options).address_spaces == modes


def test_old_libvirts_choose_no_addresses(tmp_path: Path) -> None:
    assert (
        settings.read(
            new_conf(tmp_path), HOST, False, guests=GuestCapabilities(graphics=frozenset({'vnc'}))
        ).address_spaces
        == set()
    )


def test_the_priority_of_realtime(tmp_path: Path) -> None:
    assert read(tmp_path).realtime_priority == 1
    assert read(tmp_path / 'other', realtime_scheduler_priority=9).realtime_priority == 9


@pytest.mark.parametrize(
    ('source', 'number'),
    [('none', None), ('hardware', 'board'), ('os', 'machine'), ('auto', 'machine'), ('unique', 'unique')],
)
def test_serial_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, number: str | None) -> None:
    monkeypatch.setattr(identity, 'machine_id', lambda: 'machine')
    assert read(tmp_path, sysinfo_serial=source).serial_number == number


def test_what_guests_can_have(tmp_path: Path) -> None:
    """Where libvirt says nothing: what guests of the architecture have everywhere."""
    usual = read(tmp_path)
    assert usual.has_uefi and usual.has_secure_boot and 'qxl' in usual.video_models
    guests = GuestCapabilities(video_models=frozenset({'vga'}), graphics=frozenset({'vnc'}), has_uefi=True)
    told = settings.read(new_conf(tmp_path), HOST, False, guests=guests)
    assert (told.has_uefi, told.has_secure_boot, told.video_models) == (True, False, {'vga'})
    assert settings.machine_types(
        new_conf(tmp_path, libvirt={'hw_machine_type': ['x86_64=pc-q35-8.2', 'aarch64=x']}), 'x86_64'
    ) == {'pc', 'q35', 'pc-q35-8.2'}
