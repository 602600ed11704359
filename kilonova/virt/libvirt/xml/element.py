"""One way to write an element: attributes that are None are left out, so are children that are None.

    node('source', file='/x/disk')                       # <source file="/x/disk"/>
    node('vcpu', '8', cpuset=None)                       # <vcpu>8</vcpu>
    node('os', node('type', 'hvm', arch='x86_64'))       # nested
"""
from __future__ import annotations

from xml.etree import ElementTree

Element = ElementTree.Element


def node(tag: str, *children: Element | str | None, **attributes: str | int | None) -> Element:
    """An element; a str child is its text. ``type_`` and the like lose the underscore."""
    element = Element(tag, {name.rstrip('_'): str(value) for name, value in attributes.items() if value is not None})
    for child in children:
        if isinstance(child, str):
            element.text = child
        elif child is not None:
            element.append(child)
    return element


def to_text(element: Element) -> str:
    """Indented XML."""
    ElementTree.indent(element)
    return ElementTree.tostring(element, encoding='unicode')
