"""Create the transport and the service clients of a daemon from its configuration.

    transport = parts.transport(conf)
    checks = parts.broker_checks(conf) | parts.placement_checks(conf)

The module ``database_parts`` creates the objects that need a database. It is separate because a compute daemon has no
database and must not load that code.
"""

from __future__ import annotations

import socket
from typing import Any

import oslo_messaging
from oslo_config import cfg
from oslo_log import log as logging

from kilonova import sealing
from kilonova.accel.client import AcceleratorClient
from kilonova.clients import session
from kilonova.clients.image import ImageClient
from kilonova.clients.network import NetworkClient
from kilonova.clients.placement import PlacementClient
from kilonova.clients.volume import VolumeClient
from kilonova.cmd.daemon.health import Ask
from kilonova.conf import cinder
from kilonova.context import get_admin_context
from kilonova.objects.base import Serializer
from kilonova.rpc import baseapi
from kilonova.rpc.notify import Notifications
from kilonova.rpc.reports import Broker
from kilonova.rpc.transport import OsloTransport

LOG = logging.getLogger(__name__)

AMQP_PORT = 5672


def transport(conf: cfg.ConfigOpts) -> OsloTransport:
    """Return the transport for the message queue of ``[DEFAULT]transport_url``, which can carry objects."""
    return OsloTransport(conf, entities=Serializer())


def broker(conf: cfg.ConfigOpts) -> Broker | None:
    """Return the connection to RabbitMQ for heartbeats of hosts, or None if messages use another broker than RabbitMQ.

    The function ``transport`` must have been called before.
    """
    return Broker(conf) if oslo_messaging.TransportURL.parse(conf).transport.startswith('rabbit') else None


def notifications(conf: cfg.ConfigOpts, states: bool = False) -> Notifications:
    """Return the sender of notifications. If ``states`` is True, each state change of a server sends one, too.

    The function ``transport`` must have been called before.
    """
    made = Notifications(conf)
    if states:
        from kilonova.rpc import updates

        updates.follow(made)
    return made


def placement(conf: cfg.ConfigOpts) -> PlacementClient:
    """Return the client of Placement, from section [placement]."""
    return PlacementClient(session.adapter(conf, 'placement'))


def limits(conf: cfg.ConfigOpts) -> Any:
    """Return the client that reads limits from Keystone, or None if [quota]driver is not UnifiedLimitsDriver."""
    if not conf.quota.driver.endswith('.UnifiedLimitsDriver'):
        return None
    # Import the module only here, because its library loads a large SDK that no other part needs.
    from kilonova.clients.limits import LimitsClient

    return LimitsClient(conf)


def images(conf: cfg.ConfigOpts) -> ImageClient:
    """Return the client of Glance. If [glance] has no credentials, it uses those of [keystone_authtoken]."""
    return ImageClient(session.adapter(conf, 'glance', fallback='keystone_authtoken'), conf.glance.num_retries)


def accelerators(conf: cfg.ConfigOpts) -> AcceleratorClient | None:
    """Return the client of Cyborg. If [cyborg] has no credentials, it uses those of [keystone_authtoken].

    Return None if [keystone_authtoken] has no credentials, too.
    """
    adapter = session.adapter(conf, 'cyborg', fallback='keystone_authtoken')
    return AcceleratorClient(adapter) if adapter.session.auth is not None else None


def networks(conf: cfg.ConfigOpts) -> NetworkClient | None:
    """Return the client of Neutron, or None if [neutron] has no credentials.

    None means that the cloud has no network service.
    """
    adapter = session.adapter(conf, 'neutron')
    return NetworkClient(adapter) if adapter.session.auth is not None else None


def volumes(conf: cfg.ConfigOpts) -> VolumeClient | None:
    """Return the client of Cinder, or None if [cinder] has no credentials.

    None means that the cloud has no volume service. Raises ConfigFileValueError if ``[cinder]cross_az_attach`` is
    False, because this value asks for a check that Kilonova does not make.
    """
    cinder.check_zones(conf)
    adapter = session.adapter(conf, 'cinder')
    return VolumeClient(adapter) if adapter.session.auth is not None else None


def warn_without_keys(conf: cfg.ConfigOpts, meaning: str) -> None:
    """Log a WARNING if the key file ``[secrets]key_file`` can't be used. ``meaning`` says what does not work then.

    The file may still be created later, so this is not an error. Nothing is logged if the option is empty.
    """
    try:
        sealing.SealingKeys.read(conf.secrets.key_file)
    except sealing.NoKeys as error:
        if conf.secrets.key_file:
            LOG.warning('%s: %s', error, meaning)


# --- checks of /health
def broker_checks(conf: cfg.ConfigOpts) -> dict[str, Ask]:
    """Return {'broker': check}.

    The check raises OSError if no broker of ``[DEFAULT]transport_url`` accepts connections.
    """
    hosts = oslo_messaging.TransportURL.parse(conf).hosts

    def ask() -> None:
        for number, host in enumerate(hosts, start=1):
            try:
                socket.create_connection((host.hostname, host.port or AMQP_PORT), conf.health.timeout).close()
                return
            except OSError:
                if number == len(hosts):
                    raise

    return {'broker': ask}


def placement_checks(conf: cfg.ConfigOpts) -> dict[str, Ask]:
    """Return {'placement': function that sends Placement a request with this service's account}.

    The function raises an error if Placement does not answer, or if Keystone does not answer and no token is cached.
    """
    adapter = session.adapter(conf, 'placement')
    return {'placement': lambda: session.send(adapter, 'Placement', 'GET', '/')}


def ping_checks(transport: OsloTransport, **targets: tuple[str, str | None]) -> dict[str, Ask]:
    """Return a dict from name to a function that raises an error if an RPC server does not answer through the broker.

    Each keyword argument is ``name=(topic, server)``. If ``server`` is None, any server of the topic may answer.
    """

    def ask(topic: str, server: str | None) -> Ask:
        return lambda: baseapi.ping(transport, topic, server, get_admin_context())

    return {name: ask(topic, server) for name, (topic, server) in targets.items()}
