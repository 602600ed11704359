"""The list of filters that the page about filters tells to paste is the default list and the operator's filter."""

from __future__ import annotations

import configparser
import pathlib
import re

import kilonova.conf

PAGE = pathlib.Path(__file__).parents[3] / 'docs' / 'contributor' / 'writing-a-filter.md'


def test_the_pasted_list_is_the_default_and_one_more() -> None:
    blocks = [
        block for block in re.findall(r'```ini\n(.*?)```', PAGE.read_text(), re.DOTALL) if 'enabled_filters' in block
    ]
    conf = kilonova.conf.new()
    conf([], project='kilonova', default_config_files=[])
    assert blocks
    for block in blocks:
        parsed = configparser.ConfigParser()
        parsed.read_string(block)
        names = [name.strip() for name in parsed['filter_scheduler']['enabled_filters'].replace('\n', ',').split(',')]
        assert [name for name in names if name and name != 'RackFilter'] == conf.filter_scheduler.enabled_filters
        assert 'RackFilter' in names
