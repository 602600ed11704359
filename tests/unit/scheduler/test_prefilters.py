"""What is asked of Placement besides the request's own needs."""

from __future__ import annotations

import pytest

from kilonova.objects import NetworkRequest, NetworkRequestList
from kilonova.scheduler import prefilters
from kilonova.scheduler.placement.query import RequestFilterFailed, build
from tests.unit.scheduler.builders import conf, pci_requests, spec, uuid


def run_prefilters(query, request, zones=None, aggregates=(), **overrides):
    facts = prefilters.PrefilterFacts(
        conf(**overrides),
        (zones or {}).get,
        lambda: [{'uuid': uuid(name), 'metadata': metadata} for name, metadata in aggregates],
    )
    prefilters.run(prefilters.ALL, query, request, facts)
    return query


def asked(request, *aggregates, **overrides):
    return run_prefilters(build(request, max_results=1), request, aggregates=aggregates, **overrides)


def test_a_zone_asks_for_its_aggregates():
    """A request for a zone asks Placement for the aggregates of the zone."""
    query = run_prefilters(build(spec(), max_results=1), spec(availability_zone='z1'), {'z1': ['a2', 'a1']})
    assert ('member_of', 'in:a1,a2') in query.pairs()


def test_the_default_zone_asks_for_nothing():
    query = run_prefilters(build(spec(), max_results=1), spec(availability_zone='nova'))
    assert 'member_of' not in dict(query.pairs())


def test_an_unknown_zone_ends_the_scheduling():
    with pytest.raises(RequestFilterFailed, match='mars'):
        run_prefilters(build(spec(), max_results=1), spec(availability_zone='mars'))


@pytest.mark.parametrize(('on', 'bfv', 'asked'), [(True, False, True), (False, False, False), (True, True, False)])
def test_image_type_support(on, bfv, asked):
    """With query_placement_for_image_type_support the disk format of the image becomes a required trait, unless the
    server boots from a volume."""
    request = spec(image={'id': uuid(), 'disk_format': 'qcow2'}, is_bfv=bfv)
    query = run_prefilters(build(request, max_results=1), request, scheduler__query_placement_for_image_type_support=on)
    assert ('COMPUTE_IMAGE_TYPE_QCOW2' in query.root_required) == asked


OWN = ('one', {'filter_tenant_id': 'demo'})
THEIRS = ('two', {'filter_tenant_id': 'other'})
BOTH = ('three', {'filter_tenant_id_2': 'demo', 'filter_tenant_id': 'other'})


@pytest.mark.parametrize(
    ('aggregates', 'required', 'expected'),
    [((OWN, THEIRS, BOTH), False, [[uuid('one'), uuid('three')]]), ((THEIRS,), False, []), ((), True, None)],
)
def test_projects_with_aggregates_of_their_own(aggregates, required, expected):
    """With limit_tenants_to_placement_aggregate a project gets the hosts of its aggregates. If it has none and must
    have one, the request is refused."""
    options = {
        'scheduler__limit_tenants_to_placement_aggregate': True,
        'scheduler__placement_aggregate_required_for_tenants': required,
    }
    if expected is None:
        with pytest.raises(RequestFilterFailed, match='No hosts available for tenant'):
            asked(spec(), *aggregates, **options)
    else:
        assert asked(spec(), *aggregates, **options).unnamed.aggregates == expected
    assert asked(spec(), *aggregates).unnamed.aggregates == []


@pytest.mark.parametrize(
    ('extra_specs', 'image', 'forbidden'),
    [
        ({}, {}, {'one', 'two'}),
        ({'trait:CUSTOM_A': 'required'}, {}, {'two'}),
        ({'trait:CUSTOM_A': 'required'}, {'trait:CUSTOM_B': 'required'}, set()),
    ],
)
def test_aggregates_that_ask_for_traits(extra_specs, image, forbidden):
    """With enable_isolated_aggregate_filtering aggregates whose required traits the request does not ask for are
    forbidden."""
    aggregates = (
        ('one', {'trait:CUSTOM_A': 'required'}),
        ('three', {'trait:CUSTOM_C': 'nice', 'rack': 'r1'}),
        ('two', {'trait:CUSTOM_A': 'required', 'trait:CUSTOM_B': 'required'}),
    )
    request = spec(extra_specs, image={'id': uuid(), 'properties': image})
    found = asked(request, *aggregates, scheduler__enable_isolated_aggregate_filtering=True)
    assert found.unnamed.forbidden_aggregates == {uuid(name) for name in forbidden}
    assert asked(request, *aggregates).unnamed.forbidden_aggregates == set()


@pytest.mark.parametrize(
    ('hosts', 'hints', 'forced'),
    [
        (['gpu1'], {'_nova_forced_move': ['true']}, True),
        (['gpu1'], {}, False),
        (None, {'_nova_forced_move': ['true']}, False),
    ],
)
def test_a_forced_move_goes_where_operators_send_others(hosts, hints, forced):
    """What the server needs is asked for all the same."""
    request = spec(
        availability_zone='z1', force_hosts=hosts, scheduler_hints=hints, image={'id': uuid(), 'disk_format': 'qcow2'}
    )
    query = run_prefilters(
        build(request, max_results=1),
        request,
        {'z1': ['a1']},
        (OWN, ('two', {'trait:CUSTOM_A': 'required'})),
        scheduler__limit_tenants_to_placement_aggregate=True,
        scheduler__enable_isolated_aggregate_filtering=True,
        scheduler__query_placement_for_image_type_support=True,
    )
    assert (query.root_forbidden, query.unnamed.aggregates, query.unnamed.forbidden_aggregates) == (
        (set(), [], set()) if forced else ({'COMPUTE_STATUS_DISABLED'}, [[uuid('one')], ['a1']], {uuid('two')})
    )
    assert query.root_required == {'OWNER_NOVA', 'COMPUTE_IMAGE_TYPE_QCOW2'}


