"""What an operator reads when something that a command needs is away, and what a reader that goes away does."""

from __future__ import annotations

import logging
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pymysql
import pytest
import sqlalchemy as sa

from kilonova.cmd import options, status
from kilonova.cmd.daemon import database_parts
from kilonova.cmd.daemon import program as daemon
from kilonova.cmd.manage import main as manage
from kilonova.db import engine, explain

MANAGE = 'import sys; from kilonova.cmd.manage.main import main; sys.exit(main())'
MUCH = """
import sys
from kilonova.cmd import cli
def much(cloud, args):
    for _ in range(100_000):
        print('a line')
    return 0
sys.exit(cli.run('kilonova-much', cli.parser('kilonova-much', '', {'much': cli.Command(much)}), None, 'Trouble:'))
"""


@pytest.fixture
def closed() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as one:
        one.bind(('127.0.0.1', 0))
        return one.getsockname()[1]


def away(path: str, *arguments: str, capsys: Any, program: Any = manage) -> tuple[int, str]:
    """(exit code, what is shown) of a command that must not work; a traceback fails."""
    capsys.readouterr()
    code = program.main(['--config-file', path, *arguments])
    told = capsys.readouterr()
    shown = told.out + told.err
    assert 'Traceback' not in shown
    return code, shown.strip()


# -- the broker -------------------------------------------------------------------------------------------------------
def test_an_audit_without_a_broker_ends_at_once(cloud: Any, write_conf: Any, closed: int, capsys: Any) -> None:
    """The audit ends at once with exit code 2 if neither the broker nor Placement answers."""
    path = write_conf(f'transport_url = rabbit://a:secret@127.0.0.1:{closed}/', name='rabbit.conf')
    code, shown = away(path, 'audit', capsys=capsys)
    assert code == 2
    first, last = shown.splitlines()
    assert first == (
        f'no answer: the message broker of [DEFAULT]transport_url (127.0.0.1:{closed}): '
        '[Errno 111] Connection refused; no host was asked'
    )
    assert last.startswith('no answer: Placement does not answer: ') and last.endswith('; nothing was compared')


# -- other services ---------------------------------------------------------------------------------------------------
def test_an_audit_without_placement_is_one_line(cloud: Any, write_conf: Any, capsys: Any) -> None:
    code, shown = away(write_conf(), 'audit', capsys=capsys)
    assert code == 2
    assert len(shown.splitlines()) == 1 and shown.startswith('no answer: Placement does not answer: ')


# -- the databases ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ('option', 'command'),
    [('[api_database]connection', ('cell_v2', 'list_cells')), ('[database]connection', ('db', 'version'))],
)
def test_a_database_that_does_not_answer_is_one_line(
    write_conf: Any, closed: int, capsys: Any, option: str, command: tuple[str, ...]
) -> None:
    """A database that does not answer is reported in one line with its option, without traceback or password."""
    path = Path(write_conf())
    name = 'api' if 'api' in option else 'main'
    text = path.read_text()
    line = next(line for line in text.splitlines() if line.startswith('connection') and f'/{name}.db' in line)
    path.write_text(text.replace(line, f'connection = mysql+pymysql://a:secret@127.0.0.1:{closed}/x'))
    code, shown = away(str(path), *command, capsys=capsys)
    assert code == 255
    assert len(shown.splitlines()) == 1 and shown.startswith(f'kilonova-manage: {option} ')
    assert 'does not answer' in shown and 'refused' in shown and 'secret' not in shown


