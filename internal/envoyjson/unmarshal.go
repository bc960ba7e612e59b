package envoyjson

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/xds-relay/xds-relay/internal/descriptors"
)

// Ignored is a part of a document that Envoy ignores: a field, or the value of an enum, that it does not know.
type Ignored struct {
	Line int    // in the document
	Path string // such as load_assignment.endpoints[0]; the keys of maps are left out
	// Field is the name of a field of the message there that is not known. It is from the document, and so may be a
	// secret in a wrong place. It is empty for anything else.
	Field string
	Text  string // what is ignored
}

// unmarshal is protojson, with all types that are known.
var unmarshal = protojson.UnmarshalOptions{Resolver: descriptors.Types{}}

// Unmarshal decodes JSON into a message.
func Unmarshal(text []byte, m proto.Message) ([]Ignored, error) {
	// Most texts are what protobuf takes. Reading them so is faster.
	err := unmarshal.Unmarshal(text, m)
	if err == nil {
		return nil, nil
	}
	v, wrong := JSON(text)
	if wrong != nil {
		return nil, err
	}
	ignored, _, err := v.Unmarshal(m)
	return ignored, err
}

// Unmarshal decodes a value into a message. ignored has the first hundred parts that are ignored. The error is one of protojson, with the line in the document, 0 if it is
// not known.
func (v *Value) Unmarshal(m proto.Message) (ignored []Ignored, line int, err error) {
	c := &converter{}
	var p printer
	p.value(c.message(m.ProtoReflect().Descriptor(), v, ""))
	if err = unmarshal.Unmarshal(p.json, m); err == nil {
		return c.ignored, 0, nil
	}
	var column int
	if _, e := fmt.Sscanf(strings.ReplaceAll(err.Error(), "\u00a0", " "), "proto: (line %d:%d)", &line, &column); e != nil {
		_, _ = fmt.Sscanf(strings.ReplaceAll(err.Error(), "\u00a0", " "), "proto: syntax error (line %d:%d)", &line, &column)
	}
	if line > 0 && line <= len(p.lines) {
		return c.ignored, p.lines[line-1], err
	}
	return c.ignored, 0, err
}

// converter turns what Envoy takes into the JSON form of protobuf. It leaves what neither takes, for protojson to say
// what is wrong with it.
type converter struct {
	ignored []Ignored
}

// mostIgnored bounds what is kept of a message: a control plane may send any number of fields.
const mostIgnored = 100

func (c *converter) ignore(part Ignored) {
	if len(c.ignored) == mostIgnored {
		return
	}
	c.ignored = append(c.ignored, part)
}

// Join returns the path of a field of the message at a path.
func Join(path, name string) string {
	if path == "" || name == "" {
		return path + name
	}
	return path + "." + name
}

// message converts the value of a message. It returns a value for protojson.
func (c *converter) message(d protoreflect.MessageDescriptor, v *Value, path string) *Value {
	if d.FullName() == "google.protobuf.Any" {
		return c.any(v, path)
	}
	if special, ok := wellKnown[d.FullName()]; ok {
		return special(c, d, v, path)
	}
	if v.Kind != Object {
		return v
	}
	return c.object(d, v, path)
}

// object converts the fields of a message.
func (c *converter) object(d protoreflect.MessageDescriptor, v *Value, path string) *Value {
	converted := &Value{Line: v.Line, Kind: Object}
	index := map[string]int{} // of the fields of converted
	for _, f := range v.Fields {
		member := Join(path, f.Name)
		field := fieldOf(d, f.Name)
		if field == nil && !strings.HasPrefix(f.Name, "[") { // the name of an extension
			c.ignore(Ignored{Line: f.Line, Path: path, Field: f.Name, Text: fmt.Sprintf("%s has no such field", d.Name())})
			continue
		}
		value := f.Value
		if field != nil {
			if value = c.field(field, f.Value, member); value == nil {
				continue
			}
		}
		if i, twice := index[f.Name]; twice {
			c.ignore(Ignored{Line: converted.Fields[i].Line, Path: member, Text: "the field is there again, and the last one counts"})
			converted.Fields[i] = Field{f.Line, f.Name, value}
			continue
		}
		index[f.Name] = len(converted.Fields)
		converted.Fields = append(converted.Fields, Field{f.Line, f.Name, value})
	}
	return converted
}

