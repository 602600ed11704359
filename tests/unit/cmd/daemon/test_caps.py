"""[upgrade_levels]: pinned, and 'auto' from the versions of the services."""

from __future__ import annotations

import datetime

import pytest
from oslo_config import cfg
from oslo_utils import timeutils
from sqlalchemy import exc

from kilonova.cmd import options
from kilonova.cmd.daemon import caps, database_parts, parts
from kilonova.db.queries import cells, services
from kilonova.errors import Unanswered
from kilonova.rpc import versions

OLD, NEW = versions.SERVICE_VERSION - 1, versions.SERVICE_VERSION
LINE = versions.HISTORY[OLD]


@pytest.fixture
def cloud(synced):
    """conf, cells and the main database of a cloud of one cell."""
    conf = synced()
    parts.transport(conf).close()
    databases, found = database_parts.opened(conf)
    cells.map_cell0(databases)
    cells.create_cell(databases, transport_url='fake://', database_connection=databases.main_url, name='cell1')
    yield conf, found, databases.main()
    databases.dispose()


def add(database, host, version, binary='nova-compute'):
    with database.write() as connection:
        return services.get_or_create(connection, host, binary, binary.removeprefix('nova-'), version=version)['id']


def test_auto_is_what_the_oldest_service_understands(cloud, caplog):
    """With `auto` the cap is the version that the oldest service understands. It is looked up once, and again after
    SIGHUP."""
    caplog.set_level('INFO')
    conf, found, database = cloud
    levels = caps.RpcVersionCaps(conf, found)
    cap = levels.of('compute')
    assert cap() is None
    old, _ = add(database, 'gpu1', OLD), add(database, 'gpu2', NEW)
    assert cap() == versions.HISTORY[OLD]['compute']
    assert (
        f'Automatically selected compute RPC version {versions.HISTORY[OLD]["compute"]} from minimum service '
        f'version {OLD}'
    ) in caplog.text
    with database.write() as connection:
        services.update(connection, old, {'version': NEW})
    assert cap() == versions.HISTORY[OLD]['compute']
    levels.reset()
    assert cap() is None
    assert caplog.text.count('Automatically selected') == 2


def test_each_interface_goes_by_its_own_services(cloud):
    conf, found, database = cloud
    add(database, 'ctl1', OLD, 'nova-conductor')
    add(database, 'ctl1', NEW, 'nova-scheduler')
    levels = caps.RpcVersionCaps(conf, found)
    assert levels.of('compute_task')() == versions.HISTORY[OLD]['compute_task']
    assert levels.of('scheduler')() is None


def test_a_service_that_is_forced_down_holds_nobody_back(cloud):
    conf, found, database = cloud
    add(database, 'gpu2', NEW)
    identifier = add(database, 'gpu1', OLD)
    with database.write() as connection:
        services.update(connection, identifier, {'forced_down': True})
    assert caps.RpcVersionCaps(conf, found).of('compute')() is None


def test_a_silent_database_is_silence_until_something_was_known(cloud, monkeypatch):
    conf, found, database = cloud
    add(database, 'gpu1', OLD)
    levels = caps.RpcVersionCaps(conf, found)
    cap = levels.of('compute')

    def silent(cells, binary):
        raise exc.TimeoutError('pool')

    lookup = caps.minimum_version
    monkeypatch.setattr(caps, 'minimum_version', silent)
    with pytest.raises(Unanswered, match='versions of nova-compute services'):
        cap()
    monkeypatch.setattr(caps, 'minimum_version', lookup)
    assert cap() == versions.HISTORY[OLD]['compute']
    monkeypatch.setattr(caps, 'minimum_version', silent)
    levels.reset()
    assert cap() == versions.HISTORY[OLD]['compute']


def test_a_daemon_without_a_database_has_no_auto(parse):
    assert caps.RpcVersionCaps(parse()).of('conductor') is None


def test_computes_older_than_the_release_before_refuse_the_start(cloud, caplog):
    conf, found, database = cloud
    caps.refuse_old_computes(conf, found)
    identifier = add(database, 'gpu1', versions.OLDEST_SUPPORTED)
    caps.refuse_old_computes(conf, found)
    with database.write() as connection:
        services.update(connection, identifier, {'version': versions.OLDEST_SUPPORTED - 1})
    with pytest.raises(caps.TooOldComputeService, match=f'level in your system is {versions.OLDEST_SUPPORTED - 1}'):
        caps.refuse_old_computes(conf, found)
    conf.set_override('disable_compute_service_check_for_ffu', True, group='workarounds')
    caps.refuse_old_computes(conf, found)
    assert 'does not support computes older than' in caplog.text


