"""Requirements of a flavor and an image for a guest's virtual hardware, except CPUs and memory.

    found = tuning.of(flavor.extra_specs, image.properties)
    found.cpu                                   # {'shares': 512}

The requirements are CPU shares, disk limits, serial ports, watchdog, firmware, video, sound, IOMMU, USB, random
numbers, and the width of physical addresses. The API uses this module to refuse invalid requests with 400, and the
hypervisor driver uses it to build the guest.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from oslo_utils import strutils

from kilonova import errors
from kilonova.objects.image_meta import NOTHING, ImageMetaProps

# Maximum number of serial ports of a guest.
MOST_SERIAL_PORTS = 4
REQUIRED, OPTIONAL, DISABLED = 'required', 'optional', 'disabled'
UEFI = 'uefi'
WATCHDOG_ACTIONS = ('none', 'pause', 'poweroff', 'reset', DISABLED)
SOUND_MODELS = ('sb16', 'es1370', 'pcspk', 'ac97', 'ich6', 'ich9', 'usb', 'virtio')
INTEL, SMMUV3, VIRTIO, AUTO = 'intel', 'smmuv3', 'virtio', 'auto'
IOMMU_MODELS = (INTEL, SMMUV3, VIRTIO, AUTO)
USB_MODELS = ('piix3-uhci', 'piix4-uhci', 'ehci', 'ich9-ehci1', 'vt82c686b-uhci', 'pci-ohci', 'nec-xhci', 'qemu-xhci')
PASSTHROUGH, EMULATE = 'passthrough', 'emulate'
# Graphics adapters whose memory size can be chosen.
SIZED_VIDEO = ('vga', 'qxl', 'vmvga', 'bochs')
# The image properties that this module reads.
PROPERTIES = (
    'hw_firmware_type',
    'hw_maxphysaddr_bits',
    'hw_maxphysaddr_mode',
    'hw_pmu',
    'hw_serial_port_count',
    'hw_sound_model',
    'hw_usb_model',
    'hw_vif_multiqueue_enabled',
    'hw_video_model',
    'hw_video_ram',
    'hw_viommu_model',
    'hw_virtio_packed_ring',
    'hw_watchdog_action',
    'os_secure_boot',
)

# A dict from version of control groups to the (smallest, largest) number of CPU shares that Linux accepts.
CPU_SHARES = {1: (2, 262144), 2: (1, 10000)}
# (smallest, largest) value of quota:cpu_<key> that at least one version of control groups accepts. Times are in µs.
CPU_LIMITS = {
    'shares': (min(least for least, _ in CPU_SHARES.values()), max(most for _, most in CPU_SHARES.values())),
    'period': (1000, 1000000),
    'quota': (1000, 2**44 - 1),
}
_DISK = re.compile(r'quota:disk_((?P<what>read|write|total)_(?P<unit>bytes|iops)_sec(?P<burst>_max(_length)?)?)')
MOST_DISK = 10**15
# The smallest and the largest number of bits of a physical address in a QEMU guest.
ADDRESS_BITS = (32, 52)
# The largest values that libvirt accepts for hw_rng:rate_bytes (bytes) and for hw_rng:rate_period (milliseconds).
MOST_RANDOM = 2**32 - 1


class InvalidTuning(errors.Invalid):
    """An extra spec or image property has an invalid value."""

    msg_fmt = "Invalid value '%(value)s' of '%(name)s': %(reason)s"


class SerialPortsExceeded(errors.Invalid):
    """The image asks for more serial ports than the flavor permits."""

    msg_fmt = 'Forbidden to exceed flavor value of number of serial ports passed in image meta.'


class VideoMemoryTooHigh(errors.Invalid):
    """The image asks for more video memory than the flavor permits."""

    msg_fmt = (
        'The requested amount of video memory %(wanted)d (MB, hw_video_ram of the image) is higher than the '
        'maximum allowed by flavor %(most)d (hw_video:ram_max_mb).'
    )


class FlavorImageConflict(errors.Invalid):
    """The flavor's extra spec and the image's property contradict each other."""

    msg_fmt = "Conflicting values of the flavor's '%(spec)s' (%(flavor)s) and the image's '%(name)s' (%(image)s)"


class SecureBootNeedsUefi(errors.Invalid):
    """Secure boot is required, but the image's firmware is not UEFI."""

    msg_fmt = 'Secure boot requires UEFI: set the image property hw_firmware_type=uefi.'


