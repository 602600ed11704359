"""Names that options had before they moved to a section, as older guides write them.

    cfg.IntOpt('max_attempts', …, deprecated_opts=was('scheduler_max_attempts'))      # [DEFAULT]scheduler_max_attempts

oslo.config takes the value and warns of the name. What changed its meaning when it moved is not here.
"""
from __future__ import annotations

from oslo_config import cfg


def was(*names: str) -> list[cfg.DeprecatedOpt]:
    """Names in [DEFAULT]."""
    return [cfg.DeprecatedOpt(name, group='DEFAULT') for name in names]
