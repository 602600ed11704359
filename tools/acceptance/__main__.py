"""Run Tempest's tests of compute: ``python3 -m tools.acceptance [--guests qemu] [regex …]``.

Starts a one-machine cloud with Neutron and Cinder in a new directory with ports of its own, writes tempest.conf, runs
the tests, and takes the cloud away. The tests are all of tempest.api.compute and the scenarios that look into no guest,
except those that exclusions.txt leaves out. With ``--guests qemu`` guests are real, and the tests are all scenarios and
those that look into guests. They run on the machine ``outside``, which reaches guests by their floating addresses. With
words, only tests run in whose name one of these regular expressions is found.

The last line counts. The exit code is 0 only if all tests that ran passed. A test that Tempest skipped by itself counts
as failed: it belongs into exclusions.txt with its reason.
"""

from __future__ import annotations

import argparse
import csv
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tools.acceptance import exclusions, settings
from tools.cloud import control
from tools.cloud.layout import ROOT, CloudError, Layout, write_private
from tools.cloud.services import Cloud

RESULTS = ROOT / 'build' / 'tempest'
# Workers of the suite; each test works on a server or two.
AT_ONCE = 2


def program(name: str) -> str:
    """Return the path of a program of Tempest's environment."""
    return str(Layout.at().tempest_venv / 'bin' / name)


def ask(argv: Sequence[str]) -> str:
    """Run a command and return its output. Raises CloudError if it fails."""
    done = subprocess.run(list(argv), cwd=RESULTS, env=environment(), capture_output=True, check=False)
    if done.returncode:
        raise CloudError(f'{argv[0]} ended with {done.returncode}: {done.stderr[-2000:].decode(errors="replace")}')
    return done.stdout.decode(errors='replace')


def environment() -> dict[str, str]:
    """Return the environment variables of Tempest's processes, without the caller's OS_* variables."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(('OS_', 'PYTHON'))}
    return kept | {'TEMPEST_CONFIG_DIR': str(RESULTS), 'TEMPEST_CONFIG': 'tempest.conf'}


def prepare_results() -> None:
    """Empty ``build/tempest`` and write stestr's configuration there."""
    shutil.rmtree(RESULTS, ignore_errors=True)
    RESULTS.mkdir(parents=True)
    where = subprocess.run(
        [program('python'), '-c', 'import tempest; print(tempest.__path__[0])'],
        cwd='/',
        capture_output=True,
        text=True,
        check=False,
    )
    if where.returncode:
        raise CloudError(f'{program("python")} has no Tempest; make tempest installs it')
    package = Path(where.stdout.strip())
    (RESULTS / '.stestr.conf').write_text(
        f'[DEFAULT]\ntest_path={package / "test_discover"}\ntop_dir={package.parent}\n'
        # The tests of a class share what their class made: they stay together.
        'group_regex=([^\\.]*\\.)*\n'
    )
    ask([program('stestr'), 'init'])


def listed(guests: str) -> list[str]:
    """Return the identifiers of all tests that concern clouds with this kind of guests, sorted.

    Raises CloudError if Tempest lists none.
    """
    prefixes = exclusions.PREFIXES[guests]
    lines = ask([program('stestr'), 'list', '|'.join(f'^{re.escape(name)}' for name in prefixes)])
    found = sorted(line for line in lines.splitlines() if line.startswith(prefixes))
    if not found:
        raise CloudError(f'Tempest lists no test of {prefixes[0]}')
    return found


@contextmanager
def cloud(guests: str) -> Iterator[Cloud]:
    """Start a cloud of the shipped hosts with this kind of guests, and remove all of it at the end."""
    directory = Path(tempfile.mkdtemp(prefix='kilonova-tempest-'))
    layout = Layout.at(directory / 'var')
    try:
        extra = directory / 'extra.conf'
        extra.write_text(settings.daemon_settings(guests))
        yield control.up(layout, extra=extra, kind=guests, network=True, volume=True)
    finally:
        control.down(layout)
        # What the daemons said is wanted after a failure.
        if (layout.var / 'log').is_dir():
            shutil.copytree(layout.var / 'log', RESULTS / 'log', dirs_exist_ok=True)
        shutil.rmtree(directory, ignore_errors=True)


