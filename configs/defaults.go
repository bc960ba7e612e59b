package configs

// This file sets keys that were left out to the defaults in their tags.

import (
	"encoding"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// setDefaults sets the keys that c leaves out, and the hash of the result. The paths in unusable, whose
// values are wrong, count as left out.
func (c *Config) setDefaults(unusable map[string]bool) error {
	d := defaulter{source: c.source, unusable: unusable}
	if err := d.fill(reflect.ValueOf(c).Elem(), "", "", nil); err != nil {
		return err
	}
	c.hash = hashOf(c) // without the host's name: the configuration is the same on all hosts
	if c.Node.ID == "" {
		c.Node.ID = hostname()
	}
	return nil
}

type defaulter struct {
	source
	unusable map[string]bool
}

// fill sets the keys of the map v, which is at path. protocol is that of the listener or server around
// it, and values are the defaults in the tag of the map itself.
func (d defaulter) fill(v reflect.Value, path, protocol string, values map[string]string) error {
	for _, key := range keysOf(v.Type()) {
		field, _ := fieldOf(v.Type(), key)
		value, at := v.FieldByIndex(field.Index), join(path, key)
		text, ok := values[key]
		if !ok {
			text, ok = field.Tag.Lookup("default")
		}
		var err error
		switch {
		case !goesWith(field, protocol):
		case isMap(field.Type):
			var values map[string]string
			if err = yaml.Unmarshal([]byte(text), &values); err == nil {
				err = d.fill(value, at, protocol, values)
			}
		case field.Type.Kind() == reflect.Pointer && isMap(field.Type.Elem()) && field.Type != metadataType:
			if !value.IsNil() {
				err = d.fill(value.Elem(), at, protocol, nil)
			}
		case field.Type.Kind() == reflect.Slice && isMap(field.Type.Elem()):
			for i := 0; i < value.Len() && err == nil; i++ {
				err = d.fill(value.Index(i), fmt.Sprintf("%s[%d]", at, i), "", nil)
			}
		case ok && (!d.has(at) || d.unusable[at]):
			err = yaml.Unmarshal([]byte(text), value.Addr().Interface())
		}
		if err != nil {
			return fmt.Errorf("default of %s: %w", at, err)
		}
		if key == "protocol" {
			protocol = value.String()
		}
	}
	return nil
}

// goesWith reports whether a key has a meaning with a protocol.
func goesWith(field reflect.StructField, protocol string) bool {
	with, ok := field.Tag.Lookup("with")
	return !ok || slices.Contains(strings.Split(with, ","), protocol)
}

// keysOf returns the keys of a map in the schema, in its order.
func keysOf(t reflect.Type) []string {
	var keys []string
	for i := range t.NumField() {
		if key := t.Field(i).Tag.Get("yaml"); key != "" {
			keys = append(keys, key)
		}
	}
	return keys
}

func fieldOf(t reflect.Type, key string) (reflect.StructField, bool) {
	for i := range t.NumField() {
		if f := t.Field(i); key != "" && f.Tag.Get("yaml") == key {
			return f, true
		}
	}
	return reflect.StructField{}, false
}

// isMap reports whether t has keys of the schema.
func isMap(t reflect.Type) bool {
	return t.Kind() == reflect.Struct && !reflect.PointerTo(t).Implements(reflect.TypeFor[encoding.TextUnmarshaler]())
}

// hostname returns the host's name, which distinguishes replicas in a control plane's logs. On a host
// without a name the relay starts anyway.
func hostname() string {
	if name, err := os.Hostname(); err == nil && name != "" {
		return name
	}
	return "xds-relay"
}
