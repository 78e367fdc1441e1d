# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What becomes of a cluster: it is made, completed, changed, or proven to be gone.

Whatever was interrupted goes on where it was: the stack is AWS's, and the files beside the inventory say which keys are
pinned. Statuses of a stack: CloudFormation User Guide, "Stack status codes".
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Protocol

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError

from . import planning, renewal
from .absence import left_of, prove_absence
from .answers import Event, Instance, Remain, Stack
from .contact import Contact, Pin, meet_all, one_time_key
from .errors import CloudError, code_in
from .files import Files, how_to_remove
from .ownership import refuse_another_owner, refuse_stranger
from .planning import Choice
from .request import Address, Request
from .template import (
    OWNER_TAG,
    TAG,
    Made,
    Member,
    Plan,
    Template,
    difference,
    made_in,
    nodes_in,
    own_of,
    render,
    shape_of,
    until_text,
)
from .user_data import own_piece, user_data

GOOD = ("CREATE_COMPLETE", "UPDATE_COMPLETE", "UPDATE_ROLLBACK_COMPLETE")
# A stack that never was whole: it is deleted, and made anew.
FAILED = ("ROLLBACK_COMPLETE", "CREATE_FAILED", "ROLLBACK_FAILED", "DELETE_FAILED", "REVIEW_IN_PROGRESS")
DELETED = "DELETE_COMPLETE"
STACK_KIND = "AWS::CloudFormation::Stack"  # of an event of the stack itself
WAIT_SECONDS = 2400.0  # more than the 30 minutes after which CloudFormation takes a stack back
ADDRESS_SECONDS = 120.0  # EC2 tells of a new instance, and of its address, some time after it is made
RUNNING = ("pending", "running")
Say = Callable[[str], object]


class Region(planning.Region, Protocol):
    """What is asked of AWS (aws.Aws)."""

    def instances(self, cluster: str = "") -> list[Instance]: ...
    def members(self, stack: str) -> list[Instance]: ...
    def remains(self, cluster: str, volumes: Sequence[str]) -> list[Remain]: ...
    def tag(self, ids: Sequence[str], tags: Mapping[str, str]) -> None: ...
    def stack(self, name: str) -> Stack | None: ...
    def template(self, stack: str) -> Mapping[str, object]: ...
    def create(self, name: str, template: Template, parameters: Mapping[str, str], tags: Mapping[str, str]) -> str: ...
    def update(
        self, stack: Stack, template: Template, parameters: Mapping[str, str], tags: Mapping[str, str]
    ) -> None: ...
    def delete(self, stack: Stack) -> None: ...
    def events(self, stack: str) -> list[Event]: ...
    def wait(self) -> None: ...


@dataclass
class Done:
    """The outcome. `until`: the end of the lease. `template`, `was`: of the stack as it is to be, and was."""

    changed: bool
    msg: str
    nodes: list[str] = field(default_factory=list)
    until: str = ""
    template: Mapping[str, object] = field(default_factory=dict)
    was: Mapping[str, object] = field(default_factory=dict)


def stack_name(cluster: str) -> str:
    """Return the name of a cluster's stack."""
    return f"torchfleet-{cluster}"


# --- present -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Found:
    """A cluster as AWS has it: nothing if there is no stack. `members`: those of its instances that run."""

    stack: Stack | None = None
    template: Mapping[str, object] = field(default_factory=dict)
    members: tuple[Instance, ...] = ()

    @property
    def alive(self) -> frozenset[str]:
        return frozenset(each.node for each in self.members)

    def generations(self) -> dict[int, int]:
        """Return for each node which generation it is to be: one more for a lost one."""
        there = nodes_in(self.template)
        return {number: count + (f"n{number}" not in self.alive) for number, count in there.items()}


