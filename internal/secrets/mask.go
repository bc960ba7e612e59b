package secrets

// This file walks through a message before it is printed. It redacts secrets, and replaces parts that protojson
// cannot print.
//
// Envoy's config dump redacts in the same way (MessageUtil::redact), but prints the content of a Struct, and all
// parts of a Secret that are not marked.

import (
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/dynamicpb"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/xds-relay/xds-relay/internal/descriptors"
)

// redacted replaces a secret, as in Envoy's config dump.
const redacted = "[redacted]"

// maxNesting bounds the nesting of messages. Real resources have less than twenty levels, and
// each Any costs decoding and encoding.
const maxNesting = 64

// Masked returns a copy of a message for printing with [Types]. In the copy, [redacted] replaces each secret. An Any
// whose message is unknown or cannot be decoded is reduced to its type and size.
func Masked[M proto.Message](m M) M {
	c := proto.CloneOf(m)
	masker{}.message(c.ProtoReflect(), place{})
	return c
}

// Unmasked returns a copy of a message for printing with [Types], for a user who requested the secrets.
func Unmasked[M proto.Message](m M) M {
	c := proto.CloneOf(m)
	masker{show: true}.message(c.ProtoReflect(), place{})
	return c
}

// masker masks messages in place. With show it shows secrets, and only makes messages printable.
type masker struct {
	show bool
}

// place is the context of a message.
type place struct {
	secret   bool // inside a secret field: everything is secret
	ofSecret bool // inside a Secret: data is secret
	nesting  int  // the number of enclosing Any messages
}

func (k masker) message(m protoreflect.Message, p place) {
	name := m.Descriptor().FullName()
	p.ofSecret = p.ofSecret || !k.show && isSecret(name)
	switch known := m.Interface().(type) {
	case *dynamicpb.Message:
		if isSpecial(name) {
			k.dynamic(m, p)
			return
		}
	case *anypb.Any:
		k.any(known, p)
		return
	case *structpb.Struct:
		if !k.show && !p.secret {
			structWalk{}.untyped(known, 0)
			return
		}
	}
	switch {
	case (p.secret || p.ofSecret) && isDataSource(name):
		redactDataSource(m)
		return
	case !k.show && !p.secret && isTypedStruct(name):
		maskTypedStruct(m)
		return
	}
	m.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		p := p
		p.secret = p.secret || !k.show && sensitive(field)
		switch {
		case field.IsMap():
			k.entries(field, value.Map(), p)
		case field.IsList():
			k.elements(field, value.List(), p)
		case field.Message() != nil:
			k.message(value.Message(), p)
		case p.secret:
			m.Set(field, redact(field))
		}
		return true
	})
}

func (k masker) entries(field protoreflect.FieldDescriptor, entries protoreflect.Map, p place) {
	valueField := field.MapValue()
	entries.Range(func(key protoreflect.MapKey, value protoreflect.Value) bool {
		switch {
		case valueField.Message() != nil:
			k.message(value.Message(), p)
		case p.secret:
			entries.Set(key, redact(valueField))
		}
		return true
	})
}

func (k masker) elements(field protoreflect.FieldDescriptor, list protoreflect.List, p place) {
	for i := range list.Len() {
		switch {
		case field.Message() != nil:
			k.message(list.Get(i).Message(), p)
		case p.secret:
			list.Set(i, redact(field))
		}
	}
}

// isSpecial reports whether the masker reads a message by the fields of its Go type.
func isSpecial(message protoreflect.FullName) bool {
	return message == anyName || message == structName || isTypedStruct(message)
}

// dynamic walks through a special message that is dynamic, because the message around it is. It walks through a copy of
// the Go type.
func (k masker) dynamic(m protoreflect.Message, p place) {
	copied, err := k.copied(m, p)
	proto.Reset(m.Interface())
	if err == nil {
		_ = proto.UnmarshalOptions{AllowPartial: true}.Unmarshal(copied, m.Interface())
	}
}

// copied returns a message after the walk, encoded.
func (k masker) copied(m protoreflect.Message, p place) ([]byte, error) {
	t, err := protoregistry.GlobalTypes.FindMessageByName(m.Descriptor().FullName())
	if err != nil {
		return nil, err
	}
	value, err := proto.MarshalOptions{AllowPartial: true}.Marshal(m.Interface())
	if err != nil {
		return nil, err
	}
	typed := t.New()
	if err := (proto.UnmarshalOptions{AllowPartial: true}).Unmarshal(value, typed.Interface()); err != nil {
		return nil, err
	}
	k.message(typed, p)
	return proto.MarshalOptions{AllowPartial: true}.Marshal(typed.Interface())
}

// any masks the content of an Any.
func (k masker) any(content *anypb.Any, p place) {
	if content.GetTypeUrl() == "" && len(content.GetValue()) == 0 {
		return
	}
	message := descriptorOf(content.GetTypeUrl())
	switch {
	case message == nil && content.GetTypeUrl() != "":
		content.Value = k.opaque(content.GetValue())
		return
	case message == nil || p.nesting >= maxNesting:
		k.hide(content)
		return
	}
	inner, err := anypb.UnmarshalNew(content, proto.UnmarshalOptions{AllowPartial: true, Resolver: descriptors.Types{}})
	if err != nil {
		k.hide(content)
		return
	}
	p.nesting++
	k.message(inner.ProtoReflect(), p)
	value, err := proto.MarshalOptions{AllowPartial: true}.Marshal(inner)
	if err != nil {
		k.hide(content)
		return
	}
	content.Value = value
}

// maskTypedStruct masks a TypedStruct by the fields of the message that it stands for.
func maskTypedStruct(m protoreflect.Message) {
	fields := m.Descriptor().Fields()
	valueField := fields.ByName("value")
	s, ok := m.Get(valueField).Message().Interface().(*structpb.Struct)
	if !ok || !m.Has(valueField) {
		return
	}
	if message := descriptorOf(m.Get(fields.ByName("type_url")).String()); message != nil {
		structWalk{}.message(s, message, false, 0)
		return
	}
	size := proto.Size(s)
	s.Fields = map[string]*structpb.Value{"hidden": structpb.NewStringValue(hiddenText(size))}
}

// redact returns the printed value of a secret field, or of an element of one.
func redact(field protoreflect.FieldDescriptor) protoreflect.Value {
	switch field.Kind() {
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(redacted)
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes([]byte(redacted))
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(0)
	}
	return zero(field)
}

// zero returns 0 or false. An element of a list has no default value, so the result depends on
// the kind.
func zero(field protoreflect.FieldDescriptor) protoreflect.Value {
	switch field.Kind() {
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(false)
	case protoreflect.Int32Kind, protoreflect.Sint32Kind, protoreflect.Sfixed32Kind:
		return protoreflect.ValueOfInt32(0)
	case protoreflect.Int64Kind, protoreflect.Sint64Kind, protoreflect.Sfixed64Kind:
		return protoreflect.ValueOfInt64(0)
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		return protoreflect.ValueOfUint32(0)
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		return protoreflect.ValueOfUint64(0)
	case protoreflect.FloatKind:
		return protoreflect.ValueOfFloat32(0)
	default:
		return protoreflect.ValueOfFloat64(0)
	}
}

// redactDataSource redacts inline data. The name of a file or variable is not secret, and helps to find a wrong key.
// Bytes become text, so that [redacted] is readable.
func redactDataSource(m protoreflect.Message) {
	fields := m.Descriptor().Fields()
	for name := range inlineData {
		if field := fields.ByName(name); m.Has(field) {
			m.Set(fields.ByName("inline_string"), protoreflect.ValueOfString(redacted))
		}
	}
}
