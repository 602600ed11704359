"""AcceleratorClient against an accelerator service with the rules of the real one; ``tests/integration/test_cyborg.py``
asks that."""

from __future__ import annotations

import uuid

import pytest
from keystoneauth1 import access as ks_access
from keystoneauth1 import adapter as ks_adapter
from keystoneauth1 import noauth as ks_noauth
from keystoneauth1 import session as ks_session
from keystoneauth1.identity import access as access_plugin

from kilonova.accel import request
from kilonova.accel.client import (
    AcceleratorClient,
    AcceleratorRequestBindingFailed,
    AcceleratorRequestOpFailed,
    NoAccelerators,
)
from kilonova.accel.profile import DeviceProfileError
from kilonova.conductor.audit.accelerators import AcceleratorAudit
from kilonova.context import RequestContext
from tests.fixtures.cyborg import FakeCyborg

PROVIDER, SERVER, OTHER = (str(uuid.uuid4()) for _ in range(3))


@pytest.fixture
def cyborg():
    made = FakeCyborg()
    made.profiles['fpga'] = [{'resources:FPGA': '1', 'trait:CUSTOM_FAST': 'required', 'accel:function_id': 'x'}]
    made.add_device(PROVIDER, [('PCI', '0000:21:00.0')])
    return made


def bind(cyborg, server=SERVER):
    made = cyborg.client.create('fpga')
    cyborg.client.bind({one.uuid: PROVIDER for one in made}, instance_uuid=server, hostname='gpu1', project_id='p')
    return made


def test_a_profile_is_read_as_the_user(cyborg):
    profile = cyborg.client.profile('fpga', RequestContext(auth_token='of-user', user_id='u', project_id='p'))
    (group,) = profile.request_groups()
    assert (group.requester_id, group.resources, group.required_traits) == (
        'device_profile_0',
        {'FPGA': 1},
        {'CUSTOM_FAST'},
    )
    assert cyborg.headers[0]['X-Auth-Token'] == 'of-user'


def test_several_profiles_are_one_request(cyborg):
    cyborg.profiles['gpu'] = [{'resources:PGPU': '2'}]
    found = cyborg.client.profiles(['fpga', 'gpu', 'fpga'])
    assert {name: profile.groups for name, profile in found.items()} == {
        name: tuple(groups) for name, groups in cyborg.profiles.items()
    }
    assert len(cyborg.asked) == 1
    assert cyborg.client.profiles([]) == {}
    with pytest.raises(DeviceProfileError, match='none: Expected 1 device profile but got nothing'):
        cyborg.client.profiles(['fpga', 'none'])
    with pytest.raises(DeviceProfileError, match="'a,b'"):
        cyborg.client.profiles(['fpga', 'a,b'])
    assert len(cyborg.asked) == 2


def test_very_many_profiles_are_few_requests_of_bounded_length(cyborg):
    names = [f'{number:0>200}' for number in range(30)]
    cyborg.profiles.update((name, [{'resources:PGPU': '1'}]) for name in names)
    assert list(cyborg.client.profiles(names)) == names
    assert len(cyborg.asked) == 3


def test_what_no_profile_is_called_is_not_asked_for(cyborg):
    """A comma asks for several."""
    for name in ('fpga,fpga', '', 'x' * 256, 'a b'):
        with pytest.raises(DeviceProfileError):
            cyborg.client.profile(name)
    assert cyborg.asked == []
    with pytest.raises(DeviceProfileError, match='none: Expected 1 device profile but got nothing'):
        cyborg.client.profile('none')


def test_a_bound_request_says_what_to_attach(cyborg):
    """A bound accelerator request gives its state, host, provider and attach handle. Cyborg stores it for the
    project of the server."""
    (made,) = bind(cyborg)
    (found,) = cyborg.client.of_instance(SERVER)
    assert (found.uuid, found.state, found.hostname, found.provider) == (made.uuid, 'Bound', 'gpu1', PROVIDER)
    assert request.handles([found]) == [request.Handle(made.uuid, 'PCI', '0000:21:00.0')]
    assert cyborg.client.resolved(SERVER) == [found]
    assert cyborg.requests[made.uuid]['project_id'] == 'p'


def test_whom_the_service_asks_as(cyborg):
    """Without a service token Cyborg refuses to bind, and to delete what is bound."""
    bind(cyborg)
    assert [headers['X-Service-Token'] for headers in cyborg.headers] == ['notused', 'notused']
    assert {headers['OpenStack-API-Version'] for headers in cyborg.headers} == {'accelerator 2.1'}


def test_a_device_that_is_taken(cyborg):
    bind(cyborg)
    with pytest.raises(AcceleratorRequestBindingFailed) as caught:
        bind(cyborg, OTHER)
    assert str(caught.value) == (
        f'Failed to bind accelerator requests for instance {OTHER}: AttachHandle not found Matching deployable_id 1'
    )
    assert [one.state for one in cyborg.client.of_instance(OTHER)] == ['BindFailed']


def test_one_that_is_being_programmed_is_not_resolved(cyborg):
    cyborg.programming = True
    bind(cyborg)
    assert cyborg.client.resolved(SERVER) is None
    cyborg.program()
    assert [one.state for one in cyborg.client.resolved(SERVER)] == ['Bound']


def test_deleting_may_be_repeated(cyborg):
    bind(cyborg)
    (unbound,) = cyborg.client.create('fpga')
    for _ in range(2):
        cyborg.client.delete_of_instance(SERVER)
        cyborg.client.delete([unbound.uuid])
    assert (cyborg.requests, cyborg.held()) == ({}, [])


def test_a_profile_that_went_away(cyborg):
    del cyborg.profiles['fpga']
    with pytest.raises(AcceleratorRequestOpFailed, match='Device Profile not found with name=fpga'):
        cyborg.client.create('fpga')


def test_a_cloud_without_the_service():
    """Neither an account nor a catalog's entry, which Keystone's plug-ins call an error."""
    images = {
        'type': 'image',
        'name': 'glance',
        'id': '1',
        'endpoints': [{'interface': 'public', 'url': 'http://images', 'region': 'R', 'region_id': 'R', 'id': '2'}],
    }
    token = {'token': {'methods': [], 'catalog': [images], 'expires_at': '2099-01-01T00:00:00.000000Z'}}
    listed = access_plugin.AccessInfoPlugin(ks_access.create(body=token, auth_token='t'), 'http://keystone')
    for auth in (None, ks_noauth.NoAuth(), listed):
        client = AcceleratorClient(ks_adapter.Adapter(ks_session.Session(auth=auth), service_type='accelerator'))
        with pytest.raises(NoAccelerators):
            client.profile('fpga')
        assert AcceleratorAudit(client).read() is None, 'an audit does not ask a service that is not there'
