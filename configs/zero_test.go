package configs

import (
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestNoLingerIsNoneAndNotTheDefault(t *testing.T) {
	const head = "listeners: [{address: ':1'}]\nauthorities: [{name: a, directory: .}]\n"
	for text, want := range map[string]time.Duration{
		"":                       5 * time.Minute,
		"cache: {linger: 0s}\n":  0,
		"cache: {linger: 0ms}\n": 0,
		"cache: {linger: 1ms}\n": time.Millisecond,
	} {
		c, err := Parse("relay.yaml", []byte(head+text))
		if err != nil || c.Cache.Linger != want {
			t.Errorf("%q: got %v, %v, want %v", text, c.Cache.Linger, err, want)
		}
	}
}

// TestNoZeroBecomesADefault: a number, size or time that is written as zero is taken as
// zero or refused, for each key of the schema.
func TestNoZeroBecomesADefault(t *testing.T) {
	var keys int
	var visit func(t reflect.Type, path string)
	visit = func(typ reflect.Type, path string) {
		switch {
		case typ == metadataType:
		case typ.Kind() == reflect.Pointer:
			visit(typ.Elem(), path)
		case typ.Kind() == reflect.Slice:
			visit(typ.Elem(), path+"[0]")
		case typ.Kind() == reflect.Struct:
			for i := range typ.NumField() {
				if key, ok := typ.Field(i).Tag.Lookup("yaml"); ok && typ.Field(i).Tag.Get("allow") != "zero" {
					visit(typ.Field(i).Type, join(path, key))
				}
			}
		case typ == durationType, typ.Kind() == reflect.Int:
			keys++
			zeros := []string{"0"}
			if typ == durationType {
				zeros = append(zeros, "0s", "0h0m")
			}
			for _, zero := range zeros {
				if _, err := Parse("relay.yaml", []byte(nested(path, zero))); err == nil || !strings.Contains(err.Error(), ": "+path+": ") {
					t.Errorf("%s: %s is not refused: %v", path, zero, err)
				}
			}
		}
	}
	visit(configType, "")
	if keys < 20 {
		t.Errorf("%d keys were found, want many more", keys)
	}
}

// nested is a document that has nothing but a value at a path.
func nested(path, value string) string {
	var b strings.Builder
	for key := range strings.SplitSeq(path, ".") {
		key, list := strings.CutSuffix(key, "[0]")
		b.WriteString("{" + key + ": ")
		if list {
			b.WriteString("[")
		}
	}
	b.WriteString(value)
	keys := strings.Split(path, ".")
	for i := range keys {
		if strings.HasSuffix(keys[len(keys)-1-i], "[0]") {
			b.WriteString("]")
		}
		b.WriteString("}")
	}
	return b.String() + "\n"
}
