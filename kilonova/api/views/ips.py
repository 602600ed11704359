"""Bodies of addresses (rest-api.md §2.3)."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kilonova.api.views.servers import addresses


def networks(row: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """label → addresses, with no more than their version."""
    return {label: [{'version': each['version'], 'addr': each['addr']} for each in found]
            for label, found in addresses(row).items()}
