"""kilonova-manage adopt: what the command prints, writes and leaves alone."""

from __future__ import annotations

import contextlib
import datetime
import re
import sqlite3
from collections.abc import Callable

import pytest

from kilonova.adopt import config
from kilonova.cmd.manage import main as manage
from tests.adopt.nova import Nova
from tests.unit.api.conftest import database_urls, make_databases

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


# --- check
@pytest.fixture
def check(tmp_path, capsys) -> Callable[..., tuple[int, str]]:
    nova = Nova(tmp_path / 'nova')

    def check(*more: str, **server: object) -> tuple[int, str]:
        if server:
            nova.server(**server)
        code = manage.main(['adopt', 'check', str(nova.conf), *more])
        return code, capsys.readouterr().out

    return check


def test_nothing_in_the_way(check):
    code, printed = check(vm_state='stopped')
    assert code == 0
    assert 'cell1: Nova 34 (schema ab450ba04102)' in printed
    assert 'Would come from cell1:\n- 1 servers stopped\n- 1 nodes\n' in printed
    assert printed.endswith('\nNothing stands in the way.\n')


def test_an_obstacle_is_printed_with_what_to_do(check):
    code, printed = check(vm_state='rescued')
    assert code == 1
    assert '\nrescued (1 in cell1): these servers run their rescue system.\n' in printed
    assert '  What to do: unrescue them' in printed and '  - server ' in printed
    assert '  Or accept by --accept rescued: after a boot of the host' in printed
    assert printed.endswith('\n1 kind of obstacle. Nothing was changed.\n')


def test_what_is_accepted_is_printed_and_not_in_the_way(check):
    code, printed = check('--accept', 'rescued', vm_state='rescued')
    assert code == 0 and '\nAccepted:\n\nrescued (1 in cell1)' in printed


def test_only_some_rows_are_printed(check):
    check(task_state='deleting')
    code, printed = check('--most', '1', task_state='deleting')
    assert code == 1 and '\ntask-state (2 in cell1)' in printed and '\n  - and 1 more\n' in printed


@pytest.mark.parametrize(
    ('words', 'said'),
    [
        (['--accept', 'task-state'], "'task-state' is no kind of obstacle that can be accepted; kinds: evacuated, "),
        (['--most', '0'], "'0' is no number from 1 to 100000"),
        (['--most', 'all'], "'all' is no number"),
    ],
)
def test_words_that_are_not_taken(check, capsys, words, said):
    with pytest.raises(SystemExit) as raised:
        check(*words)
    assert raised.value.code == 2 and said in capsys.readouterr().err


def test_a_nova_that_cannot_be_read(check, tmp_path):
    (tmp_path / 'nova' / 'cell1.db').unlink()
    code, printed = check()
    assert code == 1 and "Nova's cell1 database (sqlite:////" in printed and 'there is no such file' in printed


# --- copy
@pytest.fixture(scope='session')
def empty_databases(tmp_path_factory):
    return make_databases(tmp_path_factory.mktemp('databases'))


@pytest.fixture
def nova_here(tmp_path) -> Nova:
    return Nova(tmp_path / 'nova')


@pytest.fixture
def on_databases(nova_here, tmp_path, capsys, empty_databases) -> Callable[..., tuple[int, str]]:
    """Return a function that runs a command of ``adopt``, and returns its exit code and what it prints."""
    urls = database_urls(tmp_path, empty_databases)
    (tmp_path / 'kilonova.conf').write_text(
        f'[DEFAULT]\ntransport_url = fake:///\n[api_database]\nconnection = {urls["api"]}\n'
        f'[database]\nconnection = {urls["cell1"]}\n'
    )
    ours = ['--config-file', str(tmp_path / 'kilonova.conf')]
    assert manage.main([*ours, 'cell_v2', 'map_cell0', '--database_connection', urls['cell0']]) == 0
    assert manage.main([*ours, 'cell_v2', 'create_cell', '--name', 'cell1']) == 0
    capsys.readouterr()

    def run(command: str, *more: str) -> tuple[int, str]:
        code = manage.main([*ours, 'adopt', command, str(nova_here.conf), *more])
        return code, capsys.readouterr().out

    return run


@pytest.fixture
def copy(on_databases, nova_here) -> Callable[..., tuple[int, str]]:
    nova = nova_here

    def copy(*more: str, conductor: float | None = None, **server: object) -> tuple[int, str]:
        if server:
            nova.server(**server)
        if conductor is not None:
            seen = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=conductor)
            values = {'host': 'ctl', 'binary': 'nova-conductor', 'topic': 'conductor', 'version': 74}
            nova.add('cell1', 'services', uuid='c', last_seen_up=seen.strftime('%Y-%m-%d %H:%M:%S.%f'), **values)
        return on_databases('copy', *more)

    return copy


