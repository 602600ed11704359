"""kilonova-policy: the sample, what is said twice, and who passes what."""

from __future__ import annotations

import importlib.metadata
import sys

import pytest
import yaml
from oslo_policy import policy as oslo_policy

from kilonova.api.policies import list_rules
from kilonova.cmd import policy

RULES = {rule.name: rule for rule in list_rules()}
SHOW, LIST = 'os_compute_api:servers:show', 'os_compute_api:os-services:list'


@pytest.fixture
def run(write_conf, tmp_path, capsys):
    """(exit code, lines) of a command over a policy file."""

    def run(*words, rules=None):
        path = tmp_path / 'policy.yaml'
        path.write_text(yaml.safe_dump(rules or {}))
        file = write_conf(sections=f'[oslo_policy]\npolicy_file = {path}')
        code = policy.main(['--config-file', file, *words])
        return code, capsys.readouterr().out.splitlines()

    return run


def test_the_sample_names_every_rule_and_changes_nothing(run, tmp_path):
    code, lines = run('sample')
    assert code == 0
    text = '\n'.join(lines)
    assert not any(line and not line.startswith('#') for line in lines)
    assert [name for name in RULES if f'#"{name}": ' not in text] == []
    path = tmp_path / 'sample.yaml'
    assert run('sample', '--output-file', str(path)) == (0, [])
    assert path.read_text().splitlines() == lines


def test_what_is_said_twice(run):
    rules = {SHOW: RULES[SHOW].check_str, LIST: 'role:auditor'}
    assert run('list-redundant', rules=rules) == (0, [f'"{SHOW}": "{RULES[SHOW].check_str}"'])
    assert run('list-redundant') == (0, [])


def test_mistakes_in_the_file(run):
    assert run('check') == (0, [])
    code, lines = run('check', rules={'os_compute_api:servers:shw': '@', SHOW: 'rule:nosuch'})
    assert code == 1 and lines[0] == 'unknown rule: os_compute_api:servers:shw'
    assert SHOW in lines[1]
    code, lines = run('check', rules={SHOW: f'rule:{LIST}', LIST: f'rule:{SHOW}'})
    assert code == 1 and SHOW in lines[0] and LIST in lines[0]


def answers(run, *words, **more):
    code, lines = run('check', *words, **more)
    assert code == 0
    return {name: answer for answer, _, name in (line.partition(': ') for line in lines)}


def test_who_passes_what(run):
    reader = answers(run, '--roles', 'reader', '--rule', 'servers:')
    assert (reader[SHOW], reader['os_compute_api:servers:create']) == ('passed', 'failed')
    assert LIST not in reader
    member = answers(run, '--roles', 'member,reader')
    assert set(member) == {name for name in RULES if ':' in name}
    assert (member['os_compute_api:servers:create'], member[LIST]) == ('passed', 'failed')
    assert set(answers(run, '--roles', 'admin', '--rule', 'servers:show').values()) == {'passed'}
    others = answers(run, '--roles', 'member', '--target', 'project_id=other')
    assert others['os_compute_api:servers:create'] == 'failed'
    assert answers(run, '--roles', 'reader', rules={LIST: 'role:reader'})[LIST] == 'passed'


def test_oslo_policys_own_programs_find_the_rules(write_conf, tmp_path, monkeypatch):
    def entry(group):
        (found,) = [each for each in importlib.metadata.entry_points(group=group) if each.name == policy.NAMESPACE]
        return found.load()

    assert {rule.name for rule in entry('oslo.policy.policies')()} == set(RULES)
    path = tmp_path / 'policy.yaml'
    path.write_text(f'"{LIST}": "role:auditor"\n')
    file = write_conf(sections=f'[oslo_policy]\npolicy_file = {path}')
    monkeypatch.setattr(sys, 'argv', ['oslopolicy-list-redundant', '--namespace', 'kilonova', '--config-file', file])
    enforcer = entry('oslo.policy.enforcer')()
    assert isinstance(enforcer, oslo_policy.Enforcer)
    assert set(enforcer.registered_rules) == set(RULES)
    assert list(enforcer.file_rules) == [LIST]
