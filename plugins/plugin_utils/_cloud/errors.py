# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What AWS refuses, as one line. Codes of the API decide what to advise; its own sentence is quoted."""

from __future__ import annotations

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import shorten

LOG_IN = "log in again: aws sso login, or aws configure"
# Codes of AWS ("Common errors" of the references of EC2 and CloudFormation) or names of botocore's exceptions, and what
# to do about them.
ADVICE = {
    "NoCredentials": "give credentials: type aws configure, or set AWS_PROFILE, or AWS_ACCESS_KEY_ID and "
    "AWS_SECRET_ACCESS_KEY, in your environment",
    "NoRegion": "name one: -e cluster_region=eu-central-1",
    "NoConnection": "is there a network, and is the region right?",
    "AuthFailure": "are the credentials right, and is the region enabled for your account?",
    "UnrecognizedClientException": "are the credentials right, and is the region enabled for your account?",
    "InvalidClientTokenId": "are the credentials right?",
    "SignatureDoesNotMatch": "is the secret key right, and this machine's clock?",
    "ExpiredToken": LOG_IN,
    "ExpiredTokenException": LOG_IN,
    "TokenRetrievalError": LOG_IN,
    "SSOTokenLoadError": LOG_IN,
    "UnauthorizedSSOTokenError": LOG_IN,
    "CredentialRetrievalError": "look at credential_process, or at the role, of your AWS configuration",
    "OptInRequired": "subscribe to the image, or enable the service, in the console",
    "PendingVerification": "AWS verifies your account for this region: wait for its mail, then type it again",
    "Unsupported": "give another type, or cluster_subnet in another zone",
    "InsufficientFreeAddressesInSubnet": "give cluster_subnet with more free addresses",
    "LimitExceededException": "raise the quota in the console (Service Quotas), or remove what is not needed",
    "SecurityGroupLimitExceeded": "raise the quota in the console (Service Quotas, VPC), or remove security groups",
    "Throttling": "AWS throttles requests: run the same command again in a minute",
    "RequestExpired": "log in again, and look at this machine's clock",
    "UnauthorizedOperation": "your user lacks that right: docs/ec2.md lists what is needed",
    "AccessDenied": "your user lacks that right: docs/ec2.md lists what is needed",
    "InvalidInstanceType": "give types that the region has: aws ec2 describe-instance-types",
    "InvalidAMIID.NotFound": "an AMI belongs to one region: give one of this region",
    "ParameterNotFound": "give another cluster_image: an AMI (ami-...) or a public SSM parameter",
    "InvalidSubnetID.NotFound": "give a subnet of this region",
    "VcpuLimitExceeded": "raise the quota in the console (Service Quotas, EC2), or give fewer or smaller instances",
    "InstanceLimitExceeded": "raise the quota in the console (Service Quotas, EC2), or give fewer instances",
    "MaxSpotInstanceCountExceeded": "raise the quota of spot instances, or give -e cluster_spot=false",
    "InsufficientInstanceCapacity": "AWS has none left there: give another type, or cluster_subnet in another zone",
    "SpotMaxPriceTooLow": "give -e cluster_spot=false",
    "RequestLimitExceeded": "AWS throttles requests: run the same command again in a minute",
}


class CloudError(Exception):
    """AWS refused something, or did not do it: one line. `code` is AWS's own, or one of ours."""

    def __init__(self, code: str, what: str, said: str = "") -> None:
        told = f": {shorten(first_line(said), 300)}" if said else ""
        advice = f"; {ADVICE[code]}" if code in ADVICE else ""
        super().__init__(f"{what}{told}{advice}")
        self.code = code

    @classmethod
    def unreadable(cls, key: str) -> CloudError:
        """Return the error for an answer that does not have the form of the API's reference."""
        return cls("Unreadable", f"AWS answered without a usable {key}: does AWS_ENDPOINT_URL lead to AWS?")


def first_line(said: str) -> str:
    """Return the first line that is not empty, without control characters: a new machine may have said it."""
    line = next((line.strip() for line in said.splitlines() if line.strip()), "")
    return "".join(character for character in line if character.isprintable())


def code_in(said: str) -> str:
    """Return the code of AWS that a sentence of CloudFormation quotes, so that it has the same advice; else nothing.

    CloudFormation has no field for the code of the service that refused a resource, and only quotes its sentence.
    """
    quoted = {
        "InsufficientInstanceCapacity": (
            "InsufficientInstanceCapacity",
            "do not have sufficient",
            "no Spot capacity available",
        ),
        "VcpuLimitExceeded": ("VcpuLimitExceeded", "more vCPU capacity than your current vCPU limit"),
        "MaxSpotInstanceCountExceeded": ("MaxSpotInstanceCountExceeded", "Max spot instance count exceeded"),
        "InstanceLimitExceeded": ("InstanceLimitExceeded",),
        "UnauthorizedOperation": ("UnauthorizedOperation", "not authorized to perform"),
        "OptInRequired": ("OptInRequired", "you need to accept terms and subscribe"),
        "PendingVerification": ("PendingVerification", "is being validated"),
        "Unsupported": ("is not supported in your requested Availability Zone",),
        "InsufficientFreeAddressesInSubnet": ("InsufficientFreeAddressesInSubnet", "free addresses in subnet"),
        "SecurityGroupLimitExceeded": ("SecurityGroupLimitExceeded", "maximum number of security groups"),
    }
    return next((code for code, signs in quoted.items() if any(sign in said for sign in signs)), "")
