from __future__ import annotations

import pytest
from oslo_config import cfg


@pytest.fixture
def make_conf():
    """A ConfigOpts with the options of the given section modules."""

    def make(*modules, args=()):
        conf = cfg.ConfigOpts()
        for module in modules:
            conf.register_opts(module.OPTS, group=module.GROUP)
        conf(args=list(args), default_config_files=[], default_config_dirs=[])
        return conf

    return make
