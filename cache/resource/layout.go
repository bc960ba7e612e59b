package resource

import (
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/xds-relay/xds-relay/internal/wire"
)

// The layout of a resource's bytes, and the traits that resources share.
//
// The bytes are a header, name, version, extra fields, another header, type URL, and the
// value, in the order in which New writes them. Of a resource that Renamed returns, the value is not among them: it
// is the name inside, and what follows the name in the value of the original.

// Resource is one version of one resource, in the form in which it goes on the
// wire. It is immutable: the cache and all clients share it. There may be hundreds of
// thousands, so name and version are parts of the bytes (layout.go), and resources share their
// common traits.
type Resource struct {
	// delta is a DeltaDiscoveryResponse with only this resource, up to the value if that is elsewhere. Its tail is a
	// DiscoveryResponse with only this resource.
	delta string
	*traits
	hash uint64
}

// traits are the properties of a resource other than its bytes. Most resources of a type have the
// same.
type traits struct {
	typeURL  string
	extraLen int // length in bytes of the fields of Resource that are passed on unchanged
	// same: the name inside is the resource's own. If not, inner is the name inside, empty
	// if there is none.
	same        bool
	inner       string
	ttl         time.Duration
	constraints string // encoded DynamicParameterConstraints, "" for none
	// alias: this is the resource under one of its aliases. aliasOf is the own name of a resource that
	// was found by an alias, and was renamed after that.
	alias      bool
	aliasOf    string
	doNotCache bool
	secret     bool // the resource contains a secret
	// unspelled: see Renamed.
	unspelled bool
	// spellings are the spellings of names to which the resource refers; nil for nearly all.
	spellings *[]Spelling
	redirect  string
	// elsewhere has the rest of the bytes of a renamed resource, nil for all others.
	elsewhere *elsewhere
}

// elsewhere are the bytes of a renamed resource that come after its own.
type elsewhere struct {
	inner string // the field with the name inside, empty if the original's is right
	value string // that of the original, which shares it; without the name if inner has one
}

// common are traits that many resources share, and commonCount is their number. Few are needed: about
// one for each type and time to live. latest are the traits used last, which are mostly also those of
// the next resource.
var (
	common      sync.Map // of traits, to *traits
	commonCount atomic.Int32
	latest      atomic.Pointer[traits]
)

const maxCommon = 1000

// shared returns a pointer to these traits that all resources with equal traits share.
func (t traits) shared() *traits {
	if l := latest.Load(); l != nil && *l == t {
		return l
	}
	return t.stored()
}

// stored returns these traits from common. It adds them if they are missing and there is room.
func (t traits) stored() *traits {
	if t.inner != "" || t.constraints != "" || t.redirect != "" || t.aliasOf != "" || t.spellings != nil || t.elsewhere != nil {
		return &t // few resources can share them
	}
	if c, ok := common.Load(t); ok {
		latest.Store(c.(*traits))
		return c.(*traits)
	}
	if commonCount.Load() >= maxCommon {
		return &t
	}
	c, there := common.LoadOrStore(t, &t)
	if !there {
		commonCount.Add(1)
	}
	return c.(*traits)
}

// Name returns the name that the origin gave the resource, in the origin's spelling. The string
// shares the resource's bytes: copy it to store it for longer than the resource.
func (r *Resource) Name() string {
	name, _ := r.field(r.header(0))
	return name
}

// Version returns the origin's version of the resource, or a hash of its content if the origin
// gives none. The string shares the resource's bytes: see Name.
func (r *Resource) Version() string {
	_, offset := r.field(r.header(0))
	version, _ := r.field(offset)
	return version
}

// extraAt returns where the fields begin that are passed on unchanged.
func (r *Resource) extraAt() int {
	_, offset := r.field(r.header(0))
	_, offset = r.field(offset)
	return offset
}

func (r *Resource) extra() []byte {
	offset := r.extraAt()
	return bytesOf(r.delta[offset : offset+r.extraLen])
}

// Value returns the encoded message. The caller must not change it. For a renamed resource it is a copy.
func (r *Resource) Value() []byte {
	if e := r.elsewhere; e != nil && e.inner != "" {
		return []byte(e.inner + e.value)
	}
	return bytesOf(r.original())
}

// ValueSize returns the length of the encoded message.
func (r *Resource) ValueSize() int {
	n := len(r.original())
	if e := r.elsewhere; e != nil {
		n += len(e.inner)
	}
	return n
}

// Last returns the last value of a field of the message, as [wire.Last] does. It copies nothing.
func (r *Resource) Last(num protowire.Number) ([]byte, error) {
	if e := r.elsewhere; e != nil && num == wire.InnerNameField && e.inner != "" {
		return wire.Last(bytesOf(e.inner), num)
	}
	return wire.Last(bytesOf(r.original()), num)
}

// original returns the encoded message, of a resource with another name inside what follows the name.
func (r *Resource) original() string {
	if r.elsewhere != nil {
		return r.elsewhere.value
	}
	_, offset := r.field(r.header(r.extraAt() + r.extraLen))
	return r.delta[r.header(offset):]
}

// Inner returns the name in the resource's own message, empty if there is none.
func (r *Resource) Inner() string {
	if r.same {
		return r.Name()
	}
	return r.inner
}

// header returns where the content of a field begins; offset is where its tag is. All tags here have one
// byte.
func (r *Resource) header(offset int) int {
	_, n := r.varint(offset + 1)
	return offset + 1 + n
}

// field returns the value of the string field at an offset, and where it ends.
func (r *Resource) field(offset int) (s string, end int) {
	length, n := r.varint(offset + 1)
	offset += 1 + n
	end = offset + length
	return r.delta[offset:end], end
}

// varint returns the varint v at an offset, and its number n of bytes.
func (r *Resource) varint(offset int) (v, n int) {
	for shift := 0; ; shift += 7 {
		b := r.delta[offset+n]
		n++
		v |= int(b&0x7f) << shift
		if b < 0x80 {
			return v, n
		}
	}
}

// A resource's bytes are a string, so that its name is a string without a copy. With very many
// resources, copies of the names would take most of the memory apart from the bytes.

// text returns bytes as a string, without a copy. The bytes must not change any more.
func text(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// bytesOf returns the bytes of a string, without a copy. They must not be changed.
func bytesOf(s string) []byte { return unsafe.Slice(unsafe.StringData(s), len(s)) }
