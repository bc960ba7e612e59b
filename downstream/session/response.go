package session

import (
	"slices"
	"strings"
	"unicode/utf8"

	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/propagation"
	"github.com/xds-relay/xds-relay/wire"
	"github.com/xds-relay/xds-relay/xdstype"
)

const (
	responseOverhead   = 64 // bytes, besides names and resources
	headOverhead       = 16 // bytes of the tags and lengths of three fields
	maxRememberedNames = 16
	// leastBatched is of how many resources one buffer is made for several clients.
	leastBatched = 2
)

// Response is a DiscoveryResponse or DeltaDiscoveryResponse that is put together
// from encoded parts: a message's fields may come in any order, so it is the
// shared resources and a small private part.
type Response struct {
	TypeURL string
	Nonce   string // set by the stream
	At      uint32 // when it is sent, by the stream's clock
	Version string
	// origin is the newest version of the origin of what is in it, unless severalOrigins:
	// see from. Delta.
	origin         *cache.OriginVersion
	severalOrigins bool

	resources mem.BufferSlice // shared
	// full are states of sets, which are not in resources yet.
	full []*cache.Body
	// plain are more of them, which go as they go to all clients; they are not in
	// resources yet. Batches, if not nil, may have them in one piece.
	plain     Parts
	plainSize int
	delta     bool
	Batches   batches
	size      int // of resources, plain and private
	Count     int // of resources
	// substantial: there is a resource that is no heartbeat in it, or a removal.
	substantial bool
	// holdsSecret: there is a secret in a resource in it.
	holdsSecret bool
	private     []byte   // encoded removals and errors
	head        lastPart // the private part, once it is encoded
	// headRoom and pieces are room for the head and for the message, which are part of the response mostly.
	headRoom [128]byte
	pieces   [2]mem.Buffer

	Names NameSample // of what it carries, to explain a NACK
	// unchanged is how many of these the client has already: they are in a full state for its sake,
	// and not among the first names.
	unchanged int
	// Delta: own are marks of the resources in it that the client asks for by aliases, by
	// the keys of their names; removed are the names of those that it removes.
	own     map[string]uint64
	removed map[string]bool
	// Changed are the Clusters in it that are new or changed to the client.
	Changed []*cache.Resource
	// News are all resources in it that are, if the client is on the new side of a rollout: see
	// Host.OnNew.
	News []*cache.Resource
	// tracks and clusters say whether News and Changed are wanted.
	tracks, clusters bool
	// brings are the changes that the client has with the response.
	brings *propagation.List
	// delivery is that of what it brings, once it is to be sent.
	delivery *propagation.Delivery
}

// earlierSample is what clients have of the first names of a response, a bit for each: nothing, or another version, and
// whether that is the one that the cache had before. It is unknown where none is set.
type earlierSample struct{ none, held, last uint16 }

// lastPart is the last part of an encoded response. gRPC keeps it until it has written the whole response.
type lastPart struct {
	mem.SliceBuffer
	delivery *propagation.Delivery
}

// Ref implements mem.Buffer.
func (p *lastPart) Ref() { p.delivery.Hold() }

// Free implements mem.Buffer.
func (p *lastPart) Free() { p.delivery.Done() }

// newResponse returns one without resources.
func (s *subscriptions) newResponse() *Response {
	return &Response{TypeURL: s.typeURL, tracks: s.Host.OnNew(), clusters: xdstype.Of(s.typeURL) == xdstype.Cluster}
}

// noteChanged notes that resources in the response are new or changed to the
// client.
func (r *Response) noteChanged(res ...*cache.Resource) {
	if r.tracks {
		r.News = append(r.News, res...)
	}
	if r.clusters {
		r.Changed = append(r.Changed, res...)
	}
}

// batches have resources in one piece that other clients are sent as well.
type batches interface {
	// Join returns resources of that many bytes as one buffer, nil if that is not worth it.
	Join(parts Parts, delta bool, size int) mem.Buffer
}

// NameSample remembers the first names of a response, and how many there are.
type NameSample struct {
	First []string
	Total int
	// earlier says of some of the first what the client had of them before.
	earlier earlierSample
}

// Add adds a name.
func (l *NameSample) Add(name string) {
	l.Total++
	if len(l.First) < maxRememberedNames {
		l.First = append(l.First, name)
	}
}

