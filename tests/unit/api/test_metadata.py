"""The metadata service over real SQLite databases: whose requests are answered, and with what."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import logging
from collections.abc import Callable
from typing import Any

import pytest
import webob

from kilonova.api import metadata
from kilonova.api.metadata import MetadataService, Misconfigured
from kilonova.db.queries import info_caches, instances
from kilonova.errors import Unanswered
from kilonova.objects.vif import VifAddress, VifSubnet
from kilonova.virt.guest_metadata import LATEST, VERSIONS
from tests.unit.api.conftest import OTHER, PROJECT, Site
from tests.unit.virt.builders import new_vif

SECRET = 'between the proxy and us'
USER_DATA = base64.b64encode(b'#cloud-config').decode()
OPTIONS = {'neutron__service_metadata_proxy': True, 'neutron__metadata_proxy_shared_secret': SECRET}


class Vendors:
    """Vendordata; ``asked`` counts."""

    def __init__(self) -> None:
        self.asked = 0

    def static(self) -> Any:
        return {'cloud': 'ours'}

    def all(self, about: Any) -> Any:
        self.asked += 1
        return {'static': {'cloud': 'ours'}, 'who': about['instance-id']}


class Guests:
    """The proxy of the network service, which guests ask. ``now``: the service's clock."""

    def __init__(self, site: Site) -> None:
        self.site, self.vendors, self.now = site, Vendors(), 0.0
        self.app = MetadataService(
            site.conf, databases=site.databases, cells=site.cells, vendor=self.vendors, clock=lambda: self.now
        )  # type: ignore[arg-type]

    def ask(
        self,
        server: str,
        path: str,
        method: str = 'GET',
        body: bytes = b'',
        project: str = PROJECT,
        **headers: str | None,
    ) -> webob.Response:
        request = webob.Request.blank('/')
        request.environ['PATH_INFO'] = path
        request.method = method
        if body:
            request.body = body
        signature = hmac.new(SECRET.encode(), server.encode(), hashlib.sha256).hexdigest()
        given = {
            'X-Instance-ID': server,
            'X-Tenant-ID': project,
            'X-Instance-ID-Signature': signature,
            'X-Forwarded-For': '10.0.0.5',
            **{name.replace('_', '-'): value for name, value in headers.items()},
        }
        request.headers.update({name: value for name, value in given.items() if value is not None})
        return request.get_response(self.app)

    def text(self, server: str, path: str) -> str:
        answer = self.ask(server, path)
        assert answer.status_int == 200, (path, answer.status, answer.text)
        # Without it the proxy tells the guest 502.
        assert answer.headers['Content-Type']
        return answer.text


@pytest.fixture
def guests(make_site: Callable[..., Site]) -> Guests:
    return Guests(make_site(**OPTIONS))


@pytest.fixture
def server(guests: Guests) -> str:
    """A server in a cell, with all that its guest may know."""
    site = guests.site
    site.ok(
        'POST',
        '/os-keypairs',
        {
            'keypair': {
                'name': 'mine',
                'public_key': 'ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ8aTp5V0cJfJ6bS1XwW8fOaYkXr0gkJ1rFvW5xqkTtB bob',
            }
        },
        user='bob',
    )
    uuid = site.create(name='web', key_name='mine', user_data=USER_DATA, metadata={'tier': 'front'})
    return site.hand_over(uuid, host='h1', vm_state='active', metadata={'tier': 'front'})