class AddressSpace(NamedTuple):
    """Width of the guest's physical addresses: the host's width with mode passthrough, ``bits`` with mode emulate."""

    mode: str
    bits: int | None = None


class RandomNumbers(NamedTuple):
    """Limits of a guest's source of random numbers.

    The guest can read at most ``rate_bytes`` bytes in ``period`` milliseconds. If ``rate_bytes`` is None, there is no
    limit. If ``period`` is None, libvirt's default period is used.
    """

    rate_bytes: int | None = None
    period: int | None = None


@dataclass(frozen=True)
class Tuning:
    """Requirements for a guest's virtual hardware.

    Attributes:
        cpu: CPU shares, period and quota (the last two in microseconds).
        disk: Limits for each disk by libvirt's names, in bytes or requests per second.
        serial_ports: Number of serial ports.
        watchdog: Action of the watchdog, or None without a watchdog.
        firmware: 'uefi', 'bios' or None.
        secure_boot: 'required', 'optional' or 'disabled'.
        video_model: Model of the graphics adapter, or None for the default.
        video_ram: Video memory in MB; 0 for the model's default.
        sound: Model of the sound card, or None without a sound card.
        iommu: Model of the IOMMU, or None without an IOMMU.
        usb: Model of the USB controller, or None if none is requested.
        packed_ring: Whether virtio devices use packed rings.
        multiqueue: Whether virtio network cards have one queue for each vCPU.
        address_space: Width of physical addresses, or None for the default.
        random: The source of random numbers, or None if the flavor forbids it.
    """

    cpu: dict[str, int] = field(default_factory=dict)
    disk: dict[str, int] = field(default_factory=dict)
    serial_ports: int = 1
    watchdog: str | None = None
    firmware: str | None = None
    secure_boot: str = DISABLED
    video_model: str | None = None
    video_ram: int = 0
    sound: str | None = None
    iommu: str | None = None
    usb: str | None = None
    packed_ring: bool = False
    multiqueue: bool = False
    address_space: AddressSpace | None = None
    random: RandomNumbers | None = field(default_factory=RandomNumbers)


def of(extra_specs: Mapping[str, str], properties: ImageMetaProps = NOTHING) -> Tuning:
    """Return the requirements of a flavor and an image. Raises the errors of this module if a value is invalid."""
    said = properties.get
    _flag(extra_specs, 'hw:pmu', said('hw_pmu'))
    firmware, secure = said('hw_firmware_type'), _secure_boot(extra_specs, said('os_secure_boot'))
    if secure == REQUIRED and firmware != UEFI:
        raise SecureBootNeedsUefi
    return Tuning(
        cpu=_cpu(extra_specs),
        disk=_disk(extra_specs),
        serial_ports=_serial_ports(extra_specs, said('hw_serial_port_count')),
        watchdog=_watchdog(extra_specs, said('hw_watchdog_action')),
        firmware=firmware,
        secure_boot=secure,
        video_model=said('hw_video_model'),
        video_ram=_video_ram(extra_specs, said('hw_video_model'), said('hw_video_ram') or 0),
        sound=_word(extra_specs, 'hw:sound_model', SOUND_MODELS, said('hw_sound_model')),
        iommu=_word(extra_specs, 'hw:viommu_model', IOMMU_MODELS, said('hw_viommu_model')),
        usb=_word(extra_specs, 'hw:usb_model', USB_MODELS, said('hw_usb_model')),
        packed_ring=bool(_flag(extra_specs, 'hw:virtio_packed_ring', said('hw_virtio_packed_ring'))),
        multiqueue=bool(_flag(extra_specs, 'hw:vif_multiqueue_enabled', said('hw_vif_multiqueue_enabled'))),
        address_space=_address_space(extra_specs, said('hw_maxphysaddr_mode'), said('hw_maxphysaddr_bits')),
        random=_random(extra_specs),
    )


