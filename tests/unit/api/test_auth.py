"""Who asks: keystonemiddleware's headers, believed tokens, policies."""

from __future__ import annotations

import json

import pytest
import webob
from keystonemiddleware import auth_token

from kilonova import conf as kilonova_conf
from kilonova.api import app, policies
from kilonova.context import RequestContext


def configured(**options):
    conf = kilonova_conf.new()
    conf([], project='kilonova', default_config_files=[], default_config_dirs=[])
    for name, value in options.items():
        group, _, option = name.rpartition('__')
        conf.set_override(option, value, group or None)
    return conf


def test_the_identity_that_keystone_vouches_for():
    request = webob.Request.blank(
        '/',
        headers={
            'X-User-Id': 'u',
            'X-Project-Id': 'p',
            'X-Roles': 'member, reader',
            'X-User-Name': 'un',
            'X-Project-Name': 'pn',
            'X-Auth-Token': 't',
            'X-Service-Catalog': json.dumps([{'type': 'image', 'endpoints': []}, {'type': 'dns'}]),
        },
    )
    request.environ['openstack.request_id'] = 'req-1'
    ctxt = app.identity_of_keystone(policies.Policy(configured()), request.environ)
    assert (ctxt.user_id, ctxt.project_id, ctxt.roles, ctxt.is_admin) == ('u', 'p', ['member', 'reader'], False)
    assert (ctxt.user_name, ctxt.auth_token, ctxt.request_id) == ('un', 't', 'req-1')
    assert [entry['type'] for entry in ctxt.service_catalog] == ['image']


@pytest.mark.parametrize(
    ('rule', 'roles', 'is_admin'),
    [(None, 'admin', True), (None, 'member', False), ('role:boss', 'boss', True), ('role:boss', 'admin', False)],
)
def test_what_makes_an_administrator(tmp_path, rule, roles, is_admin):
    policy = tmp_path / 'policy.yaml'
    policy.write_text(f'"context_is_admin": "{rule}"\n' if rule else '')
    conf = configured()
    made = policies.Policy(conf)
    conf.set_override('policy_file', str(policy), 'oslo_policy')
    made = policies.Policy(conf)
    request = webob.Request.blank('/', headers={'X-User-Id': 'u', 'X-Project-Id': 'p', 'X-Roles': roles})
    assert app.identity_of_keystone(made, request.environ).is_admin is is_admin


def test_without_an_identity_nothing_is_answered(make_site):
    policy = policies.Policy(configured())
    response = app.identity_of_keystone(policy, webob.Request.blank('/').environ)
    assert response.status_int == 401 and 'unauthorized' in response.json
    broken = webob.Request.blank('/', headers={'X-User-Id': 'u', 'X-Service-Catalog': '{'})
    assert app.identity_of_keystone(policy, broken.environ).status_int == 500
    refused = make_site().request('GET', '/servers', headers={'X-Auth-Token': ''})
    assert refused.status_int == 401 and 'unauthorized' in refused.json
    assert 'OpenStack-API-Version' not in refused.headers


@pytest.mark.parametrize(('line', 'seconds'), [('', 10), ('http_connect_timeout = 3', 3)])
def test_a_token_is_not_validated_for_ever(tmp_path, line, seconds):
    """keystonemiddleware has no limit of its own."""
    path = tmp_path / 'kilonova.conf'
    path.write_text(f'[keystone_authtoken]\nauth_type = none\n{line}\n')
    conf = kilonova_conf.new()
    conf(['--config-file', str(path)], project='kilonova')
    assert isinstance(app.validated(lambda environ, start_response: [], conf), auth_token.AuthProtocol)
    assert conf.keystone_authtoken.http_connect_timeout == seconds
    assert conf.keystone_authtoken.http_request_max_retries == 1


def test_keystone_refuses_requests_without_a_token(make_site):
    site = make_site(api__auth_strategy='keystone', keystone_authtoken__auth_type='none')
    response = site.request('GET', '/servers', headers={'X-Auth-Token': ''})
    assert response.status_int == 401
    assert site.request('GET', '/', headers={'X-Auth-Token': ''}).status_int == 200


