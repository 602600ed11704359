"""os-keypairs and the key_name of servers."""

from __future__ import annotations

import base64
import hashlib
import json
import re

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ed25519
from cryptography.hazmat.primitives.serialization import pkcs12

from kilonova import objects
from kilonova.api.services import key_material, keypairs
from kilonova.db.models import api as models
from tests.unit.api.conftest import IMAGE

PUBLIC = 'ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIPQ7mV0Yg6yO0vJ4VZqZc0c3gG2uF0yqkq9lUCFzrgQz me@home'


def ssh_key():
    key = ed25519.Ed25519PrivateKey.generate().public_key()
    return key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH).decode()


def add(site, name='k', version='2.92', user='bob', code=None, **values):
    body = {'keypair': {'name': name, **values}}
    response = site.request('POST', '/os-keypairs', body, version=version, user=user)
    assert code is None or response.status_int == code, response.text
    return response.json['keypair']


def names(answer):
    return [entry['keypair']['name'] for entry in answer['keypairs']]


LISTED = {'name', 'public_key', 'fingerprint'}


@pytest.mark.parametrize(
    ('version', 'code', 'keys'),
    [
        ('2.1', 200, LISTED | {'user_id', 'private_key'}),
        ('2.2', 201, LISTED | {'user_id', 'private_key', 'type'}),
        ('2.10', 201, LISTED | {'user_id', 'private_key', 'type'}),
        ('2.91', 201, LISTED | {'user_id', 'private_key', 'type'}),
    ],
)
def test_a_pair_is_made_until_2_91(site, version, code, keys):
    made = add(site, version=version, code=code)
    assert set(made) == keys and made['user_id'] == 'bob' and made['name'] == 'k'
    private = serialization.load_ssh_private_key(made['private_key'].encode(), None)
    public = private.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    assert made['public_key'] == f'{public.decode()} Generated-by-Nova'
    blob = base64.b64decode(made['public_key'].split()[1])
    assert made['fingerprint'].replace(':', '') == hashlib.md5(blob, usedforsecurity=False).hexdigest()
    assert re.fullmatch('([0-9a-f]{2}:){15}[0-9a-f]{2}', made['fingerprint'])


def test_from_2_92_on_a_key_must_be_sent(site):
    code, message = site.fault('POST', '/os-keypairs', {'keypair': {'name': 'k'}}, version='2.92')
    assert code == 400 and "'public_key' is a required property" in message
    key = ssh_key()
    made = add(site, public_key=key, code=201)
    assert set(made) == LISTED | {'user_id', 'type'}
    assert (made['public_key'], made['type']) == (key, 'ssh')


@pytest.mark.parametrize('version', ['2.1', '2.2'])
def test_import(site, version):
    made = add(site, version=version, public_key=ssh_key())
    assert 'private_key' not in made


def test_a_certificate_is_made_for_windows(site):
    made = add(site, version='2.2', type='x509', code=201)
    key, certificate, _ = pkcs12.load_key_and_certificates(base64.b64decode(made['private_key']), None)
    shown = x509.load_pem_x509_certificate(made['public_key'].encode())
    assert shown == certificate and key.public_key() == shown.public_key() and made['type'] == 'x509'
    assert made['fingerprint'].replace(':', '') == shown.fingerprint(hashes.SHA1()).hex()
    (name,) = shown.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert name.value == b'\x0c\x0dbob@localhost'
    usage = shown.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [x509.ExtendedKeyUsageOID.CLIENT_AUTH]
    again = add(site, name='c2', public_key=made['public_key'], type='x509')
    assert again['fingerprint'] == made['fingerprint']


def test_a_long_user_id_still_gets_a_certificate():
    made = key_material.generate('x509', 'u' * 200)
    shown = x509.load_pem_x509_certificate(made.public_key.encode())
    (name,) = shown.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert name.value == b'\x0c\x81\xd2' + b'u' * 200 + b'@localhost'
    assert made.private_key not in repr(made)


@pytest.mark.parametrize(
    ('values', 'version', 'message'),
    [
        ({'public_key': 'nonsense'}, '2.92', 'Keypair data is invalid: failed to generate fingerprint'),
        ({'public_key': 'ssh-rsa AAAA'}, '2.1', 'Keypair data is invalid: failed to generate fingerprint'),
        ({'public_key': ''}, '2.1', 'Keypair data is invalid: failed to generate fingerprint'),
        ({'public_key': 'é'}, '2.1', 'Keypair data is invalid: failed to generate fingerprint'),
        (
            {'public_key': 'nonsense', 'type': 'x509'},
            '2.92',
            'Keypair data is invalid: failed to generate X509 fingerprint.',
        ),
        ({'type': 'x509'}, '2.1', "'type' was unexpected"),
        ({'type': 'pgp'}, '2.2', "'pgp' is not one of"),
        ({'user_id': 'bob'}, '2.9', "'user_id' was unexpected"),
        ({'name': ''}, '2.1', 'name'),
        ({'name': ' k'}, '2.1', 'name'),
        ({'name': 'k' * 256}, '2.1', 'too long'),
        ({'name': 'a/b'}, '2.92', 'unsafe characters'),
        ({'name': 'a@b'}, '2.91', 'unsafe characters'),
        ({'name': 'a.b'}, '2.1', 'unsafe characters'),
        ({'name': 'ü'}, '2.92', 'unsafe characters'),
    ],
)
def test_what_is_refused(site, values, version, message):
    body = {'keypair': {'name': 'k', 'public_key': PUBLIC, **values}}
    code, told = site.fault('POST', '/os-keypairs', body, version=version, user='bob')
    assert code == 400 and message in told
    assert site.ok('GET', '/os-keypairs', user='bob') == {'keypairs': []}


