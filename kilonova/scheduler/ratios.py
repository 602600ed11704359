"""Read settings of the form ``name=ratio`` for weighers and filters.

    ratios(('cpu.percent=-1', 'rack=2'), '[metrics]weight_setting')      # {'cpu.percent': -1.0, 'rack': 2.0}

A weigher multiplies the value of each name by its ratio, and adds the products up.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType

from oslo_log import log as logging

LOG = logging.getLogger(__name__)


@lru_cache(maxsize=64)
def ratios(setting: tuple[str, ...], option: str) -> Mapping[str, float]:
    """Return {name: ratio} of a setting.

    An entry that is not of the form name=ratio is left out, and an error is logged once. The log line names ``option``.
    """
    found: dict[str, float] = {}
    for entry in setting:
        name, equals, text = entry.partition('=')
        try:
            ratio = float(text)
        except ValueError:
            ratio = math.nan
        if name.strip() and equals and math.isfinite(ratio):
            found[name.strip()] = ratio
        else:
            LOG.error(
                "%(option)s: '%(entry)s' is ignored, because it is not of the form name=ratio",
                {'option': option, 'entry': entry},
            )
    return MappingProxyType(found)
