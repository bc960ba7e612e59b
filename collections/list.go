package collections

import (
	"bytes"
	"errors"
	"fmt"
	"unicode/utf8"

	corev3 "github.com/cncf/xds/go/xds/core/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/wire"
	"github.com/xds-relay/xds-relay/internal/xdstype"
	"github.com/xds-relay/xds-relay/urn"
)

// TP1: "List". The content of a list collection of any type: all of them are
// repeated CollectionEntry resources = 1.

// list is the content of a list collection.
type list struct {
	// authority is the authority that sent it.
	authority string
	entries   []listEntry
	// named are the indexes of inline entries, by their names.
	named map[string]int
	// err, if not nil, says that the rest of the list is unreadable. entries has the entries before
	// it.
	err *cache.Error
}

// listEntry is one entry of a list collection: a locator, an inline entry, or an error.
type listEntry struct {
	// inline: it is an inline entry. One that is a redirect has a locator and no value.
	inline  bool
	locator urn.URL
	// name and version are those of an inline entry. name is empty for an anonymous one; version may
	// be empty.
	name, version string
	typeURL       string
	value         []byte // shares the collection's bytes
	raw           []byte // the whole entry
	// encoded is the entry as a resource, after its first use. Under all names it shares the value.
	encoded *cache.Resource
	// resourceMade is the entry as a resource, after its first use by name.
	resourceMade *cache.Resource
	// err, if not nil, is why the entry cannot be used. The entry may have a name nevertheless.
	err *cache.Error
}

// Field numbers of xds.core.v3.CollectionEntry and google.protobuf.Any.
const (
	listResources = 1

	entryLocator = 1
	entryInline  = 2

	inlineName     = 1
	inlineVersion  = 2
	inlineResource = 3

	anyTypeURL = 1
	anyValue   = 2
)

// maxEntries bounds the number of entries read from a list collection: an entry costs the relay
// more than its sender.
const maxEntries = 100_000

// parseListAfter parses a list collection and reuses the equal entries of the previous version of the list. A bad entry is
// an error of that entry only.
func parseListAfter(r *cache.Resource, before *list) *list {
	l := &list{}
	next := 0 // in before.entries
	err := eachBytes(r.Value(), func(num protowire.Number, b []byte) error {
		if num != listResources {
			return nil
		}
		if len(l.entries) == maxEntries {
			return fmt.Errorf("it has more than %d entries", maxEntries)
		}
		const ahead = 2 // finds the next equal entry even if one was removed
		for i := next; i < min(next+ahead, len(before.entries)); i++ {
			if e := before.entries[i]; e.err == nil && bytes.Equal(e.raw, b) {
				next = i + 1
				l.add(e.sharing(b), nil)
				return nil
			}
		}
		e, err := parseListEntry(b)
		if i, ok := before.named[e.name]; ok {
			next = i + 1
		}
		l.add(e, err)
		return nil
	})
	if err != nil {
		l.err = &cache.Error{Code: codes.InvalidArgument, Message: fmt.Sprintf("list collection %s: entry %d and those after it cannot be read: %v", r.Name(), len(l.entries), err)}
	}
	return l
}

func (l *list) add(e listEntry, err error) {
	if err == nil && e.name != "" {
		if first, twice := l.named[e.name]; twice {
			err = fmt.Errorf("its name is also that of entry %d", first)
		}
	}
	if err != nil {
		e.err = &cache.Error{Code: codes.InvalidArgument, Message: fmt.Sprintf("entry %d of the list collection: %v", len(l.entries), err)}
		if e.name != "" {
			e.err.Message = fmt.Sprintf("entry %d, %q, of the list collection: %v", len(l.entries), e.name, err)
		}
	}
	if _, twice := l.named[e.name]; e.name != "" && !twice {
		if l.named == nil {
			l.named = map[string]int{}
		}
		l.named[e.name] = len(l.entries)
	}
	l.entries = append(l.entries, e)
}

// entry returns the inline entry with a name, nil if there is none.
func (l *list) entry(name string) *listEntry {
	if i, ok := l.named[name]; ok {
		return &l.entries[i]
	}
	return nil
}

// resource returns an inline entry that is not a redirect as a resource with a name.
func (e *listEntry) resource(name string) *cache.Resource {
	if e.encoded == nil {
		e.encoded = cache.NewResource(cache.Spec{Name: name, Version: e.version, TypeURL: e.typeURL, Value: e.value})
	}
	if e.encoded.Name() == name {
		return e.encoded
	}
	return e.encoded.Renamed(name, e.encoded.Inner(), e.encoded.Version())
}

