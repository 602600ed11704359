"""kilonova-manage periodic: list the periodic tasks of daemons, as their /health ports report them."""

from __future__ import annotations

import argparse
import http.client
import json
import sys
import urllib.parse
from typing import Any

from kilonova.cmd.cli import Cloud, Command, argument, table

COLUMNS = ('name', 'service', 'host', 'spacing', 'last run', 'took', 'result')
# The daemons that have periodic tasks.
DAEMONS = ('compute', 'conductor')
# Maximum number of bytes that are read from a daemon's response.
MOST = 1 << 20


def periodic_list(cloud: Cloud, args: argparse.Namespace) -> int:
    """List the periodic tasks of running daemons.

    For each task, the list shows the seconds between two runs (-1: turned off), the start of the last completed run,
    and the seconds that this run took. The daemons are those of the --url arguments, or those whose ports are set in
    [health] of the configuration. If a daemon has several processes, one of them answers. Exit code 1: a daemon did not
    answer.
    """
    urls = args.url or _configured(cloud)
    if not urls:
        print(
            f'Neither {" nor ".join(f"[health]{name}_port" for name in DAEMONS)} is set, and no --url is given.',
            file=sys.stderr,
        )
        return 1
    rows, silent = [], 0
    for url in urls:
        try:
            rows += _told(url, cloud.conf.health.timeout)
        except (OSError, ValueError, http.client.HTTPException) as error:
            silent += 1
            print(f'{url}: {error or type(error).__name__}', file=sys.stderr)
    if args.format == 'json':
        print(json.dumps([dict(zip(COLUMNS, row, strict=True)) for row in rows], indent=2))
    else:
        table(COLUMNS, [tuple('-' if value is None else value for value in row) for row in rows])
    return 1 if silent else 0


def _configured(cloud: Cloud) -> list[str]:
    from kilonova.cmd.daemon import health

    found = [address for name in DAEMONS for address in health.addresses(cloud.conf, name).values()]
    return [f'http://{f"[{host}]" if ":" in host else host}:{port}{health.PATH}' for host, port in found]


def _told(url: str, timeout: float) -> list[tuple[Any, ...]]:
    """Return the periodic tasks of one daemon, each as a tuple with the values of the table's columns (COLUMNS).

    Raises OSError or HTTPException if the daemon does not answer, and ValueError if the response is not that of a
    Kilonova daemon.
    """
    from kilonova.cmd.daemon import health

    where = urllib.parse.urlsplit(url)
    if where.scheme != 'http' or not where.hostname:
        raise ValueError(f'the URL does not have the form http://HOST:PORT{health.PATH}')
    # Wait 5 s longer than [health]timeout: before the daemon answers, it checks other services for up to this time.
    connection = http.client.HTTPConnection(where.hostname, where.port or 80, timeout=timeout + 5)
    try:
        connection.request('GET', where.path or health.PATH)
        answer = json.loads(connection.getresponse().read(MOST))
    finally:
        connection.close()
    if not isinstance(answer, dict) or 'service' not in answer:
        raise ValueError('the response is not that of a Kilonova daemon')
    return [
        (
            task['name'],
            answer['service'],
            answer['host'],
            task['spacing'],
            task['last_run'],
            task['took'],
            task['result'],
        )
        for task in answer.get('periodic', ())
    ]


PERIODIC = {
    'list': Command(
        periodic_list,
        (
            argument(
                '--url',
                action='append',
                default=[],
                metavar='URL',
                help='http://HOST:PORT/health of a daemon; may be repeated',
            ),
            argument('--format', choices=('table', 'json'), default='table'),
        ),
    ),
}
