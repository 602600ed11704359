"""Former names of options that were moved from [DEFAULT] to a section, as older guides use them.

    cfg.IntOpt('max_attempts', …, deprecated_opts=was('scheduler_max_attempts'))      # [DEFAULT]scheduler_max_attempts

oslo.config accepts the former name and logs a warning. An option whose meaning changed when it was moved has no former
name.
"""

from __future__ import annotations

from oslo_config import cfg


def was(*names: str) -> list[cfg.DeprecatedOpt]:
    """Return the former [DEFAULT] names of an option, in the form that the argument ``deprecated_opts`` takes."""
    return [cfg.DeprecatedOpt(name, group='DEFAULT') for name in names]
