"""``make mutants``: breaks chosen by chance; with ``RULES=1`` the rules of operations, each broken by hand."""

from __future__ import annotations

import os
import sys

from tests.mutants import by_chance, by_rule

if __name__ == '__main__':
    sys.exit(by_rule.main() if os.environ.get('RULES') else by_chance.main())
