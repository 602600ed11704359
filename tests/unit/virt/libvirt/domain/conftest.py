"""A guest of any kind, configured by one configurator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from xml.etree import ElementTree

import pytest

from kilonova.virt.libvirt.domain.builder import Configurator, build
from kilonova.virt.libvirt.domain.guest import GuestSettings, GuestSpec
from tests.unit.virt.builders import image_meta, new_flavor, new_instance

Configure = Callable[..., ElementTree.Element]


@pytest.fixture
def configure() -> Configure:
    """``configure(CpuConfigurator(), settings={…}, extra_specs={…}, properties={…}, …)``: the domain's element."""

    def configure(
        *configurators: Configurator,
        settings: dict[str, Any] | None = None,
        extra_specs: dict[str, str] | None = None,
        properties: dict[str, Any] | None = None,
        flavor: dict[str, Any] | None = None,
        instance: dict[str, Any] | None = None,
        **spec: Any,
    ) -> ElementTree.Element:
        server = new_instance(
            uuid='u-1', flavor=new_flavor(extra_specs=extra_specs or {}, **(flavor or {})), **(instance or {})
        )
        guest = GuestSpec(
            instance=server,
            name='instance-00000001',
            settings=GuestSettings(**(settings or {})),
            image_meta=image_meta(properties=properties or {}),
            **spec,
        )
        return ElementTree.fromstring(build(guest, configurators).to_xml())

    return configure


def text(element: ElementTree.Element | None) -> str:
    """One line of XML without spaces between elements; '' for nothing."""
    if element is None:
        return ''
    for part in element.iter():
        part.tail = None
        if part.text and not part.text.strip():
            part.text = None
    return ElementTree.tostring(element, encoding='unicode').replace(' />', '/>')
