package collections

import (
	corev3 "github.com/cncf/xds/go/xds/core/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/urn"
	"github.com/xds-relay/xds-relay/xdstype"
)

// Entries of list collections as they are written. While members are listed and not
// followed, an entry is what stands for each.

// entryType is that of the entries of list collections.
const entryType = xdstype.Prefix + "xds.core.v3.CollectionEntry"

func newEntry(name string, m *corev3.CollectionEntry) *cache.Resource {
	return cache.NewResource(cache.Spec{Name: name, TypeURL: entryType, Value: marshal(m)})
}

// marshal encodes what was decoded, or made of valid text: there is no error.
func marshal(m proto.Message) []byte {
	b, _ := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	return b
}

// locatorOf is the entry that locates a resource; nil if protobuf cannot say that
// (see urn.URL.Proto).
func locatorOf(u urn.URL) *cache.Resource {
	locator, err := u.Proto()
	if err != nil {
		return nil
	}
	return newEntry(u.String(), &corev3.CollectionEntry{ResourceSpecifier: &corev3.CollectionEntry_Locator{Locator: locator}})
}

// written is an inline entry as it is written, for a member of that name.
func (e *listEntry) written(name string) *cache.Resource {
	inline := &corev3.CollectionEntry_InlineEntry{Name: e.name, Version: e.version, Resource: &anypb.Any{TypeUrl: e.typeURL, Value: e.value}}
	if (e.locator != urn.URL{}) { // a redirect
		locator, err := e.locator.Proto()
		if err != nil {
			return nil
		}
		inline.Resource.Value = marshal(locator)
	}
	return newEntry(name, &corev3.CollectionEntry{ResourceSpecifier: &corev3.CollectionEntry_InlineEntry_{InlineEntry: inline}})
}

// writtenName is the name of an inline entry, empty if it has none.
func writtenName(entry []byte) (name string) {
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

// anonymous is an inline entry without its name.
func anonymous(entry []byte) []byte {
	var m corev3.CollectionEntry
	if err := proto.Unmarshal(entry, &m); err != nil {
		return entry // it was written here
	}
	m.GetInlineEntry().Name = ""
	return marshal(&m)
}
