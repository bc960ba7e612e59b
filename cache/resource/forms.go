package resource

import (
	"google.golang.org/grpc/mem"

	"github.com/xds-relay/xds-relay/internal/wire"
	"github.com/xds-relay/xds-relay/internal/xdstype"
	"github.com/xds-relay/xds-relay/urn"
)

// The forms of a resource on the wire. All clients of one form share the same bytes; in other
// forms a small part is private, and the rest is shared.

// Form says how one client receives a resource. Every client understands the zero value.
type Form uint8

// The forms can be combined.
const (
	// WithTTL includes the time to live, if the resource has one: the client announced
	// xds.config.supports-resource-ttl.
	WithTTL Form = 1 << iota
	// Wrapped puts the resource, for a SotW client, in a Resource message if that has
	// something to add: the client announced
	// xds.config.supports-resource-in-sotw.
	Wrapped
	// ByLocator names the resource by resource_name, with its constraints: the client
	// requested it by a ResourceLocator (TP2).
	ByLocator
	// Heartbeat omits the resource itself, if it has a time to live.
	// xDS: "TTL".
	Heartbeat
)

// SharedForm reports whether a client that knows the resource by name receives bytes in the form f
// that many clients share. All clients of the returned form receive the same bytes. The returned form
// is 0, or a form of resources with a TTL.
func (r *Resource) SharedForm(name string, f Form, delta bool) (form Form, ok bool) {
	switch {
	case r.SentWithTTL(f):
		return f & (WithTTL | Heartbeat), f&ByLocator == 0 && name == r.Name()
	case delta:
		return 0, name == r.Name() && f&(ByLocator|Heartbeat) == 0
	}
	return 0, r.SharesSotW(name, f)
}

// AppendShared appends a DeltaDiscoveryResponse or a DiscoveryResponse with only the resource, under its own name. All
// clients share the appended bytes.
func (r *Resource) AppendShared(msg mem.BufferSlice, delta bool) mem.BufferSlice {
	msg = append(msg, mem.SliceBuffer(bytesOf(r.delta[r.begin(delta):])))
	if e := r.elsewhere; e != nil {
		msg = append(msg, mem.SliceBuffer(bytesOf(e.inner)), mem.SliceBuffer(bytesOf(e.value)))
	}
	return msg
}

// AppendPieces appends the pieces of AppendShared. The caller must not change them.
func (r *Resource) AppendPieces(pieces [][]byte, delta bool) [][]byte {
	pieces = append(pieces, bytesOf(r.delta[r.begin(delta):]))
	if e := r.elsewhere; e != nil {
		pieces = append(pieces, bytesOf(e.inner), bytesOf(e.value))
	}
	return pieces
}

// AppendBytes appends a copy of what AppendShared appends. It appends [Resource.EncodedSize] bytes.
func (r *Resource) AppendBytes(b []byte, delta bool) []byte {
	b = append(b, r.delta[r.begin(delta):]...)
	if e := r.elsewhere; e != nil {
		b = append(append(b, e.inner...), e.value...)
	}
	return b
}

// EncodedSize returns the length of what AppendShared appends, in bytes.
func (r *Resource) EncodedSize(delta bool) int {
	n := len(r.delta) - r.begin(delta)
	if e := r.elsewhere; e != nil {
		n += len(e.value) + len(e.inner)
	}
	return n
}

// begin returns where the bytes of a response of a form begin.
func (r *Resource) begin(delta bool) int {
	if delta {
		return 0
	}
	return r.extraAt() + r.extraLen
}

// AppendHeartbeat appends the resource's heartbeat in the form of AppendShared. It appends
// [Resource.HeartbeatSize] bytes.
func (r *Resource) AppendHeartbeat(b []byte, delta bool) []byte {
	size := r.heartbeatHeadSize()
	if !delta {
		b = appendHeader(b, sizeWrapped(size))
		b = wire.AppendString(b, wire.AnyTypeURL, xdstype.Wrapper)
	}
	return r.appendHead(appendHeader(b, size), r.Name(), WithTTL)
}

