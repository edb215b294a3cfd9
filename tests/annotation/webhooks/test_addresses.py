"""Addresses that Rondo asks: none of a special-purpose block, by webhooks and by model servers alike."""

import ipaddress

import pytest

from annotation.services import addresses
from annotation.services.addresses import is_public
from training import engine as server_addresses

# IANA IPv4 Special-Purpose Address Registry, and multicast.
IPV4 = {
    "0.0.0.0/8": '"This network"',
    "0.0.0.0/32": '"This host on this network"',
    "10.0.0.0/8": "Private-Use",
    "100.64.0.0/10": "Shared Address Space",
    "127.0.0.0/8": "Loopback",
    "169.254.0.0/16": "Link Local",
    "172.16.0.0/12": "Private-Use",
    "192.0.0.0/24": "IETF Protocol Assignments",
    "192.0.0.0/29": "IPv4 Service Continuity Prefix",
    "192.0.0.8/32": "IPv4 dummy address",
    "192.0.0.9/32": "Port Control Protocol Anycast",
    "192.0.0.10/32": "Traversal Using Relays around NAT Anycast",
    "192.0.0.170/32": "NAT64/DNS64 Discovery",
    "192.0.0.171/32": "NAT64/DNS64 Discovery",
    "192.0.2.0/24": "Documentation (TEST-NET-1)",
    "192.31.196.0/24": "AS112-v4",
    "192.52.193.0/24": "AMT",
    "192.88.99.0/24": "Deprecated (6to4 Relay Anycast)",
    "192.88.99.2/32": "6a44-relay anycast address",
    "192.168.0.0/16": "Private-Use",
    "192.175.48.0/24": "Direct Delegation AS112 Service",
    "198.18.0.0/15": "Benchmarking",
    "198.51.100.0/24": "Documentation (TEST-NET-2)",
    "203.0.113.0/24": "Documentation (TEST-NET-3)",
    "224.0.0.0/4": "Multicast",
    "240.0.0.0/4": "Reserved",
    "255.255.255.255/32": "Limited Broadcast",
}
# IANA IPv6 Special-Purpose Address Registry, then what it has given up or other registries hold.
IPV6 = {
    "::1/128": "Loopback Address",
    "::/128": "Unspecified Address",
    "64:ff9b:1::/48": "IPv4-IPv6 Translat.",
    "100::/64": "Discard-Only Address Block",
    "100:0:0:1::/64": "Dummy IPv6 Prefix",
    "2001::/23": "IETF Protocol Assignments",
    "2001::/32": "TEREDO",
    "2001:1::1/128": "Port Control Protocol Anycast",
    "2001:1::2/128": "Traversal Using Relays around NAT Anycast",
    "2001:1::3/128": "DNS-SD Service Registration Protocol Anycast",
    "2001:2::/48": "Benchmarking",
    "2001:3::/32": "AMT",
    "2001:4:112::/48": "AS112-v6",
    "2001:10::/28": "Deprecated (previously ORCHID)",
    "2001:20::/28": "ORCHIDv2",
    "2001:30::/28": "Drone Remote ID Protocol Entity Tags (DETs) Prefix",
    "2001:db8::/32": "Documentation",
    "2002::/16": "6to4",
    "2620:4f:8000::/48": "Direct Delegation AS112 Service",
    "3fff::/20": "Documentation",
    "5f00::/16": "Segment Routing (SRv6) SIDs",
    "fc00::/7": "Unique-Local",
    "fe80::/10": "Link-Local Unicast",
    "fec0::/10": "Deprecated (Site-Local)",
    "ff00::/8": "Multicast",
    "::/96": "Deprecated (IPv4-Compatible)",
    "::ffff:0:0:0/96": "IPv4-Translated (SIIT)",
    "4000::/3": "Unallocated",
    "8000::/1": "Unallocated, but for the blocks above",
}
INSIDE = ("10.1.2.3", "127.0.0.1", "169.254.169.254", "192.0.0.8")


@pytest.mark.parametrize("block", [*IPV4, *IPV6], ids=[*IPV4, *IPV6])
def test_no_address_of_a_special_purpose_block_is_public(block: str):
    network = ipaddress.ip_network(block)
    middle = network[network.num_addresses // 2]
    assert [str(ip) for ip in (network[0], middle, network[-1]) if is_public(str(ip))] == []


@pytest.mark.parametrize("inside", INSIDE)
@pytest.mark.parametrize("prefix", ["::ffff:", "64:ff9b::", "2a00:1450::5efe:", "2a00:1450::200:5efe:"])
def test_an_inside_address_of_ipv4_is_not_public_in_any_address_of_ipv6_that_leads_to_it(
    prefix: str, inside: str
):
    assert not is_public(f"{prefix}{inside}")
    assert is_public(f"{prefix}8.8.8.8")


@pytest.mark.parametrize(
    "address",
    [
        "1.1.1.1",
        "192.0.1.1",
        "192.88.98.1",
        "198.20.0.1",
        "223.255.255.254",
        "2001:200::1",
        "2a00:1450::1",
        "3ffe::1",
    ],
)
def test_the_rest_of_the_internet_is_public(address: str):
    assert is_public(address)


def test_webhooks_and_model_servers_have_the_same_guard():
    assert issubclass(server_addresses.ModelServerTransport, addresses.GuardedTransport)
    assert issubclass(server_addresses.ModelServerTransport, addresses.GuardedTransport)
    assert issubclass(server_addresses.AsyncModelServerTransport, addresses.AsyncGuardedTransport)
