"""kilonova-manage scheduler: explain decisions, try requests without a claim, and count how many servers still fit."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from oslo_log import log as logging

from kilonova.cmd.cli import Cloud, Command, argument, table

if TYPE_CHECKING:
    from kilonova.db.engine import Database

FORMAT = argument('--format', choices=('table', 'json'), default='table')
SHOWN = ('free_ram_mb', 'free_disk_mb', 'vcpus_total', 'vcpus_used', 'num_instances', 'num_io_ops')
# Exit code if Placement or the image service does not answer.
SILENT = 3


# -- the command explain ----------------------------------------------------------------------------------------------
def explain(cloud: Cloud, args: argparse.Namespace) -> int:
    """Show what the scheduler decided for a server or a request, and why. Exit code 1: no decision is stored."""
    from kilonova.db.queries import decisions

    with cloud.databases.api().read() as connection:
        found = decisions.find(connection, args.which)
    if args.format == 'json':
        print(json.dumps([{**row, 'created_at': row['created_at'].isoformat()} for row in found], indent=2))
    else:
        for row in found:
            print(
                f'{row["created_at"].isoformat(timespec="milliseconds")}Z server {row["instance_uuid"]} '
                f'(request {row["request_id"]})'
            )
            _tell(row['body'] or {})
        if not found:
            print(f'No decision is stored for {args.which}.')
    return 0 if found else 1


def _tell(body: Mapping[str, Any]) -> None:
    """Print one decision as readable text."""
    wanted = ', '.join(f'{name} {value}' for name, value in (body.get('asked') or {}).items() if value)
    print(f'requested: {wanted}')
    print(
        f'{body.get("considered") or "no"} hosts considered; chosen: {body.get("chosen") or "none"}'
        + (f'; alternates: {", ".join(body["alternates"])}' if body.get('alternates') else '')
    )
    if body.get('failure'):
        print(body['failure'])
    if body.get('hosts'):
        table(
            ('Host', 'Rejected by', 'Why'),
            [(one['host'], ', '.join(one['turned_away_by']), '; '.join(one['why'])) for one in body['hosts']],
        )
    elif body.get('filters'):
        table(
            ('Filter', 'Before', 'After', 'Rejected'),
            [
                (one['filter'], one['before'], one['after'], '; '.join(map(_host, one['fell'])))
                for one in body['filters']
            ],
        )
    if body.get('weighed'):
        table(
            ('Host', 'Weight', *SHOWN),
            [(one['host'], round(one['weight'], 4), *(one.get(name) for name in SHOWN)) for one in body['weighed']],
        )
    if body.get('claims_refused'):
        print(f'claims refused: {", ".join(body["claims_refused"])}')


def _host(one: Mapping[str, Any]) -> str:
    values = ', '.join(f'{name} {value}' for name, value in one.items() if name != 'host')
    return f'{one["host"]} ({values})'


# -- the commands dry-run and capacity --------------------------------------------------------------------------------
def dry_run(cloud: Cloud, args: argparse.Namespace) -> int:
    """Show where servers would be placed now, and why. Nothing is claimed or written.

    Exit code 1: no host fits. 2: there is no such flavor, image, zone or host. 3: Placement or the image service does
    not answer.
    """
    from oslo_utils import uuidutils

    from kilonova.db.queries import decisions
    from kilonova.errors import NoValidHost
    from kilonova.scheduler.explain.decisions import Trace, story

    spec = _request(cloud, args)
    if spec is None:
        return 2
    uuids = [spec.instance_uuid, *(uuidutils.generate_uuid() for _ in range(args.count - 1))]
    most, told = cloud.conf.scheduler.decisions_hosts, []
    manager = _manager(cloud)
    trace = Trace(most)
    try:
        plan = manager.try_out(spec, uuids, trace)
    except NoValidHost as error:
        trace.end()
        told = [decisions.told(story(spec, trace, most, failure=error))]
    else:
        trace.end()
        told = [decisions.told(story(spec, trace, most, plan=plan, index=index)) for index in range(len(uuids))]
    finally:
        manager.stop()
    if args.format == 'json':
        print(json.dumps({'hosts': [one['chosen'] for one in told if one['chosen']], 'decisions': told}, indent=2))
    else:
        _tell(told[0])
        for number, one in enumerate(told if len(told) > 1 else (), start=1):
            others = f'; alternates: {", ".join(one["alternates"])}' if one['alternates'] else ''
            print(f'server {number}: {one["chosen"]}{others}')
    return 0 if told[0]['chosen'] else 1


def capacity(cloud: Cloud, args: argparse.Namespace) -> int:
    """Show how many more servers of a flavor fit, by host, zone and cell. Nothing is claimed.

    Exit code 2: there is no such flavor, image, zone or host. 3: Placement or the image service does not answer.
    """
    from kilonova.scheduler.explain import what_if

    spec = _request(cloud, args)
    if spec is None:
        return 2
    manager = _manager(cloud)
    try:
        found = what_if.capacity(
            cloud.conf, manager, spec, {database.cell.uuid: database.name for database in cloud.cells.enabled()}
        )
    finally:
        manager.stop()
    if args.format == 'json':
        print(json.dumps({'flavor': args.flavor, **found.as_dict()}, indent=2))
    elif args.format == 'prometheus':
        print('\n'.join(what_if.prometheus(found, args.flavor)))
    else:
        rows = [
            (kind, name, number)
            for kind, values in (('host', found.hosts), ('zone', found.zones), ('cell', found.cells))
            for name, number in sorted(values.items())
        ]
        rows += [(f'free {alias} ({policy})', device, number) for alias, policy, device, number in found.free_devices()]
        table(('By', 'Name', 'Servers or devices'), [*rows, ('total', '', found.total)])
    if found.silent and args.format == 'table':
        print(f'no answer: cells {", ".join(found.silent)}')
    return 0


def _request(cloud: Cloud, args: argparse.Namespace) -> Any:
    """Return the request that the arguments describe.

    If the flavor, image, zone or host does not exist, print the reason and return None.
    """
    from kilonova.cmd.daemon import parts
    from kilonova.db.queries import flavors, owners
    from kilonova.errors import Forbidden, Invalid, NotFound
    from kilonova.scheduler.explain import what_if

    with cloud.databases.api().read() as connection:
        flavor = flavors.get(connection, args.flavor, owners.ALL) or next(
            iter(flavors.page(connection, owner=owners.ALL, name=f'^{re.escape(args.flavor)}$', limit=1)), None
        )
    if flavor is None:
        print(f'Flavor {args.flavor} could not be found.')
        return None
    if (wrong := _wrong_place(cloud, args.az)) is not None:
        print(wrong)
        return None
    try:
        image = None
        if args.image:
            from kilonova.api.services import images

            image = images.plain(parts.images(cloud.conf).get(args.image))
        hints: dict[str, Any] = {}
        for hint in getattr(args, 'hint', ()):
            name, _, value = hint.partition('=')
            hints.setdefault(name, []).append(value)
        return what_if.request(
            cloud.conf,
            flavor,
            image=image,
            zone=args.az,
            count=getattr(args, 'count', 1),
            project_id=args.project,
            hints={name: values[0] if name == 'group' else values for name, values in hints.items()},
        )
    except (NotFound, Invalid, Forbidden) as error:
        print(error)
        return None


def _wrong_place(cloud: Cloud, az: str | None) -> str | None:
    """Return a message if the zone or the host in ``az`` (ZONE or ZONE:HOST) does not exist, otherwise None.

    The scheduler does not check this, because normally the API has refused a request with a wrong zone or host.
    """
    from kilonova.db.queries import aggregates

    zone, host = [*(az or '').split(':'), ''][:2]
    if zone:
        with cloud.databases.api().read() as connection:
            known = {*aggregates.zones(connection), cloud.conf.default_availability_zone}
        if zone not in known:
            return f"There is no availability zone '{zone}'. Existing zones: {', '.join(sorted(known))}"
    if host and not any(_has(database, host) for database in cloud.cells.databases()):
        return f"There is no compute host '{host}'. 'kilonova-manage cell_v2 list_hosts' lists the hosts of all cells"
    return None


def _has(database: Database, host: str) -> bool:
    from kilonova.db.queries import services

    with database.read() as connection:
        return services.get(connection, host=host, binary=services.COMPUTE) is not None


def _manager(cloud: Cloud) -> Any:
    """Return a scheduler with this configuration that does not listen for calls."""
    from kilonova.cmd.daemon import parts
    from kilonova.scheduler.manager import SchedulerManager

    if not cloud.conf.debug:
        # Log only warnings, because otherwise the scheduler would log a line for each host that it tries.
        logging.getLogger('kilonova.scheduler').setLevel(logging.WARNING)
    return SchedulerManager(cloud.conf, cloud.databases, cloud.cells, parts.placement(cloud.conf))


_WHAT = (
    argument('--flavor', required=True, metavar='FLAVOR', help="the flavor's id or name"),
    argument('--image', metavar='ID', help="the image's id, if its properties matter"),
    argument('--az', metavar='ZONE[:HOST[:NODE]]', help='as in availability_zone of a create request'),
    argument(
        '--project',
        default='',
        metavar='ID',
        help='id of the requesting project, if some aggregates are for certain projects only; default: a '
        'project that no aggregate names',
    ),
)

SCHEDULER = {
    'explain': Command(
        explain, (argument('which', metavar='SERVER-OR-REQUEST', help='UUID of a server, or request id'), FORMAT)
    ),
    'dry-run': Command(
        dry_run,
        (
            *_WHAT,
            argument('--count', type=int, default=1, metavar='N'),
            argument(
                '--hint', action='append', default=[], metavar='KEY=VALUE', help='a scheduler hint; may be repeated'
            ),
            FORMAT,
        ),
        unanswered=SILENT,
    ),
    'capacity': Command(
        capacity,
        (*_WHAT, argument('--format', choices=('table', 'json', 'prometheus'), default='table')),
        unanswered=SILENT,
    ),
}
