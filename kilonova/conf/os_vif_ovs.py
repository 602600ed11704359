"""The [os_vif_ovs] options: how os-vif connects ports to Open vSwitch. Names and defaults are os-vif's own."""
from __future__ import annotations

from oslo_config import cfg

GROUP = 'os_vif_ovs'

OPTS = [
    cfg.StrOpt('ovsdb_connection', default='tcp:127.0.0.1:6640',
               help="Where the host's Open vSwitch keeps its database: tcp:ADDRESS:PORT, ssl:ADDRESS:PORT or "
                    'unix:FILE. Only ports that os-vif connects need it: with ovs_hybrid_plug, of trunks of ML2/OVS, '
                    "and those of vhostuser. A socket (unix:/run/openvswitch/db.sock) is root's; for the default Open "
                    'vSwitch must listen there (ovs-vsctl set-manager ptcp:6640:127.0.0.1).'),
    cfg.StrOpt('ovsdb_interface', default='native', choices=[
        ('native', 'the compute itself speaks to the database'),
        ('vsctl', 'the program ovs-vsctl does, one process for each change; os-vif will drop it')],
        help='How that database is reached.'),
    cfg.IntOpt('ovs_vsctl_timeout', default=120, min=1, max=3600,
               help='Seconds that the database has to answer, in either way.'),
    cfg.IntOpt('network_device_mtu', default=1500, min=68, max=65535,
               help='MTU, in bytes, of the devices of ports whose network says none.'),
    cfg.BoolOpt('isolate_vif', default=False,
                help='Keep a new port in VLAN 4095, where all frames are dropped, until the agent of ML2/OVS has seen '
                     'to its rules. Only for hosts with that agent: others would leave it there.'),
    cfg.StrOpt('default_qos_type', default='linux-noop',
               choices=['linux-htb', 'linux-hfsc', 'linux-sfq', 'linux-codel', 'linux-fq_codel', 'linux-noop'],
               help='Queueing discipline of new ports on the datapath of the kernel; linux-noop leaves it as it is.'),
]
