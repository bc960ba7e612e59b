package downstream

import (
	"bytes"
	"slices"
	"sync"
	"unicode/utf8"
	"weak"

	"github.com/cespare/xxhash/v2"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/downstream/session"
)

// Lists of names in requests. Clients that are configured alike send the same list, often
// all at once. From the second of them on a list is found by its bytes, and its names are
// not decoded again; and those clients become a group (namegroup.go).

// askedLists are the lists that clients have sent of late. The zero value is ready.
type askedLists struct {
	mu sync.Mutex
	// known has each list by a hash over its bytes: nothing yet of one that was sent once.
	// A list is there for as long as a group or a request has it.
	known map[uint64]weak.Pointer[askedList]
}

// mostLists bounds what is remembered. When there are more, it begins anew.
const mostLists = 1 << 10

// leastShared is of how many names a list is shared.
const leastShared = 2

// askedList is a list of names that more than one client has sent.
type askedList struct {
	fields []byte // as they are in requests
	names  []string

	index func() map[string]uint32

	mu sync.Mutex
	// groups are those of the clients that have sent it: one for all, unless it means
	// different things to them.
	groups []*watchGroup
	// unshared: a name is there twice, or means something else than a resource of that name.
	unshared bool
}

// namesIn finds the names in an encoded request: its fields from one offset to another. There
// are none if they are few, or not in one place.
func (f *requestFields) namesIn(request []byte) (from, to int) {
	n := 0
	for rest := request; len(rest) > 0; {
		num, _, size := nextBytes(rest)
		at := len(request) - len(rest)
		switch {
		case size == 0:
			if _, _, size = protowire.ConsumeField(rest); size < 0 {
				return 0, 0
			}
		case num != f.subscribe:
		case n > 0 && at != to:
			return 0, 0
		default:
			if n == 0 {
				from = at
			}
			n, to = n+1, at+size
		}
		rest = rest[size:]
	}
	if n < leastShared {
		return 0, 0
	}
	return from, to
}

// find returns the list with these fields, nil if no other client has sent it.
func (l *askedLists) find(fields []byte, num protowire.Number, known *knownNames) *askedList {
	hash := xxhash.Sum64(fields)
	l.mu.Lock()
	before, again := l.known[hash]
	if !again {
		if l.known == nil || len(l.known) == mostLists {
			l.known = map[uint64]weak.Pointer[askedList]{}
		}
		l.known[hash] = weak.Pointer[askedList]{}
	}
	l.mu.Unlock()
	if !again {
		return nil
	}
	if list := before.Value(); list != nil {
		if bytes.Equal(list.fields, fields) {
			return list
		}
		return nil
	}
	list := newAskedList(fields, num, known)
	if list == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if other := l.known[hash].Value(); other != nil && bytes.Equal(other.fields, fields) {
		return other
	}
	l.known[hash] = weak.Make(list)
	return list
}

// newAskedList returns nil for what is no list of names.
func newAskedList(fields []byte, num protowire.Number, known *knownNames) *askedList {
	l := &askedList{fields: slices.Clone(fields)}
	texts := known.texts()
	for rest := l.fields; len(rest) > 0; {
		got, name, n := nextBytes(rest)
		if n == 0 || got != num || !utf8.Valid(name) {
			return nil
		}
		l.names = append(l.names, texts.text(name))
		rest = rest[n:]
	}
	l.index = sync.OnceValue(func() map[string]uint32 {
		index := make(map[string]uint32, len(l.names))
		for i, name := range l.names {
			index[name] = uint32(i) //nolint:gosec // a request has fewer
		}
		return index
	})
	return l
}

// decode is requestFields.decode. list is the list of names in the request, nil if no other
// client has sent it.
func (s *Server) decode(f *requestFields, request []byte, into proto.Message) (recycle func(), list *askedList, err error) {
	from, to := f.namesIn(request)
	if to > 0 {
		list = s.lists.find(request[from:to], f.subscribe, &s.known)
	}
	if list == nil {
		recycle, err = f.decode(request, into, &s.known)
		return recycle, nil, err
	}
	rest := append(slices.Clip(request[:from]), request[to:]...)
	recycle, err = f.decode(rest, into, &s.known)
	switch req := into.(type) {
	case *discoveryv3.DiscoveryRequest:
		req.ResourceNames = list.names
	case *discoveryv3.DeltaDiscoveryRequest:
		req.ResourceNamesSubscribe = list.names
	}
	return recycle, list, err
}

// All implements session.NameList.
func (l *askedList) All() []string { return l.names }

// Place implements session.NameList.
func (l *askedList) Place(name string) (i uint32, ok bool) {
	i, ok = l.index()[name]
	return i, ok
}

// Group implements session.NameList.
func (l *askedList) Group(kind session.GroupKind, client session.Meaning, topics *cache.Cache) session.WatchGroup {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.unshared {
		return nil
	}
	if !kind.First.Scope.OldStyle && !client.Means(l.names, kind.First) {
		return nil
	}
	for _, g := range l.groups {
		if g.kind == kind {
			g.clients++
			return g
		}
	}
	if len(l.index()) != len(l.names) || kind.First.Scope.OldStyle && !client.Means(l.names, kind.First) {
		l.unshared = true
		return nil
	}
	g := newWatchGroup(l, kind, topics)
	g.clients = 1
	l.groups = append(l.groups, g)
	return g
}

// left notes that a client has left a group, and says whether it was the last.
func (l *askedList) left(g *watchGroup) (last bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if g.clients--; g.clients > 0 {
		return false
	}
	l.groups = slices.DeleteFunc(l.groups, func(o *watchGroup) bool { return o == g })
	return true
}