def test_what_holds_others_back_is_named_with_its_last_report(cloud, caplog):
    """A compute of an old release that limits others is named with its version and its last report.

    The hosts reported 30 days ago, or never.
    """
    caplog.set_level('INFO')
    conf, found, database = cloud
    month = add(database, 'gpu7', versions.OLDEST_SUPPORTED - 1)
    never = add(database, 'gpu8', versions.OLDEST_SUPPORTED - 1)
    add(database, 'gpu9', NEW)
    seen(database, month, 30 * 86400)
    seen(database, never, None)
    with pytest.raises(caps.TooOldComputeService) as refusal:
        caps.refuse_old_computes(conf, found)
    told = str(refusal.value)
    old = versions.OLDEST_SUPPORTED - 1
    assert f'nova-compute on host gpu7 (version {old}, last report 30 days ago)' in told
    assert f'nova-compute on host gpu8 (version {old}, no report yet)' in told and 'gpu9' not in told
    assert 'openstack compute service delete' in told
    assert caps.RpcVersionCaps(conf, found).of('compute')() == versions.HISTORY[versions.OLDEST_SUPPORTED]['compute']
    assert 'gpu7 (version' in caplog.text, 'the choice of a version names it, too'


@pytest.mark.parametrize(('interface', 'binary'), [('conductor', 'nova-conductor'), ('scheduler', 'nova-scheduler')])
def test_controllers_that_hold_others_back_are_named(cloud, caplog, interface, binary):
    """A conductor or scheduler of an old release that limits others is logged with its version and last report."""
    caplog.set_level('INFO')
    conf, found, database = cloud
    seen(database, add(database, 'ctl1', OLD, binary), 3 * 3600)
    add(database, 'ctl2', NEW, binary)
    caps.RpcVersionCaps(conf, found).of(interface)()
    assert f'{binary} on host ctl1 (version {OLD}, last report 3 hours ago)' in caplog.text


def test_many_hosts_that_hold_others_back_are_counted(cloud):
    conf, found, database = cloud
    for number in range(9):
        add(database, f'gpu{number}', versions.OLDEST_SUPPORTED - 1)
    with pytest.raises(caps.TooOldComputeService, match=r'gpu4 \(.*\); and 4 more'):
        caps.refuse_old_computes(conf, found)


def seen(database, identifier, seconds):
    """The last report of a service is so many seconds old; None: it never reported."""
    with database.write() as connection:
        at = None if seconds is None else timeutils.utcnow() - datetime.timedelta(seconds=seconds)
        services.update(connection, identifier, {'last_seen_up': at})


def test_a_silent_database_refuses_no_start(parse, monkeypatch, caplog):
    def silent(cells, binary):
        raise exc.TimeoutError('pool')

    monkeypatch.setattr(caps, 'minimum_version', silent)
    caps.refuse_old_computes(parse(), None)
    assert 'could not be looked up' in caplog.text


@pytest.mark.parametrize(
    ('option', 'value', 'interface', 'cap'),
    [
        ('compute', LINE['compute'], 'compute', LINE['compute']),
        ('conductor', LINE['compute_task'], 'compute_task', LINE['compute_task']),
        ('conductor', LINE['conductor'], 'compute_task', None),
        ('conductor', LINE['compute_task'], 'conductor', None),
        ('conductor', LINE['conductor'], 'conductor', LINE['conductor']),
        ('scheduler', LINE['scheduler'], 'scheduler', LINE['scheduler']),
        ('scheduler', 'auto', 'scheduler', None),
    ],
)
def test_pinned(parse, option, value, interface, cap):
    """A version in [upgrade_levels] caps the interface that has this version, and no other."""
    assert options.cap(parse(sections=f'[upgrade_levels]\n{option} = {value}'), interface) == cap


@pytest.mark.parametrize(
    ('option', 'value', 'interface', 'more'),
    [
        ('compute', '6.0', 'compute', ()),
        ('compute', 'yoga', 'compute', ()),
        ('compute', '7.0', 'compute', ()),
        ('conductor', '1.26', 'compute_task', ('conductor',)),
        ('conductor', '3.0', 'conductor', ('compute_task',)),
        ('conductor', '3.0', 'compute_task', ('conductor',)),
        ('scheduler', '4.5', 'scheduler', ()),
    ],
)
def test_a_cap_under_which_nothing_works_is_refused(parse, option, value, interface, more):
    """A cap below 1.27 stops the start, because stop and delete would be answered with 500. The text names the
    option, its value and what is accepted."""
    accepted = {version for name in (interface, *more) for version in versions.accepted(name)}
    with pytest.raises(cfg.Error) as refusal:
        options.cap(parse(sections=f'[upgrade_levels]\n{option} = {value}'), interface)
    begin, _, words = str(refusal.value).partition(': accepted values are auto, ')
    assert begin == f"[upgrade_levels]{option} is '{value}'" and set(words.split(', ')) == accepted
