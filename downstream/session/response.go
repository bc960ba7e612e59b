package session

import (
	"slices"
	"strings"
	"unicode/utf8"

	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/propagation"
	"github.com/xds-relay/xds-relay/internal/wire"
)

const (
	responseOverhead   = 64 // bytes, in addition to names and resources
	headOverhead       = 16 // bytes of the tags and lengths of three fields
	maxRememberedNames = 16
	// leastBatched is the least number of resources that are put into one buffer for several clients.
	leastBatched = 2
)

// Response is a DiscoveryResponse or DeltaDiscoveryResponse, put together from encoded parts. The fields of a message
// may come in any order, so it consists of the shared resources and a small private part.
type Response struct {
	TypeURL string
	Nonce   string // set by the stream
	Version string
	// origin is the newest version of the origin of what is in it, unless severalOrigins is set: see from. Delta.
	origin *cache.OriginVersion

	resources mem.BufferSlice // shared
	// full are full states of sets, which are not in resources yet.
	full []*cache.Body
	// plain are further resources; they are not in resources yet. It is nil if the response has few resources by name.
	plain   *plainParts
	size    int      // of resources, plain and private
	Count   int      // number of resources
	private []byte   // encoded removals and errors
	head    lastPart // the private part, once it is encoded
	// headRoom and pieces are room for the head and for the message, so that most responses need no further allocation.
	headRoom [128]byte
	pieces   [2]mem.Buffer

	Names NameSample // of what is in it, to explain a NACK
	// unchanged is how many of these the client has already: they are in the response only because it is a full state,
	// and they are not among the first names.
	unchanged int
	// Delta: own has the marks of the resources in it that the client requests by aliases, by the keys of their names.
	// removed has the names that it removes.
	own     map[string]uint64
	removed map[string]bool
	// Changed are the resources in it that are new to the client, or changed, if they may name what the client needs
	// again with them: see namesNeeded.
	Changed []*cache.Resource
	// gone are the last contents of resources of such a type that it takes from the client, as far as they are known. Few
	// responses have any.
	gone *[]*cache.Resource
	// News are all resources in it that are new to the client, or changed, if the client is on the new side of a
	// rollout: see Host.OnNew.
	News []*cache.Resource
	// brings are the changes that the client gets with the response.
	brings *propagation.List
	// delivery tracks brings, once the response is to be sent.
	delivery *propagation.Delivery

	At uint32 // when it is sent, by the stream's clock
	// Generation is the one of the configuration by which it was composed.
	Generation uint32
	// Next is a response that was composed together with this one, and is sent right after it; nil if there is none.
	Next *Response
	// The flags are in one place: a response is allocated for each client.

	severalOrigins bool
	// Warms is set by the stream: the response has Clusters for whose endpoints the client has to wait.
	Warms bool
	// tracks enables News, and names enables Changed and gone.
	tracks, names bool
	// substantial: the response has a removal, or a resource that is no heartbeat.
	substantial bool
	// holdsSecret: a resource in the response has a secret.
	holdsSecret bool
}

// plainParts are resources of a response in the form that all clients get.
type plainParts struct {
	Parts
	size    int // in bytes
	delta   bool
	batches batches // may have them in one piece; nil if not
}

// lastPart is the last part of an encoded response. gRPC keeps it until it has written the whole response.
type lastPart struct {
	mem.SliceBuffer
	delivery *propagation.Delivery
}

// Ref implements mem.Buffer.
func (p *lastPart) Ref() { p.delivery.Hold() }

// Free implements mem.Buffer.
func (p *lastPart) Free() { p.delivery.Done() }

// newResponse returns a response without resources.
func (s *subscriptions) newResponse() *Response {
	return &Response{TypeURL: s.typeURL, tracks: s.Host.OnNew(), names: s.namesNeeded(s.typeURL)}
}

// noteChanged records that resources in the response are new to the client, or changed.
func (r *Response) noteChanged(res ...*cache.Resource) {
	if r.tracks {
		r.News = append(r.News, res...)
	}
	if r.names {
		r.Changed = append(r.Changed, res...)
	}
}

// noteGone records that the response takes a resource from the client. was is the resource's last content, nil if that
// is not known.
func (r *Response) noteGone(was *cache.Resource) {
	if !r.names || was == nil {
		return
	}
	if r.gone == nil {
		r.gone = new([]*cache.Resource)
	}
	*r.gone = append(*r.gone, was)
}

// TakeGone returns the last contents of resources that the response takes from the client, if they may name others, and
// forgets them.
func (r *Response) TakeGone() (gone []*cache.Resource) {
	if r.gone != nil {
		gone, r.gone = *r.gone, nil
	}
	return gone
}

// batches shares buffers of resources among clients.
type batches interface {
	// Join returns resources of that many bytes as one buffer, nil if that is not worth it.
	Join(parts Parts, delta bool, size int) mem.Buffer
}

// NameSample remembers the first names of a response, and how many there are.
type NameSample struct {
	First []string
	Total int
}

// Add adds a name.
func (l *NameSample) Add(name string) {
	l.Total++
	if len(l.First) < maxRememberedNames {
		l.First = append(l.First, name)
	}
}

// ShareBatches lets a response share the buffers of its resources with those of other clients.
func (r *Response) ShareBatches(b batches) {
	if r.plain != nil {
		r.plain.batches = b
	}
}

// expect makes room for n resources by name, as far as they may fit.
func (r *Response) expect(n int) {
	const many = 1 << 10
	switch n = min(n, many); {
	case r.Count > 0:
	case n >= leastBatched:
		r.plain = &plainParts{Parts: Parts{Resources: make([]*cache.Resource, 0, n)}}
	case n > 0:
		r.resources = make(mem.BufferSlice, 0, n+1)
	}
}

