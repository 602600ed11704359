"""os-simple-tenant-usage and os-instance_usage_audit_log."""

from __future__ import annotations

import pytest

from kilonova.db.models import cell as models
from kilonova.db.queries.instances import mark_deleted
from kilonova.objects.audit_period import last_period
from tests.unit.api.conftest import moment

PERIOD = 'start=2026-11-01T00:00:00&end=2026-11-11T00:00:00'
LIST, P1 = '/os-simple-tenant-usage', '/os-simple-tenant-usage/p1'


def launched(site, *parts, cell=None, project='p1', user='bob', flavor=None, **values):
    return site.server(cell, flavor, project=project, user=user, launched_at=moment(*parts), **values)


SERVER = {
    'ended_at',
    'flavor',
    'hours',
    'instance_id',
    'local_gb',
    'memory_mb',
    'name',
    'started_at',
    'state',
    'tenant_id',
    'uptime',
    'vcpus',
}
TOTAL = {
    'start',
    'stop',
    'tenant_id',
    'total_hours',
    'total_local_gb_usage',
    'total_memory_mb_usage',
    'total_vcpus_usage',
}


def test_what_projects_used(site):
    flavor = site.flavor(vcpus=2, ram=1024, disk=10, **{'OS-FLV-EXT-DATA:ephemeral': 5})
    launched(site, 2026, 11, 10, flavor=flavor)
    launched(site, 2026, 10, 1, cell=site.cell2, flavor=flavor, terminated_at=moment(2026, 11, 1, 12))
    launched(site, 2026, 11, 12, flavor=flavor)
    launched(site, 2026, 9, 1, terminated_at=moment(2026, 10, 1))
    launched(site, 2026, 11, 10, 23, project='p2')
    site.create()
    usages = site.ok('GET', f'{LIST}?{PERIOD}')['tenant_usages']
    assert [set(usage) for usage in usages] == [TOTAL] * 2
    first, second = usages
    assert first == {
        'tenant_id': 'p1',
        'total_hours': 36.0,
        'total_vcpus_usage': 72.0,
        'total_memory_mb_usage': 36.0 * 1024,
        'total_local_gb_usage': 36.0 * 15,
        'start': '2026-11-01T00:00:00.000000',
        'stop': '2026-11-11T00:00:00.000000',
    }
    assert (second['tenant_id'], second['total_hours']) == ('p2', 1.0)


def test_detailed(site):
    uuid = launched(site, 2026, 11, 10, flavor=site.flavor(name='f', vcpus=2), create={'name': 'web'})
    gone = launched(site, 2026, 11, 10, terminated_at=moment(2026, 11, 10, 1))
    with site.cell1.write() as conn:
        mark_deleted(conn, gone)
        table = models.Instance.__table__
        conn.execute(table.update().where(table.c.uuid == gone).values(terminated_at=moment(2026, 11, 10, 1)))
    (usage,) = site.ok('GET', f'{LIST}?{PERIOD}&detailed=1')['tenant_usages']
    running, ended = usage['server_usages']
    assert set(usage) == TOTAL | {'server_usages'} and set(running) == SERVER
    assert (running['instance_id'], running['name'], running['flavor'], running['vcpus']) == (uuid, 'web', 'f', 2)
    assert (running['started_at'], running['ended_at'], running['state'], running['hours']) == (
        '2026-11-10T00:00:00.000000',
        None,
        'active',
        24.0,
    )
    assert running['uptime'] > 24 * 3600
    assert (ended['ended_at'], ended['state'], ended['hours'], ended['uptime']) == (
        '2026-11-10T01:00:00.000000',
        'terminated',
        1.0,
        3600,
    )
    for flag in ('0', 'true', ''):
        assert 'server_usages' not in site.ok('GET', f'{LIST}?{PERIOD}&detailed={flag}')['tenant_usages'][0]


