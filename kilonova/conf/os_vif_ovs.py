"""The [os_vif_ovs] options: how os-vif connects ports to Open vSwitch. Names and defaults are os-vif's own."""

from __future__ import annotations

from oslo_config import cfg

GROUP = 'os_vif_ovs'

OPTS = [
    cfg.StrOpt(
        'ovsdb_connection',
        default='tcp:127.0.0.1:6640',
        help="Address of the database of the host's Open vSwitch: tcp:ADDRESS:PORT, ssl:ADDRESS:PORT or "
        'unix:FILE. It is needed only for ports that os-vif connects: ports with ovs_hybrid_plug, ports of '
        'trunks of ML2/OVS, and vhostuser ports. Only root can open the socket '
        '(unix:/run/openvswitch/db.sock). For the default, Open vSwitch must listen on TCP (ovs-vsctl '
        'set-manager ptcp:6640:127.0.0.1).',
    ),
    cfg.StrOpt(
        'ovsdb_interface',
        default='native',
        choices=[
            ('native', 'the compute connects to the database itself'),
            ('vsctl', 'the program ovs-vsctl is run for each change; os-vif will remove this'),
        ],
        help='How this database is accessed.',
    ),
    cfg.IntOpt(
        'ovs_vsctl_timeout',
        default=120,
        min=1,
        max=3600,
        help='Maximum seconds until the database answers, with either interface.',
    ),
    cfg.IntOpt(
        'network_device_mtu',
        default=1500,
        min=68,
        max=65535,
        help='MTU, in bytes, of the devices of ports whose network has no MTU.',
    ),
    cfg.BoolOpt(
        'isolate_vif',
        default=False,
        help='Keep a new port in VLAN 4095, where all frames are dropped, until the agent of ML2/OVS has '
        "applied the port's rules. Only for hosts with that agent: without it the port stays in that "
        'VLAN.',
    ),
    cfg.StrOpt(
        'default_qos_type',
        default='linux-noop',
        choices=['linux-htb', 'linux-hfsc', 'linux-sfq', 'linux-codel', 'linux-fq_codel', 'linux-noop'],
        help='Queueing discipline of new ports on the datapath of the kernel; linux-noop does not change it.',
    ),
]
