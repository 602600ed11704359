"""The list of what the acceptance suite leaves out, its configuration, and what its run came to."""

from __future__ import annotations

import configparser
import subprocess
from pathlib import Path

import pytest

from kilonova.api.routes import ROUTES
from kilonova.api.services import unsupported
from tools import bootstrap
from tools.acceptance import __main__ as acceptance
from tools.acceptance import exclusions, settings
from tools.acceptance.exclusions import ExclusionsError
from tools.cloud import ports, services
from tools.cloud.layout import ROOT, SECRET_NAMES, Layout
from tools.cloud.machine import Machine

A = 'tempest.api.compute.servers.test_a.ATest'
TEXT = f"""
# a comment
[guests] there is no packet
{A}.*
[lacks] what is missing
tempest.api.compute.test_b.BTest.test_b     # guests can't sing
"""
TESTS = [
    f'{A}.test_one[id-1,smoke]',
    f'{A}.test_two[id-2]',
    f'{A}More.test_one[id-3]',
    'tempest.api.compute.test_b.BTest.test_b[id-4]',
    'tempest.api.compute.test_b.BTest.test_b2[id-5]',
]


def test_entries_have_a_section_and_a_reason():
    assert [(entry.test, entry.below, entry.section, entry.reason) for entry in exclusions.parse(TEXT)] == [
        (A, True, 'guests', 'there is no packet'),
        ('tempest.api.compute.test_b.BTest.test_b', False, 'lacks', "guests can't sing"),
    ]


@pytest.mark.parametrize(
    ('text', 'says'),
    [
        (f'{A}.test_one  # why', 'cannot read'),
        ('[lacks]\n', 'cannot read'),
        ('[lacks] x\nother.suite.Test.test_a  # why', 'cannot read'),
        (f'[lacks] x\n{A}.test_one', 'what is missing'),
        (f'[lacks] x\n{A}.*  # why', 'names one test'),
        (f'[guests] x\n{A}.test_one\n{A}.test_one', 'line 3: .* twice'),
    ],
)
def test_a_line_that_does_not_say_what_it_must(text, says):
    with pytest.raises(ExclusionsError, match=says):
        exclusions.parse(text)


def test_what_runs_and_what_is_left_out():
    run, left = exclusions.split(TESTS, exclusions.parse(TEXT))
    assert run == [TESTS[2], TESTS[4]]
    assert {name: entry.section for name, entry in left.items()} == {
        TESTS[0]: 'guests',
        TESTS[1]: 'guests',
        TESTS[3]: 'lacks',
    }


@pytest.mark.parametrize('gone', ['tempest.api.compute.test_b.BTest.test_b3', 'tempest.api.compute.test_b.BTest.test'])
def test_an_entry_that_leaves_no_test_out(gone):
    with pytest.raises(ExclusionsError, match=f'{gone}$'):
        exclusions.split(TESTS, exclusions.parse(TEXT + f'{gone}  # why'))


@pytest.mark.parametrize(
    ('guests', 'left'), [('test', {'lacks', 'guests', 'pretended'}), ('qemu', {'lacks', 'real', 'elsewhere'})]
)
def test_each_kind_of_guests_has_entries_of_its_own(guests, left):
    """Entries about tests that don't run with these guests are left out."""
    text = ''.join(
        f'[{section}] x\ntempest.api.compute.volumes.test_attach_volume.ATest.test_{section}  # why\n'
        for section in ('lacks', 'guests', 'pretended', 'real', 'elsewhere')
    )
    other = '[more] x\ntempest.api.compute.admin.test_volumes_negative.ATest.test_a  # why\n' * (guests == 'qemu')
    found = exclusions.of_guests(exclusions.parse(text + other), guests)
    assert {entry.section for entry in found} == left


def test_the_list_of_the_tree_is_one():
    found = exclusions.parse(exclusions.PATH.read_text())
    assert {entry.section for entry in found} == {'lacks', *exclusions.SECTIONS}


def untrue(text: str) -> list[str]:
    """Return what the reasons say that Kilonova lacks although it has it."""
    routes = {(route.method, route.path, route.action) for route in ROUTES if route.status < 400}
    refused = {
        *unsupported.FIELDS,
        *unsupported.names(unsupported.EXTRA_SPECS),
        *unsupported.names(unsupported.IMAGE_PROPERTIES),
        *unsupported.names(unsupported.SNAPSHOTS),
    }
    return [
        f'{entry.test}: {entry.reason}'
        for entry in exclusions.parse(text)
        for lack in exclusions.lacks(entry.reason)
        if lack.route in routes or (lack.refused is not None and lack.refused not in refused)
    ]


def test_what_a_reason_says_that_kilonova_lacks_is_not_there():
    """A reason that names a missing route, or a refusal, fails when the route exists or nothing refuses the name."""
    assert untrue(exclusions.PATH.read_text()) == []