def _number(name: str, value: str) -> int:
    if re.fullmatch(r'[+-]?[0-9]{1,18}', value.strip()) is None:
        raise InvalidTuning(name=name, value=value, reason='it must be a whole number')
    return int(value)


def _cpu(extra_specs: Mapping[str, str]) -> dict[str, int]:
    found = {}
    for part, (smallest, largest) in CPU_LIMITS.items():
        name = f'quota:cpu_{part}'
        if name not in extra_specs:
            continue
        number = _number(name, extra_specs[name])
        if not (smallest <= number <= largest or (part == 'quota' and number < 0)):
            raise InvalidTuning(name=name, value=number, reason=f'it must be from {smallest} to {largest}')
        found[part] = number
    return found


def _disk(extra_specs: Mapping[str, str]) -> dict[str, int]:
    found = {}
    for name, value in extra_specs.items():
        match = _DISK.fullmatch(name)
        if match is None:
            continue
        number = _number(name, value)
        if not 0 <= number <= MOST_DISK:
            raise InvalidTuning(name=name, value=number, reason=f'it must be from 0 to {MOST_DISK}')
        # QEMU does not start if a total limit is combined with a read or write limit.
        if match['what'] != 'total' and f'quota:disk_total_{match["unit"]}_sec{match["burst"] or ""}' in extra_specs:
            raise InvalidTuning(name=name, value=number, reason='it cannot be combined with a quota:disk_total_* limit')
        needed = {'_max': '', '_max_length': '_max'}.get(match['burst'] or '')
        if needed is not None and f'quota:disk_{match["what"]}_{match["unit"]}_sec{needed}' not in extra_specs:
            raise InvalidTuning(
                name=name,
                value=number,
                reason=f'it also requires quota:disk_{match["what"]}_{match["unit"]}_sec{needed}',
            )
        found[match[1]] = number
    for name in [name for name in found if name.endswith('_max')]:
        limit = name.removesuffix('_max')
        if not 0 < found[limit] <= found[name]:
            raise InvalidTuning(
                name=f'quota:disk_{name}',
                value=found[name],
                reason=f'quota:disk_{limit} must be from 1 to this burst limit',
            )
    return found


def _serial_ports(extra_specs: Mapping[str, str], image: int | None) -> int:
    """Return the number of serial ports: the image's number if it has one, else the flavor's, else 1.

    Raises SerialPortsExceeded if the image's number is higher than the flavor's.
    """
    name = 'hw:serial_port_count'
    flavor = _number(name, extra_specs[name]) if name in extra_specs else 0
    if flavor and (image or 0) > flavor:
        raise SerialPortsExceeded
    count = image or flavor or 1
    if not 0 < count <= MOST_SERIAL_PORTS:
        raise InvalidTuning(
            name='hw_serial_port_count' if image else name,
            value=count,
            reason=f'it must be from 0 to {MOST_SERIAL_PORTS}',
        )
    return count


def _watchdog(extra_specs: Mapping[str, str], image: str | None) -> str | None:
    """Return the watchdog's action, or None if the guest gets no watchdog. The image has priority over the flavor."""
    action = image or extra_specs.get('hw:watchdog_action') or DISABLED
    if action not in WATCHDOG_ACTIONS:
        raise InvalidTuning(
            name='hw:watchdog_action', value=action, reason=f'it must be one of {", ".join(WATCHDOG_ACTIONS)}'
        )
    return None if action == DISABLED else action


def _secure_boot(extra_specs: Mapping[str, str], image: str | None) -> str:
    name = 'os:secure_boot'
    flavor = extra_specs.get(name)
    if flavor not in (None, REQUIRED, DISABLED):
        raise InvalidTuning(name=name, value=flavor, reason=f'it must be {REQUIRED} or {DISABLED}')
    if {flavor, image} == {REQUIRED, DISABLED}:
        raise FlavorImageConflict(spec=name, flavor=flavor, name='os_secure_boot', image=image)
    return flavor or image or DISABLED