def test_show(site):
    launched(site, 2026, 11, 10)
    launched(site, 2026, 11, 10, project='p2')
    usage = site.ok('GET', f'{P1}?{PERIOD}', user='bob')['tenant_usage']
    assert set(usage) == TOTAL | {'server_usages'} and usage['total_hours'] == 24.0
    assert len(usage['server_usages']) == 1
    assert site.ok('GET', f'{LIST}/p9?{PERIOD}') == {'tenant_usage': {}}
    assert site.fault('GET', f'{P1}?{PERIOD}', user='eve', project='p3') == (
        403,
        "Policy doesn't allow os_compute_api:os-simple-tenant-usage:show to be performed.",
    )
    assert site.fault('GET', LIST, user='bob')[0] == 403


@pytest.mark.parametrize('text', ['2026-11-10T00:00:00', '2026-11-10T00:00:00.000000', '2026-11-10 00:00:00.000000'])
def test_forms_of_times(site, text):
    usage = site.ok('GET', f'{P1}?start={text}&end=2026-11-11T00:00:00')
    assert usage == {'tenant_usage': {}}
    launched(site, 2026, 11, 1)
    usage = site.ok('GET', f'{P1}?start={text}&end=2026-11-11T00:00:00')['tenant_usage']
    assert (usage['total_hours'], usage['start']) == (24.0, '2026-11-10T00:00:00.000000')


@pytest.mark.parametrize(
    ('query', 'message'),
    [
        ('start=yesterday', 'Invalid datetime string: '),
        ('end=2026-13-01T00:00:00', 'Invalid datetime string: '),
        ('start=2026-11-10T00:00:00Z', 'Invalid datetime string: '),
        (
            'start=2026-11-11T00:00:00&end=2026-11-10T00:00:00',
            'Invalid start time. The start time cannot occur after the end time.',
        ),
        (
            'start=2026-11-10T00:00:00&end=2026-11-10T00:00:00',
            'Invalid start time. The start time cannot occur after the end time.',
        ),
        ('start=2999-01-01T00:00:00', 'Invalid start time. The start time cannot occur after the end time.'),
    ],
)
def test_times_that_are_refused(site, query, message):
    for path in (LIST, P1):
        code, told = site.fault('GET', f'{path}?{query}')
        assert code == 400 and told.startswith(message)


def test_without_times_the_period_is_empty(site):
    launched(site, 2026, 11, 10)
    (usage,) = site.ok('GET', LIST)['tenant_usages']
    assert usage['total_hours'] == 0.0 and usage['start'] == usage['stop']


def test_pages_since_2_40(make_site):
    site = make_site(api__max_limit=3)
    servers = [launched(site, 2026, 11, 10, cell=cell) for cell in (site.cell1, site.cell1, site.cell2)]
    other = launched(site, 2026, 11, 10, cell=site.cell2, project='p2')
    seen, query = [], f'{PERIOD}&detailed=1&limit=2'
    for _ in range(2):
        answer = site.ok('GET', f'{LIST}?{query}', version='2.40')
        seen.append(
            [
                (usage['tenant_id'], [server['instance_id'] for server in usage['server_usages']])
                for usage in answer['tenant_usages']
            ]
        )
        (link,) = answer['tenant_usages_links']
        assert link['rel'] == 'next'
        query = link['href'].partition('?')[2]
    assert seen == [[('p1', servers[:2])], [('p1', servers[2:]), ('p2', [other])]]
    assert site.ok('GET', f'{LIST}?{query}', version='2.40') == {'tenant_usages': []}
    answer = site.ok('GET', f'{P1}?{PERIOD}&limit=1&marker={servers[0]}', version='2.40')
    assert [server['instance_id'] for server in answer['tenant_usage']['server_usages']] == [servers[1]]
    assert answer['tenant_usage_links'][0]['href'].endswith(f'limit=1&marker={servers[1]}')
    for path in (LIST, P1):
        assert site.fault('GET', f'{path}?{PERIOD}&marker=nosuch', version='2.40') == (
            400,
            'Marker nosuch could not be found.',
        )
    old = site.ok('GET', f'{LIST}?{PERIOD}&limit=1&marker=nosuch', version='2.39')
    assert set(old) == {'tenant_usages'}
    assert sum(usage['total_hours'] for usage in old['tenant_usages']) == 72.0


