"""What the scheduler decided for a server, as an event of the action that asked for it.

Nothing writes such events: they are made of the rows of ``scheduler_decisions`` for those who see details, and gone
with these.
"""
from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any

EVENT = 'select_destinations'


def event(row: Mapping[str, Any]) -> dict[str, Any]:
    """A decision in the form of an event's row."""
    body = row['body'] or {}
    began = row['created_at'] - dt.timedelta(seconds=body.get('seconds') or 0)
    return {'event': EVENT, 'start_time': began, 'finish_time': row['created_at'], 'created_at': row['created_at'],
            'result': 'Success' if row['chosen'] else 'Error', 'traceback': None, 'host': None,
            'details': '\n'.join(lines(body))}


def lines(body: Mapping[str, Any]) -> list[str]:
    """The story in lines: what was asked for, the choice, then why, host by host."""
    said = ['asked for: ' + _pairs({name: value for name, value in (body.get('asked') or {}).items() if value}),
            f'{body.get("considered")} hosts considered; chosen: {body.get("chosen") or "none"}'
            + (f'; alternates: {", ".join(body["alternates"])}' if body.get('alternates') else '')]
    if body.get('failure'):
        said.append(body['failure'])
    if body.get('hosts'):
        said += [f'{one["host"]}: {"; ".join(one["why"])}' for one in body['hosts']]
    else:
        said += [f'{step["filter"]}: {step["before"]} to {step["after"]} hosts'
                 + (f', turned away {"; ".join(map(_host, step["fell"]))}' if step['fell'] else '')
                 for step in body.get('filters') or ()]
    said += [f'weight {round(one["weight"], 4)}: {_host(one)}' for one in body.get('weighed') or ()]
    if body.get('claims_refused'):
        said.append(f'claims refused: {", ".join(body["claims_refused"])}')
    return said


def _host(one: Mapping[str, Any]) -> str:
    values = {name: value for name, value in one.items() if name not in ('host', 'weight')}
    return f'{one["host"]} ({_pairs(values)})'


def _pairs(values: Mapping[str, Any]) -> str:
    return ', '.join(f'{name} {value}' for name, value in values.items())
