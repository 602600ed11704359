"""Run Neutron's metadata agent on a machine of real guests, in Neutron's virtual environment.

    python -m tools.cloud.metadata_agent --config-file metadata-gpu1.conf

169.254.169.254 answers on that machine, and what guests ask goes on to Kilonova's metadata service, signed. It is the
agent itself but for two things. It does as root what it would have processes of their own for (three, of 120 MB each).
And it tells the kernel not to leave checksums to a network card, as Open vSwitch in user space passes such frames on;
the agent would have iptables write them, for which few kernels have the module.
"""

from __future__ import annotations

import subprocess
from typing import Any

from neutron import privileged
from neutron.agent.ovn import metadata_agent
from neutron.agent.ovn.metadata.agent import MetadataAgent
from oslo_privsep.priv_context import PrivContext  # noqa: TID253 - Neutron's own


def fill_checksums(agent: Any, namespace: str) -> None:
    """Have the kernel compute the checksums of what a network's namespace sends."""
    device = agent._get_veth_name(agent._get_network_name(namespace))[1]  # noqa: SLF001 - it has no other name
    subprocess.run(
        ['ip', 'netns', 'exec', namespace, 'ethtool', '-K', device, 'tx', 'off'], check=True, stdout=subprocess.DEVNULL
    )


if __name__ == '__main__':
    for context in vars(privileged).values():
        if isinstance(context, PrivContext):
            context.set_client_mode(False)
    MetadataAgent._ensure_datapath_checksum = fill_checksums  # noqa: SLF001 - the agent has no option for it
    metadata_agent.main()
