// Package resource encodes a resource once, in the form in which it goes on the wire, and
// serves it to every client in the form that the client understands.
package resource

import (
	"cmp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cespare/xxhash/v2"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/xds-relay/xds-relay/internal/secrets"
	"github.com/xds-relay/xds-relay/internal/wire"
	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// Spec is what a Resource is made of.
type Spec struct {
	// Name is empty for a resource without a name, which is the whole answer to a wildcard.
	Name string
	// Version is the origin's version. If it is empty, New uses a hash of the content
	// (invariant: versions mean the same everywhere).
	Version string
	TypeURL string
	// Value is the resource's message, encoded. It is copied.
	Value []byte
	// Extra holds encoded fields of envoy.service.discovery.v3.Resource that have no
	// field here. They are passed on unchanged. Extra is copied.
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

// New encodes a resource, once for all clients. The bytes never change: the cache, responses and
// gRPC share them, and the garbage collector frees them (see Resource in layout.go).
func New(s Spec) *Resource {
	h := hashBefore(s.TypeURL, s.Extra, s.Constraints)
	_, _ = h.Write(s.Value)
	r := &Resource{hash: h.Sum64()}
	t := traits{
		typeURL: s.TypeURL, extraLen: len(s.Extra), ttl: s.TTL, constraints: s.Constraints, doNotCache: s.DoNotCache,
		redirect: s.Redirect, secret: secrets.Holds(s.TypeURL, s.Value),
	}
	if s.Name != "" && xdstype.HasInnerName(s.TypeURL) {
		// The source has checked the value where that matters, so an error is ignored.
		switch inner, err := wire.Last(s.Value, wire.InnerNameField); {
		case len(inner) == 0 || err != nil:
		case string(inner) == s.Name:
			t.same = true
		default:
			t.inner = string(inner)
		}
	}
	if s.Name != "" {
		if spellings := spellingsIn(s.TypeURL, s.Value); len(spellings) > 0 {
			t.spellings = &spellings
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

	b := encode(s.Name, version, s.TypeURL, s.Extra, len(s.Value), len(s.Value))
	r.delta = text(append(b, s.Value...))
	return r
}

// hashBefore returns the hash of a resource's content before its value.
func hashBefore(typeURL string, extra []byte, constraints string) *xxhash.Digest {
	h := xxhash.New()
	_, _ = h.WriteString(typeURL)
	_, _ = h.Write([]byte{0})
	_, _ = h.Write(wire.Without(extra, wire.ResourceAliases)) // aliases depend on the request, not on the content
	if constraints != "" {
		_, _ = h.Write([]byte{0})
		_, _ = h.WriteString(constraints)
	}
	_, _ = h.Write([]byte{0})
	return h
}

// encode returns the bytes of a resource before its value, with room for more.
func encode(name, version, typeURL string, extra []byte, value, room int) []byte {
	anyLen := wire.SizeString(typeURL) + wire.SizeBytes(value)
	fields := wire.SizeString(name) + wire.SizeString(version) + len(extra) +
		wire.SizeBytes(anyLen)
	b := make([]byte, 0, wire.SizeBytes(fields)-value+room)
	b = appendHeader(b, fields)
	b = wire.AppendString(b, wire.ResourceName, name)
	b = wire.AppendString(b, wire.ResourceVersion, version)
	b = append(b, extra...)
	b = appendHeader(b, anyLen)
	b = wire.AppendString(b, wire.AnyTypeURL, typeURL)
	return appendHeader(b, value)
}

// WithTTL returns the resource with another time to live. Everything else is shared.
func (r *Resource) WithTTL(ttl time.Duration) *Resource {
	t := *r.traits
	t.ttl = ttl
	return r.with(t)
}

// RenewsTTL reports whether next is a heartbeat of r: both have a TTL and the same content.
func (r *Resource) RenewsTTL(next *Resource) bool {
	return r.ttl > 0 && next.ttl > 0 && r.hash == next.hash
}

// WithRenewedTTL returns r with the TTL of next. The version stays that of r: clients recognize a
// heartbeat by its unchanged version.
func (r *Resource) WithRenewedTTL(next *Resource) *Resource {
	if r.ttl == next.ttl && !r.doNotCache {
		return r
	}
	return r.WithTTL(next.ttl)
}

// Aliased returns the resource under one of its aliases. Everything else is shared.
// xDS: "Resource names" of "Incremental xDS".
func (r *Resource) Aliased() *Resource {
	t := *r.traits
	t.alias = true
	return r.with(t)
}

// FoundByAlias returns the resource, marked as found by an alias of the name own. Everything else is
// shared.
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

// Renamed returns the resource with another name and version. The name in its message, if there is one, becomes inside.
// If inside is empty, it becomes the new name, and each client is sent the name that it requested: it is not known how
// the resource that refers to it writes the name.
//
// The value is shared, because clients can make up any number of names that lead to one large resource.
func (r *Resource) Renamed(name, inside, version string) *Resource {
	value, want := r.original(), cmp.Or(inside, name)
	renamed := &Resource{hash: r.hash}
	t := *r.traits
	t.elsewhere = &elsewhere{value: value}
	t.unspelled, t.alias, t.aliasOf = inside == "", false, ""
	if old := r.Inner(); old != "" {
		if r.elsewhere != nil {
			t.elsewhere.inner = r.elsewhere.inner
		}
		if old != want {
			value = withoutName(value)
			t.elsewhere = &elsewhere{inner: text(wire.AppendString(nil, wire.InnerNameField, want)), value: value}
			renamed.hash = hashRenamed(hashBefore(r.typeURL, r.extra(), r.constraints), t.elsewhere)
		}
		if t.same, t.inner = want == name, ""; !t.same {
			t.inner = strings.Clone(want)
		}
	}
	renamed.traits = t.shared()
	renamed.delta = text(encode(name, version, r.typeURL, r.extra(), len(value)+len(t.elsewhere.inner), 0))
	return renamed
}

// Unspelled reports whether the name inside is one that the relay has given the resource: see Renamed.
func (r *Resource) Unspelled() bool { return r.unspelled }

// Spellings returns the spellings of names to which the resource refers. The caller must not change them.
func (r *Resource) Spellings() []Spelling {
	if r.spellings == nil {
		return nil
	}
	return *r.spellings
}

// withoutName returns an encoded message without its name. It is a part of the message if the name comes first, as all
// encoders have it.
func withoutName(value string) string {
	rest, all := value, bytesOf(value)
	var copied []byte
	for offset, first := 0, true; offset < len(all); first = false {
		num, typ, n := protowire.ConsumeField(all[offset:])
		if n < 0 {
			break // cannot occur: New has read the name
		}
		isName := num == wire.InnerNameField && typ == protowire.BytesType
		switch {
		case isName && first:
			rest = value[n:]
		case isName && copied == nil:
			copied = append(make([]byte, 0, len(rest)), rest[:offset-(len(value)-len(rest))]...)
		case !isName && copied != nil:
			copied = append(copied, all[offset:offset+n]...)
		}
		offset += n
	}
	if copied != nil {
		return text(copied)
	}
	return rest
}

// hashRenamed completes the hash of a renamed resource.
func hashRenamed(h *xxhash.Digest, e *elsewhere) uint64 {
	_, _ = h.WriteString(e.inner)
	_, _ = h.WriteString(e.value)
	return h.Sum64()
}

// Spec returns the Spec from which New makes the resource. Its byte slices may share the resource's bytes,
// and must not be changed. The Spec does not contain the marks of Aliased and FoundByAlias.
func (r *Resource) Spec() Spec {
	return Spec{
		Name: r.Name(), Version: r.Version(), TypeURL: r.typeURL, Value: r.Value(), Extra: r.extra(),
		TTL: r.ttl, Constraints: r.constraints, DoNotCache: r.doNotCache, Redirect: r.redirect,
	}
}

// TypeURL returns the type URL of the resource's Any.
func (r *Resource) TypeURL() string { return r.typeURL }

// Hash returns a hash of the content. It does not depend on name, version and TTL.
func (r *Resource) Hash() uint64 { return r.hash }

// TTL returns the time to live, 0 for none.
func (r *Resource) TTL() time.Duration { return r.ttl }

// Constraints returns the encoded dynamic_parameter_constraints of a variant,
// empty for none.
func (r *Resource) Constraints() string { return r.constraints }

// DoNotCache reports whether the resource is only for the clients that were subscribed when it
// came.
func (r *Resource) DoNotCache() bool { return r.doNotCache }

// HoldsSecret reports whether the resource contains a secret: see [secrets.Holds].
func (r *Resource) HoldsSecret() bool { return r.secret }

// secretTypes are the message names of the resources with a secret so far. Their number is bounded by
// the messages that this binary knows.
var secretTypes sync.Map

// HasHeldSecrets reports whether any resource of a type has contained a secret so far.
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

// Size returns an upper bound of the resource's length in a response, in bytes, under a
// name and in a form.
func (r *Resource) Size(name string, f Form) int {
	const wrapper = 128
	if r.isHeartbeat(f) {
		return len(name) + len(r.Version()) + len(r.constraints) + wrapper
	}
	n := r.EncodedSize(true)
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
	s := strconv.FormatUint(h, 16)
	return "0000000000000000"[:hashWidth-len(s)] + s
}

const hashWidth = 16

// Marked returns the resource with a version that names its content: see OriginVersion. Everything else is shared.
func (r *Resource) Marked() *Resource {
	t, value := *r.traits, r.original()
	if t.elsewhere == nil {
		t.elsewhere = &elsewhere{value: value}
	}
	version := r.OriginVersion() + markSign + FormatHash(r.hash)
	before := encode(r.Name(), version, r.typeURL, r.extra(), len(value)+len(t.elsewhere.inner), 0)
	return &Resource{hash: r.hash, traits: t.shared(), delta: text(before)}
}

// markSign is between the origin's version and the hash of the content.
const markSign = "-"

// OriginVersion returns the version that the origin gave the resource. It is that of clients, but for a resource that is
// Marked, because the origin's version has stood for other contents, too.
func (r *Resource) OriginVersion() string {
	version := r.Version()
	if at := len(version) - len(markSign) - hashWidth; at > 0 && version[at:at+1] == markSign && version[at+1:] == FormatHash(r.hash) {
		return version[:at]
	}
	return version
}

// VersionIsHash reports whether the version is the content's hash, because the origin gives none.
func (r *Resource) VersionIsHash() bool {
	version := r.Version()
	return len(version) == hashWidth && version == FormatHash(r.hash)
}
