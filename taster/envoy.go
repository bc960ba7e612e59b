package taster

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"sync"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/xds-relay/xds-relay/loglines"
	"github.com/xds-relay/xds-relay/secrets"
	"github.com/xds-relay/xds-relay/wire"
)

// How Envoy reads a resource. It validates each message by the rules of protoc-gen-validate: the
// resource, and the message in an Any when it makes use of that.

// finding is why Envoy would reject a resource.
type finding struct {
	text        string
	undecodable bool // an Any in it cannot be decoded
}

// envoy returns why Envoy would reject a resource, nil if it would not.
func (t *tasting) envoy(m proto.Message, anys *anyFields) *finding {
	if f := t.validate(m); f != nil {
		return f
	}
	// A quick look first, since most resources of a large set have none.
	if anys == nil || !bytes.Contains(t.afterName(), ofEnvoy) {
		return nil
	}
	return t.nested(m.ProtoReflect(), anys, 0)
}

// ofEnvoy is in the type URL of each message that Envoy would look at.
var ofEnvoy = []byte("/envoy.")

// afterName returns the encoded resource without the name that it begins with: an xdstp name has ofEnvoy in it.
func (t *tasting) afterName() []byte {
	if num, _, n := wire.NextBytes(t.value); t.named && num == nameNumber {
		return t.value[n:]
	}
	return t.value
}

// validate calls the validator that protoc-gen-validate has made for a message. It ends at the
// first thing that is wrong, if not all findings are wanted.
func (t *tasting) validate(m proto.Message) *finding {
	if t.findings != nil {
		return t.validateAll(m)
	}
	if v, ok := m.(interface{ Validate() error }); ok {
		if err := v.Validate(); err != nil {
			return &finding{text: t.text(m, err)}
		}
	}
	return nil
}

// nested returns why Envoy would reject what is in the Anys of a message.
func (t *tasting) nested(m protoreflect.Message, anys *anyFields, depth int) (f *finding) {
	for _, field := range anys.fields {
		if !m.Has(field.descriptor) {
			continue
		}
		each(m, field.descriptor, func(at element, inner protoreflect.Message) bool {
			end := t.enter(field.descriptor, at)
			if field.inner != nil {
				f = t.nested(inner, field.inner, depth)
			} else if a, ok := inner.Interface().(*anypb.Any); ok {
				f = t.inAny(a, depth)
			}
			t.leave(end)
			return f == nil
		})
		if f != nil {
			return f
		}
	}
	return nil
}

// element is which one of the messages of a field it is.
type element struct {
	index int
	key   protoreflect.MapKey
}

// each calls f for each message that a field has, until it returns false.
func each(m protoreflect.Message, field protoreflect.FieldDescriptor, f func(element, protoreflect.Message) bool) {
	switch value := m.Get(field); {
	case field.IsMap():
		value.Map().Range(func(k protoreflect.MapKey, v protoreflect.Value) bool { return f(element{key: k}, v.Message()) })
	case field.IsList():
		for list, i := value.List(), 0; i < list.Len() && f(element{index: i}, list.Get(i).Message()); i++ {
		}
	default:
		f(element{}, value.Message())
	}
}

// inAny returns why Envoy would reject what is in an Any. It passes what the binary does not know.
func (t *tasting) inAny(a *anypb.Any, depth int) *finding {
	o := t.open(a)
	switch {
	case !o.known || depth >= anyDepth:
		return nil
	case o.failed:
		return t.noMessage(a)
	}
	if f := t.validate(o.message); f != nil {
		return f
	}
	if anys := anysIn(o.message.ProtoReflect().Descriptor()); anys != nil {
		return t.nested(o.message.ProtoReflect(), anys, depth+1)
	}
	return nil
}

// noMessage is the finding that an Any cannot be decoded.
func (t *tasting) noMessage(a *anypb.Any) *finding {
	text := fmt.Sprintf("a field of type Any is no %s", nameIn(a))
	if t.findings != nil {
		return t.add(Finding{Rule: anyDecodable, By: Envoy, Path: string(t.path), Text: text, undecodable: a})
	}
	return &finding{text: text, undecodable: true}
}

