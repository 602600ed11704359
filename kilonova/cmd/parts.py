"""What the daemons are put together from: messages and clients, each made from the configuration.

    transport = parts.transport(conf)
    checks = parts.broker_checks(conf) | parts.placement_checks(conf)

What needs a database is in ``database_parts``: a compute has none, and loads nothing of it.
"""
from __future__ import annotations

import logging
import socket
from typing import Any

import oslo_messaging
from oslo_config import cfg

from kilonova import sealing
from kilonova.accel.client import AcceleratorClient
from kilonova.clients import session
from kilonova.clients.image import ImageClient
from kilonova.clients.network import NetworkClient
from kilonova.clients.placement import PlacementClient
from kilonova.clients.volume import VolumeClient
from kilonova.cmd.health import Ask
from kilonova.context import get_admin_context
from kilonova.objects.base import Serializer
from kilonova.rpc import baseapi
from kilonova.rpc.notify import Notifications
from kilonova.rpc.reports import Broker
from kilonova.rpc.transport import OsloTransport

LOG = logging.getLogger(__name__)

AMQP_PORT = 5672


def transport(conf: cfg.ConfigOpts) -> OsloTransport:
    """The message queue of [DEFAULT]transport_url, with objects on it."""
    return OsloTransport(conf, entities=Serializer())


def broker(conf: cfg.ConfigOpts) -> Broker | None:
    """Where hosts report and conductors take it; None where messages don't go through RabbitMQ. Needs ``transport`` to
    have been made."""
    return Broker(conf) if oslo_messaging.TransportURL.parse(conf).transport.startswith('rabbit') else None


def notifications(conf: cfg.ConfigOpts, states: bool = False) -> Notifications:
    """What this process tells other programs; ``states``: it writes states of servers. Needs ``transport`` to have been
    made."""
    made = Notifications(conf)
    if states:
        from kilonova.rpc import updates
        updates.follow(made)
    return made


def placement(conf: cfg.ConfigOpts) -> PlacementClient:
    """The client of [placement]."""
    return PlacementClient(session.adapter(conf, 'placement'))


def limits(conf: cfg.ConfigOpts) -> Any:
    """The client of [oslo_limit] where limits are Keystone's, else None."""
    if not conf.quota.driver.endswith('.UnifiedLimitsDriver'):
        return None
    # Its library loads a whole SDK, which nobody else needs.
    from kilonova.clients.limits import LimitsClient
    return LimitsClient(conf)


def images(conf: cfg.ConfigOpts) -> ImageClient:
    """The client of [glance], with the service's own credentials where the section has none."""
    return ImageClient(session.adapter(conf, 'glance', fallback='keystone_authtoken'), conf.glance.num_retries)


def accelerators(conf: cfg.ConfigOpts) -> AcceleratorClient | None:
    """The client of [cyborg], with the service's own credentials where the section has none; None where there are none
    either."""
    adapter = session.adapter(conf, 'cyborg', fallback='keystone_authtoken')
    return AcceleratorClient(adapter) if adapter.session.auth is not None else None


def networks(conf: cfg.ConfigOpts) -> NetworkClient | None:
    """The client of [neutron]; None where the section has no credentials: then the cloud has no network service."""
    adapter = session.adapter(conf, 'neutron')
    return NetworkClient(adapter) if adapter.session.auth is not None else None


def volumes(conf: cfg.ConfigOpts) -> VolumeClient | None:
    """Return the client of [cinder]; None where the section has no credentials: then the cloud has no volume service.

    Raises ConfigFileValueError for [cinder]cross_az_attach = False: the operator would count on what nobody checks.
    """
    if not conf.cinder.cross_az_attach:
        raise cfg.ConfigFileValueError('[cinder]cross_az_attach is False: only True is accepted, as the availability '
                                       'zones of servers and volumes are not compared')
    adapter = session.adapter(conf, 'cinder')
    return VolumeClient(adapter) if adapter.session.auth is not None else None


def warn_without_keys(conf: cfg.ConfigOpts, meaning: str) -> None:
    """One WARNING when [secrets]key_file can't be used, and what that means; it may come at any time. None where the
    option was emptied on purpose."""
    try:
        sealing.Keys.read(conf.secrets.key_file)
    except sealing.NoKeys as error:
        if conf.secrets.key_file:
            LOG.warning('%s: %s', error, meaning)


# --- what /health asks for
def broker_checks(conf: cfg.ConfigOpts) -> dict[str, Ask]:
    """Whether one of the brokers of [DEFAULT]transport_url accepts connections."""
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
    """Whether Placement, and Keystone before it, answers to our account."""
    adapter = session.adapter(conf, 'placement')
    return {'placement': lambda: session.send(adapter, 'Placement', 'GET', '/')}


def ping_checks(transport: OsloTransport, **targets: tuple[str, str | None]) -> dict[str, Ask]:
    """Whether RPC servers answer over the broker: name=(topic, server or None for any)."""
    def ask(topic: str, server: str | None) -> Ask:
        return lambda: baseapi.ping(transport, topic, server, get_admin_context())
    return {name: ask(topic, server) for name, (topic, server) in targets.items()}
