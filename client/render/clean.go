package render

// A walk through a message before it is printed. It redacts secrets, and replaces parts that
// protojson cannot print.

import (
	udpaannotations "github.com/cncf/xds/go/udpa/annotations"
	xdsannotations "github.com/cncf/xds/go/xds/annotations/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/anypb"
)

// redacted replaces a secret, as in Envoy's config dump.
const redacted = "[redacted]"

// maxNesting bounds the nesting of Any messages. Real resources have less than ten levels,
// and each level costs decoding and encoding.
const maxNesting = 64

type cleaner struct {
	showSecrets bool
}

// message cleans m in place. secret says that m is in a secret field, so that all of it is
// secret. nesting is the number of Any messages around it.
func (c cleaner) message(m protoreflect.Message, secret bool, nesting int) {
	switch known := m.Interface().(type) {
	case *anypb.Any:
		c.any(known, secret, nesting)
		return
	case *corev3.DataSource:
		if secret {
			redactDataSource(known)
			return
		}
	}
	m.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		secret := secret || !c.showSecrets && sensitive(field)
		switch {
		case field.IsMap():
			c.entries(field, value.Map(), secret, nesting)
		case field.IsList():
			c.elements(field, value.List(), secret, nesting)
		case field.Message() != nil:
			c.message(value.Message(), secret, nesting)
		case secret:
			m.Set(field, redact(field))
		}
		return true
	})
}

func (c cleaner) entries(field protoreflect.FieldDescriptor, entries protoreflect.Map, secret bool, nesting int) {
	valueField := field.MapValue()
	entries.Range(func(key protoreflect.MapKey, value protoreflect.Value) bool {
		switch {
		case valueField.Message() != nil:
			c.message(value.Message(), secret, nesting)
		case secret:
			entries.Set(key, redact(valueField))
		}
		return true
	})
}

func (c cleaner) elements(field protoreflect.FieldDescriptor, list protoreflect.List, secret bool, nesting int) {
	for i := range list.Len() {
		switch {
		case field.Message() != nil:
			c.message(list.Get(i).Message(), secret, nesting)
		case secret:
			list.Set(i, redact(field))
		}
	}
}

// any cleans the content of an Any.
func (c cleaner) any(content *anypb.Any, secret bool, nesting int) {
	if content.GetTypeUrl() == "" && len(content.GetValue()) == 0 {
		return
	}
	kind, err := protoregistry.GlobalTypes.FindMessageByURL(content.GetTypeUrl())
	switch {
	case err != nil && secret:
		content.Value = hidden(content.GetValue())
		return
	case err != nil && content.GetTypeUrl() != "":
		content.Value = opaque(content.GetValue())
		return
	case err != nil || nesting >= maxNesting:
		c.broken(content)
		return
	}
	inner := kind.New()
	if proto.Unmarshal(content.GetValue(), inner.Interface()) != nil {
		c.broken(content)
		return
	}
	c.message(inner, secret, nesting+1)
	value, err := proto.Marshal(inner.Interface())
	if err != nil {
		c.broken(content)
		return
	}
	content.Value = value
}

// sensitive returns whether a field's definition marks it as secret: private keys,
// passwords, session ticket keys, generic secrets.
func sensitive(field protoreflect.FieldDescriptor) bool {
	options := field.Options()
	for _, mark := range []protoreflect.ExtensionType{udpaannotations.E_Sensitive, xdsannotations.E_Sensitive} {
		if proto.HasExtension(options, mark) && proto.GetExtension(options, mark).(bool) {
			return true
		}
	}
	return false
}

// redact returns the value to print for a secret field, or for an element of one.
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

// redactDataSource redacts inline data. The name of a file or variable is no secret, and helps
// to find a wrong key. Bytes become text, so that [redacted] is readable.
func redactDataSource(source *corev3.DataSource) {
	switch source.GetSpecifier().(type) {
	case *corev3.DataSource_InlineBytes, *corev3.DataSource_InlineString:
		source.Specifier = &corev3.DataSource_InlineString{InlineString: redacted}
	}
}