def test_rows_are_copied_and_counted(copy):
    code, printed = copy(vm_state='stopped')
    assert code == 0
    assert '\ncell1 instances: 1 rows, 1 new, 0 changed, 0 deleted\n' in printed
    assert printed.endswith('\n8 rows: 8 new, 0 changed, 0 deleted.\n')
    code, printed = copy()
    assert code == 0 and printed.endswith('\n8 rows: 0 new, 0 changed, 0 deleted.\n')


def test_a_copy_while_nova_serves_names_what_the_last_one_waits_for(copy):
    code, printed = copy(task_state='powering-off')
    assert code == 0 and printed.endswith("(see 'kilonova-manage adopt check'): task-state.\n")


def test_the_last_copy_needs_nothing_in_the_way(copy):
    code, printed = copy('--last', task_state='powering-off')
    assert code == 1 and '\ntask-state (1 in cell1)' in printed and printed.endswith('\nNothing was copied.\n')
    code, printed = copy()
    assert 'instances: 1 rows, 1 new' in printed


def test_the_last_copy_takes_what_is_accepted(copy):
    assert copy('--last', vm_state='rescued')[0] == 1
    code, printed = copy('--last', '--accept', 'rescued')
    assert code == 0 and 'In the way' not in printed


def test_a_conductor_that_still_reports_stops_the_last_copy(copy):
    code, printed = copy('--last', conductor=3)
    assert code == 1 and re.search(r'- nova-conductor on ctl reported [3-9] seconds ago\n', printed)
    assert printed.endswith('\nNothing was copied.\n')
    assert copy()[0] == 0


def test_a_conductor_that_missed_a_report_has_stopped(copy):
    assert copy('--last', conductor=13)[0] == 0


def test_an_object_that_cannot_be_read_stops_every_copy(copy):
    code, printed = copy(extra_numa_topology='{')
    assert code == 1 and '\nunreadable-object (1 in cell1)' in printed and printed.endswith('\nNothing was copied.\n')


def test_databases_that_are_not_ready(copy, tmp_path):
    (tmp_path / 'api.db').unlink()
    code, printed = copy(vm_state='active')
    assert code == 1 and 'is at revision none' in printed


# --- begin and back
def test_a_takeover_begins_and_ends(on_databases, copy, nova_here):
    copy(vm_state='stopped')
    code, printed = on_databases('begin')
    assert code == 0
    assert printed == "Nova's databases are marked: api, cell0, cell1. Start Kilonova's controllers now.\n"
    code, printed = on_databases('back', '--check')
    assert code == 0
    assert printed == '\nNothing was written. In Nova there would be: 0 rows new, 0 changed, 0 deleted.\n'
    code, printed = on_databases('back')
    assert code == 0 and printed.startswith(
        "\n0 rows new, 0 changed, 0 deleted. Nova's databases have no mark any more"
    )
    code, printed = on_databases('begin')
    assert code == 1 and printed.startswith('this cloud was given back to Nova')


def test_the_way_back_says_what_it_writes_and_what_stays(on_databases, copy, tmp_path):
    copy(vm_state='stopped')
    on_databases('begin')
    with contextlib.closing(sqlite3.connect(tmp_path / 'cell1.db')) as connection, connection:
        connection.execute("UPDATE instances SET vm_state = 'active'")
    with contextlib.closing(sqlite3.connect(tmp_path / 'api.db')) as connection, connection:
        connection.execute("INSERT INTO scheduler_decisions (request_id, created_at, body) VALUES ('r', 0, '{}')")
    code, printed = on_databases('back')
    assert code == 0
    assert printed.startswith(
        '\nStays with Kilonova:\n- 1 decisions of schedulers\n'
        'cell1 instances: 0 new, 1 changed, 0 deleted\n\n0 rows new, 1 changed, 0 deleted. '
    )


def test_what_is_in_the_way_back_is_printed(on_databases, copy, tmp_path):
    copy(vm_state='stopped')
    on_databases('begin')
    with contextlib.closing(sqlite3.connect(tmp_path / 'cell1.db')) as connection, connection:
        connection.execute("UPDATE instances SET task_state = 'powering-on'")
    code, printed = on_databases('back')
    assert code == 1
    assert printed.startswith('\nIn the way:\n- server ') and printed.endswith('\nNothing was written.\n')


def test_a_nova_that_was_not_taken_over_is_not_given_back(on_databases, copy):
    copy(vm_state='stopped')
    code, printed = on_databases('back')
    assert code == 1 and printed.startswith('Kilonova has not taken over this Nova')
