"""The CPU models that guests of a host can have, as libvirt reports them.

    features(connection, 'x86_64', 'Haswell')                       # {'avx2', 'aes', …}
    lacks(connection, 'Haswell', 'x86_64', 'pc', 'kvm')             # None, if guests can have this CPU model

``host`` uses these functions to check the configuration and to report CPU traits.
"""

from __future__ import annotations

from collections.abc import Iterable
from xml.etree import ElementTree

import libvirt
from oslo_log import log as logging

from kilonova.virt.libvirt.connection import Connection
from kilonova.virt.libvirt.migration.migration_job import lacks_cpu
from kilonova.virt.libvirt.xml.base import node, to_text

LOG = logging.getLogger(__name__)


def lacks(connection: Connection, model: str, arch: str, machine: str | None, virt_type: str) -> str | None:
    """Return why guests on this host can't have a CPU of this model.

    Return None if guests can have this CPU, or if the hypervisor does not support the check.
    """
    return lacks_cpu(connection, _bare(arch, model), arch, machine, virt_type)


def features(connection: Connection, arch: str, model: str, more: Iterable[str] = ()) -> frozenset[str]:
    """Return all features of a CPU model together with the features in ``more``.

    The result is empty if libvirt does not know the model or its features.
    """
    flags = libvirt.VIR_CONNECT_BASELINE_CPU_EXPAND_FEATURES
    try:
        text = connection.do(lambda raw: raw.baselineCPU([_bare(arch, model, more)], flags))
    except libvirt.libvirtError as error:
        LOG.info(
            'Could not read the features of CPU model %s from libvirt; assuming that it has none: %s',
            model,
            error,
        )
        return frozenset()
    return frozenset(
        one.get('name', '')
        for one in ElementTree.fromstring(text).iterfind('feature')
        if one.get('policy') != 'disable'
    )


def _bare(arch: str, model: str, more: Iterable[str] = ()) -> str:
    """Return a <cpu> element, as XML, with the CPU model ``model`` and the features ``more``.

    libvirt's calls that compare or expand CPUs expect this form, in which libvirt also describes a host's CPU.
    """
    return to_text(
        node('cpu', node('arch', arch), node('model', model), *(node('feature', name=name) for name in more))
    )


def of_host_model(connection: Connection, arch: str, machine: str, virt_type: str) -> frozenset[str]:
    """Return the features of the CPU that guests see with cpu_mode host-model.

    The result is empty if libvirt does not report this CPU.
    """
    try:
        text = connection.domain_capabilities(arch, machine, virt_type)
    except libvirt.libvirtError as error:
        LOG.debug('libvirt reports no capabilities for machine type %s: %s', machine, error)
        return frozenset()
    mode = ElementTree.fromstring(text).find("cpu/mode[@name='host-model'][@supported='yes']")
    model = mode.findtext('model') if mode is not None else None
    if mode is None or not model:
        return frozenset()
    of_policy = {
        policy: {one.get('name', '') for one in mode.iterfind(f"feature[@policy='{policy}']")}
        for policy in ('require', 'disable')
    }
    return features(connection, arch, model, sorted(of_policy['require'])) - of_policy['disable']
