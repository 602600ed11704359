"""What libvirt is asked for the secrets of encrypted volumes; ``tests/integration/test_libvirtd.py`` has a real one."""

from __future__ import annotations

import logging
import re
from types import SimpleNamespace
from typing import Any

import libvirt
import pytest

from kilonova.clients.key_manager import KeyManager
from kilonova.virt.libvirt.storage.secrets import LibvirtSecrets
from kilonova.virt.parts.host import HypervisorUnavailable
from kilonova.virt.parts.volumes import VolumeUnsupported
from tests.unit.virt.builders import KEY, VOLUME, VOLUME2, new_conf, new_locked_volume, new_volume

XML = (
    f'<secret ephemeral="yes" private="yes"><uuid>{VOLUME}</uuid><usage type="volume"><volume>{VOLUME}</volume>'
    '</usage></secret>'
)


def failure(code: int) -> libvirt.libvirtError:
    error = libvirt.libvirtError('no')
    error.err = (code, libvirt.VIR_FROM_SECRET, 'no such secret', 2, '', '', '', 0, 0)
    return error


class Libvirt:
    """``kept``: {uuid: (what it is for, its kind)}; ``asked``: what was defined and set."""

    is_test, name = False, 'gpu1'

    def __init__(self) -> None:
        self.kept: dict[str, tuple[str, int]] = {}
        self.asked: list[Any] = []
        self.error: Exception | None = None

    def do(self, act: Any) -> Any:
        if self.error is not None:
            raise self.error
        return act(self)

    def secretDefineXML(self, xml: str) -> Any:  # noqa: N802 - libvirt's name
        self.asked.append(xml)
        self.kept[VOLUME] = VOLUME, libvirt.VIR_SECRET_USAGE_TYPE_VOLUME
        return SimpleNamespace(setValue=self.asked.append)

    def secretLookupByUUIDString(self, uuid: str) -> Any:  # noqa: N802 - libvirt's name
        if uuid not in self.kept:
            raise failure(libvirt.VIR_ERR_NO_SECRET)
        return SimpleNamespace(undefine=lambda: self.kept.pop(uuid))

    def listAllSecrets(self, flags: int) -> list[Any]:  # noqa: N802 - libvirt's name
        assert flags == libvirt.VIR_CONNECT_LIST_SECRETS_EPHEMERAL | libvirt.VIR_CONNECT_LIST_SECRETS_PRIVATE
        return [
            SimpleNamespace(
                UUIDString=lambda uuid=uuid: uuid, usageID=lambda usage=usage: usage, usageType=lambda kind=kind: kind
            )
            for uuid, (usage, kind) in self.kept.items()
        ]

    def guests(self) -> list[Any]:
        return [
            SimpleNamespace(xml=lambda: f'<domain><devices><disk><serial>{VOLUME}</serial></disk></devices></domain>')
        ]


@pytest.fixture
def host() -> Libvirt:
    return Libvirt()


@pytest.fixture
def secrets(host: Libvirt, tmp_path: Any) -> LibvirtSecrets:
    return LibvirtSecrets(host, KeyManager(new_conf(tmp_path)))  # type: ignore[arg-type]


def test_a_secret_comes_and_goes(host: Libvirt, secrets: LibvirtSecrets, caplog: pytest.LogCaptureFixture) -> None:
    volume = new_locked_volume()
    with caplog.at_level(logging.DEBUG):
        for _again in range(2):
            assert secrets.keep(volume) == KEY
        assert [one if isinstance(one, bytes) else re.sub('\\n *', '', one) for one in host.asked] == [
            XML,
            KEY.encode(),
        ] * 2
        for _again in range(2):
            secrets.forget(VOLUME)
    assert host.kept == {} and KEY not in caplog.text
    assert secrets.keep(new_volume()) is None and len(host.asked) == 4


def test_a_key_that_can_not_be_had(host: Libvirt, secrets: LibvirtSecrets) -> None:
    secrets._keys._conf.set_override('fixed_key', None, group='key_manager')
    with pytest.raises(
        VolumeUnsupported,
        match=f'Volume {VOLUME} cannot be attached on host gpu1: Key 0.* cannot be read: .key_manager.fixed_key',
    ):
        secrets.keep(new_locked_volume())
    assert host.asked == []


def test_what_a_crash_left_behind_goes(host: Libvirt, secrets: LibvirtSecrets) -> None:
    """Not what a domain has, nor what somebody else keeps there."""
    volume, ceph = libvirt.VIR_SECRET_USAGE_TYPE_VOLUME, libvirt.VIR_SECRET_USAGE_TYPE_CEPH
    host.kept = {
        VOLUME: (VOLUME, volume),
        VOLUME2: (VOLUME2, volume),
        'pool': ('/dev/sdx', volume),
        'ceph': ('ceph', ceph),
    }
    secrets.clear()
    assert list(host.kept) == [VOLUME, 'pool', 'ceph']


@pytest.mark.parametrize(
    'error', [HypervisorUnavailable(host='gpu1', reason='gone'), failure(libvirt.VIR_ERR_NO_SUPPORT)]
)
def test_a_host_without_secrets(
    host: Libvirt, secrets: LibvirtSecrets, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """It serves what isn't encrypted."""
    host.error = error
    secrets.clear()
    assert 'guests of this host cannot have encrypted volumes' in caplog.text
    with pytest.raises(type(error)):
        secrets.keep(new_locked_volume())


def test_a_libvirt_that_is_away_holds_no_delete_up(host: Libvirt, secrets: LibvirtSecrets) -> None:
    host.error = HypervisorUnavailable(host='gpu1', reason='gone')
    secrets.forget(VOLUME)
    host.error = failure(libvirt.VIR_ERR_INTERNAL_ERROR)
    with pytest.raises(libvirt.libvirtError):
        secrets.forget(VOLUME)
