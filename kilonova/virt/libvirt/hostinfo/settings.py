"""Check the [libvirt] options and convert them to GuestSettings, from which the domain XML of guests is made."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
from collections.abc import Callable, Sequence
from dataclasses import replace

from oslo_config import cfg

from kilonova.virt import identity
from kilonova.virt.hardware import tuning
from kilonova.virt.hardware.numa import HostCell
from kilonova.virt.hardware.offer import Offer
from kilonova.virt.libvirt.domain.guest import MACHINES, Consoles, GuestSettings, Spice
from kilonova.virt.libvirt.hostinfo.capabilities import GuestCapabilities, HostCapabilities, usual
from kilonova.virt.libvirt.storage import files
from kilonova.virt.parts.host import DriverMisconfigured

DEFAULT_URI = 'qemu:///system'
# A file that exists only if all control groups (cgroups) of the host are of version 2.
CONTROLLERS = '/sys/fs/cgroup/cgroup.controllers'
_CACHED = frozenset({'file', 'block', 'network'})
_CACHE_MODES = frozenset({'default', 'none', 'writethrough', 'writeback', 'directsync', 'unsafe'})


def connection_uri(conf: cfg.ConfigOpts) -> str:
    """Return the URI by which the driver connects to libvirt."""
    return conf.libvirt.connection_uri or DEFAULT_URI


def read(
    conf: cfg.ConfigOpts,
    capabilities: HostCapabilities,
    test: bool,
    offer: Offer | None = None,
    cells: Sequence[HostCell] = (),
    guests: GuestCapabilities | None = None,
    features_of: Callable[[str], frozenset[str]] = lambda model: frozenset(),
) -> GuestSettings:
    """Return the settings of this host's guests, made from the [libvirt] options and the host's capabilities.

    ``offer`` has the CPUs that servers may use, ``cells`` are the host's NUMA cells, and ``guests`` has the
    capabilities of guests. ``test`` says whether the hypervisor is libvirt's test driver. ``features_of`` must return
    the features of a CPU model. Raises DriverMisconfigured if an option is invalid or the host does not support it.
    """
    options, guests = conf.libvirt, guests or usual(capabilities.arch)
    if options.virt_type not in ('kvm', 'qemu'):
        raise DriverMisconfigured(reason=f'[libvirt]virt_type {options.virt_type} is not supported')
    kinds = {kind for _arch, kind, _mode in capabilities.supported()}
    if options.virt_type not in kinds:
        raise DriverMisconfigured(
            reason=f'[libvirt]virt_type is {options.virt_type}, but this host supports '
            f'{", ".join(sorted(kinds)) or "none"}'
        )
    if options.cpu_mode == 'custom' and not options.cpu_models:
        raise DriverMisconfigured(reason='[libvirt]cpu_mode is custom and cpu_models is empty')
    models = {name: features_of(name) for name in options.cpu_models if options.cpu_mode == 'custom'}
    caches = _cache_modes(options.disk_cachemodes)
    made = GuestSettings(
        virt_type=options.virt_type,
        domain_type='test' if test else options.virt_type,
        arch=capabilities.arch,
        cpu_mode=options.cpu_mode,
        cpu_models=models,
        cpu_flags=tuple(_flag(flag) for flag in options.cpu_model_extra_flags),
        machines=_machines(options.hw_machine_type or []),
        pcie_ports=options.num_pcie_ports,
        memory_stats_period=options.mem_stats_period_seconds,
        rng_source=options.rng_dev_path or None,
        serial_number=_serial_number(options.sysinfo_serial, capabilities),
        disk_cache=caches.get('file') or _usual_cache_mode(conf.instances_path),
        disk_discard=options.hw_disk_discard,
        volume_caches=caches,
        rbd_user=options.rbd_user,
        rbd_secret_uuid=options.rbd_secret_uuid,
        version=_version(),
        shared_cpus=offer.shared if offer is not None and offer.said else frozenset(),
        cells={cell.id: cell.cpus & offer.shared for cell in cells} if offer is not None else {},
        video_models=guests.video_models,
        has_uefi=guests.has_uefi,
        has_secure_boot=guests.has_secure_boot,
        consoles=consoles(conf, guests),
        small_page=min((size for cell in cells for size in cell.pages), default=4),
        models=guests.models,
        realtime_priority=options.realtime_scheduler_priority,
        machine_types=capabilities.machines.get(capabilities.arch, {}),
        control_groups=control_groups(),
    )
    return replace(made, address_spaces=address_spaces(made) if guests.has_address_spaces else frozenset())


def control_groups() -> int:
    """Return the version of the control groups with which libvirt limits guests.

    The result is 1 if only some of the control groups are of version 2.
    """
    return 2 if os.path.exists(CONTROLLERS) else 1


def address_spaces(settings: GuestSettings) -> frozenset[str]:
    """Return the values of hw:maxphysaddr_mode that this host supports: 'emulate' and 'passthrough'.

    They say how the width of a guest's physical addresses is set. 'passthrough' gives a guest the host's own width. It
    is supported only if [libvirt]cpu_mode gives guests the host's own CPU. With cpu_mode none the result is empty.
    """
    mode = settings.guest_cpu_mode
    if mode == 'none':
        return frozenset()
    whole = settings.virt_type == 'kvm' and mode in ('host-passthrough', 'maximum')
    return frozenset({tuning.EMULATE, *([tuning.PASSTHROUGH] if whole else [])})


def consoles(conf: cfg.ConfigOpts, guests: GuestCapabilities) -> Consoles:
    """Return the addresses of the guests' consoles, from [vnc], [spice] and [serial_console].

    Raises DriverMisconfigured if a console is enabled that the host's QEMU does not support.
    """
    for kind, enabled in (('vnc', conf.vnc.enabled), ('spice', conf.spice.enabled)):
        if enabled and kind not in guests.graphics:
            raise DriverMisconfigured(
                reason=f'[{kind}]enabled is set, but QEMU on this host does not support {kind.upper()}'
            )
    spice = (
        Spice(conf.spice.server_listen, conf.spice.agent_enabled, conf.spice.require_secure, _spice_options(conf.spice))
        if conf.spice.enabled
        else None
    )
    return Consoles(
        vnc=conf.vnc.server_listen if conf.vnc.enabled else None,
        spice=spice,
        serial=conf.serial_console.proxyclient_address if conf.serial_console.enabled else None,
        pointer=conf.pointer_model,
    )


def _spice_options(spice: cfg.ConfigOpts.GroupAttr) -> dict[str, str]:
    """Return a dict from libvirt's element names to the values of SPICE's options.

    Options that are not set are left out, so QEMU uses its defaults for them.
    """
    sound = None if spice.playback_compression is None else 'on' if spice.playback_compression else 'off'
    said = {
        'image': spice.image_compression,
        'jpeg': spice.jpeg_compression,
        'zlib': spice.zlib_compression,
        'playback': sound,
        'streaming': spice.streaming_mode,
    }
    return {name: value for name, value in said.items() if value is not None}


def machine_types(conf: cfg.ConfigOpts, arch: str) -> set[str]:
    """Return the usual machine types of guests of an architecture, and the types in [libvirt]hw_machine_type."""
    known = {'x86_64': {'pc', 'q35'}, 'i686': {'pc', 'q35'}}.get(arch, {MACHINES.get(arch, 'virt')})
    return known | {machine for name, machine in _machines(conf.libvirt.hw_machine_type or []).items() if name == arch}


def _flag(flag: str) -> tuple[str, str]:
    """Return name and policy of a CPU flag: '-pcid' becomes ('pcid', 'disable')."""
    return flag.lstrip('+-').lower(), 'disable' if flag.startswith('-') else 'require'


def _machines(pairs: list[str]) -> dict[str, str]:
    found = {}
    for pair in pairs:
        arch, separator, machine = pair.partition('=')
        if not separator or not machine:
            raise DriverMisconfigured(reason=f"[libvirt]hw_machine_type '{pair}' is not of the form arch=type")
        found[arch.strip()] = machine.strip()
    return found


def _serial_number(source: str, capabilities: HostCapabilities) -> str | None:
    if source == 'os':
        return identity.machine_id() or None
    if source == 'hardware':
        return capabilities.uuid
    if source == 'auto':
        return identity.machine_id() or capabilities.uuid
    return 'unique' if source == 'unique' else None


def _cache_modes(pairs: list[str]) -> dict[str, str]:
    """Return the option [libvirt]disk_cachemodes as a dict from kind of disk (file, block, network) to cache mode.

    Other kinds of disks are ignored. Raises DriverMisconfigured if a cache mode is unknown.
    """
    found: dict[str, str] = {}
    for pair in pairs:
        kind, _, mode = pair.partition('=')
        if kind in _CACHED:
            if mode not in _CACHE_MODES:
                raise DriverMisconfigured(reason=f"[libvirt]disk_cachemodes: '{mode}' is not a cache mode")
            found.setdefault(kind, mode)
    return found


def _usual_cache_mode(instances_path: str) -> str:
    return 'none' if files.supports_direct_io(instances_path) else 'writeback'


def _version() -> str:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version('kilonova')
    return ''