# --- whose requests are answered --------------------------------------------------------------------------------------
def test_a_request_that_the_proxy_did_not_sign(guests: Guests, server: str, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is told, not even that the server exists."""
    other = hmac.new(b'guessed', server.encode(), hashlib.sha256).hexdigest()
    with caplog.at_level(logging.INFO):
        for signature in (other, '', None, 'é', other.upper()):
            for path in ('/', '/latest/meta-data/', '/openstack/latest/user_data', '/nowhere'):
                answer = guests.ask(server, path, **{'X-Instance-ID-Signature': signature})
                assert (answer.status_int, answer.text) == (403, 'Invalid proxy request signature.')
        unknown = '11111111-1111-4111-8111-111111111111'
        assert guests.ask(unknown, '/', **{'X-Instance-ID-Signature': other}).status_int == 403
    assert 'cloud-config' not in caplog.text and SECRET not in caplog.text


@pytest.mark.parametrize('name', ['X-Instance-ID', 'X-Tenant-ID'])
def test_headers_that_are_missing_or_there_twice(guests: Guests, server: str, name: str) -> None:
    answer = guests.ask(server, '/', **{name: None})
    assert (answer.status_int, answer.text) == (400, f'{name} header is missing from request.')
    answer = guests.ask(server, '/', **{name: f'{server},{server}'})
    assert (answer.status_int, answer.text) == (400, f'Multiple {name} headers found within request.')


def test_servers_that_are_not_there(guests: Guests, server: str) -> None:
    """Of another project, unknown, in no cell yet, deleted: all 404."""
    assert guests.ask(server, '/', project=OTHER).status_int == 404
    assert guests.ask('11111111-1111-4111-8111-111111111111', '/').status_int == 404
    assert guests.ask('no-uuid', '/').status_int == 404
    assert guests.ask(guests.site.create(), '/').status_int == 404
    with guests.site.cell1.write() as conn:
        instances.mark_deleted(conn, server)
    guests.now += 60
    assert guests.ask(server, '/').status_int == 404


def test_what_is_remembered_is_compared_with_the_project_too(guests: Guests, server: str) -> None:
    assert guests.ask(server, '/').status_int == 200
    assert guests.ask(server, '/', project=OTHER).status_int == 404


@pytest.mark.parametrize(
    ('options', 'said'),
    [
        ({'neutron__metadata_proxy_shared_secret': SECRET}, 'service_metadata_proxy is not set'),
        ({'neutron__service_metadata_proxy': True}, 'metadata_proxy_shared_secret is empty'),
    ],
)
def test_without_a_proxy_or_a_secret_it_does_not_start(
    make_site: Callable[..., Site], options: dict[str, Any], said: str
) -> None:
    with pytest.raises(Misconfigured, match=said):
        Guests(make_site(**options))


# --- OpenStack's format -----------------------------------------------------------------------------------------------
def test_openstack_documents(guests: Guests, server: str) -> None:
    assert guests.text(server, '/openstack').split() == [
        '2012-08-10',
        '2013-04-04',
        '2013-10-17',
        '2015-10-15',
        '2016-06-30',
        '2016-10-06',
        '2017-02-22',
        '2018-08-27',
        '2020-10-14',
        'latest',
    ]
    assert guests.text(server, '/openstack/latest/').split() == [
        'meta_data.json',
        'user_data',
        'network_data.json',
        'password',
        'vendor_data.json',
        'vendor_data2.json',
    ]
    assert guests.text(server, '/openstack/2012-08-10').split() == ['meta_data.json', 'user_data']
    meta = json.loads(guests.text(server, '/openstack/latest/meta_data.json'))
    assert (meta['uuid'], meta['name'], meta['hostname'], meta['meta'], meta['project_id']) == (
        server,
        'web',
        'web.novalocal',
        {'tier': 'front'},
        PROJECT,
    )
    assert list(meta['public_keys']) == ['mine'] and meta['keys'][0]['type'] == 'ssh'
    # Only a config drive has it.
    assert 'admin_pass' not in meta
    assert guests.text(server, '/openstack/latest/user_data') == '#cloud-config'
    assert json.loads(guests.text(server, '/openstack/latest/network_data.json')) == {
        'links': [],
        'networks': [],
        'services': [],
    }
    assert guests.ask(server, '/openstack/latest/meta_data.json').content_type == 'application/json'


def test_a_server_with_a_port(guests: Guests, server: str) -> None:
    subnet = VifSubnet('10.2.0.0/24', 4, dns=('9.9.9.9',), addresses=(VifAddress('10.2.0.43', ('198.51.100.7',)),))
    with guests.site.cell1.write() as conn:
        info_caches.write(conn, server, [new_vif(subnets=(subnet,), security_groups=('web',)).stored()])
    found = json.loads(guests.text(server, '/openstack/latest/network_data.json'))
    assert [(one['id'], one['ethernet_mac_address']) for one in found['links']] == [
        ('tap1eeb6c43-4f', 'fa:16:3e:00:00:01')
    ]
    assert [one['type'] for one in found['networks']] == ['ipv4_dhcp']
    assert found['services'] == [{'type': 'dns', 'address': '9.9.9.9'}]
    assert [
        guests.text(server, f'/latest/meta-data/{name}') for name in ('local-ipv4', 'public-ipv4', 'security-groups')
    ] == ['10.2.0.43', '198.51.100.7', 'web']


@pytest.mark.parametrize(
    'path',
    [
        '/openstack/2012-08-10/network_data.json',
        '/openstack/2013-04-04/vendor_data.json',
        '/openstack/2011-01-01',
        '/openstack/2016-06-30/vendor_data2.json',
        '/openstack/2013-04-04/password',
        '/openstack/latest/nothing',
        '/openstack/latest/meta_data.json/more',
        '/openstack/content/0000',
        '/2030-01-01/meta-data',
        '/latest/nothing',
        '/latest/meta-data/nothing',
        '/latest/meta-data/hostname/more',
        '/latest/dynamic',
        '/%ff',
        '/\xff',
    ],
)
def test_what_there_is_not(guests: Guests, server: str, path: str) -> None:
    assert guests.ask(server, path).status_int == 404


def test_a_server_without_user_data_has_none(guests: Guests) -> None:
    server = guests.site.hand_over(guests.site.create(), host='h1', vm_state='active')
    assert guests.ask(server, '/openstack/latest/user_data').status_int == 404
    assert guests.ask(server, '/latest/user-data').status_int == 404
    assert guests.text(server, '/latest') == 'meta-data/'


def test_vendordata(guests: Guests, server: str) -> None:
    """Services are asked once for what is remembered."""
    assert json.loads(guests.text(server, '/openstack/latest/vendor_data.json')) == {'cloud': 'ours'}
    for _time in range(3):
        found = json.loads(guests.text(server, '/openstack/latest/vendor_data2.json'))
    assert found['who'] == server and guests.vendors.asked == 1


# --- EC2's format -----------------------------------------------------------------------------------------------------
def test_ec2_documents(guests: Guests, server: str) -> None:
    assert guests.text(server, '/').split()[-2:] == ['2009-04-04', 'latest']
    assert guests.text(server, '/2009-04-04/').split() == ['meta-data/', 'user-data']
    names = guests.text(server, '/latest/meta-data/').split('\n')
    assert {'ami-id', 'instance-id', 'placement/', 'public-keys/', 'block-device-mapping/', 'hostname'} <= set(names)
    for name in names:
        assert guests.ask(server, f'/latest/meta-data/{name}').status_int == 200
    assert guests.text(server, '/latest/meta-data/hostname') == 'web.novalocal'
    assert guests.text(server, '/latest/meta-data/placement/') == 'availability-zone'
    # Its host is in no aggregate with one: it is in the zone that its owner is shown.
    assert guests.text(server, '/latest/meta-data/placement/availability-zone') == 'nova'
    assert guests.text(server, '/latest/meta-data/public-keys/') == '0=mine'
    assert guests.text(server, '/latest/meta-data/public-keys/0/') == 'openssh-key'
    assert guests.text(server, '/latest/meta-data/public-keys/0/openssh-key').startswith('ssh-ed25519 ')
    assert guests.text(server, '/1.0/user-data') == '#cloud-config'


# --- the password that a guest tells its owner ------------------------------------------------------------------------
def test_a_guest_tells_its_password_once(guests: Guests, server: str) -> None:
    path, text = '/openstack/latest/password', 'encrypted' * 100
    assert guests.text(server, path) == ''
    assert guests.ask(server, path, 'POST', b'x' * 1021).status_int == 400
    assert guests.ask(server, path, 'POST', b'\xff').status_int == 400
    assert guests.ask(server, path, 'POST', text.encode()).status_int == 200
    assert guests.ask(server, path, 'POST', b'another').status_int == 409
    assert guests.text(server, path) == text
    owner = f'/servers/{server}/os-server-password'
    assert guests.site.ok('GET', owner, user='bob')['password'] == text
    guests.site.ok('DELETE', owner, user='bob')
    assert guests.ask(server, path, 'POST', b'another').status_int == 200
    assert guests.text(server, path) == 'another'


@pytest.mark.parametrize('version', [*VERSIONS, LATEST])
def test_the_password_is_in_every_version_since_2013_10_17(guests: Guests, server: str, version: str) -> None:
    is_there = version >= '2013-10-17'
    path, code = f'/openstack/{version}/password', 200 if is_there else 404
    assert ('password' in guests.text(server, f'/openstack/{version}').split()) is is_there
    assert guests.ask(server, path).status_int == code
    assert guests.ask(server, path, 'POST', b'mine').status_int == (200 if is_there else 404)
    owner = f'/servers/{server}/os-server-password'
    for asked in ('2.1', '2.104'):
        assert guests.site.ok('GET', owner, version=asked)['password'] == ('mine' if is_there else '')


@pytest.mark.parametrize(
    ('method', 'path'),
    [
        ('POST', '/openstack/latest/meta_data.json'),
        ('POST', '/latest/user-data'),
        ('PUT', '/openstack/latest/password'),
        ('DELETE', '/openstack/latest/password'),
    ],
)
def test_nothing_else_can_be_written(guests: Guests, server: str, method: str, path: str) -> None:
    assert guests.ask(server, path, method, b'x').status_int == 405


# --- what it costs, and what is away ----------------------------------------------------------------------------------
def test_a_server_is_remembered_for_some_seconds(guests: Guests, server: str) -> None:
    """A guest asks for several documents one after the other. What changed is told after that time."""
    guests.text(server, '/openstack/latest/meta_data.json')
    with guests.site.cell1.write() as conn:
        conn.execute(instances.instances.update().where(instances.instances.c.uuid == server).values(hostname='db'))
    guests.now = 14.9
    assert guests.text(server, '/latest/meta-data/hostname') == 'web.novalocal'
    guests.now = 15.1
    assert guests.text(server, '/latest/meta-data/hostname') == 'db.novalocal'


def test_what_is_remembered_is_bounded(guests: Guests, server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, 'MOST_KNOWN', 2)
    for _time in range(3):
        guests.ask(guests.site.hand_over(guests.site.create(), host='h1', vm_state='active'), '/')
    assert len(guests.app._known) == 2


def test_a_database_that_is_away_is_no_404(guests: Guests, server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A guest that gets 404 would believe that it has no metadata."""

    def silent(*args: Any) -> None:
        raise Unanswered(who='the database', reason='a test')

    monkeypatch.setattr('kilonova.db.queries.servers.find', silent)
    assert guests.ask(server, '/').status_int == 503

    def broken(*args: Any) -> None:
        raise ValueError('secret things')

    monkeypatch.setattr('kilonova.db.queries.servers.find', broken)
    answer = guests.ask(server, '/')
    assert answer.status_int == 500 and 'secret' not in answer.text