def _flag(extra_specs: Mapping[str, str], name: str, image: bool | None) -> bool | None:
    """Return the flag that the extra spec ``name`` of the flavor sets, else the image's flag, else None.

    Raises FlavorImageConflict if flavor and image set different flags.
    """
    flavor = extra_specs.get(name)
    if flavor is None:
        return image
    wanted: bool = strutils.bool_from_string(flavor)
    if image is not None and wanted is not image:
        raise FlavorImageConflict(spec=name, flavor=flavor, name=name.replace(':', '_'), image=image)
    return wanted


def _word(extra_specs: Mapping[str, str], name: str, words: tuple[str, ...], image: str | None) -> str | None:
    """Return the value of the flavor's extra spec ``name``, else the image's value, else None.

    Raises InvalidTuning if the flavor's value is not one of ``words``, and FlavorImageConflict if flavor and image have
    different values.
    """
    flavor = extra_specs.get(name)
    if flavor is None:
        return image
    if flavor not in words:
        raise InvalidTuning(name=name, value=flavor, reason=f'it must be one of {", ".join(words)}')
    if image is not None and flavor != image:
        raise FlavorImageConflict(spec=name, flavor=flavor, name=name.replace(':', '_'), image=image)
    return flavor


def _address_space(extra_specs: Mapping[str, str], image: str | None, image_bits: int | None) -> AddressSpace | None:
    mode = _word(extra_specs, 'hw:maxphysaddr_mode', (PASSTHROUGH, EMULATE), image)
    name = 'hw:maxphysaddr_bits'
    bits = _number(name, extra_specs[name]) if name in extra_specs else image_bits
    if image_bits is not None and bits != image_bits:
        raise FlavorImageConflict(spec=name, flavor=bits, name='hw_maxphysaddr_bits', image=image_bits)
    if mode == EMULATE and bits is None:
        raise InvalidTuning(
            name='hw:maxphysaddr_mode', value=mode, reason='the mode emulate requires hw:maxphysaddr_bits'
        )
    if bits is not None:
        if mode != EMULATE:
            raise InvalidTuning(name=name, value=bits, reason='this property requires hw:maxphysaddr_mode=emulate')
        if not ADDRESS_BITS[0] <= bits <= ADDRESS_BITS[1]:
            raise InvalidTuning(name=name, value=bits, reason='it must be from {} to {}'.format(*ADDRESS_BITS))
    return None if mode is None else AddressSpace(mode, bits)


def _random(extra_specs: Mapping[str, str]) -> RandomNumbers | None:
    """Return the limits of the guest's source of random numbers, or None if the flavor forbids the source."""
    numbers = {}
    for name in ('hw_rng:rate_bytes', 'hw_rng:rate_period'):
        if name not in extra_specs:
            continue
        number = _number(name, extra_specs[name])
        if not 0 <= number <= MOST_RANDOM:
            raise InvalidTuning(name=name, value=number, reason=f'it must be from 0 to {MOST_RANDOM}')
        # An extra spec with the value 0 counts as not set.
        # If hw_rng:rate_bytes is not set, the number of random bytes is not limited.
        # If hw_rng:rate_period is not set, the default period of libvirt is used.
        numbers[name] = number or None
    rate, period = (numbers.get(name) for name in ('hw_rng:rate_bytes', 'hw_rng:rate_period'))
    if period is not None and rate is None:
        raise InvalidTuning(name='hw_rng:rate_period', value=period, reason='it needs hw_rng:rate_bytes')
    return (
        RandomNumbers(rate, period)
        if strutils.bool_from_string(extra_specs.get('hw_rng:allowed'), default=True)
        else None
    )


def _video_ram(extra_specs: Mapping[str, str], model: str | None, wanted: int) -> int:
    """Return the video memory in MB that the image requests. Raises VideoMemoryTooHigh if the flavor permits less."""
    if wanted and model not in (None, *SIZED_VIDEO):
        raise InvalidTuning(
            name='hw_video_ram',
            value=wanted,
            reason=f'the memory of {model} (hw_video_model) cannot be set, only that of {", ".join(SIZED_VIDEO)}',
        )
    name = 'hw_video:ram_max_mb'
    most = _number(name, extra_specs[name]) if name in extra_specs else 0
    if wanted > most:
        raise VideoMemoryTooHigh(wanted=wanted, most=most)
    return wanted