// HeartbeatSize is the length of the resource's heartbeat, in bytes.
func (r *Resource) HeartbeatSize(delta bool) int {
	size := r.heartbeatHeadSize()
	if !delta {
		size = sizeWrapped(size)
	}
	return wire.SizeBytes(size)
}

// heartbeatHeadSize is the length of the fields of a heartbeat.
func (r *Resource) heartbeatHeadSize() int {
	return wire.SizeString(r.Name()) + wire.SizeString(r.Version()) + wire.SizeBytes(wire.SizeDuration(r.ttl))
}

// sizeWrapped is the length of an Any with a Resource of a length.
func sizeWrapped(resource int) int {
	return wire.SizeString(xdstype.Wrapper) + wire.SizeBytes(resource)
}

// AppendDelta appends the resource, under a name, to msg as a field of a
// DeltaDiscoveryResponse. If the name is the origin's and f adds nothing, all clients
// share the appended bytes. Otherwise the name is private, and the rest is shared: what other
// resources refer to is the name inside, which stays, unless the relay does not know what they say: see Renamed.
func (r *Resource) AppendDelta(msg mem.BufferSlice, name string, f Form) mem.BufferSlice {
	if form, ok := r.SharedForm(name, f, true); ok && form == 0 {
		return r.AppendShared(msg, true)
	}
	head, parts := r.fields(name, f, false)
	return appendParts(msg, append(appendHeader(nil, len(head)+sizeParts(parts)), head...), parts)
}

// AppendAliased is like AppendDelta, for a client that requested the resource by aliases. These
// replace the aliases that the origin gave. name is the resource's own name.
func (r *Resource) AppendAliased(msg mem.BufferSlice, name string, f Form, aliases []string) mem.BufferSlice {
	head := r.appendHead(nil, name, f)
	for _, alias := range aliases {
		head = wire.AppendString(head, wire.ResourceAliases, alias)
	}
	var parts [][]byte
	if !r.isHeartbeat(f) {
		head = append(head, wire.Without(r.extra(), wire.ResourceAliases)...)
		parts = r.AppendPieces(nil, false)
	}
	return appendParts(msg, append(appendHeader(nil, len(head)+sizeParts(parts)), head...), parts)
}

// AppendSotW appends the resource, under a name, to msg as a field of a
// DiscoveryResponse. A client knows the resource only by the name inside it, so that
// name is replaced if the client would not recognize it, unless the resource is wrapped.
func (r *Resource) AppendSotW(msg mem.BufferSlice, name string, f Form) mem.BufferSlice {
	if r.SharesSotW(name, f) {
		return r.AppendShared(msg, false)
	}
	if r.wraps(name, f) {
		head, parts := r.fields(name, f, true)
		resource := len(head) + sizeParts(parts)
		all := appendHeader(nil, sizeWrapped(resource))
		all = wire.AppendString(all, wire.AnyTypeURL, xdstype.Wrapper)
		all = appendHeader(all, resource)
		return appendParts(msg, append(all, head...), parts)
	}
	return appendParts(msg, nil, r.renamedAny(name))
}

// SharesSotW reports whether all clients share what AppendSotW appends.
func (r *Resource) SharesSotW(name string, f Form) bool {
	return !r.renames(name) && !r.wraps(name, f)
}

// wraps reports whether a SotW client receives the resource in a Resource message.
func (r *Resource) wraps(name string, f Form) bool {
	switch {
	case f&ByLocator != 0:
		// discovery.proto: a client that requests by locators must understand Resource messages.
		return true
	case r.SentWithTTL(f):
		return true
	}
	return f&Wrapped != 0 && (r.Inner() != name || r.extraLen > 0)
}

