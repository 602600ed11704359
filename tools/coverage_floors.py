"""``make coverage``: compare the lines of each package that tests run with the package's floor.

    python3 -m tools.coverage_floors

Reads what the runs of ``python3 -m tools.testrun covered`` left in ``build/coverage``, prints a line for each package,
and exits with 1 if one is below its floor or has none. Lines of processes that tests start are not counted.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import coverage

from tools.cloud.layout import ROOT

PACKAGE = ROOT / 'kilonova'
# Percent of the lines of each package that must run. A floor only rises. A new one is MARGIN below what a whole run of
# make coverage reached, rounded down, because tests by chance run other lines each time.
FLOORS = {
    'accel': 92,
    'adopt': 96,
    'api': 96,
    'clients': 94,
    'cmd': 93,
    'compute': 91,
    'conductor': 90,
    'conf': 100,
    'console': 84,
    'db': 96,
    'objects': 97,
    'pci': 98,
    'rpc': 97,
    'scheduler': 97,
    'virt': 94,
}
MARGIN = 2
# The floor of a package is raised when it can rise by so many percent.
RISE = 2


@dataclass(frozen=True)
class Lines:
    """The lines of some files that hold statements: how many there are, and how many of them ran."""

    there: int = 0
    ran: int = 0

    def __add__(self, other: Lines) -> Lines:
        return Lines(self.there + other.there, self.ran + other.ran)

    @property
    def percent(self) -> float:
        """The share of the lines that ran, rounded down to a tenth; that of no lines is 100."""
        return (1000 * self.ran // self.there) / 10 if self.there else 100.0


def packages() -> set[str]:
    """Return the names of the packages in ``kilonova/``."""
    return {path.parent.name for path in PACKAGE.glob('*/__init__.py')}


def measured() -> dict[str, Lines]:
    """Return the lines of each package, from all data files in ``build/coverage``.

    Raises coverage.CoverageException if there are none.
    """
    data = coverage.Coverage(config_file=str(ROOT / 'pyproject.toml'))
    data.combine(strict=True, keep=True)
    found: dict[str, Lines] = {}
    for name in data.get_data().measured_files():
        parts = Path(name).relative_to(PACKAGE).parts
        if len(parts) > 1:
            _, statements, _, missing, _ = data.analysis2(name)
            lines = Lines(len(statements), len(statements) - len(missing))
            found[parts[0]] = found.get(parts[0], Lines()) + lines
    return found


def report(found: Mapping[str, Lines], floors: Mapping[str, int]) -> Iterator[tuple[bool, str]]:
    """Yield for each package whether it has what it needs, and a line that says so."""
    for name in sorted({*found, *floors}):
        percent, floor = found.get(name, Lines(1)).percent, floors.get(name)
        if floor is None:
            yield False, f'{name}: {percent:.1f} %, and no floor: FLOORS needs {int(percent - MARGIN)}'
        elif percent < floor:
            yield False, f'{name}: {percent:.1f} %, below its floor of {floor} %'
        elif percent >= floor + MARGIN + RISE:
            yield True, f'{name}: {percent:.1f} %; its floor of {floor} % can rise to {int(percent - MARGIN)} %'
        else:
            yield True, f'{name}: {percent:.1f} %, floor {floor} %'


def main() -> int:
    """Print a line for each package; return 1 if one has too few lines that ran, else 0."""
    try:
        found = measured()
    except coverage.CoverageException as error:
        print(f'error: {error}; run: make coverage', file=sys.stderr)
        return 1
    unseen = {name: Lines(1) for name in packages() - set(found)}
    results = list(report(found | unseen, FLOORS))
    for _, line in results:
        print(line)
    return 0 if all(well for well, _ in results) else 1


if __name__ == '__main__':
    sys.exit(main())