PLAIN = {'OWNER_NOVA'}


@pytest.mark.parametrize(
    ('properties', 'expected'),
    [
        ({}, set()),
        ({'hw_disk_bus': 'virtio', 'hw_cdrom_bus': 'sata'}, {'COMPUTE_STORAGE_BUS_VIRTIO', 'COMPUTE_STORAGE_BUS_SATA'}),
        ({'hw_video_model': 'qxl'}, {'COMPUTE_GRAPHICS_MODEL_QXL'}),
        ({'hw_vif_model': 'ne2k_pci'}, {'COMPUTE_NET_VIF_MODEL_NE2K_PCI'}),
        ({'hw_vif_model': 'spapr-vlan'}, {'COMPUTE_NET_VIF_MODEL_SPAPR_VLAN'}),
        (
            {'hw_architecture': 'amd64', 'hw_emulation_architecture': 'aarch64'},
            {'HW_ARCH_X86_64', 'COMPUTE_ARCH_AARCH64'},
        ),
        ({'hw_viommu_model': 'intel'}, {'COMPUTE_VIOMMU_MODEL_INTEL'}),
    ],
)
def test_traits_of_image_metadata(properties, expected):
    """With image_metadata_prefilter properties of the image become required traits."""
    request = spec(image={'id': uuid(), 'properties': properties})
    assert asked(request, scheduler__image_metadata_prefilter=True).root_required == expected | PLAIN
    assert asked(request).root_required == PLAIN


def test_a_property_without_a_trait_asks_for_nothing(caplog):
    request = spec(image={'id': uuid(), 'properties': {'hw_disk_bus': 'virtio', 'hw_vif_model': 'virtualvmxnet'}})
    assert asked(request, scheduler__image_metadata_prefilter=True).root_required == PLAIN
    assert 'COMPUTE_NET_VIF_MODEL_VIRTUALVMXNET' in caplog.text


@pytest.mark.parametrize(
    ('extra_specs', 'properties', 'expected'),
    [
        ({'accel:device_profile': 'gpu'}, {}, {'COMPUTE_ACCELERATORS'}),
        ({'hw:virtio_packed_ring': 'true'}, {}, {'COMPUTE_NET_VIRTIO_PACKED'}),
        ({}, {'hw_virtio_packed_ring': 'true'}, {'COMPUTE_NET_VIRTIO_PACKED'}),
        ({'hw:virtio_packed_ring': 'no', 'hw:sound_model': 'ich9'}, {}, set()),
        ({'hw:ephemeral_encryption': 'true'}, {}, {'COMPUTE_EPHEMERAL_ENCRYPTION'}),
        (
            {'hw:ephemeral_encryption': 'true'},
            {'hw_ephemeral_encryption_format': 'luks'},
            {'COMPUTE_EPHEMERAL_ENCRYPTION', 'COMPUTE_EPHEMERAL_ENCRYPTION_LUKS'},
        ),
        ({'hw:sound_model': 'virtio'}, {}, {'COMPUTE_SOUND_MODEL_VIRTIO'}),
        ({'hw:tpm_version': '2.0'}, {}, {'COMPUTE_SECURITY_TPM_SECRET_SECURITY_USER'}),
        (
            {'hw:tpm_version': '2.0', 'hw:tpm_secret_security': 'host'},
            {},
            {'COMPUTE_SECURITY_TPM_SECRET_SECURITY_HOST'},
        ),
        ({'hw:tpm_secret_security': 'host'}, {}, set()),
    ],
)
def test_single_features(extra_specs, properties, expected):
    """Extra specs and image properties of single features become required traits."""
    request = spec(extra_specs, image={'id': uuid(), 'properties': properties})
    assert asked(request).root_required == expected | PLAIN


def test_an_unknown_secret_security():
    with pytest.raises(RequestFilterFailed, match='nobody'):
        asked(spec({'hw:tpm_version': '2.0', 'hw:tpm_secret_security': 'nobody'}))


@pytest.mark.parametrize(('value', 'expected'), [('true', {'COMPUTE_REMOTE_MANAGED_PORTS'}), ('false', set())])
def test_remote_managed_ports(value, expected):
    """A PCI request with remote_managed asks for the trait of remote-managed ports."""
    assert asked(spec(pci_requests=pci_requests(1, remote_managed=value))).root_required == expected | PLAIN


@pytest.mark.parametrize(('profile', 'expected'), [('nic', {'COMPUTE_ACCELERATORS'}), (None, set())])
def test_ports_that_are_accelerators(profile, expected):
    request = spec()
    request.requested_networks = NetworkRequestList(
        objects=[
            NetworkRequest(
                network_id='n',
                port_id=uuid(),
                address=None,
                tag=None,
                pci_request_id=None,
                arq_uuid=None,
                device_profile=profile,
            )
        ]
    )
    assert asked(request).root_required == expected | PLAIN
