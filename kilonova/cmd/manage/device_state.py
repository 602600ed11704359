"""kilonova-manage device disable, enable and set-type: commands that make hosts change their devices."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from kilonova.cmd.cli import Cloud, Command, argument
from kilonova.cmd.manage.devices import broker_away

BINARY = 'nova-compute'


def disable(cloud: Cloud, args: argparse.Namespace) -> int:
    """Stop offering a device to servers. A server that holds the device keeps it.

    Exit code 0: the device is disabled. 1: its host is down or does not answer. 2: there is no such host or device, or
    the reason is not accepted.
    """
    return _set(cloud, args, args.reason)


def enable(cloud: Cloud, args: argparse.Namespace) -> int:
    """Offer a device to servers again.

    Exit code 0: the device is enabled. 1: its host is down or does not answer. 2: there is no such host or device.
    """
    return _set(cloud, args, None)


def set_type(cloud: Cloud, args: argparse.Namespace) -> int:
    """Change the type of the mediated devices of a card.

    Exit code 0: the type is changed. 1: the host is down or does not answer, or servers hold devices of the card. 2:
    there is no such host or card, or the card does not provide that type.
    """
    address = args.address.lower()

    def ask(compute: Any, ctxt: Any) -> list[str]:
        devices = compute.set_mdev_type(ctxt, server=args.host, address=address, mdev_type=args.type)
        return [f'{args.host} {address} has {len(devices)} devices of type {args.type} now']

    return _asked(cloud, args.host, ask)


def _set(cloud: Cloud, args: argparse.Namespace, reason: str | None) -> int:
    from kilonova import errors
    from kilonova.pci.device import checked_reason

    try:
        text = None if reason is None else checked_reason(reason)
    except errors.Invalid as error:
        return _refused(2, str(error))

    def ask(compute: Any, ctxt: Any) -> list[str]:
        devices = compute.set_device_disabled(ctxt, server=args.host, address=args.address.lower(), reason=text)
        return [_told(args.host, device, text) for device in devices]

    return _asked(cloud, args.host, ask)


def _asked(cloud: Cloud, host: str, ask: Callable[[Any, Any], list[str]]) -> int:
    """Call the compute service of a host, print the result, and return the exit code.

    ``ask(client, context)`` makes the call and returns the lines to print.
    """
    from kilonova import errors
    from kilonova.cmd import options
    from kilonova.cmd.daemon import database_parts, parts
    from kilonova.context import get_admin_context
    from kilonova.rpc.compute import Compute
    from kilonova.rpc.interface import Client

    up = _is_up(cloud, host)
    if up is None:
        return _refused(2, f'There is no compute host {host}')
    away = broker_away(cloud) if up else f'nova-compute of {host} is down'
    if away is not None:
        return _refused(1, f'{away}: nothing was changed')
    transport = database_parts.routed(cloud.conf, parts.transport(cloud.conf), cloud.cells)
    try:
        lines = ask(Client(Compute, transport, options.cap(cloud.conf, 'compute')), get_admin_context())
    except errors.Unanswered as error:
        return _refused(1, f'{error}. The change may have been made; it is safe to run the same command again')
    except errors.Conflict as error:
        return _refused(1, str(error))
    except (errors.NotFound, errors.Invalid) as error:
        return _refused(2, str(error))
    finally:
        transport.close()
    for line in lines:
        print(line)
    return 0


def _told(host: str, device: dict[str, Any], reason: str | None) -> str:
    holder = device['instance_uuid']
    said = f'{host} {device["address"]} is {"enabled" if reason is None else "disabled"}, status {device["status"]}'
    if holder is None:
        return said
    if reason is None:
        return f'{said}: server {holder} holds it'
    return f'{said}: server {holder} holds it until the server is resized, migrated or deleted'


def _refused(code: int, text: str) -> int:
    print(text)
    return code


def _is_up(cloud: Cloud, host: str) -> bool | None:
    """Return whether the compute service of a host is up, or None if the host has no compute service."""
    from kilonova.db.queries import services

    for database in cloud.cells.databases():
        with database.read() as connection:
            if services.get(connection, host=host, binary=BINARY) is None:
                continue
            quiet = services.quiet_hosts(connection, cloud.conf.service_down_time)
            return host not in {one.host for one in quiet}
    return None


_WHICH = (
    argument('host', metavar='HOST', help='name of the compute host'),
    argument(
        'address',
        metavar='ADDRESS',
        help='PCI address of a device, such as 0000:81:00.0 (of a card with functions or parts: all of '
        'them), or UUID of a mediated device',
    ),
)
DEVICE = {
    'disable': Command(
        disable,
        (
            *_WHICH,
            argument('--reason', required=True, metavar='TEXT', help='one line of text, shown to other operators'),
        ),
    ),
    'enable': Command(enable, _WHICH),
    'set-type': Command(
        set_type,
        (
            argument('host', metavar='HOST', help='name of the compute host'),
            argument(
                'address', metavar='ADDRESS', help='PCI address of a card with mediated devices, such as 0000:84:00.0'
            ),
            argument('type', metavar='TYPE', help='one of [devices]enabled_mdev_types of the host, such as nvidia-36'),
        ),
    ),
}
