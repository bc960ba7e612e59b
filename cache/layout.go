package cache

import (
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"google.golang.org/protobuf/encoding/protowire"
)

// Where the parts of a resource are in its bytes, and what resources have in common.
//
// The bytes are a header, name, version, extra, and from sotwAt another header, the
// type URL, and the value to the end: as NewResource writes them.

// traits are what a resource is besides its bytes. Most have the same as others of
// their type.
type traits struct {
	typeURL string
	// same says that the name inside is the resource's own; if not, inner is that,
	// empty if the value has none.
	same        bool
	inner       string
	ttl         time.Duration
	constraints string // encoded DynamicParameterConstraints, "" for none
	// alias: this is what another name than the resource's own stands for.
	alias      bool
	doNotCache bool
	redirect   string
}

// common are traits that many resources have, and commonCount how many there are. Few
// are ever needed: one for each type and time to live, or so.
var (
	common      sync.Map // of traits, to *traits
	commonCount atomic.Int32
)

const maxCommon = 1000

// shared returns the traits, once for all that have the same.
func (t traits) shared() *traits {
	if t.inner != "" || t.constraints != "" || t.redirect != "" {
		return &t // that is a resource's own
	}
	if c, ok := common.Load(t); ok {
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

// Name returns the name that the origin gave the resource, in its spelling. It is a
// part of the resource's bytes: who keeps it for longer than the resource copies it.
func (r *Resource) Name() string {
	name, _ := r.field(r.start())
	return name
}

// Version returns the origin's version of the resource, or a hash of its
// content where the origin gives none. It is as Name is.
func (r *Resource) Version() string {
	_, at := r.field(r.start())
	version, _ := r.field(at)
	return version
}

// extra are fields of Resource that are passed on as they are.
func (r *Resource) extra() []byte {
	_, at := r.field(r.start())
	_, at = r.field(at)
	return r.delta[at:r.sotwAt:r.sotwAt]
}

// sotw is the tail that is a DiscoveryResponse with nothing but this resource.
func (r *Resource) sotw() []byte { return r.delta[r.sotwAt:] }

// Value returns the encoded message. The caller must not change it.
func (r *Resource) Value() []byte {
	at := int(r.sotwAt) + 1
	_, n := protowire.ConsumeVarint(r.delta[at:])
	_, at = r.field(at + n)
	_, n = protowire.ConsumeVarint(r.delta[at+1:])
	return r.delta[at+1+n:]
}

// Inner returns the name that the resource says inside, empty if it says none.
func (r *Resource) Inner() string {
	if r.same {
		return r.Name()
	}
	return r.inner
}

// start is where the fields begin. All tags here are of one byte.
func (r *Resource) start() int {
	_, n := protowire.ConsumeVarint(r.delta[1:])
	return 1 + n
}

// field returns the string field that begins at a place, and where it ends. The string
// is the bytes themselves, which never change: a copy of each name is what nearly all
// of a member's memory would be.
func (r *Resource) field(at int) (s string, end int) {
	length, n := protowire.ConsumeVarint(r.delta[at+1:])
	at += 1 + n
	end = at + int(length)
	b := r.delta[at:end]
	return unsafe.String(unsafe.SliceData(b), len(b)), end
}