// nameIn returns the name of the message in an Any whose type is known.
func nameIn(a *anypb.Any) string {
	url := a.GetTypeUrl()
	return url[strings.LastIndexByte(url, '/')+1:]
}

// invalid is an error of a validator.
type invalid interface {
	error
	Field() string
	Reason() string
	Cause() error
}

// text returns what a validator says, without what it may quote: other errors that caused it.
func (t *tasting) text(m proto.Message, err error) string {
	var path strings.Builder
	path.WriteString(string(m.ProtoReflect().Descriptor().Name()))
	reason := "it is invalid"
	for {
		var of invalid
		if !errors.As(err, &of) {
			break
		}
		path.WriteByte('.')
		path.WriteString(t.field(of.Field()))
		reason = of.Reason()
		if err = of.Cause(); err == nil {
			break
		}
	}
	return loglines.Clip(path.String() + ": " + reason)
}

// field returns the field in an error of a validator, which has the key of a map in it. The key
// of a resource with secrets is not shown.
func (t *tasting) field(field string) string {
	name, key, ok := strings.Cut(field, "[")
	key = strings.TrimSuffix(key, "]")
	if !ok || strings.Trim(key, "0123456789") == "" {
		return field
	}
	return name + "[" + t.key(key) + "]"
}

// key returns the key of a map as it is shown.
func (t *tasting) key(key string) string {
	if secrets.Holds(t.typeURL, t.value) {
		return "..."
	}
	return loglines.ClipTo(key, 64)
}

// anyFields are the fields of a message type that are Anys, or have some in them.
type anyFields struct{ fields []anyField }

type anyField struct {
	descriptor protoreflect.FieldDescriptor
	inner      *anyFields // nil if the field is an Any
}

const (
	anyName = "google.protobuf.Any"
	// opaque is a map with metadata of extensions. Envoy does not decode what no extension knows.
	opaque = "envoy.config.core.v3.Metadata.typed_filter_metadata"
)

var (
	anysMu sync.Mutex
	// anysByName has what anysIn has found, by the names of messages.
	anysByName = map[protoreflect.FullName]*anyFields{}
)

// anysIn returns the fields of a message type that are Anys or have some, nil if there are none.
func anysIn(message protoreflect.MessageDescriptor) *anyFields {
	anysMu.Lock()
	defer anysMu.Unlock()
	return addAnys(message)
}

// addAnys is anysIn. The caller holds anysMu.
func addAnys(message protoreflect.MessageDescriptor) *anyFields {
	if found, ok := anysByName[message.FullName()]; ok {
		return found
	}
	if !reachesAny(message, map[protoreflect.FullName]bool{}) {
		anysByName[message.FullName()] = nil
		return nil
	}
	found := &anyFields{}
	anysByName[message.FullName()] = found // messages may have themselves in them
	for i := range message.Fields().Len() {
		field := message.Fields().Get(i)
		switch inner := messageOf(field); {
		case inner == nil || field.FullName() == opaque:
		case inner.FullName() == anyName:
			found.fields = append(found.fields, anyField{descriptor: field})
		default:
			if in := addAnys(inner); in != nil {
				found.fields = append(found.fields, anyField{field, in})
			}
		}
	}
	return found
}

// reachesAny reports whether a message of the type can have an Any in it.
func reachesAny(message protoreflect.MessageDescriptor, seen map[protoreflect.FullName]bool) bool {
	if seen[message.FullName()] {
		return false
	}
	seen[message.FullName()] = true
	for i := range message.Fields().Len() {
		field := message.Fields().Get(i)
		inner := messageOf(field)
		if inner != nil && field.FullName() != opaque && (inner.FullName() == anyName || reachesAny(inner, seen)) {
			return true
		}
	}
	return false
}

// messageOf returns the type of the messages that a field has, nil if it has none.
func messageOf(field protoreflect.FieldDescriptor) protoreflect.MessageDescriptor {
	if field.IsMap() {
		return field.MapValue().Message()
	}
	return field.Message()
}
