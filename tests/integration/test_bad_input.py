"""Bad input over the real thing: the field's code, and a message that names the value."""

from __future__ import annotations

import base64
import re

import pytest

from tests.integration.site import Site
from tools.cloud.http import Reply
from tools.cloud.layout import CloudError


def refusal(status: int, reply: Reply) -> str:
    """The message of a refusal with this status."""
    assert reply.status == status, f'{reply.status} {reply.body[:500]}'
    ((_, fault),) = reply.data.items()
    assert fault['code'] == status
    return fault['message']


def test_an_unknown_alias_in_a_flavor(site: Site) -> None:
    flavor = site.flavor('bad-alias', specs={'pci_passthrough:alias': 'NoSuchCard:1'})
    assert 'NoSuchCard' in refusal(400, site.ask_create('bad', flavor))
    assert site.servers() == {}


def test_a_malformed_device_spec_at_compute_start(site: Site) -> None:
    """The compute refuses to start and its log says why."""
    site.configure('[pci]\ndevice_spec = { "vendor_id": "10de", "product_id": "no-hex" }\n')
    size = site.log_size('compute-gpu1')
    with pytest.raises(CloudError, match='compute-gpu1 ended'):
        site.restart('compute-gpu1')
    said = site.log_after('compute-gpu1', size)
    assert 'kilonova-compute does not start' in said
    assert 'no-hex' in said


@pytest.mark.parametrize('much', [{'vcpus': 999}, {'disk': 999_999}, {'gpus': 5}])
def test_a_flavor_that_fits_nowhere(site: Site, much: dict[str, int]) -> None:
    (what,) = much
    server = site.create('bad', site.flavor(f'bad-{what}', **much))
    row = site.settle([server])[server]
    assert row['status'] == 'ERROR'
    assert row['fault']['code'] == 500
    assert re.match(r'No valid host was found\. \d+ hosts? considered: ', row['fault']['message']), row['fault']
    site.audit()


def test_a_wrong_microversion(site: Site) -> None:
    assert '9.99' in refusal(406, site.send('GET', '/servers', version='9.99'))
    assert 'two' in refusal(400, site.send('GET', '/servers', version='two'))


def test_oversized_user_data(site: Site) -> None:
    flavor = site.flavor('bad-plain')
    allowed = base64.b64encode(b'x' * 49149).decode()
    oversized = base64.b64encode(b'x' * 49152).decode()
    assert (len(allowed), len(oversized)) == (65532, 65536)
    assert 'user_data' in refusal(400, site.ask_create('bad', flavor, user_data=oversized))
    server = site.create('good', flavor, user_data=allowed)
    assert site.settle([server])[server]['status'] == 'ACTIVE'


def test_the_id_of_another_tenants_server(site: Site) -> None:
    """As if it did not exist: shown, deleted and acted on."""
    (server,) = site.boot(1, site.flavor('bad-plain'), user='admin')
    for reply in (
        site.send('GET', f'/servers/{server}'),
        site.send('DELETE', f'/servers/{server}'),
        site.action(server, 'os-stop', user='demo'),
    ):
        assert refusal(404, reply) == f'Instance {server} could not be found.'
    assert site.servers()[server]['status'] == 'ACTIVE'
