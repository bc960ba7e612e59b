package rights

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/xds-relay/xds-relay/identity"
)

// FuzzIdentityKey has clients send any claims. Two clients have one key, and so share the results of expressions, only if
// they have the same at the paths that the expressions read.
func FuzzIdentityKey(f *testing.F) {
	f.Add([]byte(`{"sub":"a","n":1}`), []byte(`{"sub":"a","n":"1"}`), "sub n")
	f.Add([]byte(`{"k":{"ns":"a"}}`), []byte(`{"k":"ns"}`), "k/ns k")
	f.Add([]byte(`{}`), []byte(`{"a":null}`), "a b/a")
	f.Fuzz(func(t *testing.T, one, other []byte, read string) {
		var paths []identityPath
		for text := range strings.FieldsSeq(read) {
			paths = append(paths, append(identityPath{"claims"}, strings.Split(text, "/")...))
		}
		key := func(text []byte) (id *identity.Identity, key string, ok bool) {
			id = &identity.Identity{Source: identity.JWT}
			if json.Unmarshal(text, &id.Claims) != nil || id.Claims == nil {
				return nil, "", false
			}
			key, ok = keyOf(id, paths)
			return id, key, ok
		}
		a, aKey, aOK := key(one)
		b, bKey, bOK := key(other)
		if !aOK || !bOK {
			return
		}
		for _, path := range paths {
			aValue, aThere := valueAt(a.Claims, path[1:])
			bValue, bThere := valueAt(b.Claims, path[1:])
			if same := aThere == bThere && reflect.DeepEqual(aValue, bValue); aKey == bKey && !same {
				t.Fatalf("%s and %s have the key %s, and at %q %v and %v", one, other, aKey, path, aValue, bValue)
			}
		}
		if reflect.DeepEqual(a, b) && aKey != bKey {
			t.Fatalf("%s and %s are the same, and have the keys %s and %s", one, other, aKey, bKey)
		}
	})
}

func valueAt(v any, path []string) (value any, there bool) {
	for _, key := range path {
		within, _ := v.(map[string]any)
		if v, there = within[key]; !there {
			return nil, false
		}
	}
	return v, true
}
