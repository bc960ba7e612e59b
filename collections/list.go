package collections

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	corev3 "github.com/cncf/xds/go/xds/core/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/urn"
	"github.com/xds-relay/xds-relay/xdstype"
)

// TP1: "List". What is in a list collection, of whatever type: all of them are
// repeated CollectionEntry resources = 1.

// list is a list collection's content.
type list struct {
	// authority is whose control plane has said it.
	authority string
	entries   []listEntry
	// named has the indexes of the inline entries that have a name.
	named map[string]int
	// err says that the rest cannot be read: the entries are those before.
	err *cache.Error
}

// listEntry is one entry of a list collection: a locator, or an inline entry, or a
// mistake of whoever wrote it.
type listEntry struct {
	// inline says that it is an inline entry. One that is a redirect has a locator
	// and no value.
	inline  bool
	locator urn.URL
	// name of an inline entry, empty for an anonymous one; and its version, which may
	// be empty too.
	name, version string
	typeURL       string
	value         []byte // part of the collection's own
	raw           []byte // all of it
	// made is the value as a resource, once somebody has asked for that by name.
	made *cache.Resource
	// err says why the entry is none. It may have a name nevertheless.
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

// maxEntries bounds how many entries of a list collection are read: each costs more here
// than it does to write.
const maxEntries = 100_000

// parseList takes a list collection apart. A bad entry is an error of that entry
// only.
func parseList(r *cache.Resource) *list { return parseListAfter(r, &list{}) }

// parseListAfter is parseList of one that comes after another: what is the same is
// taken from that.
func parseListAfter(r *cache.Resource, before *list) *list {
	l := &list{}
	next := 0 // in before.entries
	err := eachBytes(r.Value(), func(num protowire.Number, b []byte) error {
		if num != listResources {
			return nil
		}
		if len(l.entries) == maxEntries {
			return fmt.Errorf("it has more than %d", maxEntries)
		}
		const ahead = 2 // one may be missing now
		for i := next; i < min(next+ahead, len(before.entries)); i++ {
			if e := before.entries[i]; e.err == nil && bytes.Equal(e.raw, b) {
				next = i + 1
				l.add(e.again(b), nil)
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

// entry returns the inline entry of that name, nil if there is none.
func (l *list) entry(name string) *listEntry {
	if i, ok := l.named[name]; ok {
		return &l.entries[i]
	}
	return nil
}

// resource returns the value of an inline entry, which is no redirect, as a resource
// of that name.
func (e *listEntry) resource(name string) *cache.Resource {
	return cache.NewResource(cache.Spec{Name: name, Version: e.version, TypeURL: e.typeURL, Value: e.value})
}

// redirect returns an inline entry that is a redirect, as a resource.
func (e *listEntry) redirect(name string) *cache.Resource {
	locator, err := e.locator.Proto()
	if err != nil {
		locator = &corev3.ResourceLocator{} // it was read from one
	}
	return cache.NewResource(cache.Spec{Name: name, Version: e.version, TypeURL: xdstype.Locator, Value: marshal(locator), Redirect: e.locator.String()})
}

// again returns the entry as it is in another collection, whose bytes it shares then:
// those of the one before are not to be kept for it.
func (e listEntry) again(raw []byte) listEntry {
	if at := bytes.Index(raw, e.value); at >= 0 && e.value != nil {
		e.value = raw[at : at+len(e.value)]
	}
	e.raw = raw
	return e
}

// parseListEntry parses a CollectionEntry. Of a oneof the last on the wire counts,
// and what comes of one message in several pieces is their concatenation.
func parseListEntry(b []byte) (e listEntry, err error) {
	e.raw = b
	var locator, inline []byte
	is := protowire.Number(0)
	err = eachBytes(b, func(num protowire.Number, b []byte) error {
		switch num {
		case entryLocator:
			locator, inline, is = merge(locator, b), nil, num
		case entryInline:
			inline, locator, is = merge(inline, b), nil, num
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

// parseInline parses an InlineEntry. It goes on after a mistake, to know whose it is.
func (e *listEntry) parseInline(b []byte) error {
	var resource []byte
	err := eachBytes(b, func(num protowire.Number, b []byte) (err error) {
		switch num {
		case inlineName:
			e.name, err = text(b)
		case inlineVersion:
			e.version, err = text(b)
		case inlineResource:
			resource = merge(resource, b)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("the inline entry cannot be read: %w", err)
	}
	if e.name != "" && !urn.IsEntry(e.name) {
		return fmt.Errorf("its name has characters that no entry's may have (want %s)", urn.EntryCharacters)
	}
	err = eachBytes(resource, func(num protowire.Number, b []byte) (err error) {
		switch num {
		case anyTypeURL:
			e.typeURL, err = text(b)
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
	return checkValue(e.typeURL, e.value)
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

// checkValue says why a value is no message of its type, if the type is known here,
// or no message at all.
func checkValue(typeURL string, value []byte) error {
	t, err := protoregistry.GlobalTypes.FindMessageByURL(typeURL)
	if err == nil {
		err = proto.UnmarshalOptions{AllowPartial: true, DiscardUnknown: true}.Unmarshal(value, t.New().Interface())
	} else {
		_, err = cache.InnerName(value)
	}
	if err == nil {
		return nil
	}
	// Without the prefix of the protobuf package, whose space is not always one.
	why := strings.TrimLeft(strings.TrimPrefix(err.Error(), "proto:"), " \u00a0")
	return fmt.Errorf("its resource is no %s: %s", xdstype.Message(typeURL), why)
}

// eachBytes calls f for each field of a message that is a string, bytes or a
// message, until f returns an error.
func eachBytes(b []byte, f func(protowire.Number, []byte) error) error {
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return protowire.ParseError(n)
		}
		if num > protowire.MaxValidNumber { // which protowire lets pass
			return errors.New("invalid field number")
		}
		b = b[n:]
		var value []byte
		if typ == protowire.BytesType {
			value, n = protowire.ConsumeBytes(b)
		} else {
			n = protowire.ConsumeFieldValue(num, typ, b)
		}
		if n < 0 {
			return protowire.ParseError(n)
		}
		b = b[n:]
		if typ != protowire.BytesType {
			continue
		}
		if err := f(num, value); err != nil {
			return err
		}
	}
	return nil
}

func text(b []byte) (string, error) {
	if !utf8.Valid(b) {
		return "", errors.New("not UTF-8")
	}
	return string(b), nil
}

// merge adds a piece of a message to those before. It writes to none.
func merge(pieces, piece []byte) []byte {
	if pieces == nil {
		return piece
	}
	return append(pieces[:len(pieces):len(pieces)], piece...)
}
