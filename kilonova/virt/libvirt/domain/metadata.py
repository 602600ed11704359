"""What people who look at the domain on its host want to know: whose server it is, and of which flavor."""
from __future__ import annotations

import datetime

from kilonova.virt.libvirt.domain.guest import GuestSpec
from kilonova.virt.libvirt.xml.domain import Domain
from kilonova.virt.libvirt.xml.element import Element, node

NAMESPACE = 'http://openstack.org/xmlns/libvirt/nova/1.1'


def _nova(tag: str, *children: Element | str | None, **attributes: str) -> Element:
    return node(f'nova:{tag}', *children, **attributes)


class MetadataConfigurator:
    """nova:instance, in the namespace that the field's tools look for."""

    def configure(self, guest: GuestSpec, domain: Domain) -> None:
        instance, flavor = guest.instance, guest.flavor
        specs = [_nova('extraSpec', str(value), name=name) for name, value in sorted(guest.extra_specs.items())]
        properties = [_nova('property', str(value), name=name)
                      for name, value in sorted((guest.image_meta.get('properties') or {}).items())]
        created = datetime.datetime.now(datetime.UTC).strftime('%Y-%m-%d %H:%M:%S')
        domain.metadata = _nova(
            'instance',
            _nova('package', version=guest.settings.version) if guest.settings.version else None,
            _nova('name', getattr(instance, 'display_name', None) or ''),
            _nova('creationTime', created),
            _nova('flavor',
                  _nova('memory', str(flavor.memory_mb)), _nova('disk', str(flavor.root_gb)),
                  _nova('swap', str(flavor.swap)), _nova('ephemeral', str(flavor.ephemeral_gb)),
                  _nova('vcpus', str(flavor.vcpus)), _nova('extraSpecs', *specs), name=flavor.name or ''),
            _nova('image', _nova('properties', *properties), uuid=instance.image_ref) if instance.image_ref else None,
            _nova('owner', _nova('user', uuid=instance.user_id or ''),
                  _nova('project', uuid=instance.project_id or '')),
            _nova('root', type='image', uuid=instance.image_ref) if instance.image_ref else None)
        # Declared here and not on <domain>, so that libvirt gives it back as it was.
        domain.metadata.set('xmlns:nova', NAMESPACE)