def test_no_database_in_the_configuration(tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / 'empty.conf'
    path.write_text('[DEFAULT]\ntransport_url = fake://\n')
    assert away(str(path), 'device', 'list', capsys=capsys) == (
        255,
        'kilonova-manage: No database is configured: [api_database]connection is empty.',
    )
    # Checks that can't run are an error, not a failed check.
    assert away(str(path), 'upgrade', 'check', capsys=capsys, program=status)[0] == 255


@pytest.mark.parametrize(
    ('synced', 'command', 'missing', 'remedy'),
    [
        ((), ('cell_v2', 'simple_cell_setup'), '[api_database]connection', 'kilonova-manage api_db sync'),
        ((), ('device', 'list'), '[api_database]connection', 'kilonova-manage api_db sync'),
        (
            (('api_db', 'sync'), ('cell_v2', 'simple_cell_setup')),
            ('device', 'list'),
            '[database]connection',
            'kilonova-manage db sync',
        ),
    ],
)
def test_databases_without_tables_say_what_comes_first(
    run: Any, write_conf: Any, capsys: Any, synced: Any, command: Any, missing: str, remedy: str
) -> None:
    """A command on a database without tables says in one line which command creates them."""
    for one in synced:
        assert run(*one)[0] == 0
    code, shown = away(write_conf(), *command, capsys=capsys)
    assert code == 255
    assert len(shown.splitlines()) == 1
    assert shown.startswith(f'kilonova-manage: {missing} ')
    assert shown.endswith(f"has no tables yet: run '{remedy}' first")


@pytest.mark.parametrize(
    ('option', 'url', 'why'),
    [
        ('[api_database]connection', 'sqlte:///{}/api.db', "no dialect or driver 'sqlte'"),
        ('[database]connection', 'mysql+nodriver://a:secret@b/c', "no dialect or driver 'mysql+nodriver'"),
        ('[database]connection', 'secret', 'not the URL of a database'),
        ('[database]connection', 'postgresql+asyncpg://a:secret@b/c', 'asyncpg'),
    ],
)
def test_a_misspelt_url_of_a_database_is_told_with_its_option(
    tmp_path: Path, write_conf: Any, capsys: Any, option: str, url: str, why: str
) -> None:
    """An invalid database URL is reported in one line with its option, without the password."""
    path, name = Path(write_conf()), 'api' if 'api' in option else 'main'
    right = f'sqlite:///{tmp_path}/{name}.db'
    path.write_text(path.read_text().replace(right, url.format(tmp_path)))
    code, shown = away(str(path), 'device', 'list', capsys=capsys)
    assert (code, len(shown.splitlines())) == (255, 1)
    assert shown.startswith(f'kilonova-manage: {option}') and why in shown and 'secret' not in shown
    conf = options.parse(['--config-file', str(path)], 'kilonova-test')
    with pytest.raises(options.cfg.ConfigFileValueError, match=option.replace('[', r'\[').replace(']', r'\]')):
        database_parts.opened(conf)


def test_a_daemon_that_waits_names_the_database_by_its_option(parse: Any, closed: int, caplog: Any) -> None:
    """A daemon that waits for a database logs the option of its URL, as the name `api` could mean the API service."""
    conf = parse(sections='')
    conf.set_override('connection', f'mysql+pymysql://a:secret@127.0.0.1:{closed}/x', group='api_database')
    databases = engine.configure(conf)

    class Soon:
        def __init__(self) -> None:
            self.asked = 0

        def is_set(self) -> bool:
            self.asked += 1
            return self.asked > 1

        def wait(self, seconds: float) -> None:
            """No need to."""

    database_parts.await_all(databases, Soon())  # type: ignore[arg-type]
    databases.dispose()
    (record,) = caplog.records
    assert record.getMessage().startswith('Not started yet: [api_database]connection ')
    assert 'secret' not in record.getMessage()


def test_a_daemon_that_its_options_stop_says_so_in_a_line(write_conf: Any, caplog: Any) -> None:
    def build(conf: Any) -> Any:
        raise options.cfg.ConfigFileValueError('[database]connection is wrong')

    handled = []

    class Watch(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            handled.append(sys.exc_info()[0])

    watch = Watch(logging.ERROR)
    logging.getLogger().addHandler(watch)
    try:
        assert daemon.run('compute', build, ['--config-file', write_conf()]) == 1
    finally:
        logging.getLogger().removeHandler(watch)
    # oslo.log writes the error that is being handled behind each line.
    assert handled == [None]
    (record,) = [record for record in caplog.records if record.levelname == 'ERROR']
    assert record.getMessage() == 'kilonova-compute does not start: [database]connection is wrong'
    assert record.exc_info is None


# -- who reads --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(('arguments', 'codes'), [(('cell_v2', 'list_cells'), {141}), (('--help',), {0, 141})])
def test_a_reader_that_goes_away_is_no_error(
    cloud: Any, write_conf: Any, arguments: tuple[str, ...], codes: set[int]
) -> None:
    """A program whose output is closed, as by `| head`, ends without a traceback.

    Its exit code is 141, which shells show of other programs. argparse itself ignores output that it can't write, so
    `--help` may end with 0.
    """
    words = [sys.executable, '-W', 'ignore', '-c', MANAGE, '--config-file', write_conf(), *arguments]
    program = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert program.stdout is not None and program.stderr is not None
    program.stdout.close()
    shown = program.stderr.read()
    assert program.wait() in codes and shown == ''
    program.stderr.close()


def test_a_reader_that_goes_away_in_the_middle_is_no_error(write_conf: Any) -> None:
    """More than the pipe and its buffer hold: it is the command's own print that fails."""
    words = [sys.executable, '-W', 'ignore', '-c', MUCH, '--config-file', write_conf(), 'much']
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None and program.stderr is not None
        assert program.stdout.readline() == 'a line\n'
        program.stdout.close()
        shown = program.stderr.read()
        assert (program.wait(), shown) == (141, '')


# -- which database it is, and what it lacks ---------------------------------------------------------------------------
@pytest.fixture
def mysql(monkeypatch: Any) -> Any:
    """What a server says to who connects: ``mysql[database of the URL] = (code, text)``."""
    says: dict[str, tuple[int, str]] = {}

    def connect(*args: Any, **kwargs: Any) -> None:
        raise pymysql.err.OperationalError(*says[kwargs['database']])

    monkeypatch.setattr(pymysql, 'connect', connect)
    return says


CELL0 = 'mysql+pymysql://a:secret@db/kilonova_cell0'


@pytest.mark.parametrize(
    ('said', 'told'),
    [
        (
            (1049, "Unknown database 'kilonova_cell0'"),
            (
                'does not exist: (1049, "Unknown database \'kilonova_cell0\'"). Create it and grant its account '
                'rights on it, or '
                "map another one with 'kilonova-manage cell_v2 update_cell'."
            ),
        ),
        (
            (1045, "Access denied for user 'a'@'h' (using password: YES)"),
            "refuses the account of its URL: (1045, \"Access denied for user 'a'@'h' (using password: YES)\")",
        ),
        (
            (2003, "Can't connect to MySQL server on 'db'"),
            "does not answer: (2003, \"Can't connect to MySQL server on 'db'\")",
        ),
    ],
)
def test_what_cell0_lacks_is_told_of_cell0_found_1_16(
    run: Any, write_conf: Any, capsys: Any, mysql: Any, said: tuple[int, str], told: str
) -> None:
    """It said of the main database, which is empty before its first sync, that it has no tables yet."""
    assert run('api_db', 'sync')[0] == 0
    assert run('cell_v2', 'map_cell0', '--database_connection', CELL0)[0] == 0
    mysql['kilonova_cell0'] = said
    code, shown = away(write_conf(), 'db', 'sync', capsys=capsys)
    assert code == 255
    assert shown == f'kilonova-manage: the database of cell cell0 ({CELL0.replace("secret", "***")}) {told}'


@pytest.mark.parametrize(
    ('option', 'command'),
    [('[api_database]connection', ('api_db', 'sync')), ('[database]connection', ('db', 'sync', '--local_cell'))],
)
def test_a_database_that_is_not_there_is_told_with_its_option_found_1_16(
    write_conf: Any, capsys: Any, mysql: Any, option: str, command: Any
) -> None:
    path, name = Path(write_conf()), 'api' if 'api' in option else 'main'
    line = next(
        line for line in path.read_text().splitlines() if line.startswith('connection') and f'/{name}.db' in line
    )
    path.write_text(path.read_text().replace(line, 'connection = mysql+pymysql://a:secret@db/x'))
    mysql['x'] = 1049, "Unknown database 'x'"
    code, shown = away(str(path), *command, capsys=capsys)
    assert code == 255
    assert shown == (
        f'kilonova-manage: {option} (mysql+pymysql://a:***@db/x) does not exist: '
        '(1049, "Unknown database \'x\'"). '
        'Create it and grant its account rights on it, or set the option to another one.'
    )


def test_tables_of_a_former_release_are_told_as_such_found_1_16(
    cloud: Any, write_conf: Any, parse: Any, capsys: Any
) -> None:
    databases = engine.configure(parse())
    with databases.main().write() as connection:
        connection.execute(sa.text('DROP TABLE pci_devices'))
        connection.execute(sa.text("UPDATE alembic_version SET version_num = 'b6d92e0f3a48'"))
    databases.dispose()
    code, shown = away(write_conf(), 'device', 'list', capsys=capsys)
    assert code == 255 and shown.startswith('kilonova-manage: [database]connection ')
    assert shown.endswith(
        "is at revision b6d92e0f3a48 (no such table: pci_devices): run 'kilonova-manage db sync' first"
    )


def test_a_fault_of_ours_is_no_matter_of_tables_found_1_16(run: Any, parse: Any) -> None:
    """Whatever statement fails, nobody is sent to sync a database that has all its tables, or another one."""
    assert run('api_db', 'sync')[0] == 0
    databases = engine.configure(parse())
    for statement in ('SELECT 1 FROM nowhere', 'SELECT +'):
        with pytest.raises(sa.exc.SQLAlchemyError) as caught, databases.api().read() as connection:
            connection.execute(sa.text(statement))
        assert explain.line(databases, caught.value) is None
    databases.dispose()


def test_why_no_cells_are_known_is_told_found_1_16(write_conf: Any, closed: int, capsys: Any) -> None:
    path = Path(write_conf())
    line = next(line for line in path.read_text().splitlines() if line.startswith('connection') and '/api.db' in line)
    path.write_text(path.read_text().replace(line, f'connection = mysql+pymysql://a:secret@127.0.0.1:{closed}/x'))
    code, shown = away(str(path), 'db', 'purge', '--all', '--all-cells', capsys=capsys)
    assert code == 4
    first, second = shown.splitlines()
    assert first == 'Unable to get cell list from API DB. Is it configured?'
    assert second.startswith('[api_database]connection ') and 'does not answer: ' in second and 'secret' not in second
