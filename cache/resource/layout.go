package resource

import (
	"sync"
	"sync/atomic"
	"time"
	"unsafe"
)

// The layout of a resource's bytes, and the traits that resources share.
//
// The bytes are a header, name, version, extra fields, another header, type URL, and the
// value, in the order in which New writes them.

// Resource is one version of one resource, in the form in which it goes on the
// wire. It is immutable: the cache and all clients share it. There may be hundreds of
// thousands, so its name and version are parts of its bytes (layout.go), and resources share
// what many have in common.
type Resource struct {
	// delta is a DeltaDiscoveryResponse with nothing but this resource. Its tail is a
	// DiscoveryResponse with nothing but it.
	delta string
	*traits
	hash uint64
}

// traits are the properties of a resource besides its bytes. Most resources of a type have the
// same.
type traits struct {
	typeURL  string
	extraLen int // of fields of Resource that are passed on as they are, in bytes
	// same: the name inside is the resource's own. If not, inner is the name inside, empty
	// if there is none.
	same        bool
	inner       string
	ttl         time.Duration
	constraints string // encoded DynamicParameterConstraints, "" for none
	// alias: this is the resource under one of its aliases. aliasOf is the own name of one that was
	// found by an alias, and has got another name since.
	alias      bool
	aliasOf    string
	doNotCache bool
	secret     bool // there is one in the resource
	redirect   string
}

// common are traits that many resources have, and commonCount how many there are. Few
// are ever needed: one for each type and time to live, or so. The latest are mostly those of
// the next resource, too.
var (
	common      sync.Map // of traits, to *traits
	commonCount atomic.Int32
	latest      atomic.Pointer[traits]
)

const maxCommon = 1000

// shared returns the traits, once for all that have the same.
func (t traits) shared() *traits {
	if l := latest.Load(); l != nil && *l == t {
		return l
	}
	return t.stored()
}

// stored returns the traits as they are in common, where they are put if there is room.
func (t traits) stored() *traits {
	if t.inner != "" || t.constraints != "" || t.redirect != "" || t.aliasOf != "" {
		return &t // that is a resource's own
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

// Name returns the name that the origin gave the resource, in its spelling. The string shares
// the resource's bytes: copy it to store it for longer than the resource.
func (r *Resource) Name() string {
	name, _ := r.field(r.header(0))
	return name
}

// Version returns the origin's version of the resource, or a hash of its content if the origin
// gives none. The string shares the resource's bytes, as that of Name does.
func (r *Resource) Version() string {
	_, at := r.field(r.header(0))
	version, _ := r.field(at)
	return version
}

// extraAt is where the fields begin that are passed on as they are.
func (r *Resource) extraAt() int {
	_, at := r.field(r.header(0))
	_, at = r.field(at)
	return at
}

func (r *Resource) extra() []byte {
	at := r.extraAt()
	return bytesOf(r.delta[at : at+r.extraLen])
}

// sotw is the tail that is a DiscoveryResponse with nothing but this resource.
func (r *Resource) sotw() []byte { return bytesOf(r.delta[r.extraAt()+r.extraLen:]) }

// Value returns the encoded message. The caller must not change it.
func (r *Resource) Value() []byte {
	_, at := r.field(r.header(r.extraAt() + r.extraLen))
	return bytesOf(r.delta[r.header(at):])
}

// Inner returns the name in the resource's own message, empty if there is none.
func (r *Resource) Inner() string {
	if r.same {
		return r.Name()
	}
	return r.inner
}

// header returns where the content of the field begins that is at a place. All tags
// here are of one byte.
func (r *Resource) header(at int) int {
	_, n := r.varint(at + 1)
	return at + 1 + n
}

// field returns the string field that is at a place, and where it ends.
func (r *Resource) field(at int) (s string, end int) {
	length, n := r.varint(at + 1)
	at += 1 + n
	end = at + length
	return r.delta[at:end], end
}

// varint returns the length that is at a place, and how long that is itself.
func (r *Resource) varint(at int) (v, n int) {
	for shift := 0; ; shift += 7 {
		b := r.delta[at+n]
		n++
		v |= int(b&0x7f) << shift
		if b < 0x80 {
			return v, n
		}
	}
}

// A resource's bytes are a string, so that its name is a string without a copy. With very many
// resources, copies of the names would be most of the memory besides the bytes.

// text makes bytes a string that nobody may change any more.
func text(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// bytesOf returns the bytes of a string, which nobody may change.
func bytesOf(s string) []byte { return unsafe.Slice(unsafe.StringData(s), len(s)) }
