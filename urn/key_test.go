package urn

import "testing"

func TestSpellingsOfOneNameHaveOneKey(t *testing.T) {
	for _, spellings := range [][]string{
		{"xdstp://a/t/b:c", "xdstp://a/t/b%3Ac", "xdstp://a/t/b%3ac", "xdstp://%61/%74/%62:%63"},
		{"xdstp://a/t/~", "xdstp://a/t/%7E", "xdstp://a/t/%7e"},
		{"xdstp://a/t/i?x=1&y=2", "xdstp://a/t/i?y=2&x=1", "xdstp://a/t/i?%79=%32&x=1"},
		{"xdstp://a/t/i?a=2&a-b=1", "xdstp://a/t/i?a-b=1&a=2"},
		{"xdstp://a/t/i?!=1&~=2", "xdstp://a/t/i?%7E=2&!=1", "xdstp://a/t/i?!=1&%7E=2"},
		{"xdstp://a/t/i", "xdstp://a/t/i?"},
		{"xdstp://a/t/i?x=", "xdstp://a/t/i?x"},
		{"xdstp://a/t/", "xdstp://a/t", "xdstp://a/t?"},
		{"xdstp://a/t/i/*", "xdstp://a/t/i/%2A", "xdstp://a/t/i/%2a"},
		{"xdstp://a%2Fb/t/i", "xdstp://a%2fb/t/i"},
		{"xdstp://a/t/%C3%A9", "xdstp://a/t/\u00e9", "xdstp://a/t/%c3\xa9"},
	} {
		want, err := KeyOf(spellings[0])
		if err != nil {
			t.Fatal(err)
		}
		if want.Name != spellings[0] {
			t.Errorf("KeyOf(%q).Name = %q, want it unchanged", spellings[0], want.Name)
		}
		for _, s := range spellings[1:] {
			if got, err := KeyOf(s); err != nil || got != want {
				t.Errorf("KeyOf(%q) = %+v, %v\nwant that of %q: %+v", s, got, err, spellings[0], want)
			}
		}
	}
}

func TestDifferentNamesHaveDifferentKeys(t *testing.T) {
	for _, names := range [][]string{
		{"xdstp://a/t/foo%2Fbar/baz", "xdstp://a/t/foo/bar/baz", "xdstp://a/t/foo/bar%2Fbaz", "xdstp://a/t%2Ffoo/bar/baz", "xdstp://a%2Ft/foo/bar/baz"},
		{"xdstp://a/t/i?x=a%26b", "xdstp://a/t/i?x=a&b", "xdstp://a/t/i?x=a%26b%3D"},
		{"xdstp://a/t/i?x=a%3Db", "xdstp://a/t/i?x%3Da=b", "xdstp://a/t/i%3Fx=a%3Db"},
		{"xdstp://a/t/%2541", "xdstp://a/t/A"},
		{"xdstp://a/t/i?x=a+b", "xdstp://a/t/i?x=a%20b"},
		{"xdstp://a/t/i", "xdstp://A/t/i", "xdstp://a/T/i", "xdstp://a/t/I", "xdstp:///t/i", "xdstp://a/t/i/", "xdstp://a/t//i", "xdstp://a/t/./i"},
		{"xdstp://a/t/", "xdstp://a/t//", "xdstp://a/t/*"},
		{"xdstp://a/t/i/*", "xdstp://a/t/i/**", "xdstp://a/t/i/*/", "xdstp://a/t/i/*?x=1"},
	} {
		for i, a := range names {
			for _, b := range names[:i] {
				ka, errA := KeyOf(a)
				kb, errB := KeyOf(b)
				if errA != nil || errB != nil || ka.Name == kb.Name {
					t.Errorf("KeyOf(%q) = %q, %v and KeyOf(%q) = %q, %v, want two keys", a, ka.Name, errA, b, kb.Name, errB)
				}
			}
		}
	}
}

