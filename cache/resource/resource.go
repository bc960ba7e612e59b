// Package resource encodes a resource once, in the form in which it goes on the wire, and
// serves it to every client in the form that the client understands.
package resource

import (
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cespare/xxhash/v2"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/xds-relay/xds-relay/secrets"
	"github.com/xds-relay/xds-relay/wire"
	"github.com/xds-relay/xds-relay/xdstype"
)

// Spec is what a Resource is made of.
type Spec struct {
	// Name is empty for a resource that has none: the whole of what a wildcard gives.
	Name string
	// Version is the origin's; where that is empty, a hash of the content
	// stands in (invariant: versions mean the same everywhere).
	Version string
	TypeURL string
	// Value is the resource's message, encoded. It is copied.
	Value []byte
	// Extra holds encoded fields of envoy.service.discovery.v3.Resource besides
	// those that have a field here, to be passed on as they are. It is copied.
	Extra []byte
	// TTL is the time to live, 0 for none. xDS: "TTL".
	TTL time.Duration
	// Constraints are the encoded dynamic_parameter_constraints of a variant
	// (TP2), empty for none.
	Constraints string
	// DoNotCache restricts the resource to the clients that were subscribed when it
	// came. discovery.proto: cache_control.
	DoNotCache bool
	// Redirect is, if the value is an xds.core.v3.ResourceLocator, the canonical URL
	// that it stands for. TP1: "Server redirects".
	Redirect string
}

// New encodes a resource. A resource is encoded once, however many clients receive it. Its bytes
// never change: the cache, responses and gRPC share them, and the garbage collector frees them
// (see Resource in layout.go).
func New(s Spec) *Resource {
	h := xxhash.New()
	_, _ = h.WriteString(s.TypeURL)
	_, _ = h.Write([]byte{0})
	_, _ = h.Write(wire.Without(s.Extra, wire.ResourceAliases)) // which say who asked how, and nothing of the content
	if s.Constraints != "" {
		_, _ = h.Write([]byte{0})
		_, _ = h.WriteString(s.Constraints)
	}
	_, _ = h.Write([]byte{0})
	_, _ = h.Write(s.Value)
	r := &Resource{hash: h.Sum64()}
	t := traits{
		typeURL: s.TypeURL, extraLen: len(s.Extra), ttl: s.TTL, constraints: s.Constraints, doNotCache: s.DoNotCache,
		redirect: s.Redirect, secret: secrets.Holds(s.TypeURL, s.Value),
	}
	if s.Name != "" && xdstype.HasInnerName(s.TypeURL) {
		// It was found to be a message, if that matters to anybody.
		switch inner, err := wire.Last(s.Value, wire.InnerNameField); {
		case len(inner) == 0 || err != nil:
		case string(inner) == s.Name:
			t.same = true
		default:
			t.inner = string(inner)
		}
	}
	if t.secret {
		secretTypes.Store(messageOf(s.TypeURL), struct{}{})
	}
	r.traits = t.shared()
	version := s.Version
	if version == "" {
		version = FormatHash(r.hash)
	}

	anyLen := wire.SizeString(s.TypeURL) + wire.SizeBytes(len(s.Value))
	fields := wire.SizeString(s.Name) + wire.SizeString(version) + len(s.Extra) +
		wire.SizeBytes(anyLen)
	b := make([]byte, 0, wire.SizeBytes(fields))
	b = appendHeader(b, fields)
	b = wire.AppendString(b, wire.ResourceName, s.Name)
	b = wire.AppendString(b, wire.ResourceVersion, version)
	b = append(b, s.Extra...)
	b = appendHeader(b, anyLen)
	b = wire.AppendString(b, wire.AnyTypeURL, s.TypeURL)
	b = appendHeader(b, len(s.Value))
	r.delta = text(append(b, s.Value...))
	return r
}

// WithTTL returns the resource with another time to live, sharing all else.
func (r *Resource) WithTTL(ttl time.Duration) *Resource {
	t := *r.traits
	t.ttl = ttl
	return r.with(t)
}

// RenewsTTL reports whether next has the content of r and a TTL, as r has.
func (r *Resource) RenewsTTL(next *Resource) bool {
	return r.ttl > 0 && next.ttl > 0 && r.hash == next.hash
}

// WithRenewedTTL returns r with the TTL of next. The version stays that of r: by that clients
// recognize a heartbeat.
func (r *Resource) WithRenewedTTL(next *Resource) *Resource {
	if r.ttl == next.ttl && !r.doNotCache {
		return r
	}
	return r.WithTTL(next.ttl)
}

