package session

import (
	"slices"

	"github.com/xds-relay/xds-relay/cache"
)

// A client that rejects a newer version of a resource keeps what it has: an earlier version, or nothing. The
// operator's pages show which (held.go). For a set and for a group, this follows from the changes in the response. For
// a name that is watched individually, a response records it for the first of its names.

// Earlier is what a client has of a resource after it has rejected the newest version that it was sent.
type Earlier uint8

// The values of Earlier.
const (
	EarlierUnknown Earlier = iota
	// EarlierNone: it was sent no version on this stream, apart from those that it has rejected.
	EarlierNone
	// EarlierHeld: it has an earlier version.
	EarlierHeld
	// earlierLast: it has the version that the cache had before the newest.
	earlierLast
)

// noteEarlier records what the client has of a name that has just been added.
func (l *NameSample) noteEarlier(name string, is Earlier) {
	at := len(l.First) - 1
	if at < 0 || l.First[at] != name {
		return // it is not among the first
	}
	bit := uint16(1) << at
	switch is {
	case EarlierNone:
		l.earlier.none |= bit
	case EarlierHeld:
		l.earlier.held |= bit
	case earlierLast:
		l.earlier.held |= bit
		l.earlier.last |= bit
	case EarlierUnknown:
	}
}

// earlierOf returns what is recorded for a name.
func (l *NameSample) earlierOf(name string) Earlier {
	at := slices.Index(l.First, name)
	switch {
	case at < 0:
		return EarlierUnknown
	case l.earlier.last>>at&1 == 1:
		return earlierLast
	case l.earlier.held>>at&1 == 1:
		return EarlierHeld
	case l.earlier.none>>at&1 == 1:
		return EarlierNone
	}
	return EarlierUnknown
}

// earlier returns what the client has of a name that is about to be sent with another resource.
func (s *nameSub) earlier(st *cache.State) Earlier {
	switch {
	case s.sent() == sentResource && s.isRejected():
		r := s.of().nacks.ofName(s.name())
		if r == nil {
			return EarlierUnknown
		}
		return min(r.Names.earlierOf(s.name()), EarlierHeld)
	case s.sent() == sentResource && st.Earlier.Has(s.Note):
		return earlierLast
	case s.sent() == sentResource:
		return EarlierHeld
	case s.is(mayHold):
		return EarlierUnknown
	}
	return EarlierNone
}

// earlier is nameSub.earlier. Also, a client may have stated which version it has from an earlier stream.
func (d *Delta) earlier(sub *nameSub, st *cache.State) Earlier {
	is := sub.earlier(st)
	version, has := d.initial[sub.name()]
	switch {
	case !has || sub.sent() == sentResource:
		return is
	case st.Earlier != nil && st.Earlier.Version == version:
		return earlierLast
	}
	return EarlierHeld
}