def present(request: Request, region: Region, files: Files, check: bool, say: Say) -> Done:
    """Make the cluster what was asked for."""
    files.refuse_others()
    files.refuse_elsewhere()
    found = find(request, region, files, check, say)
    if found.stack:
        files.require_keys(found.alive)
    made = made_in(found.template)
    if found.stack and not made:
        raise CloudError(
            "Stranger", f"stack {stack_name(request.name)} is not of torchfleet; give another cluster_name"
        )
    plan = planning.plan_of(request, region, made, found.generations())
    template = render(plan)
    if made:
        refuse_replacement(plan, made, found, template)
    new = [member for member in plan.members if member.number not in nodes_in(found.template) or lost(found, member)]
    differs = not found.stack or template != found.template
    show_plan(plan, region, say if check or not found.stack else None)
    until = renewal.wanted_end(request, found.members, datetime.now(UTC))
    if check:
        late = [each.node for each in renewal.due(request, found.members, until)]
        msg = tell_check(plan, differs, late, until)
        return Done(differs or bool(late), msg, names(plan), until_text(until), template, found.template)
    if differs:
        change(plan, template, found, new, region, files, say, until)
    instances = instances_of(plan, region)
    settled = settle(plan, instances, files, say)
    renewed = renew(plan, instances, region, files, say, until)
    ends = [until if each in renewed else renewal.end_of(each) or until for each in instances.values()]
    end = until_text(min(ends))
    changed = differs or settled or bool(renewed)
    return Done(changed, tell(plan, files, end), names(plan), end, template, found.template)


def find(request: Request, region: Region, files: Files, check: bool, say: Say) -> Found:
    """Return the cluster when its stack is at rest. What never was whole, or has lost everything, is removed first."""
    stack = region.stack(stack_name(request.name))
    refuse_stranger(stack, request.name)
    stack = at_rest(region, stack, check, say)
    if stack is None:
        return Found()
    there = region.members(stack.id)
    if stack.status in GOOD:
        planning.refuse_stopped(request, there)
    members = tuple(each for each in there if each.state in RUNNING)
    if stack.status in GOOD and members:
        return Found(stack, region.template(stack.id), members)
    if stack.status not in (*GOOD, *FAILED):
        why = f": {stack.reason}" if stack.reason else ""
        advice = f"remove it, and make it again: {how_to_remove(request.name)}"
        raise CloudError("StackStatus", f"stack {stack.name} is in state {stack.status}{why}; {advice}")
    refuse_another_owner(stack, files, request.owner, region.who)
    why = "all its instances are gone" if stack.status in GOOD else f"it is in state {stack.status}"
    say(f"stack {stack.name}: {why}; it is {'to be ' * check}removed and made anew")
    if not check:
        remove(stack, region)
    return Found()


def at_rest(region: Region, stack: Stack | None, check: bool, say: Say) -> Stack | None:
    """Return a stack when AWS has done what it was asked before; None for one that is gone."""
    if stack and stack.status.endswith("_IN_PROGRESS"):
        say(f"stack {stack.name}: {stack.status}, waiting for its end")
    deadline = time.monotonic() + WAIT_SECONDS
    while stack and stack.status.endswith("_IN_PROGRESS") and stack.status not in FAILED and not check:
        if time.monotonic() > deadline:
            raise CloudError("Waiting", f"stack {stack.name} is still in state {stack.status}: type it again later")
        region.wait()
        stack = region.stack(stack.id)
    return None if stack is None or stack.status == DELETED else stack


def lost(found: Found, member: Member) -> bool:
    """Whether a node of the cluster is gone: its lease was over, AWS took a spot instance, or somebody ended it."""
    return bool(found.stack) and member.node not in found.alive


def refuse_replacement(plan: Plan, made: Made, found: Found, template: Template) -> None:
    """Raise InputError if CloudFormation would replace instances that run."""
    advice = f"only counts of workers can change; give that, or remove it first: {how_to_remove(plan.request.name)}"
    for option, value in shape_of(plan).items():
        if value != made.shape.get(option):
            raise InputError(option, value, f"the cluster has {json.dumps(made.shape.get(option))}; {advice}")
    others = list(difference(found.template, template))
    if others:
        told = f"another version of torchfleet made it, and its instances would be replaced: {', '.join(others[:4])}"
        raise InputError("cluster_name", plan.request.name, f"{told}; {advice}")


