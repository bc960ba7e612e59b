package urn

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"reflect"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

// components is a name as the package comment describes it, read the plain way.
type components struct {
	authority, typ string
	id             []string
	params         map[string]string
	alt            *components
	entry          string
}

// read splits a name and then decodes it, without any code of the parser. It does not check
// limits.
func read(name string) (*components, error) {
	rest, ok := strings.CutPrefix(name, "xdstp://")
	if !ok {
		return nil, errors.New("scheme")
	}
	c := &components{params: map[string]string{}}
	var err error
	component := func(s string) string {
		d, e := url.PathUnescape(s)
		if e != nil || !utf8.ValidString(d) || strings.ContainsFunc(d, unicode.IsControl) {
			err = errors.Join(err, fmt.Errorf("component %q is not text", s), e)
		}
		return d
	}
	rest, fragment, hasFragment := strings.Cut(rest, "#")
	path, query, _ := strings.Cut(rest, "?")
	segments := strings.Split(path, "/")
	if len(segments) < 2 || segments[1] == "" {
		return nil, errors.New("type")
	}
	c.authority, c.typ = component(segments[0]), component(segments[1])
	for _, s := range segments[2:] {
		c.id = append(c.id, component(s))
	}
	if len(c.id) == 1 && c.id[0] == "" {
		c.id = nil
	}
	if query != "" {
		for _, pair := range strings.Split(query, "&") {
			key, value, _ := strings.Cut(pair, "=")
			key = component(key)
			if _, twice := c.params[key]; twice || pair == "" {
				return nil, errors.New("parameter")
			}
			c.params[key] = component(value)
		}
	}
	if hasFragment {
		for _, d := range strings.Split(fragment, ",") {
			key, value, _ := strings.Cut(d, "=")
			value, e := url.PathUnescape(value)
			switch {
			case e != nil || strings.Contains(d, "#") && key != "alt":
				return nil, errors.New("directive")
			case key == "alt" && c.alt == nil:
				if c.alt, e = read(value); e != nil {
					return nil, e
				}
			case key == "entry" && c.entry == "" && value != "" &&
				strings.Trim(value, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./~:") == "":
				c.entry = value
			default:
				return nil, errors.New("directive")
			}
		}
	}
	return c, err
}

// glob reports whether the last segment of the id is a glob.
func (c *components) glob() bool { return len(c.id) > 0 && c.id[len(c.id)-1] == "*" }

// tooLong reports whether err is about the length, the only rule that read does not check.
func tooLong(err error) bool {
	return err != nil && strings.Contains(err.Error(), "name is too long")
}

var fuzzSeeds = []string{
	"", "foo", "xdstp:", "xdstp://", "xdstp:///", "xdstp://a/", "xdstp:///t", "xdstp://a/t", "xdstp://a/t/", "xdstp://a/t//",
	"xdstp://a/t/i", "xdstp://a/t/foo%2Fbar/baz", "xdstp://a/t/foo/bar/baz", "xdstp://a/t/*", "xdstp://a/t/i/%2a", "xdstp://a/t/*/i",
	"xdstp://a/t/i?", "xdstp://a/t/i?x", "xdstp://a/t/i?x=a%26b", "xdstp://a/t/i?x=a&b", "xdstp://a/t/i?a-b=1&a=2", "xdstp://a/t/i?a=2&a-b=1",
	"xdstp://a/t/i?x=1&%78=2", "xdstp://a/t/i?&", "xdstp://a/t/i?=&==", "xdstp://a/t/i?x=a+b;c",
	"xdstp://a/t/b%3Ac/~", "xdstp://a/t/b:c/%7e", "xdstp://me@[::1]:443/t/i", "xdstp://a%2F%3f%23/t/%5B%5D",
	"xdstp://a/t/%zz", "xdstp://a/t/%", "xdstp://a/t/%C3%A9", "xdstp://a/t/\u00e9", "xdstp://a/t/%C3", "xdstp://a/t/%ED%A0%80", "xdstp://a/t/%F4%90%80%80", "xdstp://a/t/%00\x7f",
	"xdstp://a/t/i#", "xdstp://a/t/i#entry=e", "xdstp://a/t/i#entry=", "xdstp://a/t/i#entry=%2F,alt=xdstp://b/t/j",
	"xdstp://a/t/i#alt=xdstp://b/t/j%23alt=xdstp://c/t/k%2523entry=e%2Centry=f,entry=g", "xdstp://a/t/i#alt=xdstp://b/t/x%252Fy,alt=", "xdstp://a/t/i#alt=xdstp://b/t/x#alt=xdstp://c/t/%2523#entry=a,entry=b",
	"xdstp://a/t/i/*?x=1#alt=xdstp://b/t/j/*%3Fy=%2523", "xdstp://a/t/foo%23alt=xdstp%3A//b/t/j",
}

func FuzzParseURN(f *testing.F) {
	for _, s := range fuzzSeeds {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, name string) {
		want, wantErr := read(name)
		u, err := ParseURN(name)
		if tooLong(err) {
			return
		}
		if ok := wantErr == nil && !strings.Contains(name, "#") && !want.glob(); ok != (err == nil) {
			t.Fatalf("ParseURN(%q): %v, want %v", name, err, wantErr)
		}
		if err != nil {
			return
		}
		if u.Authority() != want.authority || u.Type() != want.typ || !reflect.DeepEqual(u.ID(), want.id) ||
			len(want.params) > 0 && !reflect.DeepEqual(u.Params(), want.params) || len(want.params) == 0 && u.Params() != nil {
			t.Fatalf("ParseURN(%q) = %q %q %q %q, want %+v", name, u.Authority(), u.Type(), u.ID(), u.Params(), want)
		}
		if again, err := ParseURN(u.String()); err != nil || again != u {
			t.Fatalf("ParseURN(%q) = %q, %v, want itself", u, again, err)
		}
		if err := readByClients(u); err != nil {
			t.Fatalf("%q: %v", u, err)
		}
		if m, err := u.Proto(); err == nil {
			if again, err := urnFromProto(m); err != nil || again != u {
				t.Fatalf("%q as %v becomes %q, %v", u, m, again, err)
			}
		}
	})
}

