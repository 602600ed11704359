"""The server actions shelve, shelveOffload and unshelve."""

from __future__ import annotations

from kilonova.api.rules import ADMIN, MEMBER, PREFIX, rule
from kilonova.api.schemas import types as t
from kilonova.api.schemas.base import Obj, Prop, Window, Windows
from kilonova.api.services import shelve
from kilonova.api.wsgi import Call, server_action

ZONE_SINCE, HOST_SINCE = 77, 91

SHELVE, OFFLOAD, UNSHELVE, TO_HOST = (
    f'{PREFIX}os-shelve:{verb}' for verb in ('shelve', 'shelve_offload', 'unshelve', 'unshelve_to_host')
)
RULES = (
    rule(SHELVE, MEMBER, 'Shelve a server.'),
    rule(OFFLOAD, ADMIN, 'Offload a shelved server from its host.'),
    rule(UNSHELVE, MEMBER, 'Unshelve a server.'),
    rule(TO_HOST, ADMIN, 'Unshelve a server on a given host.'),
)

SHELVE_BODY = Obj(Prop('shelve', t.ANYTHING, required=True))
OFFLOAD_BODY = Obj(Prop('shelveOffload', t.ANYTHING, required=True))
UNSHELVE_BODY = Obj(
    Prop(
        'unshelve',
        Windows(
            Window(t.ANYTHING, until=ZONE_SINCE - 1),
            Window(
                {'oneOf': [t.NULL, Obj(Prop('availability_zone', t.ZONE, required=True))]},
                since=ZONE_SINCE,
                until=HOST_SINCE - 1,
            ),
            Window(
                {
                    'oneOf': [
                        t.NULL,
                        Obj(
                            Prop('availability_zone', {'oneOf': [t.NULL, t.ZONE]}),
                            Prop('host', t.HOST),
                            minProperties=1,
                        ),
                    ]
                },
                since=HOST_SINCE,
            ),
        ),
        required=True,
    )
)


def shelve_server(call: Call) -> None:
    """Accept the action shelve: create an image of the server's disk and shut the guest down.

    A server that boots from a volume needs no image. If [DEFAULT]shelved_offload_time is 0, the server is removed from
    its host immediately afterwards.
    """
    shelve.shelve(call.backend, call.ctxt, call.server)


def offload(call: Call) -> None:
    """Accept the action shelveOffload: release everything that the shelved server has on its host."""
    shelve.offload(call.backend, call.ctxt, call.server)


def unshelve(call: Call) -> None:
    """Accept the action unshelve: start a shelved server again.

    From microversion 2.77 on the request may name an availability zone, from 2.91 on also a host (policy rule TO_HOST).
    From 2.91 on the zone null means that the server is no longer bound to a zone.
    """
    body = call.body['unshelve']
    if call.version < ZONE_SINCE or not isinstance(body, dict):
        body = {}
    host = body.get('host')
    if host is not None:
        call.authorise(TO_HOST)
    where = shelve.Where(body.get('availability_zone'), 'availability_zone' in body, host)
    shelve.unshelve(call.backend, call.ctxt, call.server, where)


ROUTES = (
    server_action('shelve', shelve_server, SHELVE, SHELVE_BODY),
    server_action('shelveOffload', offload, OFFLOAD, OFFLOAD_BODY),
    server_action('unshelve', unshelve, UNSHELVE, UNSHELVE_BODY, asks=(TO_HOST,)),
)
