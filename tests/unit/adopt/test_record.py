"""``adopt record`` writes what an API answers to an administrator and a member; ``adopt verify`` finds what differs."""

from __future__ import annotations

import gzip
import json
import pathlib
from collections.abc import Callable
from typing import Any

import pytest

from kilonova import errors
from kilonova.adopt import answers, record, verify
from kilonova.adopt.answers import Answer
from kilonova.cmd.manage import main as manage

PROJECT = '0123456789abcdef0123456789abcdef'


class Account:
    """Asks a site without a network between; ``admin`` is its administrator."""

    def __init__(self, site: Any, role: str) -> None:
        self._site, self.role = site, role
        self.ids = ('admin' if role == 'admin' else 'bob', PROJECT)

    def get(self, path: str, version: str) -> tuple[int, Any]:
        response = self._site.request('GET', path, user=self.ids[0], project=PROJECT, version=version)
        is_json = response.content_type == 'application/json'
        return response.status_int, response.json if is_json else response.text or None

    newest_version = record.Account.newest_version
    listed = record.Account.listed


@pytest.fixture
def accounts(site, monkeypatch) -> list[Account]:
    found = [Account(site, role) for role in answers.ROLES]
    monkeypatch.setattr(record, 'accounts', lambda path: found)
    return found


@pytest.fixture
def adopt(tmp_path, capsys) -> Callable[[str], tuple[int, str]]:
    def adopt(command: str) -> tuple[int, str]:
        code = manage.main(['adopt', command, str(tmp_path / 'answers.gz'), '--accounts', str(tmp_path / 'accounts')])
        return code, capsys.readouterr().out

    return adopt


def test_what_is_recorded_is_found_again(site, accounts, adopt, tmp_path):
    server = site.server(project=PROJECT)
    site.ok('POST', '/os-server-groups', {'server_group': {'name': 'g', 'policy': 'affinity'}}, project=PROJECT)
    code, printed = adopt('record')
    assert code == 0 and printed.startswith(f'{tmp_path}/answers.gz has ')
    assert (tmp_path / 'answers.gz').stat().st_mode & 0o777 == 0o600
    found = list(answers.read(tmp_path / 'answers.gz'))
    asked = {(one.role, one.version, one.path) for one in found}
    assert {('member', '2.96', f'/servers/{server}/tags'), ('admin', '2.104', '/servers/detail?all_tenants=1')} <= asked
    assert {one.version for one in found} == {'2.1', '2.96', '2.104'}
    code, printed = adopt('verify')
    assert code == 0 and printed.startswith(f'{len(found)} answers were compared.\n')
    assert printed.endswith('\nThere are no other differences.\n')


def test_what_differs_is_printed_by_kind(site, accounts, adopt):
    server = site.server(project=PROJECT)
    adopt('record')
    site.ok('PUT', f'/servers/{server}', {'server': {'name': 'other'}}, user='bob', project=PROJECT)
    code, printed = adopt('verify')
    assert code == 1 and '\nOther differences:\n' in printed
    assert '- /servers/ID server.name (6), first in /servers/' in printed
    assert "'other' here, 's' in Nova\n" in printed


def test_an_api_that_does_not_answer_leaves_no_file(site, accounts, adopt, tmp_path, monkeypatch):
    def get(path: str, version: str) -> tuple[int, Any]:
        raise errors.Unanswered(who='the compute API', reason='HTTP 503')

    monkeypatch.setattr(accounts[1], 'get', get)
    code, printed = adopt('record')
    assert code == 1 and 'HTTP 503' in printed
    assert list(tmp_path.glob('*answers*')) == []


def test_an_api_of_an_older_nova_is_recorded_with_its_newest_version(site, accounts, adopt, tmp_path, monkeypatch):
    """Nova 27 and 28 refuse each version after 2.95."""
    server = site.server(project=PROJECT)

    def get(self: Account, path: str, version: str) -> tuple[int, Any]:
        if version not in ('2.1', '2.95'):
            return 406, {'computeFault': {'message': f'Version {version} is not supported by the API.'}}
        status, body = ask(self, path, version)
        if path == '/':
            body['version']['version'] = '2.95'
        return status, body

    ask = Account.get
    monkeypatch.setattr(Account, 'get', get)
    code, _ = adopt('record')
    found = list(answers.read(tmp_path / 'answers.gz'))
    assert code == 0 and {one.version for one in found} == {'2.1', '2.95'}
    assert f'/servers/{server}' in {one.path for one in found}


@pytest.mark.parametrize(
    ('role', 'path', 'status', 'is_refused'),
    [
        ('admin', '/servers/detail?all_tenants=1', 404, True),
        ('admin', '/os-hypervisors', 403, True),
        ('admin', '/os-hypervisors', 500, True),
        ('member', '/servers/detail', 400, True),
        ('member', '/os-keypairs', 404, True),
        ('member', '/os-aggregates', 403, False),
        ('admin', '/servers/SERVER/os-volume_attachments', 404, False),
        ('admin', '/servers/SERVER/os-volume_attachments', 500, True),
    ],
)
def test_a_list_that_is_refused_is_named(
    site, accounts, adopt, tmp_path, monkeypatch, role: str, path: str, status: int, is_refused: bool
) -> None:
    """A member may not see the lists of administrators, and a server may be deleted during the recording."""
    refused = path.replace('SERVER', site.server(project=PROJECT))

    def get(self: Account, path: str, version: str) -> tuple[int, Any]:
        return (status, None) if (self.role, path) == (role, refused) else ask(self, path, version)

    ask = Account.get
    monkeypatch.setattr(Account, 'get', get)
    code, printed = adopt('record')
    assert code == is_refused and (tmp_path / 'answers.gz').exists() is not is_refused
    if is_refused:
        assert f'HTTP {status} to GET {refused}' in printed and role in printed


