"""Access to os-vif, which connects a port to Linux bridges and Open vSwitch before libvirt starts the port's guest.

    switch = OpenVSwitch(conf)
    switch.check(vif)                           # raises InterfaceFailed if nothing can be plugged or unplugged now
    switch.plug(vif, uuid)                      # raises InterfaceFailed; the port may be partly plugged then
    switch.unplug(vif, uuid)                    # does nothing if the port is not plugged

os-vif does not complete a partly plugged port when ``plug`` is called again, so callers must unplug the port first. The
library is loaded when the first port needs it, because loading costs a third of a second of CPU. It keeps its settings
in oslo.config's global object, which no other code of Kilonova reads.
"""

from __future__ import annotations

import os
import socket
import threading
import warnings
from collections.abc import Callable
from typing import Any

from oslo_config import cfg

from kilonova.errors import shortened
from kilonova.objects.vif import Plug, Vif
from kilonova.virt.parts.guests import InterfaceFailed

# Time limit in seconds for a test connection to Open vSwitch's database.
_REACHED = 5
# The maximum length of an error text, in characters.
_MOST_TEXT = 1000
# The type of os_vif.plug and os_vif.unplug. The arguments are a port and its server, as os-vif objects.
Act = Callable[[Any, Any], None]
# os_vif.plug, os_vif.unplug, and the exception types that they raise.
Library = tuple[Act, Act, tuple[type[Exception], ...]]


class OpenVSwitch:
    """The connection of one host to os-vif, configured by [os_vif_ovs] and [vif_plug_ovs_privileged]."""

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self._conf = conf
        self._library: Library | None = None
        # This lock is held while os-vif is imported, so that no other thread sees partly initialized modules.
        self._loading = threading.Lock()

    def check(self, vif: Vif) -> None:
        """Check that Open vSwitch's database accepts a connection.

        Without a connection, os-vif would wait for a long time. Raises InterfaceFailed if no connection can be made
        within 5 s.
        """
        database: str = self._conf.os_vif_ovs.ovsdb_connection
        try:
            _reach(database)
        except (OSError, ValueError) as error:
            raise self._failed(vif, f'cannot connect to the Open vSwitch database at {database}: {error}') from error

    def plug(self, vif: Vif, uuid: str) -> None:
        """Connect a port of server ``uuid`` to the switch.

        Raises InterfaceFailed if the port cannot be connected. The port may be partly plugged after this error.
        """
        plug, _unplug, errors = self._load()
        self._act(plug, errors, vif, uuid)

    def unplug(self, vif: Vif, uuid: str) -> None:
        """Disconnect a port from the switch. Do nothing if the port is not connected.

        Raises InterfaceFailed if the port cannot be disconnected.
        """
        self.check(vif)
        _plug, unplug, errors = self._load()
        self._act(unplug, errors, vif, uuid)

    def _act(self, act: Act, errors: tuple[type[Exception], ...], vif: Vif, uuid: str) -> None:
        try:
            act(*_given(vif, uuid))
        except errors as error:
            # Only the cause is reported, because os-vif's error texts contain the whole port.
            cause = getattr(error, 'kwargs', {}).get('err', error)
            raise self._failed(vif, shortened(f'{type(cause).__name__}: {cause}', _MOST_TEXT)) from error

    def _failed(self, vif: Vif, reason: str) -> InterfaceFailed:
        return InterfaceFailed(port=vif.id, host=self._conf.host, reason=reason)

    def _load(self) -> Library:
        with self._loading:
            if self._library is None:
                self._library = _load(self._conf)
            return self._library


def _load(conf: cfg.ConfigOpts) -> Library:
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')  # warnings of eventlet
        import os_vif
        from os_vif import exception
        from vif_plug_ovs import privsep
        from vif_plug_ovs.ovs import OvsPlugin
    # Set the options before os-vif is initialized, because os-vif reads them only then.
    cfg.CONF.register_opts(OvsPlugin.CONFIG_OPTS, group='os_vif_ovs')
    for name, value in conf.os_vif_ovs.items():
        cfg.CONF.set_override(name, value, 'os_vif_ovs')
    os_vif.initialize()
    if os.geteuid() == 0:
        # A process that runs as root does the privileged work itself, without a helper.
        privsep.vif_plug.set_client_mode(False)
    elif conf.vif_plug_ovs_privileged.helper_command:
        cfg.CONF.set_override('helper_command', conf.vif_plug_ovs_privileged.helper_command, 'vif_plug_ovs_privileged')
    # os-vif raises ValueError if a port's binding has a value that os-vif does not accept.
    return os_vif.plug, os_vif.unplug, (exception.ExceptionBase, ValueError)


def _reach(database: str) -> None:
    """Open and close a connection to Open vSwitch's database, to test whether the database accepts connections.

    Raises OSError if the database accepts no connection, and ValueError if ``database`` is not a valid address.
    """
    kind, _, place = database.partition(':')
    if kind == 'unix':
        with socket.socket(socket.AF_UNIX) as line:
            line.settimeout(_REACHED)
            line.connect(place)
    else:
        address, _, port = place.rpartition(':')
        socket.create_connection((address.strip('[]'), int(port)), timeout=_REACHED).close()


def _given(vif: Vif, uuid: str) -> tuple[Any, Any]:
    """Return os-vif's objects for a port and for its server, which has the uuid ``uuid``."""
    from os_vif import objects as known

    profile = known.vif.VIFPortProfileOpenVSwitch(interface_id=vif.id, datapath_type=vif.details.get('datapath_type'))
    network = known.network.Network(id=vif.network_id, bridge=vif.switch, label=vif.label, mtu=vif.mtu)
    same = {
        'id': vif.id,
        'address': vif.mac,
        'network': network,
        'port_profile': profile,
        'plugin': 'ovs',
        'vif_name': vif.device_name,
    }
    server = known.instance_info.InstanceInfo(uuid=uuid, name=uuid, project_id=vif.project_id)
    if vif.plug is Plug.REPRESENTOR:
        same['port_profile'] = known.vif.VIFPortProfileOVSRepresentor(
            interface_id=vif.id,
            datapath_type=vif.details.get('datapath_type'),
            representor_name=vif.device_name,
            representor_address=vif.slot,
        )
        return known.vif.VIFHostDevice(dev_type='ethernet', dev_address=vif.slot, **same), server
    if vif.plug is Plug.HYBRID:
        return known.vif.VIFBridge(bridge_name=vif.own_bridge, **same), server
    if vif.plug is Plug.VHOST_USER:
        return known.vif.VIFVHostUser(path=vif.socket, mode=vif.details['vhostuser_mode'], **same), server
    return known.vif.VIFOpenVSwitch(bridge_name=vif.switch, **same), server
