"""Runs tests of a broken tree in a fork of a process that has the libraries already. Started by ``by_chance``, as a
program: it must not import what is to be broken.

In: a line of JSON {'tree', 'tests', 'seconds'}; out: {'verdict': 'passed' | 'failed' | 'HANGS' | 'ERROR', 'why'}.
"""
from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path

# Most of what tests import beside the tree. (What pytest would rewrite, as hypothesis, must not be here.)
LIBRARIES = ('pytest', 'sqlalchemy.orm', 'alembic.command', 'oslo_messaging', 'oslo_db.api', 'oslo_policy.policy',
             'oslo_versionedobjects.base', 'keystoneauth1.session', 'keystonemiddleware.auth_token', 'jsonschema',
             'webob', 'numpy', 'libvirt', 'lxml.etree', 'stevedore', 'openstack', 'placement.deploy')


def main() -> None:
    os.environ['EVENTLET_NO_GREENDNS'] = 'yes'
    from oslo_service import backend
    backend.init_backend(backend.BackendType.THREADING)
    for name in LIBRARIES:
        importlib.import_module(name)
    for line in sys.stdin:
        print(json.dumps(run(**json.loads(line))), flush=True)


def run(tree: str, tests: list[str], seconds: float) -> dict[str, str]:
    """The tests in their order, until one fails."""
    log = Path(tree) / 'tests.log'
    child = os.fork()
    if not child:
        _test(tree, tests, log)
    status = _wait(child, seconds)
    lines = [line for line in log.read_text(errors='replace').splitlines() if line.strip()]
    if status is None:
        return {'verdict': 'HANGS', 'why': f'no answer in {seconds:.0f} s'}
    if status == 4 and 'no match in any of' in '\n'.join(lines) and any('[' in test for test in tests):
        # A test for each row of a table, one of which has another name now: all of them.
        return run(tree, list(dict.fromkeys(test.partition('[')[0] for test in tests)), seconds)
    failed = [line for line in lines if line.startswith(('FAILED', 'ERROR '))]
    # 1: tests failed; 2 and 4: the tree can't be imported any more. Else nothing is said about the tree.
    if status in {1, 2, 4}:
        return {'verdict': 'failed', 'why': (failed or lines[-1:] or [f'exit {status}'])[0]}
    if status == 0:
        return {'verdict': 'passed', 'why': (lines or [''])[-1]}
    return {'verdict': 'ERROR', 'why': '\n'.join([f'exit {status}', *lines[-5:]])}


def _test(tree: str, tests: list[str], log: Path) -> None:
    """In the child: never returns."""
    code = 3
    try:
        os.setsid()
        output = os.open(log, os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
        for number in (1, 2):
            os.dup2(output, number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.chdir(tree)
        os.environ |= {'PYTHONPATH': tree, 'COLUMNS': '200', 'KILONOVA_CONCURRENCY': 'threading'}
        sys.path.insert(0, tree)
        import pytest
        code = int(pytest.main(['-x', '-p', 'no:cacheprovider', '-p', 'no:randomly', '--no-header',
                                f'--basetemp={tree}/tmp', *tests]))
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _wait(child: int, seconds: float) -> int | None:
    """The exit status of a child; None: it had not ended in time, and was killed with what it started."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.05)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


if __name__ == '__main__':
    main()
