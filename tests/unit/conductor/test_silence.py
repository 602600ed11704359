"""A database that does not answer makes the conductor silent for hosts: they ask again and undo nothing."""

from __future__ import annotations

import contextlib

import pytest
from sqlalchemy import exc

from kilonova.conductor.manager import ConductorEndpoint
from kilonova.context import get_admin_context
from kilonova.errors import Unanswered
from kilonova.objects import Claim, Save, Service

UUID = '3b7d22a7-6d1f-4ccb-8a6f-3b0d1e4a0c11'

CALLS = {
    'object_class_action_versions': lambda endpoint, ctxt: endpoint.object_class_action_versions(
        ctxt, 'Service', 'get_by_args', {'Service': Service.VERSION}, ('gpu1', 'nova-compute'), {}
    ),
    'object_action': lambda endpoint, ctxt: endpoint.object_action(
        ctxt, Service(ctxt, id=1, report_count=2), 'save', (), {}
    ),
    'check_key': lambda endpoint, ctxt: endpoint.check_key(ctxt, 'o/0/1', False, 'gpu1'),
    'claim_instance': lambda endpoint, ctxt: endpoint.claim_instance(ctxt, Claim(key='o/0.x/1', instance_uuid=UUID)),
    'save_instance': lambda endpoint, ctxt: endpoint.save_instance(ctxt, Save(key='o/0.x/1', instance_uuid=UUID)),
    'bind_ports': lambda endpoint, ctxt: endpoint.bind_ports(ctxt, 'o/0.x/1', UUID, 'gpu1', {}),
}


class Databases:
    """What happens to each transaction is ``error``."""

    def __init__(self, error):
        self.error = error

    def main(self):
        return self

    @contextlib.contextmanager
    def read(self):
        raise self.error
        yield

    write = read


@pytest.mark.parametrize('method', CALLS)
def test_silence_comes_as_silence(method):
    error = exc.OperationalError('SELECT', None, Exception(2003, 'refused'), connection_invalidated=False)
    error.orig = type('OperationalError', (Exception,), {'__module__': 'pymysql.err'})(2003, 'refused')
    with pytest.raises(Unanswered, match='the database does not answer'):
        CALLS[method](ConductorEndpoint(Databases(error), None), get_admin_context())


@pytest.mark.parametrize('method', CALLS)
def test_other_errors_are_answers(method):
    with pytest.raises(ZeroDivisionError):
        CALLS[method](ConductorEndpoint(Databases(ZeroDivisionError()), None), get_admin_context())
