"""kilonova-manage periodic: the tasks that come round in daemons, as the daemons tell them on their /health ports."""
from __future__ import annotations

import argparse
import http.client
import json
import sys
import urllib.parse
from typing import Any

from kilonova.cmd.cli import Cloud, Command, argument, table

COLUMNS = ('name', 'service', 'host', 'spacing', 'last run', 'took', 'result')
# The daemons that have such tasks.
DAEMONS = ('compute', 'conductor')
# Bytes of an answer that are read.
MOST = 1 << 20


def periodic_list(cloud: Cloud, args: argparse.Namespace) -> int:
    """Periodic tasks of running daemons: seconds between two runs (-1: turned off), when the last one that ended began
    and how many seconds it took. Asks the ports in [health] of the configuration, or each --url. Of several processes
    of a daemon one answers. 1: somebody did not."""
    urls = args.url or _configured(cloud)
    if not urls:
        print(f"Neither {' nor '.join(f'[health]{name}_port' for name in DAEMONS)} is set, and no --url is given.",
              file=sys.stderr)
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
    from kilonova.cmd import health
    found = [address for name in DAEMONS for address in health.addresses(cloud.conf, name).values()]
    return [f"http://{f'[{host}]' if ':' in host else host}:{port}{health.PATH}" for host, port in found]


def _told(url: str, timeout: float) -> list[tuple[Any, ...]]:
    """A daemon's tasks by COLUMNS. OSError, HTTPException, ValueError: it doesn't answer, or as nobody of ours does."""
    from kilonova.cmd import health
    where = urllib.parse.urlsplit(url)
    if where.scheme != 'http' or not where.hostname:
        raise ValueError(f'it is not http://HOST:PORT{health.PATH}')
    # A daemon that looks at what it needs takes that long to answer.
    connection = http.client.HTTPConnection(where.hostname, where.port or 80, timeout=timeout + 5)
    try:
        connection.request('GET', where.path or health.PATH)
        answer = json.loads(connection.getresponse().read(MOST))
    finally:
        connection.close()
    if not isinstance(answer, dict) or 'service' not in answer:
        raise ValueError('it is no daemon of Kilonova')
    return [(task['name'], answer['service'], answer['host'], task['spacing'], task['last_run'], task['took'],
             task['result']) for task in answer.get('periodic', ())]


PERIODIC = {
    'list': Command(periodic_list, (
        argument('--url', action='append', default=[], metavar='URL',
                 help='http://HOST:PORT/health of a daemon; may be repeated'),
        argument('--format', choices=('table', 'json'), default='table'))),
}