// fields returns the fields of a Resource: a private head, and the parts after it,
// most of which are shared. renamed: the client may know the resource by the name inside.
func (r *Resource) fields(name string, f Form, renamed bool) (head []byte, parts [][]byte) {
	head = r.appendHead(nil, name, f)
	if r.isHeartbeat(f) {
		return head, nil
	}
	if r.alias && name != r.Name() {
		// SotW has no aliases: a client that requested an alias knows the resource only by that name. The resource's
		// own name stays inside.
		head = append(head, wire.Without(r.extra(), wire.ResourceAliases)...)
		head = wire.AppendString(head, wire.ResourceAliases, r.Name())
		return head, r.AppendPieces(nil, false)
	}
	head = append(head, r.extra()...)
	if name == r.Name() || !renamed && !r.unspelled {
		return head, r.AppendPieces(nil, false)
	}
	if parts = r.renamedAny(name); len(parts) > 1 {
		head, parts = append(head, parts[0]...), parts[1:]
	}
	return head, parts
}

// appendHead appends the first fields of a Resource: name, version and time to live.
func (r *Resource) appendHead(head []byte, name string, f Form) []byte {
	if f&ByLocator == 0 {
		head = wire.AppendString(head, wire.ResourceName, name)
	} else {
		head = wire.AppendResourceName(head, wire.ResourceNameMessage, name, r.constraints)
	}
	head = wire.AppendString(head, wire.ResourceVersion, r.Version())
	if r.SentWithTTL(f) {
		head = wire.AppendDuration(head, wire.ResourceTTL, r.ttl)
	}
	return head
}

// SentWithTTL reports whether clients of this form receive the resource with its TTL, and
// heartbeats: the resource has a TTL, and the clients announced that they support TTLs.
func (r *Resource) SentWithTTL(f Form) bool { return f&WithTTL != 0 && r.ttl > 0 }

// isHeartbeat reports whether a client receives a heartbeat of the resource in this form.
func (r *Resource) isHeartbeat(f Form) bool { return r.SentWithTTL(f) && f&Heartbeat != 0 }

// renamedAny returns the parts of an encoded `resource` field whose message has name in
// its field 1. It appends the name after the unchanged value: fields of a message may come
// in any order, and if a field comes twice, the last one counts.
func (r *Resource) renamedAny(name string) [][]byte {
	if !r.renames(name) {
		return r.AppendPieces(nil, false)
	}
	tail := wire.AppendString(nil, wire.InnerNameField, name)
	value := bytesOf(r.original())
	valueLen := len(value) + len(tail)
	anyLen := wire.SizeString(r.typeURL) + wire.SizeBytes(valueLen)
	head := appendHeader(nil, anyLen)
	head = wire.AppendString(head, wire.AnyTypeURL, r.typeURL)
	head = appendHeader(head, valueLen)
	return [][]byte{head, value, tail}
}

// renames reports whether a client that knows the resource by name needs that name inside it. A client that requests the
// normal form of the name inside does not: it also normalizes the name inside, and Envoy then compares that name with
// what the referring resource says, which is in the control plane's spelling, too.
func (r *Resource) renames(name string) bool {
	inner := r.Inner()
	if inner == "" || inner == name {
		return false
	}
	if r.unspelled {
		return true
	}
	normal, err := urn.Fold(inner)
	return err != nil || normal != name
}

func sizeParts(parts [][]byte) (n int) {
	for _, p := range parts {
		n += len(p)
	}
	return n
}

// appendParts appends a message's private beginning and its shared parts.
func appendParts(msg mem.BufferSlice, head []byte, parts [][]byte) mem.BufferSlice {
	if len(head) > 0 {
		msg = append(msg, mem.SliceBuffer(head))
	}
	for _, p := range parts {
		if len(p) > 0 {
			msg = append(msg, mem.SliceBuffer(p))
		}
	}
	return msg
}

// appendHeader begins a field of a length with the number 2, which is the number of
// resources in both responses, of resource in a Resource, and of value in an Any.
func appendHeader(b []byte, length int) []byte {
	return wire.AppendHeader(b, wire.ResourceAny, length)
}