def change(
    plan: Plan,
    template: Template,
    found: Found,
    new: Sequence[Member],
    region: Region,
    files: Files,
    say: Say,
    until: datetime,
) -> None:
    """Make or change the stack. The keys of new instances are pinned before these exist."""
    public = files.make_key()
    keys = {member: one_time_key() for member in new}
    kept = {member.node for member in plan.members if member not in keys}
    pinned = [Pin(member.node, key[1], True) for member, key in keys.items()]
    files.save_pins([*(pin for pin in files.pins() if pin.node in kept), *pinned], {})
    grace = plan.request.grace_hours
    parameters = {own_of(member): own_piece(*key, until, grace) for member, key in keys.items()}
    tags = {TAG: plan.request.name, OWNER_TAG: plan.owner}
    if found.stack:
        say(f"stack {found.stack.name}: changing")
        region.update(found.stack, template, parameters, tags)
        finish(found.stack.id, region, files, whole=False)
        return
    shared = user_data(public)
    parameters.update(UserDataBegin=shared.begin, UserDataEnd=shared.end)
    parameters.update(Expires=until_text(until), GraceHours=str(grace))
    name = stack_name(plan.request.name)
    say(f"stack {name}: making {len(plan.members)} instances, until {until_text(until)}")
    finish(region.create(name, template, parameters, tags), region, files, whole=True)


def finish(stack: str, region: Region, files: Files, whole: bool) -> None:
    """Wait until a stack is made. CloudError with the first cause if it was not; then all of it has been taken back."""
    found = at_rest(region, region.stack(stack), False, lambda _line: None)
    if found and found.status in ("CREATE_COMPLETE", "UPDATE_COMPLETE"):
        return
    cause = cause_of(region.events(stack), "CREATE_IN_PROGRESS", "UPDATE_IN_PROGRESS")
    if found and whole:
        remove(found, region)
    if whole:
        files.remove()
    taken = "nothing of it is left" if whole else "the cluster is as it was"
    code, said = (code_in(cause.reason), cause.reason) if cause else ("", "CloudFormation names no cause")
    what = f"{cause.resource} ({cause.kind})" if cause else "the stack"
    raise CloudError(code, f"AWS did not make {what}; {taken}", said)


def cause_of(events: Sequence[Event], *began: str) -> Event | None:
    """Return the first failure since a stack began to be made, changed or deleted. What came later was cancelled by it.

    `began`: statuses that the stack itself had then; what failed before that was told to somebody at that time.
    """
    start = (place for place, event in enumerate(events) if event.kind == STACK_KIND and event.status in began)
    since = events[: next(start, len(events))]
    return next((event for event in reversed(since) if event.status.endswith("_FAILED") and event.reason), None)


def instances_of(plan: Plan, region: Region) -> dict[str, Instance]:
    """Return the instance of each node. A new one may have no address for a moment."""
    deadline = time.monotonic() + ADDRESS_SECONDS
    while True:
        found = {each.node: each for each in region.members(stack_name(plan.request.name)) if each.state in RUNNING}
        missing = [node for node in names(plan) if node not in found or not address_of(plan, found[node])]
        if not missing:
            return {node: found[node] for node in names(plan)}
        if time.monotonic() > deadline:
            told = "ended, or has no address; type the same again, and it is replaced"
            raise CloudError("Incomplete", f"the instance of {', '.join(missing)} {told}")
        region.wait()


def address_of(plan: Plan, instance: Instance) -> str:
    """Return the address at which the controller reaches an instance."""
    return instance.public if plan.request.address is Address.PUBLIC else instance.private


def settle(plan: Plan, instances: Mapping[str, Instance], files: Files, say: Say) -> bool:
    """Have new nodes change their keys, and write the inventory. Return whether anything changed."""
    addresses = {node: sorted({address_of(plan, each), each.private}) for node, each in instances.items()}
    pins = files.pins()
    fresh = sorted({pin.node for pin in pins if pin.one_time} & set(instances))
    if fresh:
        say(f"waiting for {', '.join(fresh)} to boot, and to change the one-time host key")
    contacts = contacts_of(plan, instances, files)
    meet_all([contacts[node] for node in fresh], pins, lambda now: files.save_pins(now, addresses))
    written = files.write(plan, instances, addresses)
    return bool(fresh) or written


def contacts_of(plan: Plan, instances: Mapping[str, Instance], files: Files) -> dict[str, Contact]:
    """Return how each node is reached."""
    return {node: Contact(node, address_of(plan, each), files.directory) for node, each in instances.items()}