func FuzzParseURL(f *testing.F) {
	for _, s := range fuzzSeeds {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, name string) {
		want, wantErr := read(name)
		u, err := ParseURL(name)
		if tooLong(err) {
			return
		}
		if (wantErr == nil) != (err == nil) {
			t.Fatalf("ParseURL(%q): %v, want %v", name, err, wantErr)
		}
		if err != nil {
			return
		}
		if got, err := read(u.String()); err != nil || !reflect.DeepEqual(got, want) {
			t.Fatalf("ParseURL(%q) prints %q, which says %+v, %v, want %+v", name, u, got, err, want)
		}
		if again, err := ParseURL(u.String()); err != nil || again != u {
			t.Fatalf("ParseURL(%q) = %q, %v, want itself", u, again, err)
		}
		if key, err := KeyOf(u.Key().Name); err != nil || key != u.Key() || key.Glob != want.glob() {
			t.Fatalf("ParseURL(%q) has key %+v, want %+v, %v", name, u.Key(), key, err)
		}
		if urn, ok := u.URN(); ok == want.glob() || ok && urn.Key() != u.Key() {
			t.Fatalf("ParseURL(%q) has URN %q, %v", name, urn, ok)
		}
		if entry, ok := u.Entry(); entry != want.entry || ok != (want.entry != "") {
			t.Fatalf("ParseURL(%q) has entry %q, %v, want %q", name, entry, ok, want.entry)
		}
		if alt, ok := u.Alt(); ok != (want.alt != nil) {
			t.Fatalf("ParseURL(%q) has alt %q, %v, want %+v", name, alt, ok, want.alt)
		} else if ok {
			if got, err := read(alt.String()); err != nil || !reflect.DeepEqual(got, want.alt) {
				t.Fatalf("ParseURL(%q) has alt %q, which says %+v, %v, want %+v", name, alt, got, err, want.alt)
			}
		}
		if m, err := u.Proto(); err == nil {
			if again, err := URLFromProto(m); err != nil || again != u {
				t.Fatalf("%q as %v becomes %q, %v", u, m, again, err)
			}
		}
	})
}

