package configs

// Fingerprints: whether two configurations, or parts of them, mean the same.

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"google.golang.org/protobuf/types/known/structpb"
)

// Hash returns a short hash of the values of c: of the file with the environment, the command line and
// the defaults, without comments and formatting. Relays with the same configuration have the same hash,
// whether they write a default or leave the key out.
func (c *Config) Hash() string { return c.hash }

// ReadFrom reports whether c was read from a text.
func (c *Config) ReadFrom(text []byte) bool { return c.text == sha256.Sum256(text) }

// hashOf returns the hash of a configuration with the defaults of the schema. Before these are set, a
// key that is false, 0s or empty looks like one that was left out.
func hashOf(c *Config) string {
	sum := sha256.Sum256([]byte(Fingerprint(c)))
	return hex.EncodeToString(sum[:6])
}

// Errorf returns an error about the key at path, with its place in the file.
func (c *Config) Errorf(path, format string, args ...any) Error {
	return c.source.errorf(path, format, args...)
}

// Fingerprint returns a text for a part of a configuration. Parts that mean the same have equal texts.
// The text has the values of keys, but nothing that was compiled from them.
func Fingerprint(part any) string {
	var b strings.Builder
	printPart(&b, reflect.ValueOf(part))
	return b.String()
}

func printPart(b *strings.Builder, v reflect.Value) {
	switch v.Kind() {
	case reflect.Invalid:
		b.WriteString("nil")
	case reflect.Pointer, reflect.Interface:
		switch is := v.Interface().(type) {
		case *structpb.Struct:
			printPart(b, reflect.ValueOf(is.AsMap()))
		default:
			printPart(b, v.Elem())
		}
	case reflect.Struct:
		if g, ok := v.Interface().(Guard); ok && g.off {
			b.WriteString(guardOff)
			return
		}
		b.WriteByte('{')
		for i := range v.NumField() {
			if f := v.Type().Field(i); f.IsExported() {
				fmt.Fprintf(b, "%s:", f.Name)
				printPart(b, v.Field(i))
				b.WriteByte(' ')
			}
		}
		b.WriteByte('}')
	case reflect.Slice:
		b.WriteByte('[')
		for i := range v.Len() {
			printPart(b, v.Index(i))
			b.WriteByte(' ')
		}
		b.WriteByte(']')
	case reflect.Map:
		printMap(b, v)
	default:
		fmt.Fprintf(b, "%#v", v.Interface())
	}
}

func printMap(b *strings.Builder, v reflect.Value) {
	texts := map[string]string{}
	for k, of := range v.Seq2() {
		var value strings.Builder
		printPart(&value, of)
		texts[fmt.Sprintf("%#v", k.Interface())] = value.String()
	}
	b.WriteByte('{')
	for _, k := range slices.Sorted(maps.Keys(texts)) {
		fmt.Fprintf(b, "%s:%s ", k, texts[k])
	}
	b.WriteByte('}')
}
