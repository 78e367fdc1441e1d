#!/usr/bin/python
# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
---
module: ec2_cluster
short_description: Make, list and remove a cluster on EC2
description:
  - Makes a head and workers on EC2 as one CloudFormation stack, and writes an inventory with pinned host keys for them.
  - Each instance has a lease. When that is over it ends itself, even if the controller is gone, but not under a job.
  - AWS takes everything back if a part cannot be had. V(absent) returns when AWS finds nothing of the cluster any more.
  - Needs boto3 in Ansible's Python (C(requirements-ec2.txt)), and credentials where boto3 looks for them.
version_added: 0.5.0
author:
  - The torchfleet authors (@torchfleet)
options:
  cluster_state:
    description:
      - V(present) makes the cluster, completes one that is half made, replaces instances that are gone, adds or removes
        workers, and renews the lease. Nothing else of a cluster can change. V(absent) removes it. V(list) shows the
        clusters of all regions of the account.
    type: str
    choices: [present, absent, list]
    default: present
  cluster_name:
    description: Name of the cluster. Required unless O(cluster_state=list).
    type: str
  cluster_nodes:
    description:
      - C(workers), a group of instances or a list of such groups, and C(head) if another machine only starts the jobs.
      - A group has a C(type), and any of C(count), C(spot), C(image), C(disk_gb) and C(slots) (its GPUs by default,
        else its cores). Required for O(cluster_state=present).
    type: dict
  cluster_region:
    description: Region of AWS. The default is that of your AWS configuration.
    type: str
  cluster_hours:
    description:
      - Hours after which the instances end themselves, 1 to 720. They count from the last O(cluster_state=present), and
        never shorten a lease that is longer already.
    type: int
    default: 4
  cluster_grace_hours:
    description:
      - Hours that an instance waits at most, 0 to 720, if a job runs on it when its lease is over. It ends half an hour
        after the last job. With V(0) it ends under the job.
    type: int
    default: 24
  cluster_max_instances:
    description: The most instances that a cluster may have, 1 to 64. It refuses a typo in a count.
    type: int
    default: 8
  cluster_spot:
    description:
      - Whether workers are spot instances. AWS may end these at any time. The head is not unless its group says so.
    type: bool
    default: false
  cluster_image:
    description:
      - AMI, or SSM parameter that names one, of all groups that do not say their own. The default is Debian 12, with
        NVIDIA's GPUs AWS's Deep Learning Base AMI, with AMD's Ubuntu 24.04. It is resolved once, when the cluster is
        made.
    type: str
  cluster_disk_gb:
    description: Size of the root disk in GiB. It is at least that of the image.
    type: int
    default: 100
  cluster_subnet:
    description: Subnet of all instances. The default is a default subnet in a zone that has all types.
    type: str
  cluster_ssh_from:
    description:
      - IPv4 address or network that may log in. The default is the public address of this controller, as AWS sees it.
    type: str
  cluster_address:
    description:
      - Which address of the instances the controller uses. With V(private), which needs a VPN or a controller in the
        VPC, instances get an EFA interface on all their network cards, else on the first.
    type: str
    choices: [public, private]
    default: public
  cluster_owner:
    description:
      - Value of the tag C(torchfleet:owner). The default is the name of the user in AWS.
      - Removing a cluster of somebody else, whose key is not here, needs the name of its owner.
    type: str
  cluster_directory:
    description: Directory for the inventory, host keys and private key. The default is C(inventory/<cluster_name>).
    type: path
extends_documentation_fragment:
  - torchfleet.cluster.attributes
  - torchfleet.cluster.attributes.controller
  - torchfleet.cluster.attributes.once
attributes:
  check_mode:
    description: Shows each choice with its reason and what it costs, and changes nothing.
  diff_mode:
    description: Returns the templates of the stack.
    support: full
"""

EXAMPLES = r"""
- name: Make a small head and two workers with a GPU each
  torchfleet.cluster.ec2_cluster:
    cluster_name: demo
    cluster_region: eu-central-1
    cluster_nodes:
      head:
        type: t3.micro
      workers:
        count: 2
        type: g4dn.xlarge

- name: Remove it
  torchfleet.cluster.ec2_cluster:
    cluster_name: demo
    cluster_region: eu-central-1
    cluster_state: absent
"""

RETURN = r"""
nodes:
  description: The nodes of the cluster, or those that were removed.
  returned: with O(cluster_state=present) and O(cluster_state=absent)
  type: list
  elements: str
  sample: [n1, n2, n3]
expires:
  description: When the lease of the cluster ends, in UTC.
  returned: with O(cluster_state=present)
  type: str
  sample: "2026-11-26T23:40:00Z"
clusters:
  description:
    - One entry for each cluster. C(status) is that of its stack, and empty without one. C(instances) has the type of
      each instance, C(volumes) the ids of volumes that no instance uses, C(strangers) the ids of instances that no
      stack made, and that have the tag all the same.
  returned: with O(cluster_state=list)
  type: list
  elements: dict
  sample:
    - cluster: demo
      region: eu-central-1
      status: CREATE_COMPLETE
      instances: [g4dn.xlarge, g4dn.xlarge, t3.micro]
      volumes: []
      owner: alice
      expires: "2026-11-26T23:40:00Z"
      strangers: []
code:
  description: What AWS refused with, or a code of ours, such as C(NoCredentials).
  returned: on failure, if AWS is the reason
  type: str
  sample: InsufficientInstanceCapacity
msg:
  description: The outcome as a sentence.
  returned: always
  type: str
"""
