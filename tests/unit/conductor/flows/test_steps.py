"""Rows stand at a position, and hosts know their work by a step's name: of the release before, too. So both stay."""
from __future__ import annotations

import pytest

from kilonova.conductor.flows import FLOWS

# kind: its steps; those behind '<' go back to the one that is named there when a host refuses.
STEPS = {
    'boot': 'select create_instance claim<claim build<claim',
    'resize': 'create_migration select claim_and_move<claim_and_move prep_resize<claim_and_move '
              'resize_instance<claim_and_move finish_resize save_spec mark_resized',
    'evacuate': 'create_migration select claim_and_move<claim_and_move evacuate_instance<claim_and_move mark_evacuated',
    'live_migrate': 'create_migration check_source select claim_and_move<claim_and_move '
                    'check_destination<claim_and_move pre_live_migration<claim_and_move live_migration<claim_and_move '
                    'post_live_migration_at_destination clean_source drop_allocation mark_migrated',
    'unshelve': 'get_image_info select claim<claim unshelve_instance<claim save_spec mark_unshelved',
    'rebuild': 'check_host save_spec rebuild_instance',
    'confirm': 'confirm_source drop_allocation mark_confirmed',
    'revert': 'check_source revert_dest move_back finish_revert save_spec mark_reverted',
    'delete': 'terminate drop_allocations mark_deleted',
    'soft_delete': 'confirm_source drop_allocation settle_move soft_delete_instance',
    'backup': 'backup_instance mark_backed_up',
    'shelve': 'shelve_instance mark_shelved',
    'shelve_offload': 'shelve_offload_instance drop_allocation mark_offloaded',
    'unshelve_start': 'start_shelved_instance mark_started',
    'release': 'release', 'mirror': 'mirror', 'stop': 'stop_instance', 'start': 'start_instance',
    'reboot': 'reboot_instance', 'pause': 'pause_instance', 'unpause': 'unpause_instance',
    'suspend': 'suspend_instance', 'resume': 'resume_instance', 'trigger_crash_dump': 'trigger_crash_dump',
    'rescue': 'rescue_instance', 'unrescue': 'unrescue_instance', 'set_admin_password': 'set_admin_password',
    'snapshot': 'snapshot_instance', 'restore': 'restore_instance',
}
FORWARD = {'confirm', 'revert', 'delete', 'soft_delete', 'shelve_offload', 'release', 'mirror'}


def test_all_flows_are_here() -> None:
    assert set(FLOWS) == set(STEPS)
    assert {kind for kind, flow in FLOWS.items() if flow.forward_only} == FORWARD


@pytest.mark.parametrize('kind', STEPS)
def test_steps(kind: str) -> None:
    assert ' '.join(step.name + (f'<{step.again_from}' if step.again_from else '')
                    for step in FLOWS[kind].steps) == STEPS[kind]