def test_unknown_parameters_since_2_75(site):
    for path in (LIST, P1):
        assert site.request('GET', f'{path}?nosuch=1', version='2.74').status_int == 200
        assert site.fault('GET', f'{path}?nosuch=1', version='2.75')[0] == 400


def test_a_thousand_servers_cost_one_statement_a_cell(site, statements):
    uuid = launched(site, 2026, 11, 10)
    row = {name: value for name, value in site.row(uuid).items() if not name.startswith('extra_') and name != 'id'}
    extra = models.InstanceExtra.__table__
    with site.cell1.write() as conn:
        flavor = conn.execute(extra.select()).mappings().one()['flavor']
        conn.execute(models.Instance.__table__.insert(), [{**row, 'uuid': f'u{number}'} for number in range(999)])
        conn.execute(extra.insert(), [{'instance_uuid': f'u{number}', 'flavor': flavor} for number in range(999)])
    for path, count in ((f'{LIST}?{PERIOD}', None), (f'{LIST}?{PERIOD}&detailed=1', 1000), (f'{P1}?{PERIOD}', 1000)):
        statements.clear()
        answer = site.ok('GET', path, version='2.39')
        (usage,) = answer.get('tenant_usages') or [answer['tenant_usage']]
        assert usage['total_hours'] == 24000.0
        assert count is None or len(usage['server_usages']) == count
        assert len(statements) <= len(site.cells.databases()), statements


# --- audits ----------------------------------------------------------------------------------------------------------
LOG = '/os-instance_usage_audit_log'


def service(site, cell, host, **values):
    with cell.write() as conn:
        conn.execute(
            models.Service.__table__.insert(),
            {'host': host, 'binary': 'nova-compute', 'topic': 'compute', 'uuid': host, 'deleted': 0, **values},
        )


def run(site, cell, host, state='DONE', begin=(2026, 10, 1), end=(2026, 11, 1), **values):
    with cell.write() as conn:
        conn.execute(
            models.TaskLog.__table__.insert(),
            {
                'task_name': 'instance_usage_audit',
                'host': host,
                'state': state,
                'message': 'm',
                'deleted': 0,
                'period_beginning': moment(*begin),
                'period_ending': moment(*end),
                'task_items': 4,
                'errors': 1,
                **values,
            },
        )


def test_an_empty_log_says_who_did_not_run(site):
    service(site, site.cell1, 'h1')
    service(site, site.cell2, 'h2', disabled=True)
    service(site, site.cell2, 'sched', binary='nova-scheduler', topic='scheduler')
    log = site.ok('GET', LOG)['instance_usage_audit_logs']
    assert log.pop('period_beginning') < log.pop('period_ending')
    assert log == {
        'num_hosts': 2,
        'num_hosts_done': 0,
        'num_hosts_running': 0,
        'num_hosts_not_run': 2,
        'hosts_not_run': ['h1', 'h2'],
        'total_instances': 0,
        'total_errors': 0,
        'log': {},
        'overall_status': '0 of 2 hosts done. 0 errors.',
    }


