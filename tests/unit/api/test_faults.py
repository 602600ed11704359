"""Errors as answers."""

from __future__ import annotations

import logging

import pytest
import webob
import webob.exc
from sqlalchemy import exc

from kilonova import errors
from kilonova.api import faults
from kilonova.api.app import FaultAndLogMiddleware


def answer(result):
    def app(environ, start_response):
        if isinstance(result, webob.Response):
            return result(environ, start_response)
        raise result

    return webob.Request.blank('/a%0Ab?x=1', {'openstack.request_id': 'req-1'}).get_response(
        FaultAndLogMiddleware(app, app)
    )


@pytest.mark.parametrize(
    ('code', 'name'),
    [
        (400, 'badRequest'),
        (401, 'unauthorized'),
        (403, 'forbidden'),
        (404, 'itemNotFound'),
        (405, 'badMethod'),
        (409, 'conflictingRequest'),
        (413, 'overLimit'),
        (415, 'badMediaType'),
        (429, 'overLimit'),
        (501, 'notImplemented'),
        (503, 'serviceUnavailable'),
        (500, 'computeFault'),
        (406, 'computeFault'),
        (410, 'computeFault'),
    ],
)
def test_names(code, name):
    response = faults.fault(code, 'm')
    assert response.json == {name: {'code': code, 'message': 'm'}}
    assert response.headers['Content-Type'] == 'application/json; charset=UTF-8'


def test_kinds_of_errors():
    assert answer(errors.InstanceNotFound(instance_id='x')).json == {
        'itemNotFound': {'code': 404, 'message': 'Instance x could not be found.'}
    }
    assert answer(errors.InstanceIsLocked(instance_uuid='x')).status_int == 409
    assert answer(errors.Unanswered(who='w', reason='r')).json['serviceUnavailable']['message'] == (
        'w does not answer: r'
    )


def test_pages_of_webob_become_faults():
    response = answer(webob.exc.HTTPRequestEntityTooLarge('too large'))
    assert response.json == {'overLimit': {'code': 413, 'message': 'too large'}}
    limited = webob.exc.HTTPTooManyRequests('slow down', headers={'Retry-After': '7'})
    assert answer(limited).json['overLimit']['retryAfter'] == '7'
    page = webob.Response(
        '<html><head><title>404 Not Found</title></head><body><h1>404</h1>gone<br></body></html>', status=404
    )
    assert answer(page).json == {'itemNotFound': {'code': 404, 'message': 'gone'}}
    headers = answer(webob.exc.HTTPUnauthorized(headers={'WWW-Authenticate': 'Keystone'})).headers
    assert headers['WWW-Authenticate'] == 'Keystone' and headers['Content-Type'].startswith('application/json')


def test_unexpected_errors_tell_no_more_than_their_class(caplog):
    response = answer(RuntimeError('the password is x'))
    assert response.status_int == 500
    message = response.json['computeFault']['message']
    assert message.startswith('Unexpected API Error.') and message.endswith("<class 'RuntimeError'>")
    assert 'password' not in message and 'the password is x' in caplog.text
    assert answer(errors.KilonovaError('inside')).status_int == 500


def test_a_database_that_is_gone_is_silence():
    gone = exc.OperationalError('select', None, Exception('gone'), connection_invalidated=True)
    assert answer(gone).status_int == 503


def test_the_request_log(caplog):
    caplog.set_level(logging.INFO, 'kilonova.api.requests')
    answer(webob.Response(b'{}', content_type='application/json'))
    (record,) = [record for record in caplog.records if record.name == 'kilonova.api.requests']
    text = record.getMessage()
    assert text.startswith('- "GET /a%0Ab?x=1" status: 200 len: 2 microversion: - time: 0.')
    assert '\n' not in text
