package resource

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/cespare/xxhash/v2"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/xds-relay/xds-relay/internal/wire"
	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// Some resources claim what only one resource can have: a Listener its addresses, a ScopedRouteConfiguration its key, a
// VirtualHost its domains. Envoy refuses a second one with the claim of a first, so what takes a claim proves that its
// former owner is gone.

// The numbers of the fields that hold claims. v2 has the same, without additional_addresses and bind_to_port.
const (
	listenerAddress             = 2
	listenerDeprecatedV1        = 7
	listenerBindToPort          = 26
	listenerAdditionalAddresses = 33
	additionalAddress           = 1
	deprecatedBindToPort        = 1
	boolValue                   = 1

	addressSocket = 1
	addressPipe   = 2
	pipePath      = 1

	socketProtocol  = 1
	socketAddress   = 2
	socketPort      = 3
	socketNamespace = 7

	scopeKey       = 3
	scopeFragments = 1
	scopeString    = 1

	hostDomains = 2
)

// HasClaims reports whether resources of a type have claims.
func HasClaims(typeURL string) bool { return xdstype.Of(typeURL).Claims }

// Claims returns hashes of what the resource claims, nil for types without claims (xdstype.Type.Claims), and for a
// resource that cannot be read. It looks at the top of the message, and at what it claims, but not at the rest.
func (r *Resource) Claims() []uint64 {
	t := xdstype.Of(r.typeURL)
	if !t.Claims {
		return nil
	}
	var claims []uint64
	var err error
	switch t {
	case xdstype.Listener:
		claims, err = listenerClaims(r.Value())
	case xdstype.ScopedRoute:
		claims, err = scopeClaims(r.Value())
	case xdstype.VirtualHost:
		claims, err = hostClaims(r.Name(), r.Value())
	}
	if err != nil {
		return nil
	}
	return claims
}

// hashed returns a claim: the hash of its parts.
func hashed(parts ...string) uint64 {
	var h xxhash.Digest
	h.Reset()
	for _, part := range parts {
		_, _ = h.WriteString(part)
		_, _ = h.Write([]byte{0})
	}
	return h.Sum64()
}

// part is a message field. If it occurs several times, its values are joined, as protobuf wants it.
type part struct {
	value   []byte
	present bool
}

func (p *part) add(value []byte) {
	if !p.present {
		p.present, p.value = true, slices.Clip(value) // so that append copies it
		return
	}
	p.value = append(p.value, value...)
}

// partOf returns a message field.
func partOf(message []byte, num protowire.Number) (p part, err error) {
	f := wire.Walk(message)
	for f.Next() {
		if f.Num == num && f.Type == protowire.BytesType {
			p.add(f.Bytes)
		}
	}
	return p, f.Err
}

// listenerClaims are a Listener's addresses. One that Envoy binds to a port of the system's choice claims none.
func listenerClaims(message []byte) (claims []uint64, err error) {
	var first, v1, bind part
	addresses := []part{{}}
	f := wire.Walk(message)
	for f.Next() {
		switch f.OnlyBytes(); f.Num {
		case listenerAddress:
			first.add(f.Bytes)
		case listenerDeprecatedV1:
			v1.add(f.Bytes)
		case listenerBindToPort:
			bind.add(f.Bytes)
		case listenerAdditionalAddresses:
			a, err := partOf(f.Bytes, additionalAddress)
			if err != nil {
				return nil, err
			}
			addresses = append(addresses, a)
		}
	}
	if f.Err != nil {
		return nil, f.Err
	}
	addresses[0] = first
	deprecated, err := partOf(v1.value, deprecatedBindToPort)
	if err != nil {
		return nil, err
	}
	binds := true
	for _, wrapper := range []part{bind, deprecated} {
		value, err := varint(wrapper.value, boolValue)
		if err != nil {
			return nil, err
		}
		binds = binds && (!wrapper.present || value != 0)
	}
	for _, a := range addresses {
		claim, ok, err := addressClaim(a.value, binds)
		if err != nil {
			return nil, err
		}
		if ok {
			claims = append(claims, claim)
		}
	}
	return claims, nil
}

// addressClaim returns the claim of an Address. binds: Envoy binds a socket to it.
func addressClaim(message []byte, binds bool) (claim uint64, ok bool, err error) {
	var num protowire.Number // of the oneof's last member
	var address part
	f := wire.Walk(message)
	for f.Next() {
		if f.OnlyBytes(); f.Num == 0 {
			continue
		}
		if f.Num != num {
			num, address = f.Num, part{}
		}
		address.add(f.Bytes)
	}
	switch {
	case f.Err != nil:
		return 0, false, f.Err
	case num == addressPipe:
		path, err := wire.Last(address.value, pipePath)
		return hashed("pipe", string(path)), len(path) > 0, err
	case num == addressSocket:
		return socketClaim(address.value, binds)
	}
	return 0, false, nil
}

func socketClaim(message []byte, binds bool) (claim uint64, ok bool, err error) {
	var protocol, port uint64
	var text, namespace string
	f := wire.Walk(message)
	for f.Next() {
		switch {
		case f.Num == socketProtocol && f.Type == protowire.VarintType:
			protocol = f.Varint
		case f.Num == socketAddress && f.Type == protowire.BytesType:
			text = string(f.Bytes)
		case f.Num == socketPort && f.Type == protowire.VarintType:
			port = f.Varint
		case f.Num == socketNamespace && f.Type == protowire.BytesType:
			namespace = string(f.Bytes)
		}
	}
	if f.Err != nil {
		return 0, false, f.Err
	}
	ip, err := netip.ParseAddr(text)
	if err != nil || port == 0 && binds {
		return 0, false, nil //nolint:nilerr // Envoy refuses a Listener with a name in place of an address
	}
	return hashed("socket", strconv.FormatUint(protocol, 10), ip.String(), strconv.FormatUint(port, 10), namespace), true, nil
}

// scopeClaims is the key of a ScopedRouteConfiguration.
func scopeClaims(message []byte) ([]uint64, error) {
	key, err := partOf(message, scopeKey)
	if err != nil || !key.present {
		return nil, err
	}
	parts := []string{"scope"}
	f := wire.Walk(key.value)
	for f.Next() {
		if f.OnlyBytes(); f.Num == scopeFragments {
			text, err := wire.Last(f.Bytes, scopeString)
			if err != nil {
				return nil, err
			}
			parts = append(parts, string(text))
		}
	}
	return []uint64{hashed(parts...)}, f.Err
}

// hostClaims are the domains of a VirtualHost, in the RouteConfiguration whose name is in front of its own.
func hostClaims(name string, message []byte) (claims []uint64, err error) {
	routes := name[:max(strings.LastIndexByte(name, '/'), 0)]
	f := wire.Walk(message)
	for f.Next() {
		if f.OnlyBytes(); f.Num == hostDomains {
			claims = append(claims, hashed("domain", routes, strings.ToLower(string(f.Bytes))))
		}
	}
	return claims, f.Err
}

// varint returns the last value of a number or bool.
func varint(message []byte, num protowire.Number) (value uint64, err error) {
	f := wire.Walk(message)
	for f.Next() {
		if f.Num == num && f.Type == protowire.VarintType {
			value = f.Varint
		}
	}
	return value, f.Err
}