// expect prepares for so many resources by name, as far as there may be room for them.
func (r *Response) expect(n int) {
	const many = 1 << 10
	switch n = min(n, many); {
	case r.Count > 0:
	case n >= leastBatched:
		r.plain.Resources = make([]*cache.Resource, 0, n)
	case n > 0:
		r.resources = make(mem.BufferSlice, 0, n+1)
	}
}

// addPlain adds a resource that goes as it goes to all clients, if it is one and they
// are kept apart.
func (r *Response) addPlain(name string, res *cache.Resource, f cache.Form, delta bool) bool {
	if r.plain.Resources == nil {
		return false
	}
	form, ok := res.SharedForm(name, f, delta)
	if !ok {
		return false
	}
	n := r.plain.Add(res, form, delta)
	r.delta, r.substantial = delta, r.substantial || form&cache.Heartbeat == 0
	r.plainSize += n
	r.size += n
	r.Count++
	r.holdsSecret = r.holdsSecret || res.HoldsSecret()
	r.Names.Add(name)
	return true
}

// gather puts all resources into r.resources, those that are plain in one piece if
// other clients have them so. It may have much to do, and needs no lock.
func (r *Response) gather() {
	if len(r.full) > 0 {
		all := make(mem.BufferSlice, 0, len(r.full)+len(r.resources)+len(r.plain.Resources)+1)
		for _, body := range r.full {
			all = append(all, body.Buffer())
		}
		r.resources, r.full = append(all, r.resources...), nil
	}
	if len(r.plain.Resources) >= leastBatched && r.Batches != nil {
		if b := r.Batches.Join(r.plain, r.delta, r.plainSize); b != nil {
			r.resources = append(slices.Grow(r.resources, 2), b)
			r.plain = Parts{}
			return
		}
	}
	r.resources = r.plain.AppendTo(r.resources, r.delta)
	r.plain = Parts{}
}

// Parts returns the resources, which are shared, and how many bytes more are the response's own.
func (r *Response) Parts() (shared mem.BufferSlice, private int) {
	r.gather()
	return r.resources, len(r.private)
}

// addPart is add for a name that is a part of something larger.
func (l *NameSample) addPart(name string) {
	if len(l.First) < maxRememberedNames {
		name = strings.Clone(name)
	}
	l.Add(name)
}

// Encode returns the message in its wire form.
func (r *Response) Encode() mem.BufferSlice {
	r.gather()
	head := r.headRoom[:0]
	if n := len(r.Version) + len(r.TypeURL) + len(r.Nonce) + len(r.private) + headOverhead; n > cap(head) {
		head = make([]byte, 0, n)
	}
	if r.Version != "" {
		head = wire.AppendString(head, wire.ResponseVersion, r.Version)
	}
	head = wire.AppendString(head, wire.ResponseTypeURL, r.TypeURL)
	head = wire.AppendString(head, wire.ResponseNonce, r.Nonce)
	head = append(head, r.private...)
	r.head = lastPart{head, r.delivery}
	r.delivery.Hold() // gRPC frees the parts when it has taken them
	if n := len(r.resources); n == cap(r.resources) && n < len(r.pieces) {
		return append(append(r.pieces[:0], r.resources...), &r.head)
	}
	// The slice is the response's own: nobody else appends to it.
	return append(r.resources, &r.head)
}

// fits reports whether n more bytes keep the response within limit. The first
// thing always fits: what is larger than the limit is sent alone.
func (r *Response) fits(n, limit int) bool {
	return r.empty() || r.size+n+responseOverhead+len(r.TypeURL) <= limit
}

func (r *Response) empty() bool { return r.Count == 0 && len(r.private) == 0 }

// AddDelta adds a resource of a name to a delta response.
func (r *Response) addDelta(name string, res *cache.Resource, f cache.Form) {
	if r.addPlain(name, res, f, true) {
		return
	}
	before := len(r.resources)
	r.resources = res.AppendDelta(r.room(), name, f)
	r.added(before)
	r.substantial = r.substantial || f&cache.Heartbeat == 0
	r.holdsSecret = r.holdsSecret || res.HoldsSecret()
	r.Names.Add(name)
}

// addAliased adds a resource that the client asks for by aliases.
func (r *Response) addAliased(name string, res *cache.Resource, f cache.Form, aliases []string) {
	before := len(r.resources)
	r.resources = res.AppendAliased(r.room(), name, f, aliases)
	r.added(before)
	r.holdsSecret = r.holdsSecret || res.HoldsSecret()
	r.Names.Add(name)
}