def test_names_like_addresses_since_2_92(site):
    add(site, name='me@home.example', public_key=ssh_key(), code=201)
    assert site.ok('GET', '/os-keypairs/me@home.example', user='bob')['keypair']['name'] == 'me@home.example'


def test_a_name_is_taken_once_a_user(site):
    add(site, public_key=ssh_key())
    assert site.fault('POST', '/os-keypairs', {'keypair': {'name': 'k', 'public_key': ssh_key()}}, user='bob') == (
        409,
        "Key pair 'k' already exists.",
    )
    add(site, name='K', public_key=ssh_key(), code=201)
    add(site, user='eve', public_key=ssh_key(), code=201)


@pytest.mark.parametrize(
    ('version', 'keys'), [('2.1', LISTED), ('2.2', LISTED | {'type'}), ('2.104', LISTED | {'type'})]
)
def test_the_list(site, version, keys):
    for name in ('b', 'a'):
        add(site, name=name, public_key=ssh_key())
    add(site, user='eve', name='c', public_key=ssh_key())
    answer = site.ok('GET', '/os-keypairs', version=version, user='bob')
    assert names(answer) == ['a', 'b'] and set(answer) == {'keypairs'}
    assert set(answer['keypairs'][0]['keypair']) == keys


def test_pages_since_2_35(make_site):
    site = make_site(api__max_limit=3)
    for name in 'dbca':
        add(site, name=name, public_key=ssh_key())
    answer = site.ok('GET', '/os-keypairs?limit=2', version='2.35', user='bob')
    assert names(answer) == ['a', 'b']
    assert answer['keypairs_links'] == [{'rel': 'next', 'href': 'http://localhost/v2.1/os-keypairs?limit=2&marker=b'}]
    last = site.ok('GET', '/os-keypairs?limit=3&marker=b', version='2.35', user='bob')
    assert names(last) == ['c', 'd'] and 'keypairs_links' not in last
    assert names(site.ok('GET', '/os-keypairs', version='2.35', user='bob')) == ['a', 'b', 'c']
    assert names(site.ok('GET', '/os-keypairs?limit=1&marker=zz', version='2.34', user='bob')) == list('abcd')
    assert site.fault('GET', '/os-keypairs?marker=zz', user='bob') == (400, 'Marker zz could not be found.')
    assert site.fault('GET', '/os-keypairs?limit=-1', user='bob') == (
        400,
        "Invalid input for query parameters limit. Value: -1. '-1' does not match '^[0-9]*$'",
    )


SHOWN = LISTED | {'id', 'user_id', 'created_at', 'updated_at', 'deleted', 'deleted_at'}


@pytest.mark.parametrize(('version', 'keys'), [('2.1', SHOWN), ('2.2', SHOWN | {'type'})])
def test_show(site, version, keys):
    made = add(site, public_key=ssh_key())
    shown = site.ok('GET', '/os-keypairs/k', version=version, user='bob')['keypair']
    assert set(shown) == keys and shown['fingerprint'] == made['fingerprint']
    assert (shown['deleted'], shown['deleted_at'], shown['updated_at']) == (False, None, None)
    assert re.fullmatch(r'\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}', shown['created_at'])


@pytest.mark.parametrize(('version', 'code'), [('2.1', 202), ('2.2', 204), ('2.104', 204)])
def test_delete(site, version, code):
    add(site, public_key=ssh_key())
    response = site.request('DELETE', '/os-keypairs/k', version=version, user='bob')
    assert response.status_int == code and response.body == b''
    for method in ('GET', 'DELETE'):
        assert site.fault(method, '/os-keypairs/k', version=version, user='bob') == (
            404,
            'Keypair k not found for user bob',
        )


