"""Network cards in a domain's XML, each known by its device on the host.

    found(xml, 'tap1eeb6c43-4f')                # {'tap1eeb6c43-4f': '<interface …'}, or {}
    put(definition, card)                       # behind the others; the same text where it is there
    without(definition, 'tap1eeb6c43-4f')
"""
from __future__ import annotations

from xml.etree import ElementTree

_CARDS = 'devices/interface'


def _device(card: ElementTree.Element) -> str | None:
    target = card.find('target')
    return None if target is None else target.get('dev')


def found(xml: str, device: str) -> dict[str, str]:
    """The card with that device as text, by the device."""
    named = ((_device(card), card) for card in ElementTree.fromstring(xml).iterfind(_CARDS))
    return {name: ElementTree.tostring(card, encoding='unicode') for name, card in named if name == device}


def put(definition: str, card: str) -> str:
    """The definition with that card, behind those that it has."""
    domain, new = ElementTree.fromstring(definition), ElementTree.fromstring(card)
    devices = domain.find('devices')
    if devices is None:
        devices = ElementTree.SubElement(domain, 'devices')
    if any(_device(one) == _device(new) for one in devices.iterfind('interface')):
        return definition
    places = [number for number, one in enumerate(devices, 1) if one.tag == 'interface']
    devices.insert(places[-1] if places else len(devices), new)
    return ElementTree.tostring(domain, encoding='unicode')


def without(definition: str, device: str) -> str:
    """The definition without that card."""
    domain = ElementTree.fromstring(definition)
    devices = domain.find('devices')
    gone = [card for card in domain.iterfind(_CARDS) if _device(card) == device]
    if devices is None or not gone:
        return definition
    for card in gone:
        devices.remove(card)
    return ElementTree.tostring(domain, encoding='unicode')