// Aliased returns the resource under one of its aliases. It shares all else. xDS: "Resource names" of "Incremental xDS".
func (r *Resource) Aliased() *Resource {
	t := *r.traits
	t.alias = true
	return r.with(t)
}

// FoundByAlias returns the resource with a note that it was found by an alias of own. It shares all
// else.
func (r *Resource) FoundByAlias(own string) *Resource {
	t := *r.traits
	t.aliasOf = strings.Clone(own)
	return r.with(t)
}

// OwnName returns the own name of a resource that was found by an alias, "" for any other.
func (r *Resource) OwnName() string {
	if r.alias {
		return r.Name()
	}
	return r.aliasOf
}

func (r *Resource) with(t traits) *Resource {
	c := *r
	c.traits = t.shared()
	return &c
}

// Renamed returns the resource with another name and version, encoded anew. The name in its
// message, if there is one, becomes the new name too.
func (r *Resource) Renamed(name, version string) *Resource {
	value := r.Value()
	if inner := r.Inner(); inner != "" && inner != name {
		value = renameValue(value, name)
	}
	s := r.Spec()
	s.Name, s.Version, s.Value = name, version, value
	return New(s)
}

// renameValue returns an encoded message with another name in its field 1. It is the
// same for two that differ in nothing else.
func renameValue(value []byte, name string) []byte {
	out := wire.AppendString(make([]byte, 0, len(value)+len(name)), wire.InnerNameField, name)
	for len(value) > 0 {
		num, typ, n := protowire.ConsumeField(value)
		if n < 0 {
			break // it was read before
		}
		if num != wire.InnerNameField || typ != protowire.BytesType {
			out = append(out, value[:n]...)
		}
		value = value[n:]
	}
	return out
}

// Spec returns what New makes the resource of. Its byte slices share the resource's bytes, and must
// not be changed. That the resource is under an alias is not in it.
func (r *Resource) Spec() Spec {
	return Spec{
		Name: r.Name(), Version: r.Version(), TypeURL: r.typeURL, Value: r.Value(), Extra: r.extra(),
		TTL: r.ttl, Constraints: r.constraints, DoNotCache: r.doNotCache, Redirect: r.redirect,
	}
}

// TypeURL returns the type URL of the resource's Any.
func (r *Resource) TypeURL() string { return r.typeURL }

// Hash is equal for two resources with the same content, whatever their names, versions and
// TTLs.
func (r *Resource) Hash() uint64 { return r.hash }

// TTL returns the time to live, 0 for none.
func (r *Resource) TTL() time.Duration { return r.ttl }

// Constraints returns the encoded dynamic_parameter_constraints of a variant,
// empty for none.
func (r *Resource) Constraints() string { return r.constraints }

// DoNotCache reports whether the resource is only for the clients that were subscribed when it
// came.
func (r *Resource) DoNotCache() bool { return r.doNotCache }

// HoldsSecret reports whether there is a secret in the resource, as [secrets.Holds] says.
func (r *Resource) HoldsSecret() bool { return r.secret }

// secretTypes are the messages of which there was a resource with a secret. There are no more
// than this binary knows.
var secretTypes sync.Map

// HasHeldSecrets reports whether there ever was a resource of a type with a secret in it.
func HasHeldSecrets(typeURL string) bool {
	_, ok := secretTypes.Load(messageOf(typeURL))
	return ok
}

func messageOf(typeURL string) string { return typeURL[strings.LastIndexByte(typeURL, '/')+1:] }

// Redirect returns the canonical URL, possibly with directives, to which this resource
// redirects. It is empty for other resources.
func (r *Resource) Redirect() string { return r.redirect }

// Alias reports whether this is the resource under one of its aliases.
func (r *Resource) Alias() bool { return r.alias }

// Size bounds the resource's length in a response under that name and in that
// form, in bytes.
func (r *Resource) Size(name string, f Form) int {
	const wrapper = 128
	if r.isHeartbeat(f) {
		return len(name) + len(r.Version()) + len(r.constraints) + wrapper
	}
	n := len(r.delta)
	if name != r.Name() {
		n += 2*len(name) + wrapper
	}
	if r.alias {
		n += len(r.Name()) + wrapper
	}
	if f != 0 {
		n += wrapper + len(r.constraints)
	}
	return n
}

// FormatHash returns a hash as 16 hexadecimal digits, the form of versions that are hashes.
func FormatHash(h uint64) string {
	const width = 16
	s := strconv.FormatUint(h, 16)
	return "0000000000000000"[:width-len(s)] + s
}
