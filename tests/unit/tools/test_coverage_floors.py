"""The floors of coverage: a package below its floor fails by name, and one without a floor, too."""

from __future__ import annotations

import coverage
import pytest

from tools import coverage_floors, testrun
from tools.cloud.layout import Layout
from tools.coverage_floors import Lines


def test_each_package_has_a_floor() -> None:
    assert set(coverage_floors.FLOORS) == coverage_floors.packages()
    assert all(0 < floor <= 100 for floor in coverage_floors.FLOORS.values())


@pytest.mark.parametrize(
    ('ran', 'code', 'line'),
    [
        (79, 1, 'pci: 79.0 %, below its floor of 80 %'),
        (80, 0, 'pci: 80.0 %, floor 80 %'),
        (83, 0, 'pci: 83.0 %, floor 80 %'),
        (84, 0, 'pci: 84.0 %; its floor of 80 % can rise to 82 %'),
    ],
)
def test_a_package_is_compared_with_its_floor(monkeypatch, capsys, ran: int, code: int, line: str) -> None:
    monkeypatch.setattr(coverage_floors, 'packages', lambda: {'db', 'pci'})
    monkeypatch.setattr(coverage_floors, 'FLOORS', {'db': 50, 'pci': 80})
    monkeypatch.setattr(coverage_floors, 'measured', lambda: {'db': Lines(200, 100), 'pci': Lines(100, ran)})
    assert coverage_floors.main() == code
    assert capsys.readouterr().out.splitlines() == ['db: 50.0 %, floor 50 %', line]


def test_a_package_without_a_floor_or_without_lines_fails(monkeypatch, capsys) -> None:
    monkeypatch.setattr(coverage_floors, 'packages', lambda: {'new', 'pci'})
    monkeypatch.setattr(coverage_floors, 'FLOORS', {'pci': 80})
    monkeypatch.setattr(coverage_floors, 'measured', lambda: {'new': Lines(3, 2)})
    assert coverage_floors.main() == 1
    assert capsys.readouterr().out.splitlines() == [
        'new: 66.6 %, and no floor: FLOORS needs 64',
        'pci: 0.0 %, below its floor of 80 %',
    ]


def test_lines_are_added_up_by_package_over_all_runs(tmp_path, monkeypatch) -> None:
    """Two runs each leave a data file; a line that either ran counts once."""
    package = tmp_path / 'kilonova'
    (package / 'pci').mkdir(parents=True)
    for path in (package / '__init__.py', package / 'pci' / '__init__.py'):
        path.touch()
    code = package / 'pci' / 'pools.py'
    code.write_text('a = 1\nb = 2\nc = 3\nd = 4\n')
    (tmp_path / 'pyproject.toml').write_text(
        f'[tool.coverage.run]\nsource = ["kilonova"]\ndata_file = "{tmp_path}/lines"\nparallel = true\n'
    )
    for number, lines in enumerate(([1, 2], [2, 3])):
        data = coverage.CoverageData(basename=f'{tmp_path}/lines.{number}')
        data.add_lines({str(code): lines})
        data.write()
    monkeypatch.delenv('COVERAGE_FILE', raising=False)
    monkeypatch.setattr(coverage_floors, 'ROOT', tmp_path)
    monkeypatch.setattr(coverage_floors, 'PACKAGE', package)
    found = coverage_floors.measured()
    assert found == {'pci': Lines(4, 3)} and found['pci'].percent == 75


def test_without_data_the_error_names_the_target(tmp_path, monkeypatch, capsys) -> None:
    (tmp_path / 'pyproject.toml').write_text(f'[tool.coverage.run]\ndata_file = "{tmp_path}/lines"\nparallel = true\n')
    monkeypatch.delenv('COVERAGE_FILE', raising=False)
    monkeypatch.setattr(coverage_floors, 'ROOT', tmp_path)
    assert coverage_floors.main() == 1
    assert 'make coverage' in capsys.readouterr().err


def test_each_covered_run_goes_through_coverage(tmp_path) -> None:
    runs = testrun.EXTRA['covered']
    assert [run.name for run in runs if not run.covered or not run.paths] == []
    assert {run.paths[0].split('/')[1] for run in runs} == {'unit', 'api', 'functional'}
    for run in runs:
        assert command(run, tmp_path)[1:6] == ['-m', 'coverage', 'run', '-m', 'pytest']
        assert run.env.get('KILONOVA_CONCURRENCY', 'threading') == 'threading'
    assert 'coverage' not in command(testrun.PARTS['unit'][0], tmp_path)


def command(run: testrun.Run, tmp_path) -> list[str]:
    return testrun.command_of(run, Layout.at(), tmp_path / 'report.xml')