// redirect returns an inline entry that is a redirect as a resource with a name.
func (e *listEntry) redirect(name string) *cache.Resource {
	locator, err := e.locator.Proto()
	if err != nil {
		locator = &corev3.ResourceLocator{} // unreachable: e.locator was parsed from one
	}
	return cache.NewResource(cache.Spec{Name: name, Version: e.version, TypeURL: xdstype.Locator, Value: marshal(locator), Redirect: e.locator.String()})
}

// sharing returns the entry with raw, the equal bytes of a newer version of the collection, so that
// the bytes of the previous version can be freed.
func (e listEntry) sharing(raw []byte) listEntry {
	if at := bytes.Index(raw, e.value); at >= 0 && e.value != nil {
		e.value = raw[at : at+len(e.value)]
	}
	e.raw = raw
	return e
}

// parseListEntry parses a CollectionEntry. As protobuf requires, the last field of a oneof
// wins, and pieces of one message are concatenated.
func parseListEntry(b []byte) (e listEntry, err error) {
	e.raw = b
	var locator, inline []byte
	is := protowire.Number(0)
	err = eachBytes(b, func(num protowire.Number, b []byte) error {
		switch num {
		case entryLocator:
			locator, inline, is = wire.Merge(locator, b), nil, num
		case entryInline:
			inline, locator, is = wire.Merge(inline, b), nil, num
		}
		return nil
	})
	if err != nil {
		return e, fmt.Errorf("it cannot be read: %w", err)
	}
	switch is {
	case entryLocator:
		e.locator, err = parseLocator(locator)
	case entryInline:
		e.inline = true
		err = e.parseInline(inline)
	default:
		err = errors.New("it is neither a locator nor an inline entry")
	}
	return e, err
}

// parseInline parses an InlineEntry. It sets the name, if it finds one, even if it returns an error.
func (e *listEntry) parseInline(b []byte) error {
	var resource []byte
	err := eachBytes(b, func(num protowire.Number, b []byte) (err error) {
		switch num {
		case inlineName:
			e.name, err = utf8String(b)
		case inlineVersion:
			e.version, err = utf8String(b)
		case inlineResource:
			resource = wire.Merge(resource, b)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("the inline entry cannot be read: %w", err)
	}
	if e.name != "" && !urn.IsEntry(e.name) {
		return fmt.Errorf("its name has forbidden characters (want %s)", urn.EntryCharacters)
	}
	err = eachBytes(resource, func(num protowire.Number, b []byte) (err error) {
		switch num {
		case anyTypeURL:
			e.typeURL, err = utf8String(b)
		case anyValue:
			e.value = b
		}
		return err
	})
	switch {
	case err != nil:
		return fmt.Errorf("its Any cannot be read: %w", err)
	case e.typeURL == "":
		return errors.New("it has no resource")
	case e.typeURL == xdstype.Locator:
		e.locator, err = parseLocator(e.value)
		e.value = nil
		return err
	}
	if err := wire.Check(e.typeURL, e.value); err != nil {
		return fmt.Errorf("its resource is not a valid %s: %s", xdstype.Message(e.typeURL), wire.ErrorText(err))
	}
	return nil
}

// parseLocator parses a ResourceLocator.
func parseLocator(b []byte) (urn.URL, error) {
	var m corev3.ResourceLocator
	if err := proto.Unmarshal(b, &m); err != nil {
		return urn.URL{}, fmt.Errorf("its locator cannot be read: %w", err)
	}
	u, err := urn.URLFromProto(&m)
	if err != nil {
		return u, fmt.Errorf("its locator: %w", err)
	}
	return u, nil
}

// eachBytes calls f for each field of a message that is a string, bytes or a message, until
// f returns an error.
func eachBytes(b []byte, f func(protowire.Number, []byte) error) error {
	fields := wire.Walk(b)
	for fields.Next() {
		if fields.Type != protowire.BytesType {
			continue
		}
		if err := f(fields.Num, fields.Bytes); err != nil {
			return err
		}
	}
	return fields.Err
}

func utf8String(b []byte) (string, error) {
	if !utf8.Valid(b) {
		return "", wire.ErrUTF8
	}
	return string(b), nil
}

// marshal encodes a message. It cannot fail, because the message was decoded, or has only valid
// strings.
func marshal(m proto.Message) []byte {
	b, _ := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	return b
}
