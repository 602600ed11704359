"""The <disk> elements of a domain's XML."""

from __future__ import annotations

from dataclasses import dataclass, field

from kilonova.virt.libvirt.xml.base import Element, node, on


@dataclass
class FileDisk:
    """A disk or a CD that is a file of the host.

    ``limits`` are I/O limits by the names of libvirt's <iotune> elements, such as {'total_iops_sec': 500}. ``boots`` is
    True if the guest boots from this disk. ``packed`` is True if a virtio disk uses packed virtqueues.
    """

    path: str
    format: str
    target: str
    bus: str
    device: str = 'disk'
    cache: str | None = None
    io: str | None = None
    discard: str | None = None
    limits: dict[str, int] = field(default_factory=dict)
    boots: bool = False
    packed: bool = False

    def element(self) -> Element:
        """Return the <disk> element."""
        return node(
            'disk',
            node(
                'driver',
                name='qemu',
                type=self.format,
                cache=self.cache,
                io=self.io,
                discard=self.discard,
                packed=on(self.packed),
            ),
            node('source', file=self.path),
            node('target', dev=self.target, bus=self.bus),
            node('iotune', *(node(name, str(value)) for name, value in self.limits.items())) if self.limits else None,
            node('readonly') if self.device == 'cdrom' else None,
            node('boot', order='1') if self.boots else None,
            type='file',
            device=self.device,
        )


@dataclass
class PoolDisk(FileDisk):
    """A disk or a CD that is an image in a Ceph pool.

    ``source`` and ``auth`` are the elements <source> and <auth> of the disk in the libvirt XML. ``auth`` is None if the
    Ceph cluster requires no authentication.
    """

    source: Element | None = None
    auth: Element | None = None

    def element(self) -> Element:
        """Return the <disk> element."""
        made = super().element()
        made.set('type', 'network')
        place = made.find('source')
        assert place is not None
        at = list(made).index(place)
        made[at : at + 1] = [each for each in (self.auth, self.source) if each is not None]
        return made


@dataclass
class VolumeDisk:
    """A disk that is a volume of the volume service, identified by its ``id``.

    ``type`` is file, block or network, and ``source`` and ``auth`` are the XML elements for this type. ``shareable`` is
    True if other guests may have the volume, too. ``boots`` is True if the guest boots from the volume.
    """

    id: str
    type: str
    source: Element
    auth: Element | None
    format: str
    target: str
    bus: str
    device: str = 'disk'
    cache: str | None = None
    io: str | None = None
    discard: str | None = None
    limits: dict[str, int] = field(default_factory=dict)
    readonly: bool = False
    shareable: bool = False
    boots: bool = False
    packed: bool = False

    def element(self) -> Element:
        """Return the <disk> element."""
        return node(
            'disk',
            node(
                'driver',
                name='qemu',
                type=self.format,
                cache=self.cache,
                io=self.io,
                discard=self.discard,
                packed=on(self.packed),
            ),
            self.auth,
            self.source,
            node('target', dev=self.target, bus=self.bus),
            node('iotune', *(node(name, str(value)) for name, value in self.limits.items())) if self.limits else None,
            node('readonly') if self.readonly else None,
            node('shareable') if self.shareable else None,
            node('boot', order='1') if self.boots else None,
            node('serial', self.id),
            node('alias', name=f'ua-{self.id}'),
            type=self.type,
            device=self.device,
        )