func TestKeySaysWhatANameIsRoutedBy(t *testing.T) {
	tests := []struct {
		in   string
		want Key
	}{
		{"xdstp://a/t/i", Key{Name: "xdstp://a/t/i", Authority: "a", Type: "t"}},
		{"xdstp:///t/i", Key{Name: "xdstp:///t/i", Type: "t"}},
		{"xdstp://%61%2F/%74%2F/i", Key{Name: "xdstp://a%2F/t%2F/i", Authority: "a/", Type: "t/"}},
		{"xdstp://a/t/i/*?y=2&x=1", Key{Name: "xdstp://a/t/i/*?x=1&y=2", Authority: "a", Type: "t", Glob: true}},
		{"xdstp://a/t/*", Key{Name: "xdstp://a/t/*", Authority: "a", Type: "t", Glob: true}},
		// Envoy folds directives into the id: so they are nothing but a name.
		{"xdstp://a/t/foo%23alt=xdstp%3A//b/t/bar", Key{Name: "xdstp://a/t/foo%23alt=xdstp://b/t/bar", Authority: "a", Type: "t"}},
	}
	for _, tt := range tests {
		if got, err := KeyOf(tt.in); err != nil || got != tt.want {
			t.Errorf("KeyOf(%q) = %+v, %v, want %+v", tt.in, got, err, tt.want)
		}
	}
	if _, err := KeyOf("xdstp://a/t/i#entry=e"); err == nil {
		t.Error("KeyOf takes directives, which are not for the wire")
	}
}

func TestOldStyleNamesAreTheirOwnKeysAndNeverErrors(t *testing.T) {
	for _, name := range []string{
		"", "*", "foo", "foo/bar?x=1&x=1#%zz", "\xff\x00", "http://a/t/i", "XDSTP://a/t/i", "xdstp", " xdstp://a/t/i",
		"outbound|80||a.b.svc.cluster.local", string(make([]byte, 2*MaxLength)),
	} {
		if IsXdstp(name) {
			t.Errorf("IsXdstp(%.40q) = true", name)
		}
		if got, err := KeyOf(name); err != nil || got != (Key{Name: name}) {
			t.Errorf("KeyOf(%.40q) = %+v, %v", name, got, err)
		}
	}
	for _, name := range []string{"xdstp:", "xdstp:foo", "xdstp://a/t/i"} {
		if !IsXdstp(name) {
			t.Errorf("IsXdstp(%q) = false", name)
		}
	}
}

// Names from the wire: names that are spelled canonically, and the different spellings of Envoy
// and grpc-go.
var wireNames = []struct{ what, name string }{
	{"canonical", "xdstp://cloud.example.com/envoy.config.endpoint.v3.ClusterLoadAssignment/prod/backends/checkout"},
	{"canonical with params", "xdstp://cloud.example.com/envoy.config.cluster.v3.Cluster/prod/checkout?env=prod&shard_id=1234&zone=eu-west-1a"},
	{"canonical with escapes", "xdstp://cloud.example.com/envoy.config.cluster.v3.Cluster/prod/a%2Fb/caf%C3%A9"},
	{"canonical glob", "xdstp://cloud.example.com/envoy.config.listener.v3.Listener/ingress/*?zone=eu-west-1a"},
	{"Envoy's colons", "xdstp://cloud.example.com/envoy.config.listener.v3.Listener/%5B%3A%3A%5D%3A8080/inbound"},
	{"Envoy's order", "xdstp://cloud.example.com/envoy.config.cluster.v3.Cluster/prod/checkout?a-b=1&a=2"},
	{"grpc-go's spaces", "xdstp://cloud.example.com/envoy.config.cluster.v3.Cluster/prod/checkout?a=2&b=x y z"},
	{"no id", "xdstp://cloud.example.com/envoy.config.cluster.v3.Cluster"},
	{"old style", "outbound|8080||checkout.prod.svc.cluster.local"},
}

func TestKeyOfAllocatesOnceAndForCanonicalNamesNothing(t *testing.T) {
	for _, tt := range wireNames {
		key, err := KeyOf(tt.name)
		if err != nil {
			t.Fatal(err)
		}
		want := 1.0
		if key.Name == tt.name {
			want = 0
		}
		if got := testing.AllocsPerRun(100, func() { _, _ = KeyOf(tt.name) }); got != want {
			t.Errorf("%s: KeyOf(%q) allocates %v times, want %v", tt.what, tt.name, got, want)
		}
	}
}

func BenchmarkKeyOf(b *testing.B) {
	for _, bb := range wireNames {
		b.Run(bb.what, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := KeyOf(bb.name); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// The relay reads the authority of a name for each resource that a control plane sends.
func TestTheAuthorityOfACanonicalNameCostsNoAllocation(t *testing.T) {
	const name = "xdstp://a.example.org/envoy.config.cluster.v3.Cluster/some/cluster?k=v"
	if got := testing.AllocsPerRun(100, func() { _, _ = AuthorityOf(name) }); got != 0 {
		t.Errorf("%v allocations", got)
	}
}
