from __future__ import annotations

import pytest

from kilonova.cmd.daemon.service import ServiceRecord
from kilonova.db import engine
from kilonova.db.queries import services


@pytest.fixture
def databases(synced):
    made = engine.configure(synced())
    yield made
    made.dispose()


def row(databases):
    with databases.main().read() as connection:
        return services.get(connection, host='ctl1', binary='nova-scheduler', down_time=60)


def test_record_is_made_and_reports(databases, caplog):
    """A service that starts makes its record, logs Nova's line of a new group member and reports at once (Nova:
    after 5 s)."""
    caplog.set_level('DEBUG')
    record = ServiceRecord(databases.main, host='ctl1', binary='nova-scheduler', interval=60)
    record.start()
    found = row(databases)
    assert (found['topic'], found['report_count'], found['up']) == ('scheduler', 1, True)
    assert (
        'DB_Driver: join new ServiceGroup member ctl1 to the scheduler group, service = nova-scheduler' in caplog.text
    )
    record.stop()
    again = ServiceRecord(databases.main, host='ctl1', binary='nova-scheduler', interval=60)
    again.beat()
    assert row(databases)['report_count'] == 2
    assert row(databases)['id'] == found['id']


def test_loss_and_recovery_are_told_once(databases, caplog):
    caplog.set_level('INFO')
    there = [False]

    def database():
        if not there[0]:
            raise OSError('connection refused')
        return databases.main()

    record = ServiceRecord(database, host='ctl1', binary='nova-scheduler', interval=60)
    record.beat()
    record.beat()
    there[0] = True
    record.beat()
    record.beat()
    assert [entry.getMessage() for entry in caplog.records if entry.name == 'kilonova.cmd.daemon.service'] == [
        'Lost connection to the database for reporting service status. (connection refused)',
        'Recovered from being unable to report status.',
    ]
    assert row(databases)['report_count'] == 2


def test_deleted_record_is_made_again(databases):
    record = ServiceRecord(databases.main, host='ctl1', binary='nova-scheduler', interval=60)
    record.beat()
    with databases.main().write() as connection:
        services.destroy(connection, row(databases)['id'])
    record.beat()
    assert row(databases) is None
    record.beat()
    assert row(databases)['report_count'] == 1