@pytest.mark.parametrize(
    ('token', 'user', 'project', 'is_admin'),
    [('bob:p', 'bob', 'p', False), ('admin:p', 'admin', 'p', True), ('admin', 'admin', 'admin', True)],
)
def test_believed_tokens(token, user, project, is_admin):
    ctxt = app.identity_of_token(webob.Request.blank('/', headers={'X-Auth-Token': token}).environ)
    assert (ctxt.user_id, ctxt.project_id, ctxt.is_admin) == (user, project, is_admin)


# --- policies --------------------------------------------------------------------------------------------------------
def context(*roles, project='p', **values):
    return RequestContext(user_id='u', project_id=project, roles=list(roles), overwrite=False, **values)


@pytest.mark.parametrize(
    ('rule', 'allowed'),
    [
        ('os_compute_api:servers:show', {'reader', 'admin'}),
        ('os_compute_api:servers:create', {'member', 'admin'}),
        ('os_compute_api:os-migrate-server:migrate', {'manager', 'admin'}),
        ('os_compute_api:os-services:list', {'admin'}),
        ('os_compute_api:limits', {'reader', 'member', 'manager', 'admin', 'nothing'}),
    ],
)
def test_default_roles(rule, allowed):
    policy = policies.Policy(configured())
    for role in ('reader', 'member', 'manager', 'admin', 'nothing'):
        assert policy.allows(context(role), rule) == (role in allowed), role
        elsewhere = policy.allows(context(role), rule, {'project_id': 'other', 'user_id': 'x'})
        assert elsewhere == (role == 'admin' or rule.endswith(':limits'))


def test_system_scope_is_not_enough():
    policy = policies.Policy(configured())
    assert not policy.allows(context('admin', project=None, system_scope='all'), 'os_compute_api:os-services:list')


def test_rules_have_the_fields_form():
    rules = policies.list_rules()
    assert len({rule.name for rule in rules}) == len(rules)
    for rule in rules:
        assert rule.description
        if ':' in rule.name:
            assert rule.scope_types == ['project'] and rule.operations


def test_a_malformed_policy_file_stops_the_start(tmp_path):
    (tmp_path / 'policy.yaml').write_text(': [')
    with pytest.raises(ValueError, match=r'.'):
        policies.Policy(configured(oslo_policy__policy_file=str(tmp_path / 'policy.yaml')))


SHOW = 'os_compute_api:servers:show'
BROKEN = {
    'syntax': b': [',
    'bytes': b'\xff\xfe\x00\x80',
    'a list': b'- a\n- b\n',
    'cycle': b'"a": "rule:b"\n"b": "rule:a"\n',
    'itself': f'"{SHOW}": "rule:{SHOW}"\n'.encode(),
    'deep': b'a: ' + b'[' * 5000,
}


@pytest.mark.parametrize('text', BROKEN.values(), ids=BROKEN)
def test_a_policy_file_that_broke_changes_nothing_and_is_told_once(tmp_path, monkeypatch, caplog, text):
    """A policy file that becomes invalid changes no decision and is logged once; a valid one is used again."""
    monkeypatch.setattr(policies, 'BETWEEN_LOOKS', 0.0)
    path = tmp_path / 'policy.yaml'
    path.write_text(f'"{SHOW}": "role:boss"\n')
    policy = policies.Policy(configured(oslo_policy__policy_file=str(path)))
    boss, reader = (RequestContext(user_id='u', project_id='p', roles=[role]) for role in ('boss', 'reader'))
    path.write_bytes(text)
    for _ in range(3):
        assert policy.allows(boss, SHOW)
        assert not policy.allows(reader, SHOW)
    assert sum('keeping the previous rules' in line for line in caplog.messages) == 1
    with pytest.raises(Exception, match=r'.'):
        policies.Policy(configured(oslo_policy__policy_file=str(path)))
    path.write_text(f'"{SHOW}": "role:reader"\n')
    assert policy.allows(reader, SHOW)
    assert not policy.allows(boss, SHOW)
    path.unlink()
    assert policy.allows(reader, SHOW)