# --- the file of accounts
ACCOUNT = 'auth_type = password\nauth_url = http://127.0.0.1:1/v3\nusername = u\npassword = p\n'


@pytest.mark.parametrize(
    ('text', 'said'),
    [
        (None, 'No such file|Failed to find some config files'),
        ('[admin', 'accounts'),
        ('', r'\[admin\]auth_type is not set'),
        (f'[admin]\n{ACCOUNT}', r'\[member\]auth_type is not set'),
        ('[admin]\nauth_type = nosuch\n', 'nosuch'),
    ],
)
def test_a_file_of_accounts_that_is_not_usable(tmp_path, text, said):
    path = tmp_path / 'accounts'
    if text is not None:
        path.write_text(text)
    with pytest.raises(record.BadAccounts, match=said):
        record.accounts(path)


def test_an_identity_service_that_does_not_answer(adopt, tmp_path):
    (tmp_path / 'accounts').write_text(f'[admin]\n{ACCOUNT}[member]\n{ACCOUNT}')
    code, printed = adopt('record')
    assert code == 1 and 'the compute API' in printed and not (tmp_path / 'answers.gz').exists()


# --- the file of answers
@pytest.mark.parametrize(
    ('raw', 'said'),
    [
        (None, 'No such file'),
        (b'plain text', 'Not a gzipped file'),
        (gzip.compress(b'{}\n'), 'line 1 is no answer'),
        (gzip.compress(b'[1\n'), 'line 1 is no answer'),
        (gzip.compress(json.dumps(vars(Answer('root', '2.1', '/x', 200, None))).encode()), "the role 'root'"),
        (gzip.compress(json.dumps(vars(Answer('admin', '2.1', 'x', 200, None))).encode()), 'a path that begins with'),
        (gzip.compress(json.dumps(vars(Answer('admin', '2.1', '/x', 200, None))).encode())[:-12], 'end-of-stream'),
    ],
)
def test_a_file_without_answers(adopt, accounts, tmp_path, raw, said):
    if raw is not None:
        (tmp_path / 'answers.gz').write_bytes(raw)
    code, printed = adopt('verify')
    assert code == 1 and said in printed


# --- what is a difference
def compared(theirs: Any, ours: Any, path: str = '/x', status: int = 200) -> list[tuple[str, Any, Any]]:
    answer = Answer('admin', '2.96', path, 200, theirs)
    return [(one.member, one.ours, one.theirs) for one in verify.differences(answer, status, ours)]


@pytest.mark.parametrize(
    ('theirs', 'ours', 'found'),
    [
        ({'a': 1}, {'a': 1}, []),
        ({'a': 1}, {'a': 2}, [('a', 2, 1)]),
        ({'a': 1}, {}, [('a', '(nothing)', 1)]),
        ({}, {'a': {'b': 1}}, [('a', {'b': 1}, '(nothing)')]),
        ({'a': {'b': 'http://nova:8774/v2.1/x'}}, {'a': {'b': 'https://other/v2.1/x'}}, []),
        ({'a': ['x', 'y']}, {'a': ['y', 'x']}, []),
        ({'a': ['x']}, {'a': ['x', 'y']}, [('a[]', ['x', 'y'], ['x'])]),
        ({'a': [{'id': 1, 'n': 'x'}, {'id': 2}]}, {'a': [{'id': 2}, {'id': 1, 'n': 'y'}]}, [('a[].n', 'y', 'x')]),
        ({'a': [{'id': 1}]}, {'a': []}, [('a[]', '(nothing)', {'id': 1})]),
        ({'a': [{'id': 1}, {'id': 1}]}, {'a': [{'id': 1}, {'id': 1}]}, []),
    ],
)
def test_differences(theirs, ours, found):
    assert compared(theirs, ours) == found


def test_another_status_is_a_difference_and_another_text_of_an_error_is_not():
    assert compared({'a': 1}, {'b': 1}, status=404) == [('status', 404, 200)]
    refused = Answer('admin', '2.96', '/x', 404, {'itemNotFound': {'message': 'gone'}})
    assert list(verify.differences(refused, 404, {'itemNotFound': {'message': 'not here'}})) == []


def test_the_order_of_servers_matters():
    theirs, ours = ({'servers': [{'id': one} for one in order]} for order in ('ab', 'ba'))
    assert [one[0] for one in compared(theirs, ours, '/servers/detail')] == ['servers order']
    assert compared(theirs, ours, '/os-services') == []


def test_an_expected_difference_has_its_reason():
    answer = Answer('admin', '2.96', '/os-hypervisors/detail', 200, {'hypervisors': [{'id': 1, 'uptime': 'a'}]})
    (one,) = verify.differences(answer, 200, {'hypervisors': [{'id': 1, 'uptime': 'b'}]})
    assert one.reason == 'it is the time of the answer'


def test_ids_in_a_path_are_one_kind(tmp_path: pathlib.Path):
    path = '/servers/6f70a1b2-c3d4-4e5f-8a9b-0c1d2e3f4a5b/os-instance-actions/req-6f70a1b2-c3d4-4e5f-8a9b-0c1d2e3f4a5b'
    assert verify.pattern(path) == '/servers/ID/os-instance-actions/ID'
    assert verify.pattern('/flavors/1') == '/flavors/1'