func fieldOf(d protoreflect.MessageDescriptor, name string) protoreflect.FieldDescriptor {
	if f := d.Fields().ByJSONName(name); f != nil {
		return f
	}
	return d.Fields().ByTextName(name)
}

// field converts the value of a field. It returns nil if the field is left out.
func (c *converter) field(f protoreflect.FieldDescriptor, v *Value, path string) *Value {
	switch {
	case v.IsNull() && (f.IsList() || f.IsMap()):
		return nil
	case f.IsList():
		all := &Value{Line: v.Line, Kind: List}
		c.items(all, f, v, path)
		return all
	case f.IsMap():
		return c.entries(f.MapValue(), v, path)
	default:
		return c.single(f, v, path)
	}
}

// items adds the elements of a list field. A value that is no list is the only element, and lists in the list are
// parts of it.
func (c *converter) items(all *Value, f protoreflect.FieldDescriptor, v *Value, path string) {
	nested := f.Message() != nil && (f.Message().FullName() == "google.protobuf.Value" || f.Message().FullName() == "google.protobuf.ListValue")
	values := v.Items
	if v.Kind != List {
		values = []*Value{v}
	}
	for _, item := range values {
		element := fmt.Sprintf("%s[%d]", path, len(all.Items))
		switch {
		case item.Kind == List && v.Kind == List && !nested:
			c.items(all, f, item, path)
			continue
		case item.IsNull() && !nested:
			item = item.with(zero(f))
			if f.Message() != nil {
				item.Kind = Object
			}
			all.Items = append(all.Items, item)
			continue
		}
		if item = c.single(f, item, element); item != nil {
			all.Items = append(all.Items, item)
		}
	}
}

// zero is a field's value that is null in a list.
func zero(f protoreflect.FieldDescriptor) string {
	switch f.Kind() {
	case protoreflect.BoolKind:
		return "false"
	case protoreflect.StringKind, protoreflect.BytesKind:
		return `""`
	default:
		return "0"
	}
}

// entries converts the entries of a map.
func (c *converter) entries(f protoreflect.FieldDescriptor, v *Value, path string) *Value {
	if v.Kind != Object {
		return v
	}
	converted := &Value{Line: v.Line, Kind: Object}
	for _, entry := range v.Fields {
		if value := c.single(f, entry.Value, path+"[]"); value != nil {
			converted.Fields = append(converted.Fields, Field{entry.Line, entry.Name, value})
		}
	}
	return converted
}

// single converts one value of a field. It returns nil if the value is left out.
func (c *converter) single(f protoreflect.FieldDescriptor, v *Value, path string) *Value {
	if f.Message() != nil {
		return c.message(f.Message(), v, path)
	}
	text, ok := v.text()
	if !ok {
		return v
	}
	switch f.Kind() {
	case protoreflect.EnumKind:
		return c.enum(f.Enum(), v, text, path)
	case protoreflect.BoolKind:
		switch strings.ToLower(text) {
		case "true", "t", "yes", "y", "1":
			return v.with("true")
		case "false", "f", "no", "n", "0":
			return v.with("false")
		}
	case protoreflect.FloatKind, protoreflect.DoubleKind:
		if n, err := strconv.ParseFloat(text, 64); err == nil && !math.IsInf(n, 0) && !math.IsNaN(n) {
			return v.with(strconv.FormatFloat(n, 'g', -1, 64))
		}
	case protoreflect.StringKind, protoreflect.BytesKind, protoreflect.MessageKind, protoreflect.GroupKind:
	default:
		return v.with(quote(strings.TrimPrefix(text, "+")))
	}
	return v
}