@pytest.mark.parametrize(
    ('reason', 'true'),
    [
        ('no route for `POST /servers/{server_id}/action (os-defrost)`', True),
        ('no route for `POST /servers/{server_id}/action (injectNetworkInfo)`', False),
        ('no route for `POST /os-assisted-volume-snapshots`', False),
        ('no route for `GET /servers/{server_id}/shares`', True),
        ('`hw:tpm_version` is refused, as guests have no emulated TPM', True),
        ('`hw:numa_nodes` is refused', False),
        ('Tempest skips it itself (bug 1)', True),
    ],
)
def test_a_reason_that_has_become_untrue_is_found(reason, true):
    """A reason is found as soon as the route that it names exists, or its name is not refused any more."""
    assert (untrue(f'[lacks] x\n{A}.test_one  # {reason}') == []) is true


@pytest.mark.parametrize(
    'reason', ['there is no swap of volumes', 'shelving is not built', "rebuilds of volumes aren't supported"]
)
def test_a_lack_must_be_one_that_can_be_compared(reason):
    """A reason that says in other words that something does not exist is refused."""
    with pytest.raises(ExclusionsError, match='name the route'):
        exclusions.lacks(reason)


def test_outcomes_of_tests_and_of_whole_classes():
    table = (
        'test,status,start,stop\r\n'
        f'"{TESTS[0]}",success,,\r\n"{TESTS[1]}",success,,\r\n'
        f'tearDownClass ({A}),failure,,\r\n'
        f'setUpClass ({A}More),skip,,\r\n'
        f'"{TESTS[3]}",success,,\r\n'
    )
    assert list(acceptance.outcomes(table, TESTS).values()) == ['failure', 'failure', 'skip', 'success', 'missing']


@pytest.mark.parametrize(('status', 'code'), [('success', 0), ('failure', 1), ('skip', 1), ('missing', 1)])
def test_only_what_passed_is_good(status, code, capsys):
    _, left = exclusions.split(TESTS, exclusions.parse(TEXT))
    assert acceptance.report({TESTS[2]: 'success', TESTS[4]: status}, left) == code
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == f'{2 - code} passed, {code} failed, 3 excluded (guests 2, lacks 1)'


def test_nothing_that_ran_is_no_success():
    assert acceptance.report({}, {}) == 1


@pytest.mark.parametrize('real', [False, True])
def test_configuration_names_the_cloud(tmp_path, real):
    layout = Layout(
        var=tmp_path / 'var',
        venv=tmp_path,
        services_venv=tmp_path,
        tempest_venv=tmp_path,
        cyborg_venv=tmp_path,
        neutron_venv=tmp_path,
        cinder_venv=tmp_path,
    )
    hosts = {'gpu1': Path('a.xml'), 'gpu2': Path('b.xml')}
    numbers = {name: 20000 + number for number, name in enumerate(ports.names_for(hosts))}
    cloud = services.Cloud(
        layout,
        numbers,
        dict.fromkeys(SECRET_NAMES, 'secret'),
        hosts,
        None,
        machines={'gpu1': Machine('/m', 'gpu1', '10.77.0.1')} if real else {},
    )
    text = settings.tempest_conf(cloud, settings.Seen(('one', 'two'), ('small', 'large'), '2.104', 'far'), tmp_path)
    read = configparser.ConfigParser(interpolation=None)
    read.read_string(text)
    assert read['identity']['uri_v3'] == f'http://127.0.0.1:{numbers["keystone"]}/v3'
    assert (
        dict(read['compute']).items()
        >= {
            'image_ref': 'one',
            'image_ref_alt': 'two',
            'flavor_ref': 'small',
            'flavor_ref_alt': 'large',
            'min_microversion': '2.1',
            'max_microversion': '2.104',
            'min_compute_nodes': '2',
        }.items()
    )
    on = {name for name, value in read['compute-feature-enabled'].items() if value == 'true'}
    assert on >= {'resize', 'rescue', 'shelve', 'live_migration', 'cold_migration', 'pause', 'suspend', 'snapshot'}
    assert read['validation']['run_validation'] == str(real).lower()
    # Tests that move a server from a certain host to another run where they can log in to it.
    between = [read['compute'].get(f'migration_{end}_host') for end in ('source', 'dest')]
    assert between == (['gpu1', 'gpu2'] if real else [None, None])
    assert read['network-feature-enabled']['port_security'] == 'true'
    assert (read['compute-feature-enabled']['swap_volume'] == 'true') is real
    assert (read['service_available']['cinder'], read['network']['public_network_id']) == ('true', 'far')


def test_tempest_is_pinned():
    lines = [line for line in bootstrap.ACCEPTANCE.read_text().splitlines() if line and not line.startswith('#')]
    assert 'tempest' in {line.split('==')[0] for line in lines} and all('==' in line for line in lines)


def test_only_takes_several_words_each_a_regular_expression():
    done = subprocess.run(
        ['make', 'tempest', 'PYTHON=echo', 'GUESTS=qemu', 'ONLY=test_stamp|test_snapshot fqdn a.*b'],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == '-m tools.acceptance --guests qemu test_stamp|test_snapshot fqdn a.*b'
