"""os-brick itself, as far as it goes without a network of storage."""

from __future__ import annotations

import logging
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kilonova.virt import driver
from kilonova.virt.libvirt.storage import volume_connector as brick_module
from kilonova.virt.libvirt.storage.volume_connector import Bricks
from kilonova.virt.parts.volumes import VolumeFailed, VolumeUnsupported
from tests.unit.virt.builders import KEY, VOLUME, new_conf, new_locked_volume, new_volume

LOCAL = new_volume(connection={'driver_volume_type': 'local', 'device_path': '/dev/loop77'})


@pytest.fixture
def bricks(tmp_path: Path) -> Bricks:
    return Bricks(new_conf(tmp_path))


def test_what_the_volume_service_is_told(bricks: Bricks) -> None:
    assert {
        'host': 'gpu1',
        'ip': '192.0.2.7',
        'os_type': 'linux',
        'multipath': False,
        'enforce_multipath': False,
    }.items() <= bricks.connector().items()


def test_a_host_without_a_way_to_root_tells_what_it_can(
    bricks: Bricks, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    _module, errors = bricks._load()

    def refuse(*args: Any, **options: Any) -> None:
        raise OSError('sudo: not found')

    monkeypatch.setattr(bricks, '_library', (SimpleNamespace(get_connector_properties=refuse), errors))
    with caplog.at_level(logging.WARNING):
        found = bricks.connector()
    assert (found['host'], found['ip'], found['multipath']) == ('gpu1', '192.0.2.7', False)
    assert 'can only have volumes in Ceph and NFS' in caplog.text and 'sudo: not found' in caplog.text
    bricks._conf.set_override('volume_enforce_multipath', True, group='libvirt')
    with pytest.raises(VolumeUnsupported, match='sudo: not found'):
        bricks.connector()


def test_the_library_is_asked_about_this_host_until_it_tells(bricks: Bricks, monkeypatch: pytest.MonkeyPatch) -> None:
    """It starts programs to find out: once is enough."""
    _module, errors = bricks._load()
    asked: list[int] = []

    def tell(*args: Any, **options: Any) -> dict[str, Any]:
        asked.append(1)
        if len(asked) == 1:
            raise OSError('sudo: not found')
        return {'host': 'gpu1', 'initiator': 'iqn.1'}

    monkeypatch.setattr(bricks, '_library', (SimpleNamespace(get_connector_properties=tell), errors))
    found = [bricks.connector() for _ in range(4)]
    assert len(asked) == 2 and [each.get('initiator') for each in found] == [None, 'iqn.1', 'iqn.1', 'iqn.1']
    found[1].clear()
    assert found[2] == bricks.connector()


def test_a_volume_comes_and_goes(bricks: Bricks) -> None:
    for _again in range(2):
        assert bricks.connect(LOCAL) == '/dev/loop77'
    for _again in range(2):
        bricks.disconnect(LOCAL, '/dev/loop77')
        bricks.disconnect(LOCAL, None, force=True)
    with pytest.raises(VolumeFailed, match=f'Host gpu1 could not extend volume {VOLUME}: .'):
        bricks.extend(LOCAL)


@pytest.mark.parametrize(
    'connection',
    [
        {'driver_volume_type': 'nfs', 'export': 'filer:/v'},
        {'driver_volume_type': 'smbfs'},
        {'driver_volume_type': 'local'},
    ],
)
def test_a_connection_that_leads_nowhere(
    bricks: Bricks, connection: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    bricks._load()  # which looks at programs, too
    monkeypatch.setenv('PATH', '/nowhere')
    with pytest.raises(VolumeUnsupported, match=f'Volume {VOLUME} cannot be attached on host gpu1: .+'):
        bricks.connect(new_volume(connection=connection))


def test_secrets_of_a_connection_are_not_told(bricks: Bricks, monkeypatch: pytest.MonkeyPatch) -> None:
    volume = new_volume(connection={'driver_volume_type': 'iscsi', 'auth_password': 'open-sesame', 'lun': 1})
    _module, errors = bricks._load()

    def factory(*args: Any, **options: Any) -> Any:
        raise ValueError('iscsiadm --value open-sesame failed')

    module = SimpleNamespace(InitiatorConnector=SimpleNamespace(factory=factory))
    monkeypatch.setattr(bricks, '_library', (module, errors))
    for act in (lambda: bricks.connect(volume), lambda: bricks.disconnect(volume, None), lambda: bricks.extend(volume)):
        with pytest.raises(driver.errors.KilonovaError, match=r'iscsiadm --value \*\*\* failed') as caught:
            act()
        assert caught.value.__cause__ is None and 'open-sesame' not in str(caught.value)


@pytest.fixture
def cryptsetup(bricks: Bricks, monkeypatch: pytest.MonkeyPatch) -> Cryptsetup:
    bricks._load()
    from os_brick.privileged import rootwrap

    made = Cryptsetup()
    monkeypatch.setattr(rootwrap, 'execute', made.execute)
    return made


class Cryptsetup:
    """Stands for the program: ``ends`` are its exit codes, by the command."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.ends: dict[str, int] = {}

    def execute(self, *command: str, run_as_root: bool, root_helper: str, process_input: str | None) -> tuple[str, str]:
        assert run_as_root and root_helper == 'sudo' and command[0] == 'cryptsetup'
        self.asked.append((*command[1:], process_input))
        from oslo_concurrency.processutils import ProcessExecutionError

        code = next((code for name, code in self.ends.items() if name in command), 0)
        if code:
            raise ProcessExecutionError(exit_code=code, cmd=' '.join(command), stderr='Device is away')
        return ('Version:       \t1\nPayload offset:\t4096\n' if 'luksDump' in command else ''), ''


def test_a_block_device_without_a_header_gets_one(bricks: Bricks, cryptsetup: Cryptsetup) -> None:
    """As the volume service says. One that has a header keeps it, and so does one of which nobody knows that."""
    volume, made = (
        new_locked_volume(connection=LOCAL.connection),
        [
            ('isLuks', '/dev/loop7', None),
            (
                '--batch-mode',
                'luksFormat',
                '--type=luks1',
                '--key-file=-',
                '--cipher=aes-xts-plain64',
                '--key-size=256',
                '/dev/loop7',
                KEY,
            ),
        ],
    )
    for code, asked in ((0, made[:1]), (1, made), (4, made[:1])):
        cryptsetup.asked, cryptsetup.ends = [], {'isLuks': code}
        if code == 4:
            with pytest.raises(VolumeUnsupported, match='cannot be attached on host gpu1: ProcessExecutionError'):
                bricks.lock(volume, '/dev/loop7', KEY)
        else:
            bricks.lock(volume, '/dev/loop7', KEY)
        assert cryptsetup.asked == asked
    cryptsetup.ends = {'isLuks': 1, 'luksFormat': 5}
    with pytest.raises(VolumeUnsupported, match='Device is away') as caught:
        bricks.lock(volume, '/dev/loop7', KEY)
    assert KEY not in str(caught.value) and caught.value.__cause__ is None


def test_where_the_data_of_an_encrypted_device_begin(
    bricks: Bricks, cryptsetup: Cryptsetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert bricks.header(LOCAL, '/dev/loop7') == 2 << 20
    monkeypatch.setattr(brick_module, '_OFFSET', re.compile('nosuch'))
    with pytest.raises(VolumeFailed, match='cryptsetup luksDump printed no payload offset'):
        bricks.header(LOCAL, '/dev/loop7')


def test_it_is_loaded_once(bricks: Bricks, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a second is long enough for a second volume."""
    began = threading.Barrier(3)
    loaded: list[object] = []

    def load(conf: object) -> tuple[Any, tuple[type[Exception], ...]]:
        loaded.append(conf)
        time.sleep(0.2)
        return SimpleNamespace(), (OSError,)

    monkeypatch.setattr(brick_module, '_load', load)

    def use() -> object:
        began.wait(10)
        return bricks._load()

    with ThreadPoolExecutor(3) as pool:
        found = [one.result(10) for one in [pool.submit(use) for _ in range(3)]]
    assert len(loaded) == 1 and found[0] is found[1] is found[2]
