"""Elements of a domain's disks, as ``xml`` writes them."""
from __future__ import annotations

from dataclasses import dataclass, field

from kilonova.virt.libvirt.xml import Element, node, on


@dataclass
class FileDisk:
    """A disk, or a CD, that is a file of the host. ``limits``: elements of <iotune>; ``boots``: the guest starts from
    it, and <os> names nothing to start from; ``packed``: virtio's packed rings."""

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
        return node('disk',
                    node('driver', name='qemu', type=self.format, cache=self.cache, io=self.io, discard=self.discard,
                         packed=on(self.packed)),
                    node('source', file=self.path),
                    node('target', dev=self.target, bus=self.bus),
                    node('iotune', *(node(name, str(value)) for name, value in self.limits.items()))
                    if self.limits else None,
                    node('readonly') if self.device == 'cdrom' else None,
                    node('boot', order='1') if self.boots else None,
                    type='file', device=self.device)


@dataclass
class PoolDisk(FileDisk):
    """The same that is no file but what ``source`` and ``auth`` say."""

    source: Element | None = None
    auth: Element | None = None

    def element(self) -> Element:
        made = super().element()
        made.set('type', 'network')
        place = made.find('source')
        assert place is not None
        at = list(made).index(place)
        made[at:at + 1] = [each for each in (self.auth, self.source) if each is not None]
        return made


@dataclass
class VolumeDisk:
    """A disk that is a volume, known by its ``id``: ``type`` file, block or network, with <source> and <auth> as that
    needs them. ``shareable``: other guests have it, too; ``boots``: as ``FileDisk`` has it."""

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
        return node('disk',
                    node('driver', name='qemu', type=self.format, cache=self.cache, io=self.io, discard=self.discard,
                         packed=on(self.packed)),
                    self.auth,
                    self.source,
                    node('target', dev=self.target, bus=self.bus),
                    node('iotune', *(node(name, str(value)) for name, value in self.limits.items()))
                    if self.limits else None,
                    node('readonly') if self.readonly else None,
                    node('shareable') if self.shareable else None,
                    node('boot', order='1') if self.boots else None,
                    node('serial', self.id),
                    node('alias', name=f'ua-{self.id}'),
                    type=self.type, device=self.device)
