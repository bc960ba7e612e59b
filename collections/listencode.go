package collections

import (
	corev3 "github.com/cncf/xds/go/xds/core/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/xdstype"
	"github.com/xds-relay/xds-relay/urn"
)

// Encoding of list entries. If a set is itself requested as a list collection, its members
// are encoded entries, and are not looked up.

// entryType is the type of the entries of list collections.
const entryType = xdstype.Prefix + "xds.core.v3.CollectionEntry"

func newEntry(name string, m *corev3.CollectionEntry) *cache.Resource {
	return cache.NewResource(cache.Spec{Name: name, TypeURL: entryType, Value: marshal(m)})
}

// locatorOf returns the entry that locates a resource; nil if protobuf has no form for it
// (see urn.URL.Proto).
func locatorOf(u urn.URL) *cache.Resource {
	locator, err := u.Proto()
	if err != nil {
		return nil
	}
	return newEntry(u.String(), &corev3.CollectionEntry{ResourceSpecifier: &corev3.CollectionEntry_Locator{Locator: locator}})
}

// encode returns an inline entry, encoded, as the member with a name.
func (e *listEntry) encode(name string) *cache.Resource {
	inline := &corev3.CollectionEntry_InlineEntry{Name: e.name, Version: e.version, Resource: &anypb.Any{TypeUrl: e.typeURL, Value: e.value}}
	if (e.locator != urn.URL{}) { // it is a redirect
		locator, err := e.locator.Proto()
		if err != nil {
			return nil
		}
		inline.Resource.Value = marshal(locator)
	}
	return newEntry(name, &corev3.CollectionEntry{ResourceSpecifier: &corev3.CollectionEntry_InlineEntry_{InlineEntry: inline}})
}

// encodedName returns the name in an encoded inline entry, empty if it has none.
func encodedName(entry []byte) (name string) {
	_ = eachBytes(entry, func(num protowire.Number, b []byte) error {
		if num != entryInline {
			return nil
		}
		return eachBytes(b, func(num protowire.Number, b []byte) error {
			if num == inlineName {
				name = string(b)
			}
			return nil
		})
	})
	return name
}

// withoutName returns an encoded inline entry without its name.
func withoutName(entry []byte) []byte {
	var m corev3.CollectionEntry
	if err := proto.Unmarshal(entry, &m); err != nil {
		return entry // unreachable: encode made it
	}
	m.GetInlineEntry().Name = ""
	return marshal(&m)
}
