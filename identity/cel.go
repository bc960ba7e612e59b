package identity

import (
	"fmt"
	"reflect"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
)

// Variable is the name of the client's identity in CEL expressions.
const Variable = "identity"

// This file defines identities in CEL expressions. A field that the client has not proven is not set: selecting it is
// an evaluation error, and has() tests for it. Otherwise an empty spiffe_path would be a prefix of every name, and
// uid 0 is root.

// field is a field of an identity in CEL.
type field struct {
	name  string
	is    *cel.Type
	value func(*Identity) (value any, set bool)
}

var fields = []field{
	{"source", cel.StringType, func(id *Identity) (any, bool) { return string(id.Source), true }},
	{"spiffe_id", cel.StringType, func(id *Identity) (any, bool) { return id.SPIFFEID, id.SPIFFEID != "" }},
	{"trust_domain", cel.StringType, func(id *Identity) (any, bool) { return id.TrustDomain, id.TrustDomain != "" }},
	{"spiffe_path", cel.StringType, func(id *Identity) (any, bool) { return id.SPIFFEPath, id.SPIFFEPath != "" }},
	{"dns_names", cel.ListType(cel.StringType), func(id *Identity) (any, bool) { return id.DNSNames, len(id.DNSNames) > 0 }},
	{"subject", cel.StringType, func(id *Identity) (any, bool) { return id.Subject, id.Subject != "" }},
	{"claims", cel.MapType(cel.StringType, cel.DynType), func(id *Identity) (any, bool) { return id.Claims, id.Claims != nil }},
	{"uid", cel.IntType, func(id *Identity) (any, bool) {
		if id.UID == nil {
			return nil, false
		}
		return int64(*id.UID), true
	}},
}

// TextField returns a function that reads a string field, or nil if there is no such field. The function returns ""
// if the client has not proven the field.
func TextField(name string) func(*Identity) string {
	for _, f := range fields {
		if f.name == name && f.is == cel.StringType {
			return func(id *Identity) string {
				value, _ := f.value(id)
				text, _ := value.(string)
				return text
			}
		}
	}
	return nil
}

var objectType = cel.ObjectType("xds_relay.Identity")

// CELOptions declares [Variable], whose values are *Identity, and the messages' types.
func CELOptions(messages ...any) (cel.EnvOption, error) {
	registry, err := types.NewRegistry()
	if err != nil {
		return nil, err
	}
	of := &provider{Registry: registry}
	return cel.Lib(library{of, messages}), nil
}

type library struct {
	provider *provider
	messages []any
}

// CompileOptions implements cel.Library.
func (l library) CompileOptions() []cel.EnvOption {
	return []cel.EnvOption{
		cel.CustomTypeProvider(l.provider),
		cel.CustomTypeAdapter(l.provider),
		cel.Types(l.messages...),
		cel.Variable(Variable, objectType),
	}
}

// ProgramOptions implements cel.Library.
func (library) ProgramOptions() []cel.ProgramOption { return nil }

// provider knows identities in addition to the types of its registry.
type provider struct{ *types.Registry }

// FindStructType implements types.Provider.
func (p *provider) FindStructType(name string) (*types.Type, bool) {
	if name == objectType.TypeName() {
		return types.NewTypeTypeWithParam(objectType), true
	}
	return p.Registry.FindStructType(name)
}

// FindStructFieldNames implements types.Provider.
func (p *provider) FindStructFieldNames(name string) ([]string, bool) {
	if name != objectType.TypeName() {
		return p.Registry.FindStructFieldNames(name)
	}
	names := make([]string, len(fields))
	for i, f := range fields {
		names[i] = f.name
	}
	return names, true
}

// FindStructFieldType implements types.Provider.
func (p *provider) FindStructFieldType(name, of string) (*types.FieldType, bool) {
	if name != objectType.TypeName() {
		return p.Registry.FindStructFieldType(name, of)
	}
	for _, f := range fields {
		if f.name == of {
			return &types.FieldType{Type: f.is, IsSet: f.isSet, GetFrom: f.get}, true
		}
	}
	return nil, false
}

func (f *field) isSet(of any) bool {
	id, ok := of.(*Identity)
	if !ok {
		return false
	}
	_, set := f.value(id)
	return set
}

func (f *field) get(of any) (any, error) {
	id, ok := of.(*Identity)
	if !ok {
		return nil, fmt.Errorf("%T is not an identity", of)
	}
	value, set := f.value(id)
	if !set {
		return nil, fmt.Errorf("the client has no %s (its identity's source is %q)", f.name, id.Source)
	}
	return value, nil
}

// NativeToValue implements types.Adapter.
func (p *provider) NativeToValue(value any) ref.Val {
	if id, ok := value.(*Identity); ok {
		return celValue{id}
	}
	return p.Registry.NativeToValue(value)
}

// celValue is an identity as a value of CEL.
type celValue struct{ id *Identity }

// ConvertToNative implements ref.Val.
func (v celValue) ConvertToNative(to reflect.Type) (any, error) {
	return nil, fmt.Errorf("an identity is not %v", to)
}

// ConvertToType implements ref.Val.
func (v celValue) ConvertToType(to ref.Type) ref.Val {
	if to == types.TypeType {
		return objectType
	}
	return types.NewErr("an identity is not %s", to.TypeName())
}

// Equal implements ref.Val.
func (v celValue) Equal(other ref.Val) ref.Val { return types.Bool(v == other) }

// Type implements ref.Val.
func (v celValue) Type() ref.Type { return objectType }

// Value implements ref.Val.
func (v celValue) Value() any { return v.id }
