"""The CPUs that guests of a host can have, by libvirt.

    features(connection, 'x86_64', 'Haswell')                       # {'avx2', 'aes', …}
    lacks(connection, 'Haswell', 'x86_64', 'pc', 'kvm')             # None: guests can have one here
"""
from __future__ import annotations

import logging
from collections.abc import Iterable
from xml.etree import ElementTree

import libvirt

from kilonova.virt.libvirt.connection import Connection
from kilonova.virt.libvirt.migrating import lacks_cpu
from kilonova.virt.libvirt.xml import node, to_text

LOG = logging.getLogger(__name__)


def lacks(connection: Connection, model: str, arch: str, machine: str | None, virt_type: str) -> str | None:
    """Why guests can't have a CPU of that model here; None: they can, or the hypervisor can't tell."""
    return lacks_cpu(connection, _bare(arch, model), arch, machine, virt_type)


def features(connection: Connection, arch: str, model: str, more: Iterable[str] = ()) -> frozenset[str]:
    """All features of a model, and ``more``. None at all: libvirt doesn't know the model, or its features."""
    flags = libvirt.VIR_CONNECT_BASELINE_CPU_EXPAND_FEATURES
    try:
        text = connection.do(lambda raw: raw.baselineCPU([_bare(arch, model, more)], flags))
    except libvirt.libvirtError as error:
        LOG.info('libvirt does not say what features CPU model %s has: %s', model, error)
        return frozenset()
    return frozenset(one.get('name', '') for one in ElementTree.fromstring(text).iterfind('feature')
                     if one.get('policy') != 'disable')


def _bare(arch: str, model: str, more: Iterable[str] = ()) -> str:
    """A CPU as a host has it."""
    return to_text(node('cpu', node('arch', arch), node('model', model), *(node('feature', name=name)
                                                                           for name in more)))


def of_host_model(connection: Connection, arch: str, machine: str, virt_type: str) -> frozenset[str]:
    """The features of the CPU that guests see as their host's; none where libvirt doesn't say it."""
    try:
        text = connection.domain_capabilities(arch, machine, virt_type)
    except libvirt.libvirtError as error:
        LOG.debug('libvirt says nothing of guests of type %s: %s', machine, error)
        return frozenset()
    mode = ElementTree.fromstring(text).find("cpu/mode[@name='host-model'][@supported='yes']")
    model = mode.findtext('model') if mode is not None else None
    if mode is None or not model:
        return frozenset()
    of_policy = {policy: {one.get('name', '') for one in mode.iterfind(f"feature[@policy='{policy}']")}
                 for policy in ('require', 'disable')}
    return features(connection, arch, model, sorted(of_policy['require'])) - of_policy['disable']