// addRun adds members of a set that are sent at once.
func (r *Response) addRun(run *cache.EncodedChunk) {
	b := run.Delta()
	r.resources = append(r.room(), b)
	r.size += b.Len()
	r.Count += len(run.Resources)
	r.substantial = true
	r.holdsSecret = r.holdsSecret || run.HoldsSecret
	for _, name := range run.Names {
		r.Names.Add(name)
	}
	r.Names.Total += len(run.Resources) - len(run.Names)
	r.noteChanged(run.Resources...)
}

// addMember adds a member of a set.
func (r *Response) addMember(name string, res *cache.Resource, f cache.Form) {
	before := len(r.resources)
	r.resources = res.AppendDelta(r.room(), name, f)
	r.added(before)
	r.substantial = r.substantial || f&cache.Heartbeat == 0
	r.holdsSecret = r.holdsSecret || res.HoldsSecret()
	r.Names.addPart(name)
}

// AddSotW adds a resource of a name to a SotW response.
func (r *Response) addSotW(name string, res *cache.Resource, f cache.Form) {
	if r.addPlain(name, res, f, false) {
		return
	}
	before := len(r.resources)
	r.resources = res.AppendSotW(r.room(), name, f)
	r.added(before)
	r.holdsSecret = r.holdsSecret || res.HoldsSecret()
	r.Names.Add(name)
}

// room returns resources with room for one, and for what encode adds: mostly that is
// all.
func (r *Response) room() mem.BufferSlice {
	if r.resources == nil {
		return make(mem.BufferSlice, 0, 2)
	}
	return r.resources
}

// addFull adds the whole of a set.
func (r *Response) addFull(f cache.FullState) {
	r.full = append(r.full, f.Resources)
	r.holdsSecret = r.holdsSecret || f.Resources.HoldsSecret()
	r.Count += f.Len
	r.Names.Total += f.Len
}

func (r *Response) added(before int) {
	for _, b := range r.resources[before:] {
		r.size += b.Len()
	}
	r.Count++
}

// addRemoved adds to removed_resources.
func (r *Response) addRemoved(name string) {
	r.addPrivate(wire.DeltaRemoved, []byte(name))
	r.substantial = true
	r.Names.Add(name)
}

// addRemovedVariant adds to removed_resource_names (TP2).
func (r *Response) addRemovedVariant(name, constraints string) {
	before := len(r.private)
	r.private = wire.AppendResourceName(r.private, wire.DeltaRemovedNames, name, constraints)
	r.size += len(r.private) - before
	r.substantial = true
	r.Names.Add(name)
}

// sizeError bounds what an error adds to a response, in bytes.
func sizeError(name string, err *cache.Error) int { return len(name) + len(err.Message) + 32 }

// addError adds to resource_errors, which has another number in each form.
func (r *Response) addError(num protowire.Number, name string, err *cache.Error) {
	r.addVariantError(num, name, "", err)
}

// addVariantError is addError of a variant, with its constraints (TP2).
func (r *Response) addVariantError(num protowire.Number, name, constraints string, err *cache.Error) {
	detail, merr := proto.Marshal(&statuspb.Status{Code: int32(err.Code), Message: err.Message})
	if merr != nil || !utf8.ValidString(name) {
		return // a name or text that is not UTF-8: the client has no use for it
	}
	b := wire.AppendResourceName(nil, wire.ErrorName, name, constraints)
	r.addPrivate(num, wire.AppendBytes(b, wire.ErrorDetail, detail))
}

func (r *Response) addPrivate(num protowire.Number, b []byte) {
	before := len(r.private)
	r.private = wire.AppendBytes(slices.Grow(r.private, wire.SizeBytes(len(b))), num, b)
	r.size += len(r.private) - before
}

// from notes the version of the origin of something that a delta response has in it.
func (r *Response) from(o *cache.OriginVersion) {
	switch {
	case o.String() == "", r.origin != nil && !o.SameServer(r.origin):
		r.severalOrigins = true
	case r.origin == nil || o.NewerThan(r.origin):
		r.origin = o
	}
}

// fromRemoved is from for something that is gone, which may be known in other ways.
func (r *Response) fromRemoved(o *cache.OriginVersion) {
	if o.String() != "" {
		r.from(o)
	}
}

// systemVersion is the newest version of the origin that a delta response brings the client
// to, empty if what is in it is of several origins, or of one that has no versions.
func (r *Response) systemVersion() string {
	if r.severalOrigins {
		return ""
	}
	return r.origin.String()
}
