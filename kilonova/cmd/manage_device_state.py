"""kilonova-manage device disable and enable: devices that must not be given out."""
from __future__ import annotations

import argparse
from typing import Any

from kilonova.cmd.cli import Cloud, Command, argument
from kilonova.cmd.manage_devices import broker_away

BINARY = 'nova-compute'


def disable(cloud: Cloud, args: argparse.Namespace) -> int:
    """A device is not given out any more; a server that holds it keeps it. 0: it is so; 1: its host is down or doesn't
    answer; 2: there is no such host or device, or the reason is none."""
    return _set(cloud, args, args.reason)


def enable(cloud: Cloud, args: argparse.Namespace) -> int:
    """A device is given out again. 0: it is so; 1: its host is down or doesn't answer; 2: there is no such host or
    device."""
    return _set(cloud, args, None)


def _set(cloud: Cloud, args: argparse.Namespace, reason: str | None) -> int:
    from kilonova import errors
    from kilonova.cmd import database_parts, options, parts
    from kilonova.context import get_admin_context
    from kilonova.pci.device import checked_reason
    from kilonova.rpc.compute import Compute
    from kilonova.rpc.interface import Client
    try:
        text = None if reason is None else checked_reason(reason)
    except errors.Invalid as error:
        return _refused(2, str(error))
    up = _is_up(cloud, args.host)
    if up is None:
        return _refused(2, f'There is no compute host {args.host}')
    away = broker_away(cloud) if up else f'nova-compute of {args.host} is down'
    if away is not None:
        return _refused(1, f'{away}: nothing was changed')
    transport = database_parts.routed(cloud.conf, parts.transport(cloud.conf), cloud.cells)
    try:
        devices = Client(Compute, transport, options.cap(cloud.conf, 'compute')).set_device_disabled(
            get_admin_context(), server=args.host, address=args.address.lower(), reason=text)
    except errors.Unanswered as error:
        return _refused(1, f'{error}. Perhaps it was done; the same command may be repeated')
    except errors.NotFound as error:
        return _refused(2, str(error))
    finally:
        transport.close()
    for device in devices:
        print(_told(args.host, device, text))
    return 0


def _told(host: str, device: dict[str, Any], reason: str | None) -> str:
    holder = device['instance_uuid']
    said = f"{host} {device['address']} is {'enabled' if reason is None else 'disabled'}, and {device['status']}"
    if holder is None:
        return said
    if reason is None:
        return f'{said}: {holder} holds it'
    return f'{said}: {holder} holds it and keeps it until it is resized, migrated or deleted'


def _refused(code: int, text: str) -> int:
    print(text)
    return code


def _is_up(cloud: Cloud, host: str) -> bool | None:
    """Whether the compute service of a host is up; None: there is none."""
    from kilonova.db.queries import services
    for database in cloud.cells.databases():
        with database.read() as connection:
            if services.get(connection, host=host, binary=BINARY) is None:
                continue
            quiet = services.quiet_hosts(connection, cloud.conf.service_down_time)
            return host not in {one.host for one in quiet}
    return None


_WHICH = (argument('host', metavar='HOST', help="the compute's name"),
          argument('address', metavar='ADDRESS', help='a PCI address such as 0000:81:00.0, of a card with functions or '
                                                      'parts all of them; the UUID of a mediated device'))
DEVICE = {
    'disable': Command(disable, (*_WHICH, argument('--reason', required=True, metavar='TEXT',
                                                   help='one line, which others read'))),
    'enable': Command(enable, _WHICH),
}
