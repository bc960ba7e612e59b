package downstream

import (
	"bytes"
	"slices"
	"sync"
	"unicode/utf8"
	"weak"

	"github.com/cespare/xxhash/v2"
	"github.com/xds-relay/xds-relay/wire"
	"google.golang.org/protobuf/encoding/protowire"
)

// Lists of names in requests. Clients that are configured alike send the same list, often
// all at once. From the second of them on a list is found by its bytes, and its names are
// not decoded again; and those clients become a group (namegroup.go).

// sharedLists are the lists that clients have sent of late. The zero value is ready.
type nameLists struct {
	mu sync.Mutex
	// known has each list by a hash over its bytes: nothing yet of one that was sent once.
	// A list is there for as long as a group or a request has it.
	known map[uint64]weak.Pointer[nameList]
}

// mostLists bounds what is remembered. When there are more, it begins anew.
const mostLists = 1 << 10

// leastShared is of how many names a list is shared.
const leastShared = 2

// find returns the list with these fields, nil if no other client has sent it.
func (l *nameLists) find(fields []byte, num protowire.Number, known *knownNames) *nameList {
	hash := xxhash.Sum64(fields)
	l.mu.Lock()
	before, again := l.known[hash]
	if !again {
		if l.known == nil || len(l.known) == mostLists {
			l.known = map[uint64]weak.Pointer[nameList]{}
		}
		l.known[hash] = weak.Pointer[nameList]{}
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
	list := newNameList(fields, num, known)
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
func newNameList(fields []byte, num protowire.Number, known *knownNames) *nameList {
	l := &nameList{fields: slices.Clone(fields)}
	texts := known.texts()
	for rest := l.fields; len(rest) > 0; {
		got, name, n := wire.NextBytes(rest)
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