def outcomes(lines: str, wanted: Sequence[str]) -> dict[str, str]:
    """Return success, failure, skip or missing by identifier for each wanted test, from subunit2csv's table.

    A class that failed or was skipped as a whole is one row, ``setUpClass (CLASS)``, for all its tests.
    """
    rows = list(csv.DictReader(io.StringIO(lines)))
    single = {row['test']: row['status'] for row in rows}
    whole = {found[1]: row['status'] for row in rows if (found := re.match(r'setUpClass \((.+)\)$', row['test']))}
    of_class = {identifier: exclusions.plain(identifier).rpartition('.')[0] for identifier in wanted}
    torn = {
        found[1]
        for row in rows
        if row['status'] != 'success' and (found := re.match(r'tearDownClass \((.+)\)$', row['test']))
    }
    return {
        identifier: 'failure' if name in torn else single.get(identifier) or whole.get(name, 'missing')
        for identifier, name in of_class.items()
    }


def suite(started: Cloud, wanted: Sequence[str]) -> dict[str, str]:
    """Run these tests, where guests can be reached; return their outcomes."""
    chosen, outside = RESULTS / 'chosen.txt', started.outside_machine
    chosen.write_text('\n'.join(wanted) + '\n')
    argv = (program('stestr'), 'run', '--concurrency', str(AT_ONCE), '--load-list', str(chosen))
    subprocess.run(
        outside.inside(*argv) if outside else argv,
        cwd=RESULTS,
        env=environment() | (outside.environment if outside else {}),
        check=False,
    )
    return outcomes(table(), wanted)


def table() -> str:
    """Return the results of the last run as lines of CSV.

    The two programs that print them exit with 1 if a test failed. That is no error here. A test without a line counts
    as missing.
    """
    stream = subprocess.run(
        [program('stestr'), 'last', '--subunit'], cwd=RESULTS, env=environment(), capture_output=True, check=False
    ).stdout
    return subprocess.run(
        [program('subunit2csv'), '--no-passthrough'],
        cwd=RESULTS,
        env=environment(),
        input=stream,
        capture_output=True,
        check=False,
    ).stdout.decode(errors='replace')


def report(found: dict[str, str], left: dict[str, exclusions.Exclusion]) -> int:
    """Print what didn't pass and the counts; the exit code."""
    bad = {identifier: status for identifier, status in found.items() if status != 'success'}
    for identifier, status in bad.items():
        print(f'{status}: {exclusions.plain(identifier)}')
    sections = Counter(entry.section for entry in left.values())
    shares = ', '.join(f'{name} {count}' for name, count in sorted(sections.items()))
    print(f'{len(found) - len(bad)} passed, {len(bad)} failed, {len(left)} excluded' + (f' ({shares})' if left else ''))
    return 1 if bad or not found else 0


def main(argv: Sequence[str]) -> int:
    """Run the suite as the command line says; return the exit code."""
    parser = argparse.ArgumentParser(prog='python3 -m tools.acceptance')
    parser.add_argument('--guests', choices=control.GUESTS, default=control.GUESTS[0])
    parser.add_argument('words', nargs='*', metavar='regex')
    chosen = parser.parse_args(argv)
    guests, words = chosen.guests, chosen.words
    try:
        prepare_results()
        excluded = exclusions.of_guests(exclusions.parse(exclusions.PATH.read_text()), guests)
        with cloud(guests) as started:
            write_private(RESULTS / 'tempest.conf', settings.tempest_conf(started, settings.prepare(started), RESULTS))
            # Identifiers of some tests depend on the settings.
            run, left = exclusions.split(listed(guests), excluded)
            if words:
                run = [identifier for identifier in run if any(re.search(word, identifier) for word in words)]
                left = {}
            if not run:
                raise CloudError(f'no test to run is called so: {" ".join(words)}')
            found = suite(started, run)
    except (CloudError, exclusions.ExclusionsError) as error:
        print(f'error: {error}', file=sys.stderr)
        return 1
    return report(found, left)


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
