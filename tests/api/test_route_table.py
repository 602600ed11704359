"""No row of the route table without its schemas, its rule, its example, its samples and a caller who may not."""

from __future__ import annotations

import re

import pytest

from kilonova.api import policies
from kilonova.api.own import device_history, devices, metrics
from kilonova.api.routes import OWN_ROUTES, ROUTES
from kilonova.api.schemas.base import QuerySchema, Schema
from kilonova.api.wsgi import ANYBODY
from tests.api import examples, samples, table, test_who_may
from tests.api.policy_facts import BASE, DEFAULTS, RULES

# Whoever has a token may: there is no rule to ask. What they may do with images the image service
# says, which is asked with their token.
OPEN = {
    'GET /flavors',
    'GET /flavors/detail',
    'GET /flavors/{flavor_id}',
    *(table.key(route) for route in ROUTES if route.path.startswith('/images') or route.action == 'os-getRDPConsole'),
}
LIVE = [route for route in ROUTES if not table.is_gone(route)]
REGISTERED = {rule.name: rule for rule in policies.list_rules()}


@pytest.mark.parametrize('route', LIVE, ids=table.key)
def test_a_row_is_whole(route):
    name = table.key(route)
    assert isinstance(route.query, QuerySchema), 'a query schema'
    assert isinstance(route.body, Schema) == (route.method in ('POST', 'PUT')), 'a schema of the body'
    if route.policy is ANYBODY:
        assert name in OPEN
    else:
        assert route.policy in REGISTERED, 'a rule'
    assert examples.of(route) is not None, 'an example'
    assert samples.files(table.sample_name(route)), 'samples'
    assert name in test_who_may.ASKED, 'callers who try it'


@pytest.mark.parametrize('route', [route for route in ROUTES if route.status == 410], ids=table.key)
def test_what_is_gone_says_so(world, route):
    path = re.sub(r'\{\w+\}', 'x', route.path.replace('{server_id}', world.names['server']))
    body = {route.action: None} if route.action else None
    response = world.request(route.method, path, body, role='nothing', version=route.until)
    assert (response.status_int, list(response.json)) == (410, ['computeFault'])
    assert response.json['computeFault']['message'] == (
        'This resource is no longer available. No forwarding address is given.'
    )


def test_no_example_without_a_route():
    used = set()
    for route in LIVE:
        used |= {table.key(route), route.action or ''}
    assert set(examples.EXAMPLES) <= used


# --- rules -----------------------------------------------------------------------------------------------------------
# Rules that are not the field's, each with its reason.
OWN = {
    rule.name: 'the field has no API of devices' for noun in (devices, device_history, metrics) for rule in noun.RULES
}


def test_base_rules_are_those_of_the_field():
    assert {name: rule.check_str for name, rule in REGISTERED.items() if ':' not in name} == BASE


@pytest.mark.parametrize('name', sorted(name for name in REGISTERED if ':' in name and name not in OWN))
def test_a_rule_has_the_fields_name_and_default(name):
    """Every registered policy rule has the name and the default of Nova's rule, the scope project, and a
    description."""
    assert name in RULES, 'the field has no such rule'
    assert REGISTERED[name].check_str == DEFAULTS[RULES[name][0]]
    assert REGISTERED[name].scope_types == ['project']
    assert REGISTERED[name].description and REGISTERED[name].operations


def test_rules_are_registered_once():
    names = [rule.name for rule in policies.list_rules()]
    assert len(names) == len(set(names))


def test_rules_are_asked_by_something():
    """A rule that nobody asks for is a promise that nobody keeps."""
    asked = {rule for route in (*ROUTES, *OWN_ROUTES) for rule in (route.policy, *route.asks)}
    assert {name for name in REGISTERED if ':' in name} == asked - {ANYBODY}
