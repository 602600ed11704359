"""The simulator itself: healthy seeds, the same seed is the same run, and faults that are put back are found.

Each run of ``python -m tests.simulation`` is a process of its own: its clock and its hub can't be shared.
"""
from __future__ import annotations

import json
import pathlib
import subprocess
import sys
from typing import Any

import pytest

from tests.simulation.faults import Gone, replace

ROOT = pathlib.Path(__file__).resolve().parents[2]


def simulate(path: pathlib.Path, *arguments: str, jobs: int = 1) -> tuple[int, list[dict[str, Any]]]:
    """Exit status and the results of all seeds."""
    done = subprocess.run([sys.executable, '-W', 'ignore', '-m', 'tests.simulation', *arguments, '--jobs', str(jobs),
                           '--json', str(path)], cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)
    assert path.exists(), done.stdout + done.stderr
    return done.returncode, [json.loads(line) for line in path.read_text().splitlines()]


# Which clouds, which seeds; other seeds than those are ``make simulate``'s business.
HEALTHY = (('--seeds', '1-8'), ('--seeds', '1-6', '--shape', 'functions'), ('--seeds', '1-6', '--shape', 'pins'),
           ('--seeds', '1-18', '--shape', 'kinds'), ('--seeds', '1-8', '--shape', 'ports'),
           ('--seeds', '1-8', '--shape', 'wires'), ('--seeds', '1-8', '--shape', 'volumes'))
# Accepted operations over hosts with every kind of device.
OPERATIONS = 220


@pytest.mark.parametrize('arguments', HEALTHY, ids=[
    'the ordinary mix', 'virtual functions', 'pinned CPUs', 'all kinds', 'ports', 'SR-IOV ports', 'volumes'])
def test_nothing_is_wrong_with_the_code_as_it_is(arguments: tuple[str, ...], tmp_path: pathlib.Path) -> None:
    """Every operation ends, nothing has two owners or is left over, and what users were told is so."""
    results = simulate(tmp_path / 'results', *arguments, '--keep-going', jobs=2)[1]
    assert [(result['seed'], result['wrong']) for result in results if result['wrong']] == []
    assert len(results) == int(arguments[1].rpartition('-')[2])
    accepted = sum(result['accepted'] for result in results)
    print(f"{' '.join(arguments)}: {accepted} operations")
    assert accepted > (OPERATIONS if 'kinds' in arguments else 10 * len(results))


def test_a_seed_is_the_same_run_each_time(tmp_path: pathlib.Path) -> None:
    """Two commands agree in every line of the trace."""
    first, second = (simulate(tmp_path / name, '--seeds', '1-3', '--shape', 'narrow')[1] for name in ('one', 'two'))
    assert [result['digest'] for result in first] == [result['digest'] for result in second]
    assert len({result['digest'] for result in first}) == 3


# What a run must say that finds the fault, and seeds of the ordinary mix that find it: the first will do, the others
# are for the day when a change of the code moves what happens in it.
PROOFS = {
    'late_order': ('is in the running guest of', ('125', '310')),
    'stale_owner': ('elsewhere', ('28', '124', '190')),
    'dead_host': ('create of', ('20', '38')),
    'late_select': ('and holds nothing', ('123', '158', '83', '129')),
    'unmarked_undo': ('its row says available by None', ('10', '19')),
    'silent_database': ('force_delete of', ('5', '55', '63')),
    'parked_delete': ('boot, delete', ('23', '25', '45', '58')),
    'blind_sweep': ('force_delete of', ('140', '162', '181')),
    'lost_cancel': ('boot, delete', ('162', '181', '140', '191')),
    'wall_clock': ('there is still: boot of', ('79', '113')),
}

# Of the shape 'kinds'.
OF_KINDS = {
    'kept_accelerators': ('which is no server', ('7', '13', '20')),
    'deleted_with_accelerators': ('left over in Cyborg', ('2', '3', '4')),
    'unasked_binding': ('already has accelerator requests', ('20', '38')),
    'swapped_holder': ('and Cyborg has {} bound to', ('19', '32', '39')),
    'silent_host': ('Cyborg has it bound to', ('20', '21', '38', '43')),
}
# Of the shape 'ports'.
OF_PORTS = {
    'kept_ports': ('which is no server', ('21', '50', '54')),
    'blind_ports': ('its info cache lacks it', ('14', '15', '19')),
    'unmoved_ports': ('and the server is on', ('10', '66', '70')),
}
# Of the shape 'volumes'.
OF_VOLUMES = {
    'kept_volumes': ('which is no server', ('21', '78')),
    'blind_volumes': ('which has no row of it', ('36', '10', '11')),
    'unplanned_volumes': ('left over in Cinder', ('9', '26')),
    'unmoved_volumes': ('revert of', ('10', '32', '8')),
}


def test_faults_that_are_put_back_are_found(tmp_path: pathlib.Path) -> None:
    """Each by a seed that is well without it, and that tells the fault's own harm."""
    find(PROOFS, tmp_path)


def test_faults_of_accelerators_are_found(tmp_path: pathlib.Path) -> None:
    """The same with hosts that have every kind of device."""
    find(OF_KINDS, tmp_path, '--shape', 'kinds')


def test_faults_of_ports_are_found(tmp_path: pathlib.Path) -> None:
    """The same with Neutron."""
    find(OF_PORTS, tmp_path, '--shape', 'ports')


def test_faults_of_volumes_are_found(tmp_path: pathlib.Path) -> None:
    """The same with Cinder."""
    find(OF_VOLUMES, tmp_path, '--shape', 'volumes')


def find(proofs: dict[str, tuple[str, tuple[str, ...]]], path: pathlib.Path, *options: str) -> None:
    """Each fault by one of its seeds."""
    left = dict(proofs)
    for turn in range(max(len(seeds) for _, seeds in proofs.values())):
        tried = {fault: seeds[turn] for fault, (_, seeds) in left.items() if turn < len(seeds)}
        if not tried:
            break
        wanted = [argument for fault, seed in tried.items() for argument in ('--prove', f'{fault}={seed}')]
        results = simulate(path / f'results{turn}', *wanted, *options)[1]
        assert [(one['seed'], one['wrong']) for one in results if not one['faults'] and one['wrong']] == []
        assert len(results) == 2 * len(tried)
        for one in results:
            for fault in one['faults']:
                if one['wrong'] is not None and proofs[fault][0] in one['wrong']:
                    del left[fault]
    assert left == {}


def test_a_fault_that_replaces_what_is_gone_is_refused() -> None:
    """It would prove nothing."""
    class Owner:
        def act(self, seconds: float) -> None:
            """What is there."""

    def act(self: Owner, minutes: float) -> None:
        """Another."""
    with pytest.raises(Gone, match='seconds'):
        replace(Owner, 'act', act)
    with pytest.raises(Gone, match='no other'):
        replace(Owner, 'other', act)
