"""Ports that a host connects itself before libvirt starts their guest: which are, and which aren't any more.

    plugs = Plugs(conf)
    plugs.renew(instance, instance.vifs)        # before its guest starts; those of another time go
    plugs.retain(instance.uuid, instance.vifs)  # they go, and nothing else is done
    plugs.add(instance, vif)                    # one more
    plugs.remove(instance.uuid, [vif.id])       # the guest has let it go
    plugs.remove(instance.uuid)                 # there is no guest any more

Each is written down before it is plugged, a file a server in ``state_path``/plugged: it goes the way it came, whatever
the server's ports are by then, and whether or not its guest was ever made. What was begun and not done is undone before
it is begun again. A host without such ports writes nothing.

A function's representor may be another server's by the time that a server's is to go: whose it is stands in a file a
function. Nobody else's is unplugged.
"""
from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Collection, Iterable
from typing import Any

from oslo_config import cfg
from oslo_log import log as logging

from kilonova import objects
from kilonova.objects.vif import Plug, Vif
from kilonova.virt.libvirt.devices.openvswitch import OpenVSwitch
from kilonova.virt.libvirt.storage import files
from kilonova.virt.parts.guests import InterfaceFailed

LOG = logging.getLogger(__name__)

_DIRECTORY, _KIND, _OWNER = 'plugged', '.json', '.owner'
# {port: (as it is plugged, whether all of it is done)}.
Known = dict[str, tuple[Vif, bool]]


class Plugs:
    """Of one host."""

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self._path, self._switch = os.path.join(conf.state_path, _DIRECTORY), OpenVSwitch(conf)

    def renew(self, instance: objects.Instance, vifs: Iterable[Vif]) -> None:
        """The server's guest, which doesn't run, can start with these; what it had in another way, or has no more, is
        gone. InterfaceFailed."""
        wanted = list(vifs)
        self.retain(instance.uuid, wanted)
        for vif in wanted:
            self.add(instance, vif)

    def retain(self, uuid: str, vifs: Iterable[Vif]) -> None:
        """What a server's guest, which doesn't run, had in another way than these, or has no more, is gone."""
        wanted = {vif.id: _form(vif) for vif in vifs}
        self.remove(uuid, [name for name, (vif, _whole) in self._known(uuid).items()
                           if _form(vif) != wanted.get(name)])

    def add(self, instance: objects.Instance, vif: Vif) -> None:
        """Once more: the same. InterfaceFailed: nothing of it is there, or ``remove`` knows of it."""
        if vif.plug is None:
            return
        known, uuid = self._known(instance.uuid), instance.uuid
        self._switch.check(vif)
        if vif.id in known and not known[vif.id][1]:
            self.remove(uuid, [vif.id])
        self._keep(uuid, {**known, vif.id: (vif, False)})
        if vif.plug is Plug.REPRESENTOR:
            files.write_whole(self._owner(vif), uuid)
        try:
            self._switch.plug(vif, uuid)
        except InterfaceFailed:
            self.remove(uuid, [vif.id])
            raise
        self._keep(uuid, {**known, vif.id: (vif, True)})
        LOG.info('Port %s is plugged into this host.', vif.id, instance_uuid=uuid)

    def remove(self, uuid: str, ports: Collection[str] | None = None) -> None:
        """These of a server's, None: all, as far as they are plugged here. What stays is tried again when the service
        is started again."""
        known = self._known(uuid)
        for name in [one for one in known if ports is None or one in ports]:
            try:
                self._unplug(known[name][0], uuid)
            except InterfaceFailed as error:
                LOG.error('Port %s stays plugged into this host: %s', name, error.fields['reason'], instance_uuid=uuid)
                continue
            del known[name]
            self._keep(uuid, known)
            LOG.info('Port %s is no longer plugged into this host.', name, instance_uuid=uuid)

    def _unplug(self, vif: Vif, uuid: str) -> None:
        if vif.plug is Plug.REPRESENTOR:
            with contextlib.suppress(FileNotFoundError), open(self._owner(vif), encoding='utf-8') as stream:
                if stream.read() != uuid:
                    return
        self._switch.unplug(vif, uuid)
        if vif.plug is Plug.REPRESENTOR:
            files.remove(self._owner(vif))

    def clear(self, there: Callable[[str], bool]) -> None:
        """Those of servers that aren't here go."""
        for name in sorted(os.listdir(self._path)) if os.path.isdir(self._path) else ():
            uuid, kind = os.path.splitext(name)
            if kind == _KIND and not there(uuid):
                self.remove(uuid)

    def _known(self, uuid: str) -> Known:
        try:
            with open(self._file(uuid), encoding='utf-8') as stream:
                return {one['vif']['id']: (Vif.read(one['vif']), one['whole']) for one in json.load(stream)}
        except FileNotFoundError:
            return {}
        except ValueError as error:
            # The host's power went while it was written, and all devices with it.
            LOG.error('%s can not be read: what Open vSwitch has of its ports stays there: %s', self._file(uuid), error)
            return {}

    def _keep(self, uuid: str, known: Known) -> None:
        if not known:
            files.remove(self._file(uuid))
            return
        os.makedirs(self._path, exist_ok=True)
        files.write_whole(self._file(uuid), json.dumps([{'vif': vif.stored(), 'whole': whole}
                                                        for vif, whole in known.values()]))

    def _owner(self, vif: Vif) -> str:
        return os.path.join(self._path, f'{vif.slot}{_OWNER}')

    def _file(self, uuid: str) -> str:
        return os.path.join(self._path, uuid + _KIND)


def _form(vif: Vif) -> tuple[Any, ...]:
    """Two that differ in it are plugged in different ways."""
    return (vif.plug, vif.mac, vif.switch, vif.socket, vif.slot,
            *map(vif.details.get, ('datapath_type', 'vhostuser_mode')))
