"""etc/kilonova/kilonova.conf names every option, policy.yaml.sample every rule.

Made by: oslo-config-generator --config-file etc/kilonova/config-generator.conf
and: kilonova-policy sample --output-file etc/kilonova/policy.yaml.sample
"""

from __future__ import annotations

import re
from pathlib import Path

import kilonova.conf
from kilonova.cmd import policy
from kilonova.conf import known

ETC = Path(__file__).parents[3] / 'etc' / 'kilonova'


def sample() -> set[tuple[str, str]]:
    found, section = set(), ''
    for line in (ETC / 'kilonova.conf').read_text().splitlines():
        if line.startswith('['):
            section = line.strip('[]')
        elif option := re.match(r'#([a-z0-9_]+) =', line):
            found.add((section, option[1]))
    return found


def test_sample_has_every_option():
    """The configuration sample has every option."""
    ours = {(group, opt.dest) for group, opts in kilonova.conf.list_opts() for opt in opts}
    assert sorted(ours - sample()) == []


def test_sample_has_the_libraries_whose_options_take_effect():
    text = (ETC / 'config-generator.conf').read_text()
    listed = re.findall(r'^namespace = (\S+)$', text, re.MULTILINE)
    missing = [name for name in known.LIBRARIES if not any(one == name or one.startswith(f'{name}.') for one in listed)]
    assert missing == []


def test_the_policy_sample_is_current(write_conf, capsys):
    """The policy sample in etc/ is what `kilonova-policy sample` prints."""
    assert policy.main(['--config-file', write_conf(), 'sample']) == 0
    assert (ETC / 'policy.yaml.sample').read_text() == capsys.readouterr().out
