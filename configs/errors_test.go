package configs

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const (
	listener  = "listeners: [{address: ':18000'}]\n"
	authority = "authorities: [{name: cp, directory: .}]\n"
	fleetHead = head + "fleet: {name: edge, listen: '127.0.0.1:2', "
	jwtHead   = "listeners: [{address: ':1', jwt: {issuer: a, audiences: [b], "
)

// viewed are collections of clusters.
const viewed = "collections: ['xdstp://cp/envoy.config.cluster.v3.Cluster/*']"

// guarded is an authority with a guard.
func guarded(guard string) string {
	return listener + "authorities: [{name: cp, directory: .,\n  guard: " + guard + "}]\n"
}

// Every mistake, with all of its errors.
var mistakes = []struct {
	name, yaml, want string
}{
	{"memory that ends streams before it refuses names", "listeners: [{address: ':1', limits: {memory_names: 0.9}}]\n" + authority, `
relay.yaml:1:29: listeners[0].limits.memory_streams: 0.8 is less than limits.memory_names, which is 0.9 (want at least as much: names are refused before streams end)`},

	// A fleet
	{"an empty fleet", head + "fleet: {}\n", `
relay.yaml:3:1: fleet.name: missing (want a name that all members of the fleet have, such as edge)
relay.yaml:3:1: fleet.members: has none of etcd, dns and static (want one of them)
relay.yaml:3:1: fleet.listen: missing (want host:port or unix:/path)`},
	{"a fleet with two lists", fleetHead + "members: {dns: 'peers:1', static: ['a:1']}}\n", `relay.yaml:3:44: fleet.members: has several of etcd, dns and static (want one of them)`},
	{"a fleet of nobody", fleetHead + "members: {static: []}}\n", `relay.yaml:3:54: fleet.members.static: is empty (want the addresses of all members, such as [10.0.0.1:18100, 10.0.0.2:18100])`},
	{"an empty list in etcd", fleetHead + "members: {etcd: {}}}\n", `relay.yaml:3:54: fleet.members.etcd.endpoints: is missing or empty (want the URLs of etcd's members, such as [https://etcd-0.example.com:2379])`},
	{"an etcd without URLs", fleetHead + "members: {etcd: {endpoints: ['etcd-0:2379', 'http://etcd-0:2379/v3', 'https://etcd-0']}}}\n", `
relay.yaml:3:73: fleet.members.etcd.endpoints[0]: "etcd-0:2379" is no URL of etcd (want https://host:port, or http://host:port for plaintext)
relay.yaml:3:88: fleet.members.etcd.endpoints[1]: "http://etcd-0:2379/v3" is no URL of etcd (want https://host:port, or http://host:port for plaintext)
relay.yaml:3:113: fleet.members.etcd.endpoints[2]: "etcd-0" has no port (want host:port)`},
	{"an etcd with and without TLS", fleetHead + "members: {etcd: {endpoints: ['http://etcd-0:2379', 'https://etcd-1:2379'], tls: {ca_file: a, cert_file: b}}}}\n", `
relay.yaml:3:61: fleet.members.etcd.endpoints: has https and http URLs (want all with TLS, or none)
relay.yaml:3:119: fleet.members.etcd.tls: is given, and the endpoints are plaintext (want https URLs)
relay.yaml:3:119: fleet.members.etcd.tls.key_file: missing (want the key of cert_file, or neither)`},
	{"a prefix that is no folder, and a short lease", fleetHead + "members: {etcd: {endpoints: ['http://etcd-0:2379'], prefix: relays, lease: 1500ms}}}\n", `
relay.yaml:3:96: fleet.members.etcd.prefix: "relays" does not begin and end with a slash (want a folder such as /xds-relay/)
relay.yaml:3:112: fleet.members.etcd.lease: 1.5s is no lease of etcd (want a whole number of seconds from 2s to 1m0s)`},
	{"a member twice", fleetHead + "members: {static: ['a:1', 'b:1', 'a:1']}}\n", `relay.yaml:3:77: fleet.members.static[2]: "a:1" is already fleet.members.static[0] (want each member once)`},
	{"members without a port", fleetHead + "members: {dns: peers}}\n", `relay.yaml:3:54: fleet.members.dns: "peers" has no port (want host:port)`},
	{"a fleet on a unix socket", head + "fleet: {name: edge, listen: 'unix:/a', members: {static: ['a:1']}}\n", `relay.yaml:3:21: fleet.listen: "unix:/a" is a unix socket, which other hosts cannot reach (want host:port)`},
	{"a fleet that anyone can reach", head + "fleet: {name: edge, listen: ':2', members: {static: ['a:1']}}\n", `relay.yaml:3:21: fleet.listen: ":2": other hosts can reach it, and there is no fleet.tls, so anyone there could have everything that the relay has (want fleet.tls with cert_file, key_file, ca_file and server_id)`},
	{"a fleet at the clients' door", head + "fleet: {name: edge, listen: ':18000', tls: {cert_file: a, key_file: b, ca_file: c, server_id: d}, members: {static: ['a:1']}}\n", `relay.yaml:3:21: fleet.listen: ":18000" is already listeners[0].address (want another port)`},
	{"a fleet whose members nobody knows", head + "fleet: {name: edge, listen: ':2', tls: {cert_file: a, key_file: b, ca_file: c}, members: {static: ['a:1']}}\n", `relay.yaml:3:35: fleet.tls.server_id: missing (want the SPIFFE ID or DNS name in the certificates of all members: without it, everyone with a certificate of ca_file could have everything that the relay has)`},
	{"a member that is a trust domain", head + "fleet: {name: edge, listen: ':2', tls: {cert_file: a, key_file: b, ca_file: c, server_id: 'spiffe://a'}, members: {static: ['a:1']}}\n", `relay.yaml:3:80: fleet.tls.server_id: "spiffe://a" is a trust domain and no server (want spiffe://TRUST-DOMAIN/PATH)`},
	{"a name among addresses", fleetHead + "advertise: 'relay-1:1', members: {dns: 'peers:1'}}\n", `relay.yaml:3:44: fleet.advertise: "relay-1:1" has a name, and members.dns gives IP addresses (want IP:port)`},

	// YAML
	{"syntax", "a: b\n  c: [", `relay.yaml:2: not YAML: mapping values are not allowed in this context`},
	{"two documents", head + "---\n" + head, `relay.yaml:3:1: a second YAML document starts here (want one)`},
	{"an empty document", "# nothing\n", `
relay.yaml:1:1: listeners: missing (want at least one, such as - address: 127.0.0.1:18000)
relay.yaml:1:1: authorities: missing (want at least one, with a name and servers or a directory)`},
	{"a list for the document", "- a\n", `relay.yaml:1:1: is a list (want a map with listeners, admin, node, authorities, old_style_names, views, rights, descriptors, cache, store, drain, fleet)`},
	{"an alias", "node: &n {id: a}\ncache: *n\n" + head, `relay.yaml:2:8: cache: *n is a YAML alias, which is not supported (want the value itself)`},

	// Keys
	{"a misspelled key", listener + "authorities:\n  - nmae: cp\n    directory: .\n", `relay.yaml:3:5: authorities[0].nmae: unknown key (did you mean "name"?)`},
	{"a key in the wrong case", "Listeners: [{address: ':18000'}]\n" + authority, `relay.yaml:1:1: Listeners: unknown key (did you mean "listeners"?)`},
	{"a key with a hyphen", head + "cache: {idle-entries: 1}\n", `relay.yaml:3:9: cache.idle-entries: unknown key (did you mean "idle_entries"?)`},
	{"an unknown key", head + "cache: {size: 1}\n", `relay.yaml:3:9: cache.size: unknown key (want one of linger, idle_entries, idle_scopes, tombstones)`},
	{"an unknown key where there is one", head + "admin: {address: '[::1]:1', 'a b': 1}\n", `relay.yaml:3:29: admin."a b": unknown key (want one of address, mode, ready_timeout, tls)`},
	{"a key twice", head + "cache:\n  linger: 1m\n  linger: 2m\n", `relay.yaml:5:3: cache.linger: is given twice (first in line 4)`},
	{"a key that is a list", head + "cache: {[a]: 1}\n", `relay.yaml:3:9: cache: a key is a list (want text)`},
	{"metadata twice", head + "node: {metadata: {a: 1, A: 2, a: 3}}\n", `relay.yaml:3:31: node.metadata.a: is given twice (first in line 3)`},
	{"metadata with a number for a key", head + "node: {metadata: {a: {1: 2}}}\n", `relay.yaml:3:23: node.metadata.a: a key is a number (want text)`},
	{"an alias in metadata", head + "node: {metadata: {a: &x 1, b: *x}}\n", `relay.yaml:3:31: node.metadata.b: *x is a YAML alias, which is not supported (want the value itself)`},
	{"a bad boolean in metadata", head + "node: {metadata: {a: !!bool x}}\n", `relay.yaml:3:22: node.metadata.a: "x" is not a boolean (want true or false)`},
	{"a bad number in metadata", head + "node: {metadata: {a: [!!int x]}}\n", `relay.yaml:3:23: node.metadata.a[0]: "x" is not a number (want one such as 1 or 2.5)`},

	// Types
	{"no value", head + "admin:\n", `relay.yaml:3:7: admin: has no value (want a map with address, mode, ready_timeout, tls, or no such key)`},
	{"empty text", head + "node: {id: ''}\n", `relay.yaml:3:12: node.id: is "" (want text, or no such key)`},
	{"too long an id", head + "node: {id: " + strings.Repeat("x", 257) + "}\n", `relay.yaml:3:8: node.id: has 257 bytes (want at most 256)`},
	{"a number for text", head + "node: {id: 1}\n", `relay.yaml:3:12: node.id: 1 is a number (want text: "1")`},
	{"a boolean for text", head + "old_style_names: [{when: true, authority: cp}]\n", `relay.yaml:3:26: old_style_names[0].when: true is a boolean (want text: "true")`},
	{"a date for text", head + "node: {id: 2020-01-01}\n", `relay.yaml:3:12: node.id: 2020-01-01 is a date (want text: "2020-01-01")`},
	{"a list for text", head + "node: {id: [a]}\n", `relay.yaml:3:12: node.id: is a list (want text)`},
	{"a map for a list", "listeners: {address: ':1'}\n" + authority, `relay.yaml:1:12: listeners: is a map (want a list, each entry with "- " before it)`},
	{"text for an entry", listener + "authorities: [cp]\n", `relay.yaml:2:15: authorities[0]: "cp" is text (want a map with name, servers, directory, failover, guard, check, context_parameters, rollout, load_reports)`},
	{"no way to take load reports", listener + "authorities:\n  - {name: cp, load_reports: sometimes, servers: [{address: cp:1}]}\n", `relay.yaml:3:30: authorities[0].load_reports: "sometimes" does not say whether there are load reports (want on or off)`},
	{"text for a map", head + "cache: 5m\n", `relay.yaml:3:8: cache: "5m" is text (want a map with linger, idle_entries, idle_scopes, tombstones)`},
	{"text for metadata", head + "node: {metadata: x}\n", `relay.yaml:3:18: node.metadata: "x" is text (want a map)`},
	{"text for a number", head + "cache: {idle_entries: many}\n", `relay.yaml:3:23: cache.idle_entries: "many" is text (want a whole number)`},
	{"a fraction for a number", head + "cache: {idle_entries: 1.5}\n", `relay.yaml:3:23: cache.idle_entries: "1.5" is a number (want a whole number)`},
	{"a tag of one's own", head + "node: {id: !x a}\n", `relay.yaml:3:12: node.id: a is !x (want text: "a")`},

	// Times, sizes, counts
	{"no tombstones", head + "cache: {tombstones: {limit: 0}}\n", `relay.yaml:3:29: cache.tombstones.limit: 0 is out of range (want 1 or more)`},
	{"tombstones without time", head + "cache: {tombstones: {ttl: 0s}}\n", `relay.yaml:3:27: cache.tombstones.ttl: 0s is not a time to wait (want more than 0s)`},
	{"zero entries", head + "cache: {idle_entries: 0}\n", `relay.yaml:3:23: cache.idle_entries: 0 is out of range (want 1 or more)`},
	{"zero subscriptions", "listeners: [{address: ':18000', limits: {subscriptions: 0, streams: all}}]\n" + authority, `
relay.yaml:1:57: listeners[0].limits.subscriptions: 0 is out of range (want 1 or more)
relay.yaml:1:69: listeners[0].limits.streams: "all" is text (want a whole number)`},
	{"too many entries", head + "cache: {idle_entries: 9223372036854775808}\n", `relay.yaml:3:23: cache.idle_entries: 9223372036854775808 is out of range (want 1 or more)`},
	{"a time without a unit", head + "cache: {linger: 300}\n", `relay.yaml:3:17: cache.linger: 300 has no unit (want a duration such as 300s)`},
	{"not a time", head + "cache: {linger: 5 minutes}\n", `relay.yaml:3:17: cache.linger: "5 minutes" is not a duration (want a number with ms, s, m or h, such as 30s)`},
	{"a boolean for a time", head + "cache: {linger: false}\n", `relay.yaml:3:17: cache.linger: "false" is a boolean (want a duration such as 30s)`},
	{"a list for a time", head + "cache: {linger: []}\n", `relay.yaml:3:17: cache.linger: is a list (want a duration such as 30s)`},
	{"no time", head + "cache: {tombstones: {ttl: 0s}}\n", `relay.yaml:3:27: cache.tombstones.ttl: 0s is not a time to wait (want more than 0s)`},
	{"no time, without a unit", head + "cache: {tombstones: {ttl: 0}}\n", `relay.yaml:3:27: cache.tombstones.ttl: 0 is not a time to wait (want more than 0s)`},
	{"no linger, without a unit", head + "cache: {linger: 0}\n", `relay.yaml:3:17: cache.linger: 0 has no unit (want a duration such as 0s)`},
	{"less than no time", head + "cache: {linger: -5m}\n", `relay.yaml:3:17: cache.linger: -5m is not a time to wait (want more than 0s)`},
	{"not a size", "listeners: [{address: ':1', max_request_bytes: 4MB}]\n" + authority, `relay.yaml:1:48: listeners[0].max_request_bytes: "4MB" is not a size (want bytes, from 1 to 2 GiB - 1, such as 4194304 or 4MiB)`},
	{"size zero", "listeners: [{address: ':1', max_request_bytes: 0}]\n" + authority, `relay.yaml:1:48: listeners[0].max_request_bytes: "0" is not a size (want bytes, from 1 to 2 GiB - 1, such as 4194304 or 4MiB)`},
	{"a size below zero", "listeners: [{address: ':1', max_request_bytes: -1MiB}]\n" + authority, `relay.yaml:1:48: listeners[0].max_request_bytes: "-1MiB" is not a size (want bytes, from 1 to 2 GiB - 1, such as 4194304 or 4MiB)`},
	{"too large a size", "listeners: [{address: ':1', max_request_bytes: 2GiB}]\n" + authority, `relay.yaml:1:48: listeners[0].max_request_bytes: "2GiB" is not a size (want bytes, from 1 to 2 GiB - 1, such as 4194304 or 4MiB)`},
	{"a list for a size", "listeners: [{address: ':1', max_request_bytes: []}]\n" + authority, `relay.yaml:1:48: listeners[0].max_request_bytes: is a list (want a size such as 4MiB)`},
	{"connections that end at once", "listeners: [{address: ':1', max_connection_age: 1ms}]\n" + authority, `relay.yaml:1:29: listeners[0].max_connection_age: 1ms is too short: clients would do nothing but connect (want 100ms or more, or 0s for no limit)`},
	{"a drain for months", head + "drain: {time: 2000h}\n", `relay.yaml:3:9: drain.time: 2000h0m0s is too long (want at most 24h0m0s)`},
	{"pings from a listener too often", "listeners: [{address: ':1', keepalive: {time: 1ms}}]\n" + authority, `relay.yaml:1:41: listeners[0].keepalive.time: 1ms is too short (want 1s or more)`},
	{"windows that gRPC would raise", "listeners: [{address: ':1', windows: {stream: 1, connection: 63KiB}}]\nauthorities: [{name: a, servers: [{address: 'a:1', windows: {connection: 1KiB}}]}]\n", `
relay.yaml:1:39: listeners[0].windows.stream: 1 is too small (want 64KiB or more)
relay.yaml:1:50: listeners[0].windows.connection: 63KiB is too small (want 64KiB or more)
relay.yaml:2:62: authorities[0].servers[0].windows.connection: 1KiB is too small (want 64KiB or more)`},
	{"buffers that are no buffers", "listeners: [{address: ':1', buffers: {read: 4, write: 1GiB}}]\n" + authority, `
relay.yaml:1:39: listeners[0].buffers.read: 4 is too small (want 1KiB to 4MiB)
relay.yaml:1:48: listeners[0].buffers.write: 1GiB is too large (want 1KiB to 4MiB)`},
	{"gRPC's options for REST", "listeners: [{address: ':1', protocol: rest, csds: true, prefetch: true, when_unreachable: end, limits: {streams_per_connection: 1, scopes_per_connection: 1, streams_per_second: 1}, windows: {stream: 1}, buffers: {read: 1}}]\nauthorities: [{name: a, servers: [{address: 'a:1', protocol: rest, windows: {stream: 1}}]}]\n", `
relay.yaml:1:45: listeners[0].csds: is for gRPC, and this is rest (want no such key, or protocol: grpc)
relay.yaml:1:57: listeners[0].prefetch: is for gRPC, and this is rest (want no such key, or protocol: grpc)
relay.yaml:1:73: listeners[0].when_unreachable: is for gRPC, and this is rest (want no such key, or protocol: grpc)
relay.yaml:1:105: listeners[0].limits.streams_per_connection: is for gRPC, and this is rest (want no such key, or protocol: grpc)
relay.yaml:1:132: listeners[0].limits.scopes_per_connection: is for gRPC, and this is rest (want no such key, or protocol: grpc)
relay.yaml:1:158: listeners[0].limits.streams_per_second: is for gRPC, and this is rest (want no such key, or protocol: grpc)
relay.yaml:1:182: listeners[0].windows: is for gRPC, and this is rest (want no such key, or protocol: grpc)
relay.yaml:1:204: listeners[0].buffers: is for gRPC, and this is rest (want no such key, or protocol: grpc)
relay.yaml:2:68: authorities[0].servers[0].windows: is for gRPC, and this is rest (want no such key, or protocol: auto)`},

	// Listeners
	{"no listeners", authority, `relay.yaml:1:1: listeners: missing (want at least one, such as - address: 127.0.0.1:18000)`},
	{"a listener without address", "listeners: [{}]\n" + authority, `relay.yaml:1:13: listeners[0].address: missing (want host:port or unix:/path)`},
	{"a listener without port", "listeners: [{address: localhost}]\n" + authority, `relay.yaml:1:14: listeners[0].address: "localhost" has no port (want host:port)`},
	{"a listener with a bad port", "listeners: [{address: ':65536'}]\n" + authority, `relay.yaml:1:14: listeners[0].address: "65536" is not a port in ":65536" (want 0 to 65535)`},
	{"a listener with a bad host", "listeners: [{address: 'a/b:1'}]\n" + authority, `relay.yaml:1:14: listeners[0].address: "a/b" is not a host in "a/b:1" (want host:port)`},
	{"a listener with a scheme", "listeners: [{address: 'http://a:1'}]\n" + authority, `relay.yaml:1:14: listeners[0].address: "http://a:1" has a scheme (want host:port)`},
	{"a bare IPv6 address", "listeners: [{address: '::1'}]\n" + authority, `relay.yaml:1:14: listeners[0].address: "::1" has too many colons (want host:port, with an IPv6 address in brackets: [::1]:18000)`},
	{"half a bracket", "listeners: [{address: '[::1:1'}]\n" + authority, `relay.yaml:1:14: listeners[0].address: "[::1:1" is not an address (want host:port)`},
	{"an address twice", "listeners: [{address: ':1'}, {address: ':1'}]\n" + authority, `relay.yaml:1:31: listeners[1].address: ":1" is already listeners[0].address (want another port)`},
	{"balancers without addresses", "listeners: [{address: ':1', proxy_protocol: {}}]\n" + authority, `relay.yaml:1:29: listeners[0].proxy_protocol.trusted: missing (want the balancers' addresses, such as [10.0.0.0/24])`},
	{"balancers by name", "listeners: [{address: ':1', proxy_protocol: {trusted: [lb.example.com]}}]\n" + authority, `relay.yaml:1:56: listeners[0].proxy_protocol.trusted[0]: "lb.example.com" is not an address of balancers (want an IP address, a network such as 10.0.0.0/24, or unix)`},
	{"balancers in an address with a network", "listeners: [{address: ':1', proxy_protocol: {trusted: [10.0.0.1/24]}}]\n" + authority, `relay.yaml:1:56: listeners[0].proxy_protocol.trusted[0]: 10.0.0.1/24 has bits beyond its network (want 10.0.0.0/24)`},
	{"balancers with mapped addresses", "listeners: [{address: ':1', proxy_protocol: {trusted: ['::ffff:10.0.0.1']}}]\n" + authority, `relay.yaml:1:56: listeners[0].proxy_protocol.trusted[0]: ::ffff:10.0.0.1 is an IPv4 address in IPv6 notation (want the IPv4 address or network)`},
	{"balancers on a unix socket that there is not", "listeners: [{address: ':1', proxy_protocol: {trusted: [10.0.0.1, unix]}}]\n" + authority, `relay.yaml:1:66: listeners[0].proxy_protocol.trusted[1]: unix is for unix sockets (want an IP address or a network, or address: unix:/path)`},
	{"balancers with addresses on a unix socket", "listeners: [{address: 'unix:/a', proxy_protocol: {trusted: [10.0.0.1]}}]\n" + authority, `relay.yaml:1:61: listeners[0].proxy_protocol.trusted[0]: 10.0.0.1 never connects to a unix socket (want unix)`},
	{"a condition for clients over a Node", "listeners: [{address: ':1', admit: node.id == ''}]\n" + authority, `relay.yaml:1:29: listeners[0].admit: does not compile: column 1: undeclared reference to 'node' (want CEL over identity)`},
	{"a condition for clients over what they cannot prove", "listeners: [{address: ':1', admit: identity.name == ''}]\n" + authority, `relay.yaml:1:29: listeners[0].admit: does not compile: column 9: undefined field 'name' (want CEL over identity)`},
	{"a condition for clients that is text", "listeners: [{address: ':1', admit: identity.spiffe_id}]\n" + authority, `relay.yaml:1:29: listeners[0].admit: gives string (want bool)`},
	{"tokens of anybody", "listeners: [{address: ':1', jwt: {}}]\n" + authority, `
relay.yaml:1:29: listeners[0].jwt.issuer: missing (want the issuer of the tokens, such as https://kubernetes.default.svc)
relay.yaml:1:29: listeners[0].jwt.audiences: missing (want the audiences of the tokens, such as [xds-relay]: without one, tokens for any other service would do)
relay.yaml:1:29: listeners[0].jwt: has neither jwks_file nor jwks_url (want one of them)`},
	{"tokens for nobody", "listeners: [{address: ':1', jwt: {issuer: a, audiences: ['']}}]\n" + authority, `
relay.yaml:1:29: listeners[0].jwt: has neither jwks_file nor jwks_url (want one of them)
relay.yaml:1:58: listeners[0].jwt.audiences[0]: is "" (want text, or no such key)`},
	{"keys twice", jwtHead + "jwks_file: a, jwks_url: 'https://a/b'}}]\n" + authority, `relay.yaml:1:29: listeners[0].jwt: has both jwks_file and jwks_url (want one of them)`},
	{"keys from a file of a CA", jwtHead + "jwks_file: a, jwks_ca_file: b}}]\n" + authority, `relay.yaml:1:76: listeners[0].jwt.jwks_ca_file: is for jwks_url (want no such key)`},
	{"keys in plaintext", jwtHead + "jwks_url: 'http://issuer/keys'}}]\n" + authority, `relay.yaml:1:62: listeners[0].jwt.jwks_url: "http://issuer/keys" is not encrypted, so others on the path could forge keys (want https, or a loopback host)`},
	{"keys with a password", jwtHead + "jwks_url: 'https://a:b@issuer/keys'}}]\n" + authority, `relay.yaml:1:62: listeners[0].jwt.jwks_url: has a user (want https://host/path, and jwks_token_file)`},
	{"keys from a file URL", jwtHead + "jwks_url: 'file://host/keys'}}]\n" + authority, `relay.yaml:1:62: listeners[0].jwt.jwks_url: "file://host/keys" is not of https (want https://host/path)`},
	{"keys from nowhere", jwtHead + "jwks_url: keys}}]\n" + authority, `relay.yaml:1:62: listeners[0].jwt.jwks_url: is not a URL (want https://host/path)`},
	{"keys of this host", jwtHead + "jwks_url: 'http://127.0.0.1:1/keys'}}]\n" + "x: 1\n" + authority, `relay.yaml:2:1: x: unknown key (want one of listeners, admin, node, authorities, old_style_names, views, rights, descriptors, cache, store, drain, fleet)`},
	{"a mode of what is no unix socket", "listeners: [{address: ':1', mode: '0600'}]\n" + authority, `relay.yaml:1:29: listeners[0].mode: is for unix sockets (want no such key, or address: unix:/path)`},
	{"a unix socket of no path", "listeners: [{address: 'unix:'}]\n" + authority, `relay.yaml:1:14: listeners[0].address: "unix:" has no path (want unix:/path)`},
	{"a unix socket twice", "listeners: [{address: 'unix:/a'}, {address: 'unix:/a'}]\n" + authority, `relay.yaml:1:36: listeners[1].address: "unix:/a" is already listeners[0].address (want another path)`},
	{"admin without address", head + "admin: {}\n", `relay.yaml:3:1: admin.address: missing (want host:port or unix:/path)`},
	{"admin on a listener", head + "admin: {address: ':18000'}\n", `relay.yaml:3:9: admin.address: ":18000" is already listeners[0].address (want another port)`},
	{"admin for everybody", head + "admin: {address: '0.0.0.0:19000'}\n", `relay.yaml:3:9: admin.address: "0.0.0.0:19000": other hosts can reach it, and there is no admin.tls, so anyone there could read what the relay serves to whom (want a loopback address such as 127.0.0.1:19000, unix:/path, or admin.tls with cert_file, key_file and client_ca_file)`},
	{"a listener of no protocol", "listeners: [{address: ':1', protocol: http}]\n" + authority, `relay.yaml:1:39: listeners[0].protocol: "http" is not a protocol of listeners (want grpc or rest)`},
	{"streams that do what nobody knows", "listeners: [{address: ':1', when_unreachable: never}]\n" + authority, `relay.yaml:1:47: listeners[0].when_unreachable: "never" is not a value of when_unreachable (want auto, end or wait)`},
	{"redirects that are ignored", "listeners: [{address: ':1', redirects: ignore}]\n" + authority, `relay.yaml:1:40: listeners[0].redirects: "ignore" is not a value of redirects (want follow or pass)`},
	{"a listener of a protocol of servers", "listeners: [{address: ':1', protocol: delta}]\n" + authority, `relay.yaml:1:39: listeners[0].protocol: "delta" is not a protocol of listeners (want grpc or rest)`},
	{"text for a switch", "listeners: [{address: ':1', v2: \"yes\"}]\n" + authority, `relay.yaml:1:33: listeners[0].v2: "yes" is text (want true or false)`},
	{"a number for a switch", "listeners: [{address: ':1', v2: 2}]\n" + authority, `relay.yaml:1:33: listeners[0].v2: "2" is a number (want true or false)`},
	{"a list for a switch", "listeners: [{address: ':1', v2: []}]\n" + authority, `relay.yaml:1:33: listeners[0].v2: is a list (want true or false)`},
	{"a bad switch", "listeners: [{address: ':1', v2: !!bool x}]\n" + authority, `relay.yaml:1:33: listeners[0].v2: "x" is a boolean (want true or false)`},
	{"a poll that does not wait", "listeners: [{address: ':1', long_poll: 0s}]\n" + authority, `relay.yaml:1:40: listeners[0].long_poll: 0s is not a time to wait (want more than 0s)`},
	{"TLS to clients without files", "listeners: [{address: ':1', tls: {}}]\n" + authority, `
relay.yaml:1:29: listeners[0].tls.cert_file: missing (want the file of the server's certificate)
relay.yaml:1:29: listeners[0].tls.key_file: missing (want the file of the certificate's key)`},

	// Authorities
	{"no authorities", listener, `relay.yaml:1:1: authorities: missing (want at least one, with a name and servers or a directory)`},
	{"an authority without name", listener + "authorities: [{directory: .}]\n", `relay.yaml:2:15: authorities[0].name: missing (want the authority of xdstp://AUTHORITY/..., which may be "")`},
	{"an authority twice", listener + "authorities:\n- {name: a, directory: .}\n- {name: a, directory: .}\n", `relay.yaml:4:4: authorities[1].name: "a" is already authorities[0] (want each name once)`},
	{"an authority that is a name", listener + "authorities: [{name: 'xdstp://a/b', directory: .}]\n", `relay.yaml:2:16: authorities[0].name: "xdstp://a/b" has a scheme (want the authority alone, as in xdstp://AUTHORITY/...)`},
	{"a bad authority", listener + "authorities: [{name: 'a/b', directory: .}]\n", `relay.yaml:2:16: authorities[0].name: "a/b" is not an authority (want what a URL has between // and /, or *.suffix)`},
	{"every authority", listener + "authorities: [{name: '*', directory: .}]\n", `relay.yaml:2:16: authorities[0].name: "*" has a * that is not its first label (want a name, or *.suffix)`},
	{"a * in the middle", listener + "authorities: [{name: 'a.*.b', directory: .}]\n", `relay.yaml:2:16: authorities[0].name: "a.*.b" has a * that is not its first label (want a name, or *.suffix)`},
	{"a pattern of nothing", listener + "authorities: [{name: '*.', directory: .}]\n", `relay.yaml:2:16: authorities[0].name: "*." is not an authority (want what a URL has between // and /, or *.suffix)`},
	{"a pattern with an empty label", listener + "authorities: [{name: '*..a', directory: .}]\n", `relay.yaml:2:16: authorities[0].name: "*..a" is not an authority (want what a URL has between // and /, or *.suffix)`},
	{"no source", listener + "authorities: [{name: a}]\n", `relay.yaml:2:15: authorities[0]: has neither servers nor directory (want one of them)`},
	{"two sources", listener + "authorities: [{name: a, directory: ., servers: [{address: 'a:1'}]}]\n", `relay.yaml:2:15: authorities[0]: has both servers and directory (want one of them)`},
	{"an empty list of servers", listener + "authorities: [{name: a, servers: []}]\n", `relay.yaml:2:25: authorities[0].servers: is empty (want at least one server, such as - address: cp.example.com:443)`},
	{"a server twice", listener + "authorities: [{name: a, servers: [{address: 'a:1'}, {address: 'b:1'}, {address: 'a:1'}]}]\n", `relay.yaml:2:72: authorities[0].servers[2].address: "a:1" is already authorities[0].servers[0] (want each server once)`},
	{"a policy", listener + "authorities: [{name: a, servers: [{address: 'a:1'}], failover: {policy: always}}]\n", `relay.yaml:2:73: authorities[0].failover.policy: "always" is not a policy of failover (want missing or unreachable)`},
	{"another word than off for the guard", guarded("on"), `relay.yaml:3:10: authorities[0].guard: "on" is text (want off, or a map with ratio, least, when, hold)`},
	{"a boolean for the guard", guarded("false"), `relay.yaml:3:10: authorities[0].guard: "false" is a boolean (want off, or a map with ratio, least, when, hold)`},
	{"a list for the guard", guarded("[off]"), `relay.yaml:3:10: authorities[0].guard: is a list (want off, or a map with ratio, least, when, hold)`},
	{"an unknown key of the guard", guarded("{minimum: 1}"), `relay.yaml:3:11: authorities[0].guard.minimum: unknown key (want one of ratio, least, when, hold)`},
	{"a ratio of all and more", guarded("{ratio: 1.1}"), `relay.yaml:3:18: authorities[0].guard.ratio: "1.1" is not a part of a whole (want a number above 0 and up to 1, such as 0.5)`},
	{"a ratio of nothing", guarded("{ratio: 0}"), `relay.yaml:3:18: authorities[0].guard.ratio: "0" is not a part of a whole (want a number above 0 and up to 1, such as 0.5)`},
	{"a ratio that is no number", guarded("{ratio: .nan}"), `relay.yaml:3:18: authorities[0].guard.ratio: ".nan" is not a part of a whole (want a number above 0 and up to 1, such as 0.5)`},
	{"a ratio in percent", guarded("{ratio: 50%}"), `relay.yaml:3:18: authorities[0].guard.ratio: "50%" is not a part of a whole (want a number above 0 and up to 1, such as 0.5)`},
	{"a list for a ratio", guarded("{ratio: [1]}"), `relay.yaml:3:18: authorities[0].guard.ratio: is a list (want a number above 0 and up to 1, such as 0.5)`},
	{"at least none", guarded("{least: 0}"), `relay.yaml:3:18: authorities[0].guard.least: 0 is out of range (want 1 or more)`},
	{"an unknown time of the guard", guarded("{when: never}"), `relay.yaml:3:17: authorities[0].guard.when: "never" is not a time of the guard (want reconnect or always)`},
	{"a hold without a unit", guarded("{hold: 10}"), `relay.yaml:3:17: authorities[0].guard.hold: 10 has no unit (want a duration such as 10s)`},
	{"versions that one server shares", listener + "authorities: [{name: a, servers: [{address: 'a:1'}], failover: {shared_versions: true}}]\n", `relay.yaml:2:65: authorities[0].failover.shared_versions: is true, but there is one server (want several, or no such key)`},
	{"a way to check resources", listener + "authorities: [{name: a, directory: ., check: error}]\n", `relay.yaml:2:46: authorities[0].check: "error" is not a way to check resources (want warn, refuse or off)`},
	{"a directory that cannot be reached", listener + "authorities: [{name: a, directory: ., failover: {policy: missing, timeout: 1s, grace: 1s, shared_versions: false, not_found: true, hysteresis: 1s}}]\n", `
relay.yaml:2:50: authorities[0].failover.policy: is for servers, and a directory can always be reached (want no such key)
relay.yaml:2:67: authorities[0].failover.timeout: is for servers, and a directory can always be reached (want no such key)
relay.yaml:2:80: authorities[0].failover.grace: is for servers, and a directory can always be reached (want no such key)
relay.yaml:2:91: authorities[0].failover.shared_versions: is for servers, and a directory can always be reached (want no such key)`},
	{"a misspelled source", listener + "authorities: [{name: a, server: [{address: 'a:1'}]}]\n", `relay.yaml:2:25: authorities[0].server: unknown key (did you mean "servers"?)`},

	{"a policy of nothing", listener + "authorities: [{name: a, directory: ., context_parameters: {}}]\n", `relay.yaml:2:39: authorities[0].context_parameters: is empty (want drop, keep or require, or no such key)`},
	{"drop and keep, and an empty list", listener + "authorities:\n- name: a\n  directory: .\n  context_parameters:\n    drop: [a]\n    keep: []\n", `
relay.yaml:5:3: authorities[0].context_parameters: has both drop and keep (want one of them: what keep does not name is dropped)
relay.yaml:7:5: authorities[0].context_parameters.keep: is empty (want at least one key, such as - shard, or no such key)`},
	{"bad context parameters", listener + "authorities: [{name: a, directory: ., context_parameters: {drop: [a, 'a.*.b', a, '*b', 'c*'], require: [b, a, 'cd*', '', cc]}}]\n", `
relay.yaml:2:70: authorities[0].context_parameters.drop[1]: "a.*.b" has a * that is not at its end (want a key, or the beginning of keys and a *)
relay.yaml:2:79: authorities[0].context_parameters.drop[2]: "a" is already drop[0] (want each once)
relay.yaml:2:82: authorities[0].context_parameters.drop[3]: "*b" has a * that is not at its end (want a key, or the beginning of keys and a *)
relay.yaml:2:108: authorities[0].context_parameters.require[1]: "a" is required and dropped (want it kept, or not required)
relay.yaml:2:111: authorities[0].context_parameters.require[2]: "cd*" is required and dropped (want it kept, or not required)
relay.yaml:2:118: authorities[0].context_parameters.require[3]: is "" (want text, or no such key)
relay.yaml:2:122: authorities[0].context_parameters.require[4]: "cc" is required and dropped (want it kept, or not required)`},
	{"a bad rollout", listener + "authorities: [{name: a, directory: ., rollout: {types: [listner, cds, cluster], cohort: node.idd, steps: [50%, 10%, 100%, x], soak: 1ms, grow: 1}}]\n", `
relay.yaml:2:57: authorities[0].rollout.types[0]: unknown type "listner" (want one of listener|lds, route|rds, scoped-route|srds, virtual-host|vhds, cluster|cds, endpoint|eds, locality-endpoint|leds, secret|sds, runtime|rtds, extension|ecds, or a type URL)
relay.yaml:2:71: authorities[0].rollout.types[2]: is there twice (want each type once)
relay.yaml:2:81: authorities[0].rollout.cohort: does not compile: column 5: undefined field 'idd' (did you mean "id"?) (want CEL over node, identity and user_agent)
relay.yaml:2:112: authorities[0].rollout.steps[1]: 10% is not more than the step before it (want rising steps, such as [1%, 10%, 50%])
relay.yaml:2:117: authorities[0].rollout.steps[2]: "100%" is not a part of a cohort (want a percentage above 0% and below 100%, such as 10%)
relay.yaml:2:123: authorities[0].rollout.steps[3]: "x" is not a part of a cohort (want a percentage above 0% and below 100%, such as 10%)
relay.yaml:2:127: authorities[0].rollout.soak: 1ms is too short (want 10ms or more)
relay.yaml:2:138: authorities[0].rollout.grow: 1 is not more than 1 (want a number above 1, such as 3 or 2.5)`},
	{"a factor that is none", listener + "authorities: [{name: a, directory: ., rollout: {grow: -3, steps: []}}]\n", `relay.yaml:2:55: authorities[0].rollout.grow: "-3" is not a factor (want a number above 1, such as 3 or 2.5)`},
	{"what is required is not kept", listener + "authorities: [{name: a, directory: ., context_parameters: {keep: ['a*'], require: [a, b, 'a.*']}}]\n", `relay.yaml:2:87: authorities[0].context_parameters.require[1]: "b" is required and dropped (want it kept, or not required)`},

	// Servers
	{"a server without address", listener + "authorities: [{name: a, servers: [{}]}]\n", `relay.yaml:2:35: authorities[0].servers[0].address: missing (want host:port)`},
	{"a server without port", listener + "authorities:\n- name: a\n  servers:\n  - address: cp.example.com\n", `relay.yaml:5:5: authorities[0].servers[0].address: "cp.example.com" has no port (want host:port)`},
	{"a server without host", listener + "authorities: [{name: a, servers: [{address: ':1'}]}]\n", `relay.yaml:2:36: authorities[0].servers[0].address: ":1" has no host (want host:port)`},
	{"a server on port 0", listener + "authorities: [{name: a, servers: [{address: 'a:0'}]}]\n", `relay.yaml:2:36: authorities[0].servers[0].address: "0" is not a port in "a:0" (want 1 to 65535)`},
	{"a server on a named port", listener + "authorities: [{name: a, servers: [{address: 'a:https'}]}]\n", `relay.yaml:2:36: authorities[0].servers[0].address: "https" is not a port in "a:https" (want 1 to 65535)`},
	{"a protocol", listener + "authorities: [{name: a, servers: [{address: 'a:1', protocol: grpc}]}]\n", `relay.yaml:2:62: authorities[0].servers[0].protocol: "grpc" is not a protocol (want auto, delta, sotw or rest)`},
	{"a number for a protocol", listener + "authorities: [{name: a, servers: [{address: 'a:1', protocol: 3}]}]\n", `relay.yaml:2:62: authorities[0].servers[0].protocol: 3 is a number (want text: "3")`},
	{"text for a boolean", listener + "authorities: [{name: a, servers: [{address: 'a:1', aggregated: yes}]}]\n", `relay.yaml:2:64: authorities[0].servers[0].aggregated: "yes" is text (want true or false)`},
	{"a list for a boolean", listener + "authorities: [{name: a, servers: [{address: 'a:1', aggregated: []}]}]\n", `relay.yaml:2:64: authorities[0].servers[0].aggregated: is a list (want true or false)`},
	{"polling without REST", listener + "authorities: [{name: a, servers: [{address: 'a:1', poll_interval: 5s, request_timeout: 5s}]}]\n", `
relay.yaml:2:52: authorities[0].servers[0].poll_interval: is for protocol rest, and this is auto (want no such key, or protocol: rest)
relay.yaml:2:71: authorities[0].servers[0].request_timeout: is for protocol rest, and this is auto (want no such key, or protocol: rest)`},
	{"polling with a misspelled REST", listener + "authorities: [{name: a, servers: [{address: 'a:1', protocol: REST, poll_interval: 5s}]}]\n", `relay.yaml:2:62: authorities[0].servers[0].protocol: "REST" is not a protocol (want auto, delta, sotw or rest)`},
	{"what does not go with REST", listener + "authorities: [{name: a, servers: [{address: 'a:1', protocol: rest, aggregated: true, poll_interval: 1ms, keepalive: {time: 1m}}]}]\n", `
relay.yaml:2:68: authorities[0].servers[0].aggregated: is for gRPC, and this is rest (want no such key, or protocol: auto)
relay.yaml:2:86: authorities[0].servers[0].poll_interval: 1ms is too short (want 100ms or more)
relay.yaml:2:106: authorities[0].servers[0].keepalive: is for gRPC (want no such key: with protocol rest, request_timeout finds a server that went away)`},
	{"no such requests with the Node", listener + "authorities: [{name: a, servers: [{address: 'a:1', node: always}]}]\n", `relay.yaml:2:58: authorities[0].servers[0].node: "always" does not say which requests have the Node (want every_request or first_request)`},
	{"the Node in REST", listener + "authorities: [{name: a, servers: [{address: 'a:1', protocol: rest, node: first_request}]}]\n", `relay.yaml:2:68: authorities[0].servers[0].node: is for gRPC, and this is rest (want no such key, or protocol: auto)`},
	{"globs in SotW", listener + "authorities: [{name: a, servers: [{address: 'a:1', protocol: sotw, globs: true}]}]\n", `relay.yaml:2:68: authorities[0].servers[0].globs: is for protocols auto and delta, and this is sotw (want no such key, or protocol: auto)`},
	{"pings to a server too often", listener + "authorities: [{name: a, servers: [{address: 'a:1', keepalive: {time: 5s}}]}]\n", `relay.yaml:2:64: authorities[0].servers[0].keepalive.time: 5s is too short (want 10s or more)`},
	{"requests without room for names", listener + "authorities: [{name: a, servers: [{address: 'a:1', max_request_bytes: 4095}]}]\n", `relay.yaml:2:52: authorities[0].servers[0].max_request_bytes: 4095 is too small (want 4KiB or more)`},
	{"probes of a server that is only busy", listener + "authorities: [{name: a, servers: [{address: 'a:1', probe: {after: 1ms, timeout: 99ms}}]}]\n", `
relay.yaml:2:60: authorities[0].servers[0].probe.after: 1ms is too short (want 100ms or more)
relay.yaml:2:72: authorities[0].servers[0].probe.timeout: 99ms is too short (want 100ms or more)`},
	{"a backoff that shrinks", listener + "authorities: [{name: a, servers: [{address: 'a:1', backoff: {base: 1m}}]}]\n", `relay.yaml:2:52: authorities[0].servers[0].backoff: base 1m0s is more than max 30s (want base up to max)`},
	{"TLS without a value", listener + "authorities: [{name: a, servers: [{address: 'a:1', tls: }]}]\n", `relay.yaml:2:57: authorities[0].servers[0].tls: has no value (want a map with ca_file, cert_file, key_file, server_name, server_id, spiffe, min_version, or no such key)`},
	{"client_certificates without roots", "listeners: [{address: ':1', tls: {cert_file: a, key_file: b, client_certificates: optional}}]\n" + authority, `relay.yaml:1:29: listeners[0].tls.client_ca_file: missing, and client_certificates needs it (want the file of the roots of client certificates)`},
	{"a value of client_certificates", "listeners: [{address: ':1', tls: {cert_file: a, key_file: b, client_ca_file: c, client_certificates: some}}]\n" + authority, `relay.yaml:1:102: listeners[0].tls.client_certificates: "some" is not a value of client_certificates (want require or optional)`},
	{"a version of TLS", "listeners: [{address: ':1', tls: {cert_file: a, key_file: b, min_version: '1.1'}}]\n" + authority, `relay.yaml:1:75: listeners[0].tls.min_version: "1.1" is not a version of TLS (want 1.2 or 1.3)`},
	{"a version of TLS without quotes", "listeners: [{address: ':1', tls: {cert_file: a, key_file: b, min_version: 1.3}}]\n" + authority, `relay.yaml:1:75: listeners[0].tls.min_version: 1.3 is a number (want text: "1.3")`},
	{"an agent and files", "listeners: [{address: ':1', tls: {cert_file: a, client_ca_file: c, spiffe: {workload_api: 'unix:/a'}}}]\n" + authority, `
relay.yaml:1:35: listeners[0].tls.cert_file: is given, and so is spiffe, which replaces it (want one of them)
relay.yaml:1:49: listeners[0].tls.client_ca_file: is given, and so is spiffe, which replaces it (want one of them)`},
	{"an agent without an address", "listeners: [{address: ':1', tls: {spiffe: {}}}]\n" + authority, `relay.yaml:1:35: listeners[0].tls.spiffe.workload_api: missing (want the address of the agent, such as unix:/run/spire/agent.sock)`},
	{"an agent by a relative path", "listeners: [{address: ':1', tls: {spiffe: {workload_api: 'unix:a.sock'}}}]\n" + authority, `relay.yaml:1:44: listeners[0].tls.spiffe.workload_api: "unix:a.sock" is not the address of a Workload API (want unix:/path or tcp://IP:port)`},
	{"an agent by a host name", "listeners: [{address: ':1', tls: {spiffe: {workload_api: 'tcp://agent:1'}}}]\n" + authority, `relay.yaml:1:44: listeners[0].tls.spiffe.workload_api: "tcp://agent:1" is not the address of a Workload API (want unix:/path or tcp://IP:port)`},
	{"an agent and files towards a server", listener + "authorities: [{name: a, servers: [{address: 'a:1', tls: {ca_file: a, spiffe: {workload_api: 'tcp://127.0.0.1:1'}}}]}]\n", `relay.yaml:2:58: authorities[0].servers[0].tls.ca_file: is given, and so is spiffe, which replaces it (want one of them)`},
	{"a token without TLS", listener + "authorities: [{name: a, servers: [{address: 'a:1', token_file: a}]}]\n", `relay.yaml:2:52: authorities[0].servers[0].token_file: needs tls: without it, anyone on the path could read the token (want tls, which may be {})`},
	{"a server_id that is a trust domain", listener + "authorities: [{name: a, servers: [{address: 'a:1', tls: {server_id: 'spiffe://a.org'}}]}]\n", `relay.yaml:2:58: authorities[0].servers[0].tls.server_id: "spiffe://a.org" is a trust domain and no server (want spiffe://TRUST-DOMAIN/PATH)`},
	{"a server_id that is no SPIFFE ID", listener + "authorities: [{name: a, servers: [{address: 'a:1', tls: {server_id: 'https://a.org/b'}}]}]\n", `relay.yaml:2:58: authorities[0].servers[0].tls.server_id: "https://a.org/b" is not a SPIFFE ID: scheme is missing or invalid (want spiffe://TRUST-DOMAIN/PATH)`},
	{"a server_id that is an address", listener + "authorities: [{name: a, servers: [{address: 'a:1', tls: {server_id: 10.0.0.1}}]}]\n", `relay.yaml:2:58: authorities[0].servers[0].tls.server_id: "10.0.0.1" is neither a SPIFFE ID nor a DNS name (want such as spiffe://example.org/istiod or istiod.example.org)`},
	{"a server_id with a wildcard", listener + "authorities: [{name: a, servers: [{address: 'a:1', tls: {server_id: '*.a.org'}}]}]\n", `relay.yaml:2:58: authorities[0].servers[0].tls.server_id: "*.a.org" is neither a SPIFFE ID nor a DNS name (want such as spiffe://example.org/istiod or istiod.example.org)`},
	{"a certificate without key", listener + "authorities: [{name: a, servers: [{address: 'a:1', tls: {cert_file: a}}]}]\n", `relay.yaml:2:52: authorities[0].servers[0].tls.key_file: missing (want the key of cert_file, or neither)`},
	{"a key without certificate", listener + "authorities: [{name: a, servers: [{address: 'a:1', tls: {key_file: a}}]}]\n", `relay.yaml:2:52: authorities[0].servers[0].tls.cert_file: missing (want the certificate of key_file, or neither)`},

	// Rules
	{"a rule without authority", head + "old_style_names: [{when: 'true'}]\n", `relay.yaml:3:19: old_style_names[0].authority: missing (want the name of an authority)`},
	{"a rule for no authority", head + "old_style_names: [{authority: other}]\n", `relay.yaml:3:20: old_style_names[0].authority: "other" is not in authorities (want one of ["cp"])`},
	{"a rule for a misspelled authority", listener + "authorities: [{name: cloud.example.com, directory: .}]\nold_style_names: [{authority: clod.example.com}]\n", `relay.yaml:3:20: old_style_names[0].authority: "clod.example.com" is not in authorities (did you mean "cloud.example.com"?)`},
	{"a rule for a pattern", listener + "authorities: [{name: '*.example.com', directory: .}]\nold_style_names: [{authority: '*.example.com'}]\n", `relay.yaml:3:20: old_style_names[0].authority: "*.example.com" is a pattern (want the name of one authority that it covers)`},
	{"a rule outside a pattern", listener + "authorities: [{name: '*.example.com', directory: .}, {name: cp, directory: .}]\nold_style_names: [{authority: .example.com}]\n", `relay.yaml:3:20: old_style_names[0].authority: ".example.com" is not in authorities (want one of ["cp"])`},
	{"a condition that does not parse", head + "old_style_names: [{when: 'node.id ==', authority: cp}]\n", `relay.yaml:3:20: old_style_names[0].when: does not compile: column 11: Syntax error: the expression ends too early (want CEL over node, identity and type_url)`},
	{"a condition with one =", head + "old_style_names: [{when: 'node.id = \"a\"', authority: cp}]\n", `relay.yaml:3:20: old_style_names[0].when: does not compile: column 9: Syntax error: token recognition error at: '= ' (did you mean "=="?); column 11: Syntax error: extraneous input '"a"' expecting <EOF> (want CEL over node, identity and type_url)`},
	{"a condition over something else", head + "old_style_names: [{when: request.id == '' || nod.id == '', authority: cp}]\n", `relay.yaml:3:20: old_style_names[0].when: does not compile: column 1: undeclared reference to 'request'; column 21: undeclared reference to 'nod' (did you mean 'node'?) (want CEL over node, identity and type_url)`},
	{"a condition over a field that Node has not", head + "old_style_names:\n- authority: cp\n  when: |\n    node.id == 'a' &&\n    node.clustr == 'b'\n", `relay.yaml:5:3: old_style_names[0].when: does not compile: line 2, column 5: undefined field 'clustr' (did you mean "cluster"?) (want CEL over node, identity and type_url)`},
	{"a condition that is text", head + "old_style_names: [{when: node.id, authority: cp}]\n", `relay.yaml:3:20: old_style_names[0].when: gives string (want bool)`},
	{"a condition with a bad pattern", head + "old_style_names: [{when: 'node.id.matches(\"(\")', authority: cp}]\n", "relay.yaml:3:20: old_style_names[0].when: does not compile: error parsing regexp: missing closing ): `(` (want CEL over node, identity and type_url)"},
	{"a pattern from the client", head + "old_style_names: [{when: '\"a\".matches(node.id)', authority: cp}]\n", `relay.yaml:3:20: old_style_names[0].when: takes the pattern of matches() from the client (want a constant)`},
	{"a partition that does not compile", head + "old_style_names: [{authority: cp, partition: node.zone}]\n", `relay.yaml:3:35: old_style_names[0].partition: does not compile: column 5: undefined field 'zone' (did you mean "locality.zone"?) (want CEL over node, identity and type_url)`},
	{"a partition that is a number", head + "old_style_names: [{authority: cp, partition: size(node.id)}]\n", `relay.yaml:3:35: old_style_names[0].partition: gives int (want string)`},
	{"rules after the last", head + "old_style_names:\n- {authority: cp}\n- {when: node.id == '', authority: cp}\n- {authority: cp}\n", `
relay.yaml:5:3: old_style_names[1]: can never match, because old_style_names[0] always does (want that rule last)
relay.yaml:6:3: old_style_names[2]: can never match, because old_style_names[0] always does (want that rule last)`},
	{"a rule after one that is true", head + "old_style_names:\n- {when: 'true', authority: cp}\n- {authority: cp}\n", `relay.yaml:5:3: old_style_names[1]: can never match, because old_style_names[0] always does (want that rule last)`},
	{"a condition twice", head + "old_style_names:\n- {when: node.id == '', authority: cp}\n- {when: node.id == '', authority: cp}\n", `relay.yaml:5:4: old_style_names[1].when: can never match, because old_style_names[0] has the same condition (want another one)`},

	{"text for a rule", head + "old_style_names: [cp]\n", `relay.yaml:3:19: old_style_names[0]: "cp" is text (want a map with when, authority, partition, node_fields)`},
	{"a rule without authorities", listener + "old_style_names: [{authority: cp}]\n", `relay.yaml:1:1: authorities: missing (want at least one, with a name and servers or a directory)`},
	{"a rule after one whose condition cannot be read", head + "old_style_names: [{when: 1, authority: cp}, {authority: cp}]\n", `relay.yaml:3:26: old_style_names[0].when: 1 is a number (want text: "1")`},

	// Views
	{"a view of nothing", head + "views: [{}]\n", `
relay.yaml:3:9: views[0].match: missing (want a type and wildcard: true, or a glob, or a list)
relay.yaml:3:9: views[0].collections: missing (want at least one URL of a list or a glob collection)`},
	{"a view without what is asked for", head + "views: [{match: {type: cluster}, " + viewed + "}]\n", `relay.yaml:3:10: views[0].match: does not say what clients ask for (want a type and wildcard: true, or a glob, or a list)`},
	{"a view of a wildcard of no type", head + "views: [{match: {wildcard: true}, " + viewed + "}]\n", `relay.yaml:3:10: views[0].match.type: missing (want the type of the wildcard: one of listener|lds, route|rds, scoped-route|srds, virtual-host|vhds, cluster|cds, endpoint|eds, locality-endpoint|leds, secret|sds, runtime|rtds, extension|ecds, or a type URL)`},
	{"a view of an unknown type", head + "views: [{match: {type: clusters, wildcard: true}, " + viewed + "}]\n", `relay.yaml:3:24: views[0].match.type: unknown type "clusters" (want one of listener|lds, route|rds, scoped-route|srds, virtual-host|vhds, cluster|cds, endpoint|eds, locality-endpoint|leds, secret|sds, runtime|rtds, extension|ecds, or a type URL)`},
	{"a view of no wildcard", head + "views: [{match: {type: cluster, wildcard: false}, " + viewed + "}]\n", `relay.yaml:3:33: views[0].match.wildcard: is false (want true, or no such key and a glob or a list)`},
	{"a view of two", head + "views: [{match: {type: cluster, wildcard: true, glob: 'xdstp://f/T/*'}, " + viewed + "}]\n", `relay.yaml:3:10: views[0].match: has wildcard and glob (want one of them)`},
	{"a view of a glob with a type", head + "views: [{match: {type: cluster, glob: 'xdstp://f/envoy.config.cluster.v3.Cluster/*'}, " + viewed + "}]\n", `relay.yaml:3:18: views[0].match.type: goes with wildcard (want no such key: the glob has its type in its name)`},
	{"a view of a glob that is none", head + "views: [{match: {glob: 'xdstp://f/T/a'}, " + viewed + "}]\n", `relay.yaml:3:18: views[0].match.glob: "xdstp://f/T/a" is not the name of a glob collection, xdstp://authority/type/.../*`},
	{"a view of a glob with directives", head + "views: [{match: {glob: 'xdstp://f/T/*#alt=xdstp://g/T/*'}, " + viewed + "}]\n", `relay.yaml:3:18: views[0].match.glob: xdstp name "xdstp://f/T/*#alt=xdstp://g/T/*": directives on a resource name "#alt=xdstp://g/T/*" (want none, or %23 for a # in the name) at offset 13`},
	{"a view of a list that is none", head + "views: [{match: {list: 'xdstp://f/T/a'}, " + viewed + "}]\n", `relay.yaml:3:18: views[0].match.list: "xdstp://f/T/a" is not the name of a list collection, xdstp://authority/...Collection/id`},
	{"a view of an old-style name", head + "views: [{match: {list: a}, " + viewed + "}]\n", `relay.yaml:3:18: views[0].match.list: "a" is not the name of a list collection, xdstp://authority/...Collection/id`},
	{"a view with a bad condition", head + "views: [{match: {type: cluster, wildcard: true}, when: node.id, " + viewed + "}]\n", `relay.yaml:3:50: views[0].when: gives string (want bool)`},
	{"a view that renames what has no directory", head + "views: [{match: {type: cluster, wildcard: true}, rename: true, " + viewed + "}]\n", `relay.yaml:3:50: views[0].rename: is for views of a glob, which give members a directory (want no such key)`},
	{"a view of what is no collection", head + "views:\n- match: {type: T.x, wildcard: true}\n  collections:\n  - a\n  - 1\n  - xdstp://cp\n  - xdstp://cp/T.x/a\n  - xdstp://cp/T.xCollection/a#entry=b\n  - xdstp://cp/T.y/*\n  - xdstp://cp/T.x/*#alt=xdstp://cq/T.xCollection/a\n  - xdstp://cp/T.x/a%2A\n  - xdstp://cp/T.x/*#alt=xdstp://cq/T.xCollection/a\n", `
relay.yaml:6:5: views[0].collections[0]: "a" is not an xdstp URL (want one of a list or a glob collection)
relay.yaml:7:5: views[0].collections[1]: 1 is a number (want text: "1")
relay.yaml:8:5: views[0].collections[2]: xdstp name "xdstp://cp": no resource type (want xdstp://authority/type/id) at offset 10
relay.yaml:9:5: views[0].collections[3]: "xdstp://cp/T.x/a" is one resource (want a glob, which ends in /*, or a list, whose type ends in Collection)
relay.yaml:10:5: views[0].collections[4]: "xdstp://cp/T.xCollection/a#entry=b" is one resource (want a glob, which ends in /*, or a list, whose type ends in Collection)
relay.yaml:11:5: views[0].collections[5]: "xdstp://cp/T.y/*" is of type T.y (want T.x for a glob or T.xCollection for a list, as in match)
relay.yaml:12:5: views[0].collections[6]: "cq" is not in authorities (did you mean "cp"?)
relay.yaml:13:5: views[0].collections[7]: "xdstp://cp/T.x/a*" is one resource (want a glob, which ends in /*, or a list, whose type ends in Collection)
relay.yaml:14:5: views[0].collections[8]: "xdstp://cp/T.x/*#alt=xdstp://cq/T.xCollection/a" is already views[0].collections[6] (want each once)`},
	{"a view after one for all", head + "views:\n- {match: {type: cluster, wildcard: true}, " + viewed + "}\n- {match: {type: cds, wildcard: true}, when: node.id == 'a', " + viewed + "}\n", `relay.yaml:5:3: views[1]: can never match, because views[0] matches the same for every client (want that view later)`},
	{"a view with the same condition", head + "views:\n- {match: {glob: 'xdstp://f/envoy.config.cluster.v3.Cluster/a%2Ab/*'}, when: node.id == 'a', " + viewed + "}\n- {match: {glob: 'xdstp://f/envoy.config.cluster.v3.Cluster/a*b/*'}, when: node.id == 'a', " + viewed + "}\n", `relay.yaml:5:70: views[1].when: can never match, because views[0] matches the same under the same condition (want another one)`},

	// One mistake hides no other, and has one error.
	{"all at once", `
listeners:
  - adress: 127.0.0.1:18000
  - 18001
  - address: localhost
admin: {address: [127.0.0.1:19000]}
authorities:
  - name: cloud.example.com
    servers:
      - address: cp.example.com
        protocol: xml
        keepalive: 5m
  - name: [onprem]
    directory: .
  - name: cloud.example.com
    server: {address: cp}
old_style_names:
  - when: node.id
    authority: onprem
  - authority: cloud.example.com
    partition: 1
  - when: "false"
    authority: cloud.example.com
cache:
  linger: -1s
  idle_entries: none
`, `
relay.yaml:3:5: listeners[0].adress: unknown key (did you mean "address"?)
relay.yaml:4:5: listeners[1]: "18001" is a number (want a map with address, mode, protocol, v2, csds, long_poll, max_request_bytes, max_response_bytes, redirects, prefetch, when_unreachable, secrets, limits, admission, max_connection_age, keepalive, windows, buffers, tls, jwt, proxy_protocol, admit, relays)
relay.yaml:5:5: listeners[2].address: "localhost" has no port (want host:port)
relay.yaml:6:18: admin.address: is a list (want text)
relay.yaml:10:9: authorities[0].servers[0].address: "cp.example.com" has no port (want host:port)
relay.yaml:11:19: authorities[0].servers[0].protocol: "xml" is not a protocol (want auto, delta, sotw or rest)
relay.yaml:12:20: authorities[0].servers[0].keepalive: "5m" is text (want a map with time, timeout)
relay.yaml:13:11: authorities[1].name: is a list (want text)
relay.yaml:15:5: authorities[2].name: "cloud.example.com" is already authorities[0] (want each name once)
relay.yaml:16:5: authorities[2].server: unknown key (did you mean "servers"?)
relay.yaml:18:5: old_style_names[0].when: gives string (want bool)
relay.yaml:21:16: old_style_names[1].partition: 1 is a number (want text: "1")
relay.yaml:22:5: old_style_names[2]: can never match, because old_style_names[1] always does (want that rule last)
relay.yaml:25:11: cache.linger: -1s is not a time to wait (want more than 0s)
relay.yaml:26:17: cache.idle_entries: "none" is text (want a whole number)`},
}

