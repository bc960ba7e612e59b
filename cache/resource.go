package cache

import (
	"errors"
	"strconv"

	"github.com/cespare/xxhash/v2"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// Field numbers of envoy.service.discovery.v3 and google.protobuf.Any.
// DiscoveryResponse.resources and DeltaDiscoveryResponse.resources have the
// number that Resource.resource has too: what a SotW response repeats is
// therefore the tail of what a delta response repeats, and one buffer is both.
const (
	responseResources = 2
	resourceVersion   = 1
	resourceAny       = 2
	resourceName      = 3
	anyTypeURL        = 1
	anyValue          = 2
	// nameField is where every xDS resource carries its own name.
	nameField = 1
)

// Resource is one version of one resource, in the form in which it goes on the
// wire. It is immutable, and shared by all who hold or send it.
type Resource struct {
	name    string
	version string
	typeURL string
	hash    uint64
	// delta is a DeltaDiscoveryResponse with nothing but this resource; sotw,
	// its tail, is a DiscoveryResponse with nothing but it.
	delta, sotw mem.Buffer
	// extra and value are the parts of delta that a renamed copy shares.
	extra, value []byte
	inner        string // the name inside, "" if the value has none
}

// Spec is what a Resource is made of.
type Spec struct {
	Name string
	// Version is the origin's; where that is empty, a hash of the content
	// stands in (invariant: versions mean the same everywhere).
	Version string
	TypeURL string
	// Value is the resource's message, encoded. It is copied.
	Value []byte
	// Extra holds encoded fields of envoy.service.discovery.v3.Resource besides
	// name, version and resource, to be passed on as they are. It is copied.
	Extra []byte
}

// NewResource encodes a resource. It is the only time that this is done,
// however many clients receive it.
func NewResource(s Spec) *Resource {
	h := xxhash.New()
	_, _ = h.WriteString(s.TypeURL)
	_, _ = h.Write([]byte{0})
	_, _ = h.Write(s.Extra)
	_, _ = h.Write([]byte{0})
	_, _ = h.Write(s.Value)
	r := &Resource{name: s.Name, version: s.Version, typeURL: s.TypeURL, hash: h.Sum64()}
	if r.version == "" {
		r.version = formatHash(r.hash)
	}
	inner, _ := InnerName(s.Value)
	if inner == s.Name {
		inner = s.Name // one string, not two
	}
	r.inner = inner

	anyLen := sizeString(s.TypeURL) + protowire.SizeTag(anyValue) + protowire.SizeBytes(len(s.Value))
	fields := sizeString(s.Name) + sizeString(r.version) + len(s.Extra) +
		protowire.SizeTag(resourceAny) + protowire.SizeBytes(anyLen)
	b := make([]byte, 0, protowire.SizeTag(responseResources)+protowire.SizeBytes(fields))
	b = appendHeader(b, fields)
	b = appendString(b, resourceName, s.Name)
	b = appendString(b, resourceVersion, r.version)
	extraAt := len(b)
	b = append(b, s.Extra...)
	r.extra = b[extraAt:len(b):len(b)]
	sotwAt := len(b)
	b = appendHeader(b, anyLen)
	b = appendString(b, anyTypeURL, s.TypeURL)
	b = appendHeader(b, len(s.Value))
	valueAt := len(b)
	b = append(b, s.Value...)
	r.value = b[valueAt:]
	r.delta, r.sotw = mem.SliceBuffer(b), mem.SliceBuffer(b[sotwAt:])
	return r
}

// Name returns the name that the origin gave the resource, in its spelling.
func (r *Resource) Name() string { return r.name }

// Version returns the origin's version of the resource, or a hash of its
// content where the origin gives none.
func (r *Resource) Version() string { return r.version }

// TypeURL returns the type URL of the resource's Any.
func (r *Resource) TypeURL() string { return r.typeURL }

// Hash is equal for two resources of the same content, whatever their names and
// versions.
func (r *Resource) Hash() uint64 { return r.hash }

// Value returns the encoded message. The caller must not change it.
func (r *Resource) Value() []byte { return r.value }

// Size returns the resource's length in a delta response, in bytes.
func (r *Resource) Size() int { return r.delta.Len() }

// AppendDelta appends to msg the resource as a field of a
// DeltaDiscoveryResponse, named name. Under the name that the origin gave it,
// what is appended is shared by all; under another spelling the name, inside
// too, is private and the rest shared.
func (r *Resource) AppendDelta(msg mem.BufferSlice, name string) mem.BufferSlice {
	if name == r.name {
		return append(msg, r.delta)
	}
	anyHead, anyTail := r.renamedAny(name)
	fields := sizeString(name) + sizeString(r.version) + len(r.extra) + len(anyHead) + len(r.value) + len(anyTail)
	head := make([]byte, 0, protowire.SizeTag(responseResources)+protowire.SizeVarint(uint64(fields))+fields-len(r.value)-len(anyTail))
	head = appendHeader(head, fields)
	head = appendString(head, resourceName, name)
	head = appendString(head, resourceVersion, r.version)
	head = append(head, r.extra...)
	head = append(head, anyHead...)
	return appendParts(msg, head, r.value, anyTail)
}

// AppendSotW appends to msg the resource as a field of a DiscoveryResponse. A
// SotW client knows it only by the name inside, so that is made to say name.
func (r *Resource) AppendSotW(msg mem.BufferSlice, name string) mem.BufferSlice {
	if name == r.inner || r.inner == "" {
		return append(msg, r.sotw)
	}
	head, tail := r.renamedAny(name)
	return appendParts(msg, head, r.value, tail)
}

// renamedAny returns what goes before and after the shared value to make an
// encoded `resource` field whose message says name in field 1. A message's
// fields may come in any order, and of a field that comes twice the last
// counts, so the value itself stays as it is.
func (r *Resource) renamedAny(name string) (head, tail []byte) {
	if r.inner != "" && r.inner != name {
		tail = appendString(nil, nameField, name)
	}
	valueLen := len(r.value) + len(tail)
	anyLen := sizeString(r.typeURL) + protowire.SizeTag(anyValue) + protowire.SizeBytes(valueLen)
	head = appendHeader(nil, anyLen)
	head = appendString(head, anyTypeURL, r.typeURL)
	head = appendHeader(head, valueLen)
	return head, tail
}

var errFieldNumber = errors.New("field number too large")

// InnerName returns the name that an encoded resource carries in its field 1,
// empty if it has none. The error says that the bytes are no protobuf message.
func InnerName(value []byte) (string, error) {
	var name []byte
	for len(value) > 0 {
		num, typ, n := protowire.ConsumeTag(value)
		if n < 0 {
			return "", protowire.ParseError(n)
		}
		if num > protowire.MaxValidNumber { // which protowire lets pass, and no message has
			return "", errFieldNumber
		}
		value = value[n:]
		if num == nameField && typ == protowire.BytesType {
			name, n = protowire.ConsumeBytes(value)
		} else {
			n = protowire.ConsumeFieldValue(num, typ, value)
		}
		if n < 0 {
			return "", protowire.ParseError(n)
		}
		value = value[n:]
	}
	return string(name), nil
}

func appendParts(msg mem.BufferSlice, parts ...[]byte) mem.BufferSlice {
	for _, p := range parts {
		if len(p) > 0 {
			msg = append(msg, mem.SliceBuffer(p))
		}
	}
	return msg
}

// appendHeader begins a field of that length with the number 2, which is that of
// resources in both responses, of resource in a Resource, and of value in an Any.
func appendHeader(b []byte, length int) []byte {
	b = protowire.AppendTag(b, resourceAny, protowire.BytesType)
	return protowire.AppendVarint(b, uint64(length))
}

func appendString(b []byte, num protowire.Number, s string) []byte {
	b = protowire.AppendTag(b, num, protowire.BytesType)
	return protowire.AppendString(b, s)
}

// sizeString is the length of a string field with a number below 16.
func sizeString(s string) int { return 1 + protowire.SizeBytes(len(s)) }

func formatHash(h uint64) string {
	const width = 16
	s := strconv.FormatUint(h, 16)
	return "0000000000000000"[:width-len(s)] + s
}