def renew(
    plan: Plan, instances: Mapping[str, Instance], region: Region, files: Files, say: Say, until: datetime
) -> list[Instance]:
    """Renew the leases that end earlier than that, and return those instances."""
    late = renewal.due(plan.request, instances.values(), until)
    if late:
        say(f"renewing the lease of {', '.join(each.node for each in late)} until {until_text(until)}")
        said = renewal.renew(plan.request, contacts_of(plan, instances, files), files.pins(), late, until)
        renewal.note(plan.request, region, late, said, until)
    return late


def show_plan(plan: Plan, region: Region, say: Say | None) -> None:
    """Show each choice with its reason, and the price."""
    if say:
        for line in [*table(planning.choices(plan, region.region)), *planning.cost_lines(plan, region)]:
            say(line)


def table(choices: Sequence[Choice]) -> list[str]:
    """Return the choices in three columns."""
    wide = [max(len(getattr(choice, key)) for choice in choices) for key in ("what", "value")]
    return [f"{each.what:{wide[0]}}  {each.value:{wide[1]}}  {each.why}".rstrip() for each in choices]


def names(plan: Plan) -> list[str]:
    """Return the names of all nodes."""
    return [member.node for member in plan.members]


def count_of(plan: Plan) -> str:
    """Return the number of nodes."""
    return f"cluster {plan.request.name}: {len(plan.members)} node{'s' * (len(plan.members) > 1)}"


def tell_check(plan: Plan, differs: bool, late: Sequence[str], until: datetime) -> str:
    """Return what would be done as a line."""
    renewed = f"the lease of {', '.join(late)} would be renewed until {until_text(until)}" if late else ""
    parts = ["would be made or changed" if differs else "", renewed]
    return f"{count_of(plan)}; {', '.join(filter(None, parts)) or 'nothing to do'}"


def tell(plan: Plan, files: Files, end: str) -> str:
    """Return the outcome as a line: how many nodes, until when, and what comes next."""
    grace = plan.request.grace_hours
    job = f", or up to {grace} h later while a job runs" if grace else ""
    lease = f"they end at {end}{job}; run the same command again to extend that"
    return f"{count_of(plan)}; {lease}; then: ansible-playbook -i {files.directory}/hosts.yml setup.yml"


# --- absent --------------------------------------------------------------------------------------------------------


def absent(name: str, region: Region, files: Files, check: bool, say: Say, owner: str = "") -> Done:
    """Remove a cluster, and prove that nothing of it is left that would be billed. `owner`: whose it may be."""
    files.refuse_elsewhere()
    stack = region.stack(stack_name(name))
    stack = None if stack and stack.status == DELETED else stack
    refuse_stranger(stack, name)
    if stack:
        refuse_another_owner(stack, files, owner, region.who)
    members = region.members(stack.id) if stack else []
    nodes = [each.node or each.id for each in members] or list(left_of(name, stack_name(name), region, members).own)
    changed = bool(stack or nodes or files.ours())
    if check:
        return Done(changed, f"cluster {name}: " + (f"would remove {what(nodes)}" if changed else "it does not exist"))
    if stack:
        say(f"stack {stack.name}: deleting {what(nodes)}")
        remove(stack, region)
    prove_absence(name, stack_name(name), region, members, say)
    files.remove()
    told = f"removed {what(nodes)}; nothing of it is left in {region.region}" if changed else "it does not exist"
    return Done(changed, f"cluster {name}: {told}", nodes)


def what(nodes: Sequence[str]) -> str:
    """Return what is removed."""
    return ", ".join(nodes) or "its remains"


def remove(stack: Stack, region: Region) -> None:
    """Delete a stack, and return when AWS says that it is gone. CloudError with the cause if a part stays."""
    began = stack.status != "DELETE_FAILED"  # that is also told for a moment after it is tried again
    if stack.status != "DELETE_IN_PROGRESS":
        region.delete(stack)
    deadline = time.monotonic() + WAIT_SECONDS
    while found := region.stack(stack.id):
        began = began or found.status == "DELETE_IN_PROGRESS"
        if found.status == DELETED:
            return
        if found.status == "DELETE_FAILED" and began:
            cause = cause_of(region.events(stack.id), "DELETE_IN_PROGRESS")
            told = f"{cause.resource}: {cause.reason}" if cause else found.reason
            raise CloudError("DeleteFailed", f"AWS did not delete stack {stack.name}: type it again", told)
        if time.monotonic() > deadline:
            raise CloudError("Waiting", f"stack {stack.name} is still in state {found.status}: type it again later")
        region.wait()
