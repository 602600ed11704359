from __future__ import annotations

from kilonova.virt.libvirt.domain.metadata import MetadataConfigurator
from tests.unit.virt.libvirt.domain.conftest import Configure

NS = {'nova': 'http://openstack.org/xmlns/libvirt/nova/1.1'}


def test_server_flavor_and_owner(configure: Configure) -> None:
    domain = configure(MetadataConfigurator(), extra_specs={'b': '2', 'a': '1'}, properties={'hw_machine_type': 'q35'},
                       settings={'version': '1.0'})
    found = domain.find('metadata/nova:instance', NS)
    assert found is not None
    assert found.findtext('nova:name', namespaces=NS) == 'One'
    flavor = found.find('nova:flavor', NS)
    assert flavor is not None and flavor.get('name') == 'tmp1'
    assert [flavor.findtext(f'nova:{name}', namespaces=NS) for name in ('memory', 'disk', 'swap', 'ephemeral', 'vcpus')
            ] == ['32768', '1', '0', '0', '8']
    assert [(spec.get('name'), spec.text) for spec in flavor.findall('nova:extraSpecs/nova:extraSpec', NS)] == [
        ('a', '1'), ('b', '2')]
    assert [(item.get('name'), item.text) for item in found.findall('nova:image/nova:properties/nova:property', NS)
            ] == [('hw_machine_type', 'q35')]
    for path, attribute, value in (('nova:owner/nova:user', 'uuid', 'ann'), ('nova:owner/nova:project', 'uuid', 'demo'),
                                   ('nova:root', 'uuid', 'image-1'), ('nova:package', 'version', '1.0')):
        element = found.find(path, NS)
        assert element is not None and element.get(attribute) == value


def test_no_image(configure: Configure) -> None:
    found = configure(MetadataConfigurator(), instance={'image_ref': ''}).find('metadata/nova:instance', NS)
    assert found is not None and found.find('nova:root', NS) is None and found.find('nova:package', NS) is None
