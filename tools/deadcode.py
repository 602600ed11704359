"""``make lint``: code of the package that nothing uses, as vulture finds it.

    python3 -m tools.deadcode

Prints a line for each function, method, property, class and import that is neither used in ``kilonova/`` nor known
from outside, and exits with 1 if there is one. Known from outside: the entry points of setup.cfg, what a decorator
registers (RPC methods, events of SQLAlchemy, checks of formats, commands), and the names in ``CALLED``. Variables and
attributes are left out: most are options, columns and fields. Use by tests alone doesn't count.
"""

from __future__ import annotations

import re
import sys

import vulture

from tools.cloud.layout import ROOT

KINDS = ('function', 'method', 'property', 'class', 'import')
REGISTERED = [
    '@operation_method*',
    '@query_method*',
    '@call',
    '@call(*',
    '@cast*',
    '@long_call*',
    '@step_call*',
    '@*listens_for*',
    '@*checks*',
    '@*remotable*',
    '@command*',
]
# Names that other packages call, and those that the tests need to look into a process.
CALLED = {
    'oslo.reports': ('vendor_string', 'product_string', 'version_string_with_package'),
    'oslo.messaging': ('serialize_context', 'deserialize_context'),
    'oslo.versionedobjects': ('obj_load_attr', 'obj_attr_is_set', '_obj_from_primitive'),
    'SQLAlchemy': ('_collated', '__table_args__'),
    "operators' tools, by RPC, as in Nova": ('get_backdoor_port',),
    'filters and prefilters of operators, as in Nova': (
        'get_filtered_objects',
        'require_aggregates',
        'append_forbidden_aggregates',
        'to_legacy_filter_properties_dict',
        'from_primitives',
    ),
    'tests: wait for a conductor, start its search, compare schema and models, ask a driver before a move': (
        'idle',
        'sweep',
        'differences',
        'check_move',
    ),
}


def unused() -> list[str]:
    """Return a line for each piece of dead code, sorted by file."""
    found = vulture.Vulture(ignore_decorators=REGISTERED)
    found.scavenge([str(ROOT / 'kilonova')])
    known = {name for names in CALLED.values() for name in names}
    known |= set(re.findall(r'[:.](\w+)[ \t]*$', (ROOT / 'setup.cfg').read_text(encoding='utf-8'), re.MULTILINE))
    return sorted(
        f'{item.filename.relative_to(ROOT)}:{item.first_lineno}: {item.typ} {item.name} is not used'
        for item in found.get_unused_code(min_confidence=60)
        if item.typ in KINDS and item.name not in known
    )


def main() -> int:
    """Print what is not used, and return the exit code."""
    lines = unused()
    print('\n'.join(lines) if lines else 'no dead code')
    return 1 if lines else 0


if __name__ == '__main__':
    sys.exit(main())
