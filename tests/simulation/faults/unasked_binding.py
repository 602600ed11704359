"""Requests are bound without a look at what is bound already: a binding whose answer was lost is sent again.

Cyborg refuses the second one. The simulator should see a fault that says so.
"""

from __future__ import annotations

from typing import Any

from kilonova.conductor.flows import accelerators
from tests.simulation.faults import replace


def install() -> None:
    """See the module."""

    def bind(work: Any, profile: Any, host: Any, holder: str, ports: Any = ()) -> None:
        client, outputs = work.env.accelerators, work.outputs
        if outputs.accelerators is None:
            outputs.accelerators = {one.uuid: one.group for one in client.create(profile)}
            work.decide({})
        client.bind(
            {request: host.mappings[f'device_profile_{group}'][0] for request, group in outputs.accelerators.items()},
            instance_uuid=holder,
            hostname=host.node or host.host,
            project_id=work.ctxt.project_id,
        )

    replace(accelerators, 'bind', bind)