// enum converts the name of an enum's value. It returns nil if there is none of that name.
func (c *converter) enum(d protoreflect.EnumDescriptor, v *Value, name, path string) *Value {
	values := d.Values()
	if values.ByName(protoreflect.Name(name)) != nil {
		return v
	}
	if i, err := strconv.ParseInt(name, 10, 32); err == nil {
		return v.with(strconv.FormatInt(i, 10))
	}
	for i := range values.Len() {
		if known := string(values.Get(i).Name()); strings.EqualFold(known, name) {
			return v.with(quote(known))
		}
	}
	c.ignore(Ignored{Line: v.Line, Path: path, Text: fmt.Sprintf("%s has no value of that name", d.Name())})
	return nil
}

// any converts a message of any type, if that is known.
func (c *converter) any(v *Value, path string) *Value {
	if v.Kind != Object {
		return v
	}
	t, err := descriptors.Types{}.FindMessageByURL(v.TypeURL())
	if err != nil {
		return v
	}
	inner := v.Without("@type")
	if _, special := wellKnown[t.Descriptor().FullName()]; special || t.Descriptor().FullName() == "google.protobuf.Any" {
		if value := inner.Field("value"); value != nil {
			inner = &Value{Line: inner.Line, Kind: Object, Fields: []Field{{value.Line, "value", c.message(t.Descriptor(), value, Join(path, "value"))}}}
		}
	} else {
		inner = c.object(t.Descriptor(), inner, path)
	}
	url := v.Field("@type")
	inner.Fields = append([]Field{{url.Line, "@type", url}}, inner.Fields...)
	return inner
}

// wellKnown are the messages that have a JSON form of their own. Envoy also takes the form of other messages for
// some of them.
var wellKnown map[protoreflect.FullName]func(*converter, protoreflect.MessageDescriptor, *Value, string) *Value

func init() {
	asIs := func(_ *converter, _ protoreflect.MessageDescriptor, v *Value, _ string) *Value { return v }
	wrapper := func(c *converter, d protoreflect.MessageDescriptor, v *Value, path string) *Value {
		if v.Kind == Object {
			if v = v.Field("value"); v == nil {
				v = &Value{Scalar: zero(d.Fields().ByNumber(1))}
			}
		}
		return c.single(d.Fields().ByNumber(1), v, path)
	}
	wellKnown = map[protoreflect.FullName]func(*converter, protoreflect.MessageDescriptor, *Value, string) *Value{
		"google.protobuf.Struct": asIs, "google.protobuf.Value": asIs, "google.protobuf.FieldMask": asIs,
		"google.protobuf.ListValue": func(_ *converter, _ protoreflect.MessageDescriptor, v *Value, _ string) *Value {
			if values := v.Field("values"); v.Kind == Object && values != nil {
				return values
			}
			return v
		},
		"google.protobuf.Duration":  timeOf(func(seconds, nanos int64) string { return formatDuration(seconds, nanos) }),
		"google.protobuf.Timestamp": timeOf(func(seconds, nanos int64) string { return time.Unix(seconds, nanos).UTC().Format(time.RFC3339Nano) }),
	}
	for _, kind := range []protoreflect.FullName{"Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes"} {
		wellKnown["google.protobuf."+kind+"Value"] = wrapper
	}
}

// timeOf converts a Duration or Timestamp whose seconds and nanos are given.
func timeOf(format func(seconds, nanos int64) string) func(*converter, protoreflect.MessageDescriptor, *Value, string) *Value {
	return func(_ *converter, _ protoreflect.MessageDescriptor, v *Value, _ string) *Value {
		if v.Kind != Object {
			return v
		}
		var parts [2]int64
		for i, name := range []string{"seconds", "nanos"} {
			part := v.Field(name)
			if part == nil {
				continue
			}
			n, err := strconv.ParseInt(strings.Trim(part.Scalar, `"`), 10, 64)
			if err != nil {
				return v
			}
			parts[i] = n
		}
		return v.with(quote(format(parts[0], parts[1])))
	}
}

func formatDuration(seconds, nanos int64) string {
	sign := ""
	if seconds < 0 || nanos < 0 {
		sign, seconds, nanos = "-", -seconds, -nanos
	}
	return fmt.Sprintf("%s%d.%09ds", sign, seconds, nanos)
}
