"""What a row keeps of its steps: the JSON of the release before is read, and written the same."""
from __future__ import annotations

from typing import Any

import pytest

from kilonova.conductor.flows import FLOWS, hosts_of

HOST = {'host': 'gpu1', 'node': 'gpu1', 'compute_node_uuid': 'n', 'cell_uuid': 'c', 'availability_zone': 'nova',
        'allocations': {'p': {'resources': {'VCPU': 1}}}, 'mappings': {'': ['p']}, 'limits': None}
CORE = {'tries': 2, 'back_to': 1, 'refusals': ['gpu1: disk full']}
ROWS = [
    ('boot', {}), ('boot', {'select': []}), ('stop', CORE), ('delete', {'terminate': {'consumers': ['m']}}),
    ('boot', {'select': [HOST, {**HOST, 'host': 'gpu2'}], 'create_instance': {'id': 7}, 'overtaken': [1],
              'early_delete': True, **CORE}),
    ('resize', {'select': [HOST], 'prep_resize': {'disk': {'host': 'gpu1'}}, 'resize_instance': {'path': '/d'},
                'choices': 2, **CORE}),
]


@pytest.mark.parametrize(('kind', 'stored'), ROWS)
def test_what_is_stored_is_read_and_stored_again(kind: str, stored: dict[str, Any]) -> None:
    assert FLOWS[kind].outputs.read(stored).stored() == stored


def test_what_is_not_known_is_left_out() -> None:
    """Rows that lack what came later, and rows of a later release."""
    outputs = FLOWS['boot'].outputs.read({'later': 1, 'select': [{'host': 'gpu1', 'later': 1}]})
    assert [(choice.host, choice.limits, choice.mappings) for choice in outputs.hosts] == [('gpu1', None, {})]
    assert 'later' not in outputs.stored()


@pytest.mark.parametrize(('attempt', 'found'), [(1, {'gpu1'}), (2, {'gpu2'}), (3, set())])
def test_which_host_an_attempt_works_on(attempt: int, found: set[str]) -> None:
    assert hosts_of({'select': [HOST, {**HOST, 'host': 'gpu2'}]}, attempt) == found
    assert hosts_of({}, attempt) == set()