def test_key_pairs_of_others_are_for_administrators_since_2_10(site):
    add(site, public_key=ssh_key())
    rule = "Policy doesn't allow os_compute_api:os-keypairs:{} to be performed."
    for method, path, verb in (
        ('GET', '/os-keypairs', 'index'),
        ('GET', '/os-keypairs/k', 'show'),
        ('DELETE', '/os-keypairs/k', 'delete'),
    ):
        assert site.fault(method, f'{path}?user_id=bob', user='eve') == (403, rule.format(verb))
    body = {'keypair': {'name': 'k2', 'public_key': ssh_key(), 'user_id': 'bob'}}
    assert site.fault('POST', '/os-keypairs', body, user='eve') == (403, rule.format('create'))
    assert site.fault('GET', '/os-keypairs/k', user='eve')[0] == 404
    assert site.ok('POST', '/os-keypairs', body, version='2.10')['keypair']['user_id'] == 'bob'
    assert names(site.ok('GET', '/os-keypairs?user_id=bob')) == ['k', 'k2']
    assert names(site.ok('GET', '/os-keypairs?user_id=bob', version='2.9')) == []
    assert site.request('DELETE', '/os-keypairs/k2?user_id=bob').status_int == 204
    assert names(site.ok('GET', '/os-keypairs?user_id=bob', user='bob')) == ['k']
    assert site.fault('GET', '/os-keypairs?nosuch=1')[0] == 400


def test_the_quota_is_a_users(make_site):
    """A key pair beyond the user's quota is refused with 403 and Nova's text."""
    site = make_site(quota__key_pairs=2)
    for name in ('a', 'b'):
        add(site, name=name, public_key=ssh_key(), code=201)
    assert site.fault('POST', '/os-keypairs', {'keypair': {'name': 'c', 'public_key': ssh_key()}}, user='bob') == (
        403,
        'Quota exceeded, too many key pairs.',
    )
    add(site, user='eve', public_key=ssh_key(), code=201)
    site.ok('PUT', '/os-quota-sets/p1?user_id=bob', {'quota_set': {'key_pairs': 3, 'force': True}})
    add(site, name='c', public_key=ssh_key(), code=201)
    site.ok('PUT', '/os-quota-sets/p1', {'quota_set': {'key_pairs': -1}})
    site.ok('DELETE', '/os-quota-sets/p1?user_id=bob')
    add(site, name='d', public_key=ssh_key(), code=201)


@pytest.mark.parametrize('recheck', [True, False])
def test_key_pairs_that_are_added_at_the_same_time(make_site, monkeypatch, recheck):
    site = make_site(quota__key_pairs=1, quota__recheck_quota=recheck)
    inner = keypairs.keypairs.create

    def slow(database, values):
        inner(database, {**values, 'name': 'other'})
        return inner(database, values)

    monkeypatch.setattr(keypairs.keypairs, 'create', slow)
    response = site.request('POST', '/os-keypairs', {'keypair': {'name': 'k', 'public_key': ssh_key()}}, user='bob')
    assert response.status_int == (403 if recheck else 201)
    assert names(site.ok('GET', '/os-keypairs', user='bob')) == (['other'] if recheck else ['k', 'other'])


def test_private_keys_are_kept_nowhere(site, caplog, statements, tmp_path):
    caplog.set_level('DEBUG')
    made = add(site, version='2.2')
    secret = made['private_key'].splitlines()[2]
    with site.databases.api().read() as conn:
        (row,) = [dict(found) for found in conn.execute(models.KeyPair.__table__.select()).mappings()]
    assert secret not in repr(row) and secret not in caplog.text
    assert not any(secret in statement for _, statement in statements)
    for path in tmp_path.glob('*.db*'):
        assert secret.encode() not in path.read_bytes()
    assert made['private_key'] not in repr(keypairs.NewKeypair(row, made['private_key']))


# --- servers ---------------------------------------------------------------------------------------------------------
def server_body(site, **values):
    return {'server': {'name': 's', 'flavorRef': site.flavor(), 'imageRef': IMAGE, 'networks': 'none', **values}}


def test_a_server_gets_the_callers_key(site):
    """A server gets the key of the user who creates it, not a key of the same name of another user. The key stays
    with the server when the key pair is deleted."""
    key = ssh_key()
    add(site, public_key=key)
    add(site, user='eve', public_key=ssh_key())
    uuid = site.ok('POST', '/servers', server_body(site, key_name='k'), user='bob')['server']['id']
    assert site.ok('GET', f'/servers/{uuid}', user='bob')['server']['key_name'] == 'k'
    (row,) = site.rows(uuid)
    server = objects.base.Serializer().deserialize_entity(None, row['args']['instance'])
    assert (server.key_name, server.key_data) == ('k', key)
    (kept,) = server.keypairs
    assert (kept.name, kept.user_id, kept.type, kept.public_key) == ('k', 'bob', 'ssh', key)
    site.ok('DELETE', '/os-keypairs/k', user='bob')
    site.hand_over(uuid)
    shown = site.row(uuid)
    assert (shown['key_name'], shown['key_data']) == ('k', key)
    stored = json.loads(shown['extra_keypairs'])
    assert stored['nova_object.name'] == 'KeyPairList'
    assert stored['nova_object.data']['objects'][0]['nova_object.data']['public_key'] == key


def test_a_key_that_the_caller_does_not_have(site):
    add(site, user='eve', public_key=ssh_key())
    for user in ('bob', 'admin'):
        assert site.fault('POST', '/servers', server_body(site, key_name='k'), user=user) == (
            400,
            'Invalid key_name provided.',
        )
