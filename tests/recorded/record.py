"""Record what this tree writes into its databases and sends in messages, for the tests of a later release.

    KILONOVA_TEST_PLACEMENT=model python -m tests.recorded.record tests/recorded/release_101d6ebd

It runs the operations of ``scenarios``, each once to its end, and once for each step that has an undo, which fails
then. A release is recorded in a checkout of its commit, into which this directory is copied. The files are committed.
Files of the release before stay as long as an upgrade from that release is supported.
"""

from __future__ import annotations  # noqa: I001 - the kind of threads is chosen before anything else is imported

import functools
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

# Chooses the kind of threads (KILONOVA_CONCURRENCY).
import tests.conftest  # noqa: F401
import pytest

from kilonova.conductor import flows
from kilonova.errors import KilonovaError
from tests.fixtures import databases
from tests.fixtures.cloud import Templates
from tests.flows.cases import disturb
from tests.recorded.more import add_missing, record_disturbances, record_requests
from tests.recorded.recorder import Recorder
from tests.recorded.scenarios import SCENARIOS, Ground, Scenario

# Pauses that would only lengthen the run.
SHORTER = {
    'kilonova.conductor.work.PAUSE': 0.02,
    'kilonova.conductor.flows.boot.SELECT_DEADLINE': 30.0,
    'kilonova.compute.ports.LOOK': 0.02,
    'kilonova.conductor.flows.network.ports.LATE': 0.0,
    'kilonova.conductor.flows.volume.volumes.LATE': 0.0,
    'kilonova.conductor.flows.volume.volume_snapshots.LOOK': 0.02,
}


def run(cloud: Any, scenario: Scenario, failing: int | None) -> None:
    """Run one scenario. The step at the position ``failing`` fails after it was done."""
    server = scenario.before(cloud)
    with pytest.MonkeyPatch.context() as patch:
        if failing is not None:
            failed: list[str] = []

            def do(real: Any, work: Any) -> Any:
                real(work)
                if not failed:
                    failed.append(work.uuid)
                    raise KilonovaError('The step was made to fail.')

            disturb(patch, scenario.kind, failing, do)
        try:
            scenario.act(cloud, server)
        except AssertionError:
            # Some requests wait for their operation.
            if failing is None:
                raise
        cloud.settle()


def main(directory: Path) -> None:
    """Run all scenarios, and write the files into a directory."""
    recorder, patch = Recorder(), pytest.MonkeyPatch()
    for name, seconds in SHORTER.items():
        patch.setattr(name, seconds)
    recorder.install(patch)
    with tempfile.TemporaryDirectory() as scratch, databases.templates(Path(scratch)) as made:
        ground = Ground(Path(scratch), Templates(Path(scratch), made))
        for name, scenario in SCENARIOS.items():
            undone = [index for index, step in enumerate(flows.FLOWS[scenario.kind].steps) if step.undo]
            for failing in (None, *undone):
                began, said = time.monotonic(), name if failing is None else f'{name}, step {failing} fails'
                cloud = ground.cloud_for(scenario)
                try:
                    run(cloud, scenario, failing)
                    recorder.hosts_of(cloud.cell)
                    ground.empty(scenario, cloud)
                except Exception:  # noqa: BLE001 - whatever it is, the others are recorded
                    traceback.print_exc()
                    print(f'{said}: not recorded to its end', flush=True)
                    ground.stop()
                print(f'{said}: {time.monotonic() - began:.1f} s', flush=True)
        for act in (record_requests, record_disturbances):
            cloud = ground.cloud_for(SCENARIOS['boot'])
            act(cloud, functools.partial(ground.empty, SCENARIOS['boot'], cloud))
        ground.stop()
    print('nobody called', *add_missing(recorder))
    recorder.write(directory)


if __name__ == '__main__':
    main(Path(sys.argv[1]))