def test_the_log_of_a_period(site):
    for cell, host in ((site.cell1, 'h1'), (site.cell1, 'h2'), (site.cell2, 'h3')):
        service(site, cell, host)
    run(site, site.cell1, 'h1')
    run(site, site.cell2, 'h3', state='RUNNING', errors=0)
    run(site, site.cell1, 'h2', begin=(2026, 9, 1), end=(2026, 10, 1))
    for text in ('2026-11-21 10:00:00', '2026-11-21 10:00:00.5'):
        log = site.ok('GET', f'{LOG}/{text.replace(" ", "%20")}')['instance_usage_audit_log']
        assert (log['period_beginning'], log['period_ending']) == ('2026-10-01 00:00:00', '2026-11-01 00:00:00')
        assert (log['num_hosts_done'], log['num_hosts_running'], log['hosts_not_run']) == (1, 1, ['h2'])
        assert (log['total_instances'], log['total_errors']) == (8, 1)
        assert log['overall_status'] == '1 of 3 hosts done. 1 errors.'
        assert log['log']['h1'] == {'state': 'DONE', 'instances': 4, 'errors': 1, 'message': 'm'}
    run(site, site.cell1, 'h2')
    table = models.TaskLog.__table__
    with site.cell2.write() as conn:
        conn.execute(table.update().values(state='DONE'))
    log = site.ok('GET', f'{LOG}/2026-11-21%2010:00:00')['instance_usage_audit_log']
    assert log['overall_status'] == 'ALL hosts done. 2 errors.'


def test_the_log_is_for_administrators(site):
    for text in ('yesterday', '2026-11-21', '0001-01-01 00:00:00'):
        assert site.fault('GET', f'{LOG}/{text.replace(" ", "%20")}') == (400, f'Invalid timestamp for date {text}')
    for path, verb in ((LOG, 'list'), (f'{LOG}/2026-11-21%2010:00:00', 'show')):
        assert site.fault('GET', path, user='bob') == (
            403,
            f"Policy doesn't allow os_compute_api:os-instance-usage-audit-log:{verb} to be performed.",
        )


@pytest.mark.parametrize(
    ('unit', 'begin', 'end'),
    [
        ('hour', (2026, 3, 15, 9), (2026, 3, 15, 10)),
        ('hour@20', (2026, 3, 15, 9, 20), (2026, 3, 15, 10, 20)),
        ('hour@30', (2026, 3, 15, 8, 30), (2026, 3, 15, 9, 30)),
        ('day', (2026, 3, 14), (2026, 3, 15)),
        ('day@6', (2026, 3, 14, 6), (2026, 3, 15, 6)),
        ('day@12', (2026, 3, 13, 12), (2026, 3, 14, 12)),
        ('month', (2026, 2, 1), (2026, 3, 1)),
        ('month@0', (2026, 2, 1), (2026, 3, 1)),
        ('month@15', (2026, 2, 15), (2026, 3, 15)),
        ('month@28', (2026, 1, 28), (2026, 2, 28)),
        ('year', (2025, 1, 1), (2026, 1, 1)),
        ('year@4', (2024, 4, 1), (2025, 4, 1)),
    ],
)
def test_periods(unit, begin, end):
    assert last_period(unit, moment(2026, 3, 15, 10, 30)) == (moment(*begin), moment(*end))


def test_a_period_that_ends_now_is_not_over():
    assert last_period('month', moment(2026, 1, 1)) == (moment(2025, 11, 1), moment(2025, 12, 1))
    assert last_period('hour', moment(2026, 1, 1))[1] == moment(2025, 12, 31, 23)


@pytest.mark.parametrize(
    ('text', 'fits'),
    [
        ('month', True),
        ('hour@59', True),
        ('day@23', True),
        ('year@12', True),
        ('month@28', True),
        ('week', False),
        ('month@29', False),
        ('hour@60', False),
        ('day@24', False),
        ('year@13', False),
        ('month@', False),
        ('', False),
    ],
)
def test_words_for_periods(text, fits):
    from kilonova import conf as kilonova_conf

    conf = kilonova_conf.new()
    conf([], project='kilonova', default_config_files=[], default_config_dirs=[])
    try:
        conf.set_override('instance_usage_audit_period', text)
        accepted = conf.instance_usage_audit_period == text
    except ValueError:
        accepted = False
    assert accepted == fits
