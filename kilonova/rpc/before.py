"""How the release before (service version 77) says what this one says otherwise: the one place that knows.

It sent what nobody read, and where a message has an order now it had the order's fields one by one. ``older`` makes
its arguments of ours, for a peer under a cap; ``newer`` makes ours of those that such a peer sent. The release after
this one goes without: then every neighbour speaks as we do.
"""
from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass
from typing import Any

from kilonova import objects

Arguments = dict[str, Any]


@dataclass(frozen=True)
class Before:
    """One message as it was: ``version``: up to which it had that form."""

    version: str
    older: Callable[[Arguments], Arguments]
    newer: Callable[[Arguments], Arguments]


def _unread(version: str, **unread: Any) -> Before:
    """The same, and arguments that nobody read."""
    return Before(version, lambda args: {**args, **unread},
                  lambda args: {name: value for name, value in args.items() if name not in unread})


def _build_then(args: Arguments) -> Arguments:
    order = args['order']
    return {'key': args['key'], 'instance': order.instance, 'image': order.image, 'request_spec': order.request_spec,
            'filter_properties': {'retry': {'num_attempts': order.attempt}}, 'sealed': order.sealed,
            'block_device_mapping': order.block_devices, 'limits': order.limits}


def _build_now(args: Arguments) -> Arguments:
    retry = (args['filter_properties'] or {}).get('retry') or {}
    return {'key': args['key'], 'order': objects.BuildOrder(
        instance=args['instance'], image=args['image'] or {}, request_spec=args['request_spec'],
        sealed=args.get('sealed'), attempt=retry.get('num_attempts', 1),
        block_devices=list(args.get('block_device_mapping') or ()), limits=args.get('limits'))}


def _prep_then(args: Arguments) -> Arguments:
    order = args['order']
    return {'key': args['key'], 'image': order.image, 'instance': order.instance, 'flavor': order.flavor,
            'request_spec': order.request_spec, 'filter_properties': {'limits': order.limits},
            'migration': order.migration, 'node': None, 'clean_shutdown': True, 'host_list': None}


def _prep_now(args: Arguments) -> Arguments:
    return {'key': args['key'], 'order': objects.PrepResizeOrder(
        instance=args['instance'], image=args['image'] or {}, migration=args['migration'], flavor=args['flavor'],
        request_spec=args['request_spec'], limits=(args['filter_properties'] or {}).get('limits'))}


def _resize_then(args: Arguments) -> Arguments:
    order = args['order']
    return {'key': args['key'], 'instance': order.instance, 'image': order.image, 'migration': order.migration,
            'flavor': order.flavor, 'clean_shutdown': order.clean_shutdown, 'request_spec': None, 'disk': order.disk}


def _resize_now(args: Arguments) -> Arguments:
    return {'key': args['key'], 'order': objects.ResizeOrder(
        instance=args['instance'], image=args['image'] or {}, migration=args['migration'], flavor=args['flavor'],
        clean_shutdown=args['clean_shutdown'], disk=args['disk'])}


def _finish_then(args: Arguments) -> Arguments:
    order = args['order']
    return {'key': args['key'], 'disk_info': order.disk_info, 'image': order.image, 'instance': order.instance,
            'migration': order.migration, 'request_spec': order.request_spec}


def _finish_now(args: Arguments) -> Arguments:
    return {'key': args['key'], 'order': objects.FinishResizeOrder(
        instance=args['instance'], image=args['image'] or {}, migration=args['migration'],
        request_spec=args['request_spec'], disk_info=args['disk_info'])}


def _written(name: str, made: type[objects.Claim | objects.Save]) -> Before:
    """A claim or save, which was a dict."""
    def newer(args: Arguments) -> Arguments:
        return {name: made(**args[name]) if isinstance(args[name], dict) else args[name]}
    return Before('3.2', lambda args: {name: args[name].given}, newer)


BEFORE: dict[str, dict[str, Before]] = {
    'Conductor': {
        'claim_instance': _written('claim', objects.Claim),
        'save_instance': _written('save', objects.Save),
    },
    'Compute': {
        'build_and_run_instance': Before('6.10', _build_then, _build_now),
        'terminate_instance': _unread('6.10', bdms=[]),
        'reboot_instance': _unread('6.10', block_device_info={}),
        'prep_resize': Before('6.10', _prep_then, _prep_now),
        'resize_instance': Before('6.10', _resize_then, _resize_now),
        'finish_resize': Before('6.10', _finish_then, _finish_now),
        'revert_resize': _unread('6.10', request_spec=None),
        'finish_revert_resize': _unread('6.10', request_spec=None),
        'set_host_enabled': _unread('6.10', host=None),
    },
    'ComputeTask': {
        'schedule_and_build_instances': _unread(
            '1.27', build_requests=None, request_specs=None, image=None, admin_password=None, injected_files=None,
            requested_networks=None, block_device_mapping=None, tags=None),
        'migrate_server': _unread(
            '1.27', instance=None, scheduler_hint=None, live=False, rebuild=False, flavor=None, block_migration=None,
            disk_over_commit=None, reservations=None, clean_shutdown=True, request_spec=None, host_list=None),
    },
}


def of(interface: str, method: str) -> Before | None:
    """How a message was before; None: as it is."""
    return BEFORE.get(interface, {}).get(method)


def newer(interface: str, method: str, declared: Set[str], args: Arguments) -> Arguments:
    """What a peer sent, as it is said now. ``declared``: the names of the arguments now."""
    before = of(interface, method)
    if before is None or (args.keys() <= declared and not any(isinstance(value, dict) for value in args.values())):
        return args
    return before.newer(args)
