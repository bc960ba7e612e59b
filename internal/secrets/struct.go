package secrets

// This file finds secrets in a google.protobuf.Struct: in one that stands for a message of known type (TypedStruct)
// by its fields, and in any other, such as metadata, by the names of its keys.

import (
	"fmt"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/xds-relay/xds-relay/internal/descriptors"
)

// structWalk walks through a Struct and redacts its secrets. If found is not nil, it calls found for each secret
// instead.
type structWalk struct {
	found func()
}

// message walks through a Struct that is the JSON form of a message. ofSecret: the message is part of a Secret.
func (w structWalk) message(s *structpb.Struct, message protoreflect.MessageDescriptor, ofSecret bool, nesting int) {
	name := message.FullName()
	ofSecret = ofSecret || isSecret(name)
	for key, value := range s.GetFields() {
		field := message.Fields().ByJSONName(key)
		if field == nil {
			field = message.Fields().ByTextName(key)
		}
		switch {
		case key == "@type":
		case nesting > maxNesting, field == nil: // the field belongs to a newer API than this binary's
			s.Fields[key] = w.hide(value)
		case ofSecret && isDataSource(name):
			if inlineData[field.Name()] {
				s.Fields[key] = w.redact(value)
			}
		case sensitive(field):
			w.secret(s, key, field)
		case field.Message() != nil:
			w.field(value, field, ofSecret, nesting+1)
		}
	}
}

// field walks through a field's value: a message, a list or a map of messages.
func (w structWalk) field(value *structpb.Value, field protoreflect.FieldDescriptor, ofSecret bool, nesting int) {
	if field.IsMap() {
		message := field.MapValue().Message()
		for _, element := range value.GetStructValue().GetFields() {
			if message != nil {
				w.one(element, message, ofSecret, nesting)
			}
		}
		return
	}
	if list := value.GetListValue(); list != nil && field.IsList() {
		for _, element := range list.GetValues() {
			w.one(element, field.Message(), ofSecret, nesting)
		}
		return
	}
	w.one(value, field.Message(), ofSecret, nesting)
}

// one walks through the value of one message.
func (w structWalk) one(value *structpb.Value, message protoreflect.MessageDescriptor, ofSecret bool, nesting int) {
	s := value.GetStructValue()
	switch name := message.FullName(); {
	case s == nil:
	case name == structName:
		w.untyped(s, nesting)
	case name == anyName:
		message := descriptorOf(s.GetFields()["@type"].GetStringValue())
		if message == nil {
			w.replace(value, w.hide(value))
			return
		}
		w.message(s, message, ofSecret, nesting)
	case isTypedStruct(name):
		w.replace(value, w.hide(value)) // nested lists do not occur
	default:
		w.message(s, message, ofSecret, nesting)
	}
}

// secret redacts the value of a sensitive field. The location of data is not secret.
func (w structWalk) secret(s *structpb.Struct, key string, field protoreflect.FieldDescriptor) {
	source := s.Fields[key].GetStructValue()
	if source == nil || field.IsMap() || field.Message() == nil || !isDataSource(field.Message().FullName()) {
		s.Fields[key] = w.redact(s.Fields[key])
		return
	}
	for inner := range inlineKeys {
		if value, ok := source.Fields[inner]; ok {
			source.Fields[inner] = w.redact(value)
		}
	}
}

// untyped walks through a Struct of unknown meaning.
func (w structWalk) untyped(s *structpb.Struct, nesting int) {
	names := secretNames()
	for key, value := range s.GetFields() {
		if _, secret := names[key]; secret || inlineKeys[key] || nesting > maxNesting {
			s.Fields[key] = w.redact(value)
			continue
		}
		w.untypedValue(value, nesting+1)
	}
}

func (w structWalk) untypedValue(value *structpb.Value, nesting int) {
	if nesting > maxNesting {
		w.replace(value, w.redact(value))
		return
	}
	if inner := value.GetStructValue(); inner != nil {
		w.untyped(inner, nesting)
	}
	for _, element := range value.GetListValue().GetValues() {
		w.untypedValue(element, nesting+1)
	}
}

// redact returns the replacement for a secret.
func (w structWalk) redact(value *structpb.Value) *structpb.Value {
	if w.found != nil {
		w.found()
		return value
	}
	return structpb.NewStringValue(redacted)
}

// hide returns the replacement for a part that this binary does not know, which does not count as secret.
func (w structWalk) hide(value *structpb.Value) *structpb.Value {
	if w.found != nil {
		return value
	}
	return structpb.NewStringValue(hiddenText(proto.Size(value)))
}

func (w structWalk) replace(value, by *structpb.Value) {
	if w.found == nil {
		value.Kind = by.GetKind()
	}
}

func hiddenText(size int) string { return fmt.Sprintf("%d bytes that may have secrets in them", size) }

// inlineKeys are the names of inlineData as keys of a Struct.
var inlineKeys = map[string]bool{"inline_bytes": true, "inlineBytes": true, "inline_string": true, "inlineString": true}

// secretNames returns the names of all sensitive fields of the types that are known, as keys of a Struct.
func secretNames() map[string]struct{} {
	return secretNameCache.Get().collect(func(n *names, field protoreflect.FieldDescriptor) {
		inner := field.Message()
		// Fields of type Any or Struct have common names, such as config.
		if sensitive(field) && (inner == nil || inner.FullName() != anyName && inner.FullName() != structName) {
			n.add(field.JSONName())
			n.add(field.TextName())
		}
	}).all
}

var secretNameCache descriptors.Cached[nameCache]