func TestEveryErrorSaysTheMistakeItsPlaceAndWhatWouldBeRight(t *testing.T) {
	for _, tt := range mistakes {
		t.Run(tt.name, func(t *testing.T) {
			c, err := Parse("relay.yaml", []byte(tt.yaml))
			if err == nil {
				t.Fatalf("got %+v, want an error", c)
			}
			if want := strings.TrimPrefix(tt.want, "\n"); err.Error() != want {
				t.Errorf("got\n%s\nwant\n%s", err, want)
			}
			var all Errors
			if !errors.As(err, &all) {
				t.Fatalf("got a %T, want Errors", err)
			}
			if got, want := len(all.Unwrap()), strings.Count(err.Error(), "\n")+1; got != want {
				t.Errorf("got %d errors in %d lines", got, want)
			}
		})
	}
}

func TestLoadSaysWhatItCannotRead(t *testing.T) {
	_, err := Load(filepath.Join("examples", "none.yaml"))
	if want := "configuration: open examples/none.yaml: no such file or directory"; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v is not fs.ErrNotExist", err)
	}
}

func TestLoadNamesTheFileInErrors(t *testing.T) {
	file := filepath.Join(t.TempDir(), "bad.yaml")
	if err := os.WriteFile(file, []byte(head+"x: y\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Load(file)
	want := fmt.Sprintf("%s:3:1: x: unknown key (want one of listeners, admin, node, authorities, old_style_names, views, rights, descriptors, cache, store, drain, fleet)", file)
	if err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

func FuzzParse(f *testing.F) {
	for _, tt := range mistakes {
		f.Add([]byte(tt.yaml))
	}
	examples, _ := filepath.Glob("examples/*.yaml")
	for _, file := range examples {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := Parse("fuzz.yaml", data)
		if (c == nil) != (err != nil) {
			t.Errorf("got %v and %v", c, err)
		}
		if err == nil {
			c.Node.Proto()
			for i := range c.OldStyleNames {
				_, _ = c.OldStyleNames[i].Matches(Client{}, "")
				_, _ = c.OldStyleNames[i].PartitionOf(Client{}, "")
			}
			for i := range c.Views {
				_, _ = c.Views[i].Matches(Client{})
			}
		}
		if err != nil && err.Error() == "" {
			t.Error("an error without text")
		}
		lines := 1 + bytes.Count(data, []byte("\n")) + bytes.Count(data, []byte("\r"))
		all, _ := errors.AsType[Errors](err)
		for _, e := range all {
			if e.File != "fuzz.yaml" || e.Line < 0 || e.Line > lines+1 {
				t.Errorf("an error at %s:%d of %d lines: %v", e.File, e.Line, lines, e.Err)
			}
		}
		if again, _ := Parse("fuzz.yaml", data); Fingerprint(again) != Fingerprint(c) {
			t.Errorf("the same text is %+v, and then %+v", c, again)
		}
	})
}
