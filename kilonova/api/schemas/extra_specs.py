"""Validate flavors' extra specs (since microversion 2.86). A table has one row for each extra spec that Nova knows.

    check({'pci_passthrough:alias': 'a1:1'})       # None
    check({'hw:nosuch': '1'})                      # Invalid
    check({'hw:nosuch': '1'}, validated=False)     # None: the request's microversion is below 2.86

Namespaces without a row in the table belong to operators, and are not checked. A plug-in, such as a scheduler filter,
may add rows. It has an entry point in the group ``kilonova.api.extra_spec_validators``, which names a function that
returns an iterable of ``Spec``. The namespaces of these rows are then checked, too.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import EntryPoint
from typing import Any, NamedTuple

import os_resource_classes
import os_traits
import stevedore
from oslo_log import log as logging
from oslo_utils import strutils

from kilonova.errors import Invalid
from kilonova.pci.request import VALUE_FORM, VALUE_REGEX, PciInvalidAlias, parse_value
from kilonova.virt.hardware import tuning

LOG = logging.getLogger(__name__)

NAMESPACE = 'kilonova.api.extra_spec_validators'


class InvalidExtraSpec(Invalid):
    """Error 400: an extra spec is unknown or its value is malformed."""

    msg_fmt = 'Validation failed; %(reason)s'


class Spec(NamedTuple):
    """One extra spec that Nova or a plug-in defines, or several extra specs that have the same check.

    ``name`` is a regular expression for the whole key. The function ``check`` gets a value, and returns an error text,
    or None if the value is valid. If ``always`` is true, the value is checked in every microversion. Otherwise it is
    checked from 2.86 on, because Nova's older microversions accept any value.
    """

    name: str
    check: Callable[[str], str | None]
    always: bool = False


def _text(value: str) -> None:
    return None


def _whole(minimum: int | None = None, maximum: int | None = None) -> Callable[[str], str | None]:
    def check(value: str) -> str | None:
        if re.fullmatch(r'[+-]?[0-9]{1,18}', value.strip()) is None:
            return f"'{value}' is not an integer."
        number = int(value)
        if minimum is not None and number < minimum:
            return f"'{value}' is less than the minimum of '{minimum}'."
        if maximum is not None and number > maximum:
            return f"'{value}' is greater than the maximum of '{maximum}'."
        return None

    return check


def _limit(part: str, *, off: bool = False) -> Callable[[str], str | None]:
    """Return a function that checks the value of the extra spec quota:cpu_<part>.

    ``part`` is 'shares', 'period' or 'quota'. A value is valid if Linux accepts it with cgroups version 1 or version 2.
    If ``off`` is true (for the quota), a negative value is valid too, and means no limit.
    """
    check = _whole(*tuning.CPU_LIMITS[part])
    return lambda value: None if off and re.fullmatch(r'-[0-9]{1,18}', value.strip()) else check(value)


def _form(pattern: str) -> Callable[[str], str | None]:
    def check(value: str) -> str | None:
        return None if re.fullmatch(pattern, value) else f"'{value}' is not of the format '{pattern}'."

    return check


def _devices(value: str) -> str | None:
    if VALUE_FORM.fullmatch(value) is None:
        return f"'{value}' is not of the format '{VALUE_REGEX}'."
    try:
        parse_value(value)
    except PciInvalidAlias as error:
        return error.message
    return None


def _word(*words: str) -> Callable[[str], str | None]:
    listed = ', '.join(repr(word) for word in words)

    def check(value: str) -> str | None:
        return None if value in words else f"'{value}' is not one of [{listed}]."

    return check


def _boolean(value: str) -> str | None:
    try:
        strutils.bool_from_string(value, strict=True)
    except ValueError:
        return f"'{value}' is not a boolean."
    return None


def _either(*values: str) -> str:
    """Return a regular expression that matches one of these words."""
    return '|'.join(map(re.escape, values))


_COUNT, _SIZE = _whole(1), _whole(0)
_CPU_LIST = _form(r'\^?\d+(-\d+)?(,\^?\d+(-\d+)?)*')
_GROUP = r'([a-zA-Z0-9_-]{1,64})?'
# _CLASSES and _TRAITS are regular expressions for the names of Placement's standard resource classes and traits.
# Each expression also matches every name CUSTOM_…, because operators can create such names in Placement at any time.
_CLASSES = f'{_either(*os_resource_classes.STANDARDS)}|CUSTOM_[A-Z0-9_]+'
_TRAITS = f'{_either(*os_traits.get_traits())}|CUSTOM_[A-Z0-9_]+'

SPECS: tuple[Spec, ...] = (
    Spec('accel:device_profile', _text),
    Spec(r'aggregate_instance_extra_specs:.+', _text),
    Spec(r'capabilities:.+', _text),
    Spec('group_policy', _word('none', 'isolate')),
    Spec('hide_hypervisor_id', _boolean),
    Spec('hw:boot_menu', _boolean),
    Spec('hw:cpu_dedicated_mask', _CPU_LIST),
    Spec('hw:cpu_policy', _word('shared', 'dedicated', 'mixed')),
    Spec('hw:cpu_realtime', _boolean),
    Spec('hw:cpu_realtime_mask', _CPU_LIST),
    Spec('hw:cpu_thread_policy', _word('prefer', 'isolate', 'require')),
    Spec(r'hw:cpu_(max_)?(sockets|cores|threads)', _COUNT),
    Spec('hw:emulator_threads_policy', _word('isolate', 'share')),
    Spec('hw:ephemeral_encryption', _boolean),
    Spec('hw:ephemeral_encryption_format', _word('luks', 'plain')),
    Spec('hw:hide_hypervisor_id', _boolean),
    Spec('hw:locked_memory', _boolean),
    Spec('hw:maxphysaddr_bits', _whole(*tuning.ADDRESS_BITS), always=True),
    Spec('hw:maxphysaddr_mode', _word(tuning.PASSTHROUGH, tuning.EMULATE), always=True),
    Spec('hw:mem_encryption', _boolean),
    Spec('hw:mem_encryption_model', _word('amd-sev', 'amd-sev-es', 'amd-sev-snp')),
    Spec('hw:mem_page_size', _form(r'(large|small|any)|\d+([kKMGT]i?)?(b|bit|B)?')),
    Spec('hw:numa_nodes', _COUNT),
    Spec(r'hw:numa_cpus\.\d+', _CPU_LIST),
    Spec(r'hw:numa_mem\.\d+', _COUNT),
    Spec('hw:pci_numa_affinity_policy', _word('required', 'preferred', 'legacy', 'socket')),
    Spec('hw:pmem', _text),
    Spec('hw:pmu', _boolean),
    Spec('hw:redirected_usb_ports', _whole(0, 15)),
    Spec('hw:serial_port_count', _whole(0, tuning.MOST_SERIAL_PORTS)),
    Spec('hw:sound_model', _word('sb16', 'es1370', 'pcspk', 'ac97', 'ich6', 'ich9', 'usb', 'virtio')),
    Spec('hw:tpm_model', _word('tpm-tis', 'tpm-crb')),
    Spec('hw:tpm_secret_security', _word('user', 'host', 'deployment')),
    Spec('hw:tpm_version', _word('1.2', '2.0')),
    Spec(
        'hw:usb_model',
        _word('piix3-uhci', 'piix4-uhci', 'ehci', 'ich9-ehci1', 'vt82c686b-uhci', 'pci-ohci', 'nec-xhci', 'qemu-xhci'),
    ),
    Spec('hw:vif_multiqueue_enabled', _boolean),
    Spec('hw:viommu_model', _word('intel', 'smmuv3', 'virtio', 'auto')),
    Spec('hw:virtio_packed_ring', _boolean),
    Spec('hw:watchdog_action', _word('none', 'pause', 'poweroff', 'reset', 'disabled')),
    Spec('hw_rng:allowed', _boolean),
    Spec('hw_rng:rate_(bytes|period)', _whole(0, tuning.MOST_RANDOM)),
    Spec('hw_video:ram_max_mb', _SIZE),
    Spec('os:secure_boot', _word('disabled', 'required')),
    Spec('pci_passthrough:alias', _devices),
    Spec(r'quota:(cpu|memory|disk_io|vif)_shares_level', _word('custom', 'high', 'normal', 'low')),
    Spec(r'quota:(cpu|memory|disk_io|vif)_(limit|reservation|shares_share)', _SIZE),
    Spec('quota:cpu_shares', _limit('shares')),
    Spec('quota:cpu_period', _limit('period')),
    Spec('quota:cpu_quota', _limit('quota', off=True)),
    Spec(r'quota:disk_(read|write|total)_(bytes|iops)_sec(_max(_length)?)?', _whole(0, tuning.MOST_DISK)),
    Spec(r'quota:vif_(in|out)bound_(average|peak|burst)', _SIZE),
    Spec(rf'resources{_GROUP}:({_CLASSES})', _SIZE),
    Spec(rf'trait{_GROUP}:({_TRAITS})', _word('required', 'forbidden')),
)
# The namespaces of Nova's extra specs. An unknown extra spec in one of these namespaces is an error.
_NAMESPACES = 'accel|hw|hw_rng|hw_video|os|pci_passthrough|quota|(resources|trait)([0-9_].*)?'


class _SpecTable(NamedTuple):
    """The known extra specs, with compiled regular expressions.

    Each item of ``rows`` is a pair: the regular expression for the keys, and the ``Spec`` that checks their values.
    ``namespaces`` matches the known namespaces, such as 'hw'. An unknown key in a known namespace (hw:nosuch) is
    refused. A key in any other namespace is accepted.
    """

    rows: tuple[tuple[re.Pattern[str], Spec], ...]
    namespaces: re.Pattern[str]


def _compile(more: Iterable[Spec] = ()) -> _SpecTable:
    more = tuple(more)
    theirs = [spec.name.partition(':')[0] for spec in more if ':' in spec.name]
    return _SpecTable(
        tuple((re.compile(spec.name), spec) for spec in (*SPECS, *more)),
        re.compile('|'.join(f'({name})' for name in (_NAMESPACES, *theirs))),
    )


@functools.cache
def _table() -> _SpecTable:
    """Return the table of the extra specs that Kilonova and its plug-ins define. The plug-ins are loaded once.

    A plug-in that can't be loaded is logged and left out.
    """

    def failed(manager: stevedore.ExtensionManager[Any], entry_point: EntryPoint, error: BaseException) -> None:
        LOG.error('Extra spec validator %s could not be loaded: %s', entry_point.name, error)

    found: Any = stevedore.ExtensionManager(NAMESPACE, invoke_on_load=True, on_load_failure_callback=failed)
    return _compile(spec for extension in found for spec in extension.obj)


def check(values: Mapping[str, str], *, validated: bool = True) -> None:
    """Raise InvalidExtraSpec for the first extra spec that is unknown or has a malformed value.

    ``values`` is a dict from key to value. ``validated`` is true from microversion 2.86 on. If it is false, unknown
    keys are accepted, as in Nova, and only the values of the few extra specs with ``Spec.always`` are checked.
    """
    table = _table()
    for key, value in values.items():
        found = next((row for name, row in table.rows if name.fullmatch(key)), None)
        if found is None:
            namespace, colon, _ = key.partition(':')
            if validated and colon and table.namespaces.fullmatch(namespace):
                raise InvalidExtraSpec(reason=f"extra spec '{key}' does not appear to be a valid extra spec.")
            continue
        problem = found.check(value) if validated or found.always else None
        if problem is not None:
            raise InvalidExtraSpec(reason=problem)
