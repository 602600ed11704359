"""The [DEFAULT] options of the API: its address, and the zones and names that it gives to servers."""

from __future__ import annotations

from oslo_config import cfg

GROUP = None

OPTS = [
    cfg.StrOpt(
        'osapi_compute_listen',
        default='0.0.0.0',  # noqa: S104 - an API is there to be reached
        help='Address on which the compute API listens.',
    ),
    cfg.PortOpt('osapi_compute_listen_port', default=8774, help='Port on which the compute API listens.'),
    cfg.IntOpt(
        'osapi_compute_workers',
        min=0,
        help='Number of kilonova-api processes on this host. A parent process restarts those that die; they '
        'share one listening socket. Empty or 0: one process per CPU. A WSGI server that runs '
        'kilonova.wsgi has its own setting.',
    ),
    cfg.IntOpt(
        'block_device_allocate_retries',
        default=60,
        min=0,
        max=10000,
        help='How often the build of a server checks whether a volume that is created for the server is '
        'available. If it still is not after the last check, the build fails, and the fault names the '
        'status of the volume.',
    ),
    cfg.IntOpt(
        'block_device_allocate_retries_interval',
        default=3,
        min=0,
        max=300,
        help='Seconds between two of these checks, at least 1.',
    ),
    cfg.IntOpt(
        'reimage_timeout_per_gb',
        default=20,
        min=1,
        max=86400,
        help='Seconds for each GiB of a root volume that a rebuild waits while the volume service writes an '
        'image to the volume. After this time the rebuild fails. Conductors read it.',
    ),
    cfg.StrOpt(
        'default_access_ip_network_name',
        default=None,
        help='The network whose addresses become the access addresses of a new server (accessIPv4, accessIPv6) '
        'if the request sets none. Conductors read it.',
    ),
    cfg.StrOpt(
        'default_availability_zone',
        default='nova',
        help='Name of the zone of computes that are in no aggregate with a zone. Users may request it by name. '
        'Guests see it in their metadata, so set it on computes as well. Do not change it once there are '
        'servers.',
    ),
    cfg.StrOpt(
        'internal_service_availability_zone',
        default='internal',
        help='Name of the zone that is shown for services other than computes.',
    ),
    cfg.StrOpt(
        'default_schedule_zone', default=None, help='Zone for servers whose request names no zone. Empty: any zone.'
    ),
    cfg.BoolOpt(
        'allow_resize_to_same_host',
        default=False,
        help='Whether a resize may choose the host on which the server already runs. That host must have free '
        'devices for the new flavor in addition to those that the server uses. Leave it off if there is '
        'more than one host.',
    ),
    cfg.IntOpt(
        'max_local_block_devices',
        default=3,
        min=-1,
        help='Maximum number of local disks of a server: root disk, ephemeral disks and swap, no matter whether '
        'the request or the flavor asks for them. -1: no limit. 0: no local disks, so all servers must '
        'boot from volumes.',
    ),
    cfg.ListOpt(
        'non_inheritable_image_properties',
        default=['cache_in_nova', 'bittorrent'],
        help='Image properties that are not copied from the image of a server to an image that is created of '
        'the server (createImage). Add properties that describe the image file and not the system in it.',
    ),
    cfg.IntOpt(
        'password_length', default=12, min=0, help='Length of the admin passwords that are generated for servers.'
    ),
]
