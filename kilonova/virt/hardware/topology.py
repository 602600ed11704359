"""Choose the numbers of sockets, cores and threads that a guest sees.

    choose(8, limits_of(flavor.extra_specs, image.properties)).sockets == 8

Flavors and images may set preferred numbers (hw:cpu_sockets …) and maximum numbers (hw:cpu_max_sockets …). An image may
lower the flavor's maximum, but not raise it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kilonova import errors
from kilonova.objects import ImageMetaProps, VirtCPUTopology
from kilonova.objects.image_meta import NOTHING

PARTS = ('sockets', 'cores', 'threads')
# Maximum number of virtual CPUs of a guest.
# It is also the maximum number of sockets, cores and threads, each, if neither the flavor nor the image sets one.
MOST = 65536


class InvalidCPUTopology(errors.Invalid):
    """A number of sockets, cores or threads is not a positive whole number."""

    msg_fmt = "Invalid value '%(value)s' of '%(name)s': it must be a whole number greater than 0"


class ImageVCPULimitsRangeExceeded(errors.Invalid):
    """The image sets a higher maximum than the flavor."""

    msg_fmt = (
        "Image vCPU topology limits (hw_cpu_max_%(part)s = %(image)d) exceed the flavor's "
        '(hw:cpu_max_%(part)s = %(flavor)d)'
    )


class ImageVCPUTopologyRangeExceeded(errors.Invalid):
    """A preferred number of sockets, cores or threads is higher than the maximum."""

    msg_fmt = 'Requested vCPU topology (%(part)s = %(wanted)d) exceeds the limit of %(most)d'


class ImageVCPULimitsRangeImpossible(errors.Invalid):
    """No combination of sockets, cores and threads within the maxima has the flavor's number of vCPUs."""

    msg_fmt = (
        'Requested vCPU limits %(sockets)d:%(cores)d:%(threads)d are impossible to satisfy for vcpus count %(vcpus)d'
    )


@dataclass(frozen=True)
class TopologyLimits:
    """Preferred and maximum numbers of sockets, cores and threads.

    The keys of the dicts are 'sockets', 'cores' and 'threads'. ``liked`` has the preferred numbers; a key is absent if
    flavor and image prefer no number. ``most`` has the maximum numbers and always has all three keys.
    """

    liked: dict[str, int]
    most: dict[str, int]


def limits_of(extra_specs: Mapping[str, str], properties: ImageMetaProps = NOTHING) -> TopologyLimits:
    """Return the preferred and maximum numbers of sockets, cores and threads that a flavor and an image set.

    Raises:
        InvalidCPUTopology: A number is not a positive whole number.
        ImageVCPULimitsRangeExceeded: The image sets a higher maximum than the flavor.
        ImageVCPUTopologyRangeExceeded: A preferred number is higher than the maximum.
    """
    most, liked = {}, {}
    for part in PARTS:
        flavor = _flavor(extra_specs, f'hw:cpu_max_{part}')
        image = _image(properties, f'hw_cpu_max_{part}')
        if flavor is not None and image is not None and image > flavor:
            raise ImageVCPULimitsRangeExceeded(part=part, image=image, flavor=flavor)
        most[part] = image or flavor or MOST
    of_flavor = {part: _flavor(extra_specs, f'hw:cpu_{part}') for part in PARTS}
    of_image = {part: _image(properties, f'hw_cpu_{part}') for part in PARTS}
    # If the flavor sets any of hw:cpu_sockets, hw:cpu_cores and hw:cpu_threads, the image's preferences are ignored.
    wishes = of_flavor if any(of_flavor.values()) else of_image
    for part, wanted in wishes.items():
        if wanted is not None and wanted > most[part]:
            raise ImageVCPUTopologyRangeExceeded(part=part, wanted=wanted, most=most[part])
        if wanted is not None:
            liked[part] = wanted
    return TopologyLimits(liked, most)


def choose(vcpus: int, limits: TopologyLimits, threads: int | None = None) -> VirtCPUTopology:
    """Return the numbers of sockets, cores and threads for a guest with ``vcpus`` CPUs.

    The result is within the maximum numbers and has as many of the three preferred numbers as possible. If several
    combinations are equally good, the one with more sockets, then with more cores is returned. ``threads`` is how many
    consecutive vCPUs are pinned to one host core: it is the preferred number of threads if flavor and image have none.
    Raises ImageVCPULimitsRangeImpossible if no combination is within the maximum numbers.
    """
    liked = dict(limits.liked)
    if threads is not None and 'threads' not in liked:
        liked['threads'] = threads
    if vcpus < 1:
        # A guest with 0 CPUs is not refused here, because the hypervisor refuses it.
        return VirtCPUTopology(sockets=vcpus, cores=1, threads=1)
    if vcpus > MOST:
        raise ImageVCPULimitsRangeImpossible(vcpus=vcpus, **dict[str, Any](limits.most))
    possible = [layout for layout in _layouts(vcpus) if all(layout[part] <= limits.most[part] for part in PARTS)]
    if not possible:
        raise ImageVCPULimitsRangeImpossible(vcpus=vcpus, **dict[str, Any](limits.most))
    best = max(
        possible,
        key=lambda layout: (
            sum(layout[part] == wanted for part, wanted in liked.items()),
            layout['sockets'],
            layout['cores'],
        ),
    )
    return VirtCPUTopology(**best)


def _layouts(vcpus: int) -> Iterator[dict[str, int]]:
    for sockets in range(1, vcpus + 1):
        if vcpus % sockets:
            continue
        rest = vcpus // sockets
        for cores in range(1, rest + 1):
            if not rest % cores:
                yield {'sockets': sockets, 'cores': cores, 'threads': rest // cores}


def _flavor(extra_specs: Mapping[str, str], name: str) -> int | None:
    value = extra_specs.get(name)
    if value is None:
        return None
    if not value.strip().isdecimal() or int(value) < 1:
        raise InvalidCPUTopology(name=name, value=value)
    return int(value)


def _image(properties: ImageMetaProps, name: str) -> int | None:
    value: int | None = properties.get(name)
    if value is not None and value < 1:
        raise InvalidCPUTopology(name=name, value=value)
    return value
