"""kilonova-manage adopt: what the command prints, writes and leaves alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kilonova.adopt import config
from kilonova.cmd.manage import main as manage

NOVA = """[DEFAULT]
transport_url = rabbit://nova:s3cret@ctl:5672/
state_path = /var/lib/nova
[database]
connection = mysql+pymysql://nova:s3cret@db/nova
[api_database]
connection = mysql+pymysql://nova:s3cret@db/nova_api
"""
OWN = """[DEFAULT]
transport_url = rabbit://kn:s3cret@ctl:5672/kilonova
[database]
connection = mysql+pymysql://kn:s3cret@db/kn
[api_database]
connection = mysql+pymysql://kn:s3cret@db/kn_api
"""


@pytest.fixture
def adopt(tmp_path, capsys) -> Callable[..., tuple[int, str]]:
    (tmp_path / 'nova.conf').write_text(NOVA)
    (tmp_path / 'own.conf').write_text(OWN)

    def adopt(*more: str, nova: str = 'nova.conf', own: str = 'own.conf') -> tuple[int, str]:
        files = [str(tmp_path / nova), '--own', str(tmp_path / own), '--output', str(tmp_path / 'k.conf')]
        code = manage.main(['adopt', 'config', *files, *more])
        return code, capsys.readouterr().out

    return adopt


def test_the_file_is_for_its_owner_alone(adopt, tmp_path):
    code, printed = adopt()
    assert code == 0 and f'{tmp_path}/k.conf is written' in printed
    assert (tmp_path / 'k.conf').stat().st_mode & 0o777 == 0o600
    assert 's3cret' not in printed


def test_a_file_that_exists_stays(adopt, tmp_path):
    (tmp_path / 'k.conf').write_text('mine')
    code, printed = adopt()
    assert code == 1 and 'k.conf cannot be written: File exists' in printed
    assert (tmp_path / 'k.conf').read_text() == 'mine'
    assert not list(tmp_path.glob('.k.conf*'))


@pytest.mark.parametrize(
    ('text', 'said'),
    [
        (None, 'No such file'),
        ('[DEFAULT]\nnonsense\n', 'nonsense'),
        ('#' * (config.MOST_BYTES + 1), f'more than {config.MOST_BYTES} bytes'),
        (b'\xff\xfe', 'decode'),
    ],
)
def test_a_file_that_cannot_be_read_is_named(adopt, tmp_path, text, said):
    path = tmp_path / 'other.conf'
    if text is not None:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    code, printed = adopt(nova='other.conf')
    assert code == 1 and str(path) in printed and said in printed
    assert not (tmp_path / 'k.conf').exists()


def test_problems_are_printed_and_nothing_is_written(adopt, tmp_path):
    with (tmp_path / 'nova.conf').open('a') as file:
        file.write('[libvirt]\nvirt_typ = kvm\n')
    code, printed = adopt()
    assert code == 1 and '1 problems, nothing is written' in printed and not (tmp_path / 'k.conf').exists()
    code, printed = adopt('--leave-out', '[libvirt]virt_typ')
    assert code == 0 and (tmp_path / 'k.conf').exists()


def test_a_wrong_name_to_leave_out_is_refused(adopt):
    code, printed = adopt('--leave-out', 'virt_typ')
    assert code == 1 and "'virt_typ' is no option: write [section]name" in printed


def test_a_full_disk_leaves_nothing_behind(adopt, tmp_path, monkeypatch):
    def full(descriptor: int) -> None:
        raise OSError(28, 'No space left on device')

    monkeypatch.setattr(config.os, 'fsync', full)
    code, printed = adopt()
    assert code == 1 and 'k.conf cannot be written: No space left on device' in printed
    assert not list(tmp_path.glob('*k.conf*'))
