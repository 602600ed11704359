"""An operation of each kind continues with rows of the release before (``tests/recorded``).

Each operation runs in a cloud of this release. Before each step to which the recorded row points, the operation gets
the arguments and outputs of the recorded row, as a conductor that takes over the row would read them. The row keeps its
form: its keys, and the versions of its objects. Where a key is in the present row as well, its value is taken from
there, so that it names the servers and hosts of this cloud.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from kilonova.conductor import flows
from kilonova.db.arguments import kinds as arguments_of
from kilonova.db.queries import operations
from kilonova.errors import KilonovaError
from tests.fixtures.cloud import Templates
from tests.flows.cases import disturb
from tests.recorded.recorder import UUID, VARIABLE, forms
from tests.recorded.scenarios import SCENARIOS, Ground, Scenario
from tests.unit.test_release_before import OPERATIONS, as_written, label, whole

# One operation of each kind; of a boot and a delete, one of a server with a boot volume as well.
NAMES = [
    *{scenario.kind: name for name, scenario in reversed(SCENARIOS.items())}.values(),
    'boot-volume',
    'delete-volume',
    'renamed',
]
# Kinds of which each undo runs with a recorded row, too.
UNDONE = {'boot': 'ERROR', 'resize': 'ACTIVE', 'attach-port': 'ACTIVE', 'shelve': 'ACTIVE'}


def is_value(key: str) -> bool:
    """Return whether a key of a dict is a value itself, such as a uuid."""
    return bool(VARIABLE.fullmatch(key) or UUID.search(key))


def in_place_of(recorded: Any, present: Any) -> Any:
    """Return a recorded value with the values of the present one, where the present one has the same keys."""
    if isinstance(recorded, dict) and isinstance(present, dict):
        kept = {
            key: in_place_of(value, present[key]) if key in present else value
            for key, value in recorded.items()
            if not is_value(key)
        }
        return kept | {key: value for key, value in present.items() if is_value(key)}
    if isinstance(recorded, list) and isinstance(present, list) and len(recorded) == len(present):
        return [in_place_of(*pair) for pair in zip(recorded, present, strict=True)]
    return present


class Takeovers:
    """Rows of one kind, which replace the ones that a flow has before its steps."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.read: list[str] = []

    def install(self, patch: pytest.MonkeyPatch, undoing: bool = False) -> None:
        """Replace rows before each step from now on, or with ``undoing`` before the first undo."""
        flow = flows.FLOWS[self.kind]
        steps = [
            replace(step, undo=step.undo and self._after_takeover(index, 'undo', step.undo))
            if undoing
            else replace(step, do=self._after_takeover(index, 'do', step.do))
            for index, step in enumerate(flow.steps)
        ]
        patch.setattr(type(flow), 'steps', tuple(steps))

    def _after_takeover(self, index: int, what: str, real: Callable[[Any], None]) -> Callable[[Any], None]:
        def step(work: Any) -> None:
            record = self._record(index, what, work)
            # Undos change outputs without writing them: a row is taken over before the first one.
            taken = not self.read if what == 'undo' else record is not None and record['row']['position'] == index
            if record is not None and taken:
                row = operations.OperationRow.read(as_written(record['row']))  # type: ignore[arg-type]
                args, outputs = copy.deepcopy(work.args.stored()), work.outputs.stored()
                work.args = arguments_of.read(work.kind, in_place_of(row.args, args))
                work.outputs = type(work.outputs).read(in_place_of(row.outputs, outputs))
                self.read.append(label(record))
            real(work)

        return step

    def _record(self, index: int, what: str, work: Any) -> dict[str, Any] | None:
        """Return the recorded row that is most like the present one."""
        found = [
            one
            for one in OPERATIONS
            if one['kind'] == self.kind
            and one['at'].startswith(f'{index}.')
            and one['at'].endswith(f' {what}')
            and not one['row']['cancelled']
            and one['row']['attempt'] == work.attempt
            and bool(one['row']['failed']) == work.failed
            and bool(one['row']['undoing']) == work.undoing
        ]

        present = set(forms([work.args.stored(), work.outputs.stored()]))

        def difference(one: dict[str, Any]) -> int:
            row = one['row']
            return len(present ^ set(forms(whole([row['args']['$json'], row['outputs']['$json']]))))

        return min(found, key=difference, default=None)


@pytest.fixture(scope='module')
def ground(tmp_path_factory: pytest.TempPathFactory, cloud_templates: Templates) -> Iterator[Ground]:
    made = Ground(tmp_path_factory.mktemp('recorded'), cloud_templates)
    yield made
    made.stop()


@pytest.fixture
def ready(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Scenario], Any]]:
    """Return the cloud of a scenario; it is emptied afterwards."""
    monkeypatch.setattr('kilonova.conductor.work.PAUSE', 0.02)
    monkeypatch.setattr('kilonova.compute.ports.LOOK', 0.02)
    monkeypatch.setattr('kilonova.conductor.flows.volume.volume_snapshots.LOOK', 0.02)
    for flow in ('network.ports', 'volume.volumes'):
        monkeypatch.setattr(f'kilonova.conductor.flows.{flow}.LATE', 0.0)
    used: list[Any] = []

    def make(scenario: Scenario) -> Any:
        cloud = ground.cloud_for(scenario)
        used.append((scenario, cloud))
        return cloud

    yield make
    for scenario, cloud in used:
        cloud.on_message = None
        try:
            ground.empty(scenario, cloud)
        except BaseException:
            # The next test has a new one.
            ground.stop()
            raise


def test_each_kind_is_tried() -> None:
    assert {SCENARIOS[name].kind for name in NAMES} == {one['kind'] for one in OPERATIONS}


@pytest.mark.parametrize('name', NAMES)
def test_an_operation_continues_with_rows_of_the_release_before(
    name: str, ready: Callable[[Scenario], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = SCENARIOS[name]
    cloud = ready(scenario)
    server = scenario.before(cloud)
    takeovers = Takeovers(scenario.kind)
    with monkeypatch.context() as patch:
        takeovers.install(patch)
        returned = scenario.act(cloud, server)
        cloud.settle()
    server = server or str(returned)
    assert takeovers.read, 'no step has a recorded row'
    assert scenario.status(cloud, server) == scenario.good, scenario.kind != 'mirror' and cloud.story(server)
    cloud.assert_clean()


@pytest.mark.parametrize('name', UNDONE)
def test_an_operation_is_undone_with_rows_of_the_release_before(
    name: str, ready: Callable[[Scenario], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last step fails."""
    scenario = SCENARIOS[name]
    cloud = ready(scenario)
    server = scenario.before(cloud)
    takeovers = Takeovers(scenario.kind)

    def fail(real: Any, work: Any) -> None:
        raise KilonovaError('The step was made to fail.')

    with monkeypatch.context() as patch:
        takeovers.install(patch, undoing=True)
        disturb(patch, scenario.kind, len(flows.FLOWS[scenario.kind].steps) - 1, fail)
        with contextlib.suppress(AssertionError):
            # A request that waits for its operation is refused.
            returned = scenario.act(cloud, server)
        cloud.settle()
    server = server or str(returned)
    assert takeovers.read, 'no undo has a recorded row'
    assert scenario.status(cloud, server) == UNDONE[name], cloud.story(server)
    cloud.assert_clean()
