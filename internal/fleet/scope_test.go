package fleet

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/xds-relay/xds-relay/cache"
)

func TestScopesKeepTheirMeaningBetweenPeers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := cache.Scope{
			Authority: rapid.String().Draw(t, "authority"), Partition: rapid.String().Draw(t, "partition"),
			OldStyle: rapid.Bool().Draw(t, "old style"), Params: rapid.String().Draw(t, "params"),
		}
		got, err := decodeScope(encodeScope(want))
		if err != nil || got != want {
			t.Fatalf("got %+v, %v, want %+v", got, err, want)
		}
	})
}

// TestEachEncodingIsOfOneScope: whatever a peer sends is refused, or is the encoding of what it is taken for.
func TestEachEncodingIsOfOneScope(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := encodeScope(cache.Scope{Authority: rapid.String().Draw(t, "authority"), OldStyle: true})
		for range rapid.IntRange(1, 3).Draw(t, "changes") {
			b[rapid.IntRange(0, len(b)-1).Draw(t, "at")] = rapid.Byte().Draw(t, "byte")
		}
		b = b[:rapid.IntRange(0, len(b)).Draw(t, "length")]
		s, err := decodeScope(b)
		if err == nil && string(encodeScope(s)) != string(b) {
			t.Fatalf("%x is %+v, whose encoding is %x", b, s, encodeScope(s))
		}
	})
}