// Keys are equal exactly if the components are.
func FuzzKeyOf(f *testing.F) {
	for i, a := range fuzzSeeds {
		f.Add(a, a)
		f.Add(a, fuzzSeeds[(i+1)%len(fuzzSeeds)])
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		keyA, errA := KeyOf(a)
		keyB, errB := KeyOf(b)
		if !IsXdstp(a) {
			if errA != nil || keyA != (Key{Name: a}) {
				t.Fatalf("KeyOf(%q) = %+v, %v", a, keyA, errA)
			}
			return
		}
		if errA != nil || errB != nil || !IsXdstp(b) {
			return // FuzzParseURL holds what is an error
		}
		partsA, err := read(a)
		if err != nil {
			t.Fatalf("KeyOf(%q) = %+v, want %v", a, keyA, err)
		}
		partsB, err := read(b)
		if err != nil {
			t.Fatalf("KeyOf(%q) = %+v, want %v", b, keyB, err)
		}
		same := reflect.DeepEqual(partsA, partsB)
		if (keyA == keyB) != same || (keyA.Name == keyB.Name) != same {
			t.Fatalf("KeyOf(%q) = %+v and KeyOf(%q) = %+v, but the components are %+v and %+v", a, keyA, b, keyB, partsA, partsB)
		}
	})
}

// For any components in any spelling, one name has one key, and different names have
// different keys.
func FuzzSpellings(f *testing.F) {
	f.Add("a.example.com", "envoy.config.listener.v3.Listener", "[::]:8080", "~x", "a", "2", "a-b", "1", uint64(1))
	f.Add("", "t", "foo/bar", "*", "x", "a&b=c", "%78", "+;,#?", uint64(2))
	f.Add("a/@%", "t%", "\u00e9\U0001f389", "", "", "", "\u00e9", " ", uint64(3))
	f.Fuzz(func(t *testing.T, authority, typ, id1, id2, k1, v1, k2, v2 string, seed uint64) {
		random := rand.New(rand.NewPCG(seed, 0))
		escaped := func(s string) string {
			var out strings.Builder
			for i := range len(s) {
				switch b := s[i]; {
				case strings.IndexByte("%/?#&=", b) >= 0 || random.IntN(3) == 0:
					fmt.Fprintf(&out, []string{"%%%02x", "%%%02X"}[random.IntN(2)], b)
				default:
					out.WriteByte(b)
				}
			}
			return out.String()
		}
		spelled := func(id2 string) string {
			pairs := []string{escaped(k1) + "=" + escaped(v1), escaped(k2) + "=" + escaped(v2)}
			random.Shuffle(2, func(i, j int) { pairs[i], pairs[j] = pairs[j], pairs[i] })
			return "xdstp://" + escaped(authority) + "/" + escaped(typ) + "/" + escaped(id1) + "/" + escaped(id2) + "?" + strings.Join(pairs, "&")
		}
		a, b, other := spelled(id2), spelled(id2), spelled(id2+"x")
		keyA, errA := KeyOf(a)
		keyB, errB := KeyOf(b)
		if tooLong(errA) || tooLong(errB) {
			return
		}
		bad := typ == "" || k1 == k2
		for _, s := range []string{authority, typ, id1, id2, k1, v1, k2, v2} {
			bad = bad || !utf8.ValidString(s) || strings.ContainsFunc(s, unicode.IsControl)
		}
		if bad != (errA != nil) || bad != (errB != nil) {
			t.Fatalf("KeyOf(%q): %v, KeyOf(%q): %v, want an error: %v", a, errA, b, errB, bad)
		}
		if bad {
			return
		}
		if keyA != keyB || keyA.Authority != authority || keyA.Type != typ || keyA.Glob != (id2 == "*") {
			t.Fatalf("KeyOf(%q) = %+v, KeyOf(%q) = %+v", a, keyA, b, keyB)
		}
		if key, err := KeyOf(other); !tooLong(err) && (err != nil || key == keyA) {
			t.Fatalf("KeyOf(%q) = %+v, %v, want it different from that of %q", other, key, err, a)
		}
	})
}
