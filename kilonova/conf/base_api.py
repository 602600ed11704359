"""The [DEFAULT] options of the API: its address, and the zones and names that it gives to servers."""
from __future__ import annotations

from oslo_config import cfg

GROUP = None

OPTS = [
    cfg.StrOpt('osapi_compute_listen', default='0.0.0.0',  # noqa: S104 - an API is there to be reached
               help='Address on which the compute API listens.'),
    cfg.PortOpt('osapi_compute_listen_port', default=8774,
                help='Port on which the compute API listens.'),
    cfg.IntOpt('osapi_compute_workers', min=0,
               help='Processes of kilonova-api on this host, with a parent that restarts those that die; they share '
                    'one listening socket. Empty or 0: one a CPU. A WSGI server that runs kilonova.wsgi has its own '
                    'setting.'),
    cfg.IntOpt('block_device_allocate_retries', default=60, min=0, max=10000,
               help='How often the build of a server looks whether a volume that is made for it is there. Then it '
                    'fails, and says in which state the volume is.'),
    cfg.IntOpt('block_device_allocate_retries_interval', default=3, min=0, max=300,
               help='Seconds between two of these looks, 1 at least.'),
    cfg.IntOpt('reimage_timeout_per_gb', default=20, min=1, max=86400,
               help='Seconds for each GiB of a root volume that a rebuild waits while the volume service writes an '
                    'image to it. Then the rebuild fails. Conductors read it.'),
    cfg.StrOpt('default_access_ip_network_name', default=None,
               help='The network whose addresses become the access addresses of a new server (accessIPv4, accessIPv6), '
                    'if its user named none. Conductors read it.'),
    cfg.StrOpt('default_availability_zone', default='nova',
               help='Zone shown for computes that are in no aggregate with a zone. Servers may ask for it by name. '
                    'Their guests read it in their metadata, so computes need it too. Do not change it once there are '
                    'servers.'),
    cfg.StrOpt('internal_service_availability_zone', default='internal',
               help='Zone shown for services that are no computes.'),
    cfg.StrOpt('default_schedule_zone', default=None,
               help='Zone asked for on behalf of servers whose users name none. Empty: any zone.'),
    cfg.BoolOpt('allow_resize_to_same_host', default=False,
                help='Whether a resize may end on the host where the server is. Devices of the new flavor must be free '
                     'there besides those that the server holds. Leave it off where there is more than one host.'),
    cfg.IntOpt('max_local_block_devices', default=3, min=-1,
               help='Local disks that one server may have: its root disk, ephemeral ones and swap, asked for or of its '
                    'flavor. -1: no limit. 0: none, so that no server can be created where there are no volumes.'),
    cfg.ListOpt('non_inheritable_image_properties', default=['cache_in_nova', 'bittorrent'],
                help='Image properties that an image of a server (createImage) does not take over from the image that '
                     'the server was made of. Add what belongs to the file and not to the system in it.'),
    cfg.IntOpt('password_length', default=12, min=0,
               help='Length of the admin passwords that are made up for servers.'),
]
