"""Write kilonova/adopt/nova_options.json: the options of some releases of Nova, as oslo-config-generator lists them.

    oslo-config-generator --namespace nova.conf --namespace oslo.log ... --format json --output-file 34.json
    python3 -m tools.nova_options 27.json 29.json 31.json 34.json

The generator is that of an environment with this release of Nova; each file is named after its release. Names, defaults
and former names are kept; texts are not.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tools.cloud.layout import ROOT

TARGET = ROOT / 'kilonova' / 'adopt' / 'nova_options.json'


def of_release(path: Path) -> dict[str, dict[str, Any]]:
    """Return {'[section]name': facts} of one release, from the generator's JSON file."""
    found: dict[str, dict[str, Any]] = {}
    for section, about in json.loads(path.read_text())['options'].items():
        for opt in about['opts']:
            facts: dict[str, Any] = {}
            default = opt['default'] if opt.get('sample_default') is None else opt['sample_default']
            # A path below the environment of the generator says nothing about that of an operator.
            if default not in (None, '', []) and 'site-packages' not in str(default):
                facts['default'] = ','.join(map(str, default)) if isinstance(default, list) else str(default)
            former = sorted(
                f'[{old["group"] or section}]{(old["name"] or opt["dest"]).replace("-", "_")}'
                for old in opt['deprecated_opts']
            )
            if former:
                facts['former'] = former
            found[f'[{section}]{opt["dest"]}'] = facts
    return found


def together(releases: Sequence[tuple[str, dict[str, dict[str, Any]]]]) -> dict[str, dict[str, Any]]:
    """Return the options of all releases, oldest first in ``releases``; the newest that has an option describes it.

    ``until`` is the last of these releases that has the option, where the newest has it no more.
    """
    newest = releases[-1][0]
    found: dict[str, dict[str, Any]] = {}
    for release, options in releases:
        for name, facts in options.items():
            former = sorted({*facts.get('former', ()), *found.get(name, {}).get('former', ())})
            found[name] = facts | ({'former': former} if former else {})
            if release != newest:
                found[name]['until'] = release
    return dict(sorted(found.items()))


def main(argv: Sequence[str]) -> int:
    """Write the file from the generator's files, oldest release first; return the exit code."""
    if not argv:
        print(__doc__)
        return 2
    found = together([(Path(path).stem, of_release(Path(path))) for path in argv])
    lines = ',\n'.join(f'{json.dumps(name)}: {json.dumps(facts, sort_keys=True)}' for name, facts in found.items())
    TARGET.write_text(f'{{\n{lines}\n}}\n')
    print(f'{len(found)} options in {TARGET.relative_to(ROOT)}')
    return 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