// addPlain adds a resource to plain, if it goes to all clients in the same form and plain is in use. It reports whether
// it did.
func (r *Response) addPlain(name string, res *cache.Resource, f cache.Form, delta bool) bool {
	if r.plain == nil {
		return false
	}
	form, ok := res.SharedForm(name, f, delta)
	if !ok {
		return false
	}
	n := r.plain.Add(res, form, delta)
	r.plain.size += n
	r.plain.delta, r.substantial = delta, r.substantial || form&cache.Heartbeat == 0
	r.size += n
	r.Count++
	r.holdsSecret = r.holdsSecret || res.HoldsSecret()
	r.Names.Add(name)
	return true
}

// gather moves all resources to r.resources. It may take long, and needs no lock.
func (r *Response) gather() {
	plain, n := r.plain, 0
	if r.plain = nil; plain != nil {
		n = len(plain.Resources)
	}
	if len(r.full) > 0 {
		all := make(mem.BufferSlice, 0, len(r.full)+len(r.resources)+n+1)
		for _, body := range r.full {
			all = append(all, body.Buffer())
		}
		r.resources, r.full = append(all, r.resources...), nil
	}
	if plain != nil {
		r.resources = plain.appendTo(r.resources)
	}
}

// appendTo appends the resources to a message, in one piece if other clients get the same.
func (p *plainParts) appendTo(msg mem.BufferSlice) mem.BufferSlice {
	if len(p.Resources) >= leastBatched && p.batches != nil {
		if b := p.batches.Join(p.Parts, p.delta, p.size); b != nil {
			return append(slices.Grow(msg, 2), b)
		}
	}
	return p.AppendTo(msg, p.delta)
}

// Parts returns the resources, which are shared, and how many further bytes are the response's own.
func (r *Response) Parts() (shared mem.BufferSlice, private int) {
	r.gather()
	return r.resources, len(r.private)
}

// addPart is Add for a name that is a substring of a larger string.
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
	r.delivery.Hold() // gRPC frees the parts when it has written them
	if n := len(r.resources); n == cap(r.resources) && n < len(r.pieces) {
		return append(append(r.pieces[:0], r.resources...), &r.head)
	}
	// The slice is the response's own: nothing else appends to it.
	return append(r.resources, &r.head)
}

// fits reports whether n more bytes keep the response within limit. The first item always fits: what is larger than the
// limit is sent alone.
func (r *Response) fits(n, limit int) bool {
	return r.empty() || r.size+n+responseOverhead+len(r.TypeURL) <= limit
}

func (r *Response) empty() bool { return r.Count == 0 && len(r.private) == 0 }

// addDelta adds a resource of a name to a delta response.
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

// addAliased adds a resource that the client requests by aliases.
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

// addSotW adds a resource of a name to a SotW response.
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

// room returns resources with room for one, and for what Encode adds: usually that is all.
func (r *Response) room() mem.BufferSlice {
	if r.resources == nil {
		return make(mem.BufferSlice, 0, 2)
	}
	return r.resources
}

// addFull adds the full state of a set.
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

// addAbsent adds a resource without body: there is none of that name.
// xDS: "Knowing When a Requested Resource Does Not Exist".
func (r *Response) addAbsent(name string) {
	b := wire.AppendString(nil, wire.ResourceName, name)
	r.addPrivate(wire.ResponseResources, wire.AppendString(b, wire.ResourceAliases, name))
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

// sizeError is an upper bound of what an error adds to a response, in bytes.
func sizeError(name string, err *cache.Error) int { return len(name) + len(messageOf(err)) + 32 }

// addError adds to resource_errors, whose field number differs between the forms.
func (r *Response) addError(num protowire.Number, name string, err *cache.Error) {
	r.addVariantError(num, name, "", err)
}

// messageOf returns the message of an error, which is never empty: it is all that some clients log.
func messageOf(err *cache.Error) string {
	switch {
	case err.Message != "":
		return err.Message
	case err.Code == codes.NotFound:
		return "the resource does not exist"
	}
	return "the resource is not available"
}

// addVariantError is addError for a variant, with its constraints (TP2).
func (r *Response) addVariantError(num protowire.Number, name, constraints string, err *cache.Error) {
	detail, merr := proto.Marshal(&statuspb.Status{Code: int32(err.Code), Message: messageOf(err)})
	if merr != nil || !utf8.ValidString(name) {
		return // a name or text that is not UTF-8 is of no use to the client
	}
	b := wire.AppendResourceName(nil, wire.ErrorName, name, constraints)
	r.addPrivate(num, wire.AppendBytes(b, wire.ErrorDetail, detail))
}

func (r *Response) addPrivate(num protowire.Number, b []byte) {
	before := len(r.private)
	r.private = wire.AppendBytes(slices.Grow(r.private, wire.SizeBytes(len(b))), num, b)
	r.size += len(r.private) - before
}

// from records the version of the origin of something in a delta response.
func (r *Response) from(o *cache.OriginVersion) {
	switch {
	case o.String() == "", r.origin != nil && !o.SameServer(r.origin):
		r.severalOrigins = true
	case r.origin == nil || o.NewerThan(r.origin):
		r.origin = o
	}
}

// fromRemoved is from for a removal, which the relay may have learned in other ways.
func (r *Response) fromRemoved(o *cache.OriginVersion) {
	if o.String() != "" {
		r.from(o)
	}
}

// systemVersion is the newest version of the origin that a delta response brings the client to. It is empty if the
// content is of several origins, or of one that has no versions.
func (r *Response) systemVersion() string {
	if r.severalOrigins {
		return ""
	}
	return r.origin.String()
}
