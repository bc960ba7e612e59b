package configs

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
)

const minimal = `
listeners: [{address: ':1'}]
authorities: [{name: a, servers: [{address: 'a:1'}]}]
`

// TestHashIsThatOfTheDecidedValues: a key that is left out and its default are the same, a key that is
// written as false or 0s where this is not the default is another.
func TestHashIsThatOfTheDecidedValues(t *testing.T) {
	server := func(keys string) string {
		return strings.Replace(minimal, "address: 'a:1'", "address: 'a:1', "+keys, 1)
	}
	listener := func(keys string) string {
		return strings.Replace(minimal, "address: ':1'", "address: ':1', "+keys, 1)
	}
	for _, c := range []struct {
		a, b string
		same bool
	}{
		{minimal, "# a comment\nauthorities:\n- servers:\n  - address: a:1\n  name: a\nlisteners:\n- address: ':1'\n", true},
		{minimal, minimal + "rights: [{allow: true}]\n", false},

		{minimal, server("aggregated: true"), true},
		{minimal, server("aggregated: false"), false},
		{minimal, server("globs: true"), true},
		{minimal, server("globs: false"), false},
		{server("globs: false"), server("aggregated: false"), false},
		{minimal, server("protocol: auto, backoff: {base: 1000ms}"), true},
		{minimal, server("protocol: sotw"), false},
		{minimal, server("tls: {}"), false},

		{minimal, minimal + "cache: {linger: 5m}\n", true},
		{minimal, minimal + "cache: {linger: 300s}\n", true},
		{minimal, minimal + "cache: {linger: 0s}\n", false},
		{minimal, minimal + "drain: {delay: 0s}\n", true},
		{minimal, minimal + "drain: {time: 0s}\n", false},
		{minimal, listener("max_connection_age: 0s"), true},
		{minimal, listener("max_connection_age: 1h"), false},

		{minimal, strings.Replace(minimal, "name: a,", "name: a, guard: {ratio: 0.50},", 1), true},
		{minimal, strings.Replace(minimal, "name: a,", "name: a, guard: off,", 1), false},
		{minimal, strings.Replace(minimal, "name: a,", "name: a, rollout: {},", 1), false},
		{minimal, strings.Replace(minimal, "name: a", "name: ''", 1), false},

		{minimal + "node: {metadata: {a: 1, b: 2}}\n", minimal + "node: {metadata: {b: 2, a: 1.0}}\n", true},
		{minimal + "node: {metadata: {a: false}}\n", minimal + "node: {metadata: {a: 0}}\n", false},
		{minimal + "node: {metadata: {a: false}}\n", minimal + "node: {metadata: {a: null}}\n", false},
		{minimal, minimal + "node: {metadata: {a: null}}\n", false},
		{minimal, minimal + "node: {id: another}\n", false},
	} {
		a, b := parsed(t, c.a).Hash(), parsed(t, c.b).Hash()
		if (a == b) != c.same {
			t.Errorf("equal hashes: %v, want %v, for\n%s\nand%s", a == b, c.same, c.a, c.b)
		}
	}
}

// TestHashDiffersForEachFlag: for each boolean key of the schema, the key left out has the hash of its
// default, and not that of the other value.
func TestHashDiffersForEachFlag(t *testing.T) {
	var flags int
	var visit func(typ reflect.Type, path string)
	visit = func(typ reflect.Type, path string) {
		switch {
		case typ == metadataType:
		case typ.Kind() == reflect.Pointer:
			visit(typ.Elem(), path)
		case typ.Kind() == reflect.Slice:
			visit(typ.Elem(), path+"[0]")
		case isMap(typ):
			for _, key := range keysOf(typ) {
				field, _ := fieldOf(typ, key)
				visit(field.Type, join(path, key))
			}
		case typ.Kind() == reflect.Bool:
			flags++
			left := hashOfText(t, nested(path[:strings.LastIndexByte(path, '.')], "{}"))
			isTrue, isFalse := left == hashOfText(t, nested(path, "true")), left == hashOfText(t, nested(path, "false"))
			if isTrue == isFalse {
				t.Errorf("%s: left out is the same as true (%v) and as false (%v)", path, isTrue, isFalse)
			}
		}
	}
	visit(configType, "")
	if flags < 5 {
		t.Errorf("%d flags were found, want more", flags)
	}
}

// hashOfText returns the hash of a text that lacks required keys.
func hashOfText(t *testing.T, text string) string {
	t.Helper()
	root, err := parseYAML("relay.yaml", []byte(text))
	s, c := newShape("relay.yaml"), &Config{}
	if err != nil || !s.walk(root, configType, "", "") || len(s.errs) > 0 {
		t.Fatal(text, err, s.errs)
	}
	if err := root.Decode(c); err != nil {
		t.Fatal(text, err)
	}
	c.source = s.source
	if err := c.setDefaults(nil); err != nil {
		t.Fatal(text, err)
	}
	return c.Hash()
}

// TestHashIsTheSameOnAllHosts: the default of node.id is the host's name.
func TestHashIsTheSameOnAllHosts(t *testing.T) {
	c := parsed(t, minimal)
	if own := parsed(t, minimal+fmt.Sprintf("node: {id: %q}\n", c.Node.ID)); own.Hash() == c.Hash() {
		t.Error("the hash has the host's name")
	}
}

func parsed(t *testing.T, text string) *Config {
	t.Helper()
	c, err := Parse("relay.yaml", []byte(text))
	if err != nil {
		t.Fatalf("%s\n%v", text, err)
	}
	return c
}
