package session

import (
	"fmt"
	"testing"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/wire"
)

// encodedClusters is a delta response with so many clusters of about 300 bytes.
func encodedClusters(n int) []byte {
	typeURL := typeURLs["cds"]
	padding := fmt.Sprintf("%0200d", 0)
	var b []byte
	for i := range n {
		name := fmt.Sprintf("cluster-%07d", i)
		value := appendText(appendText(nil, 1, name), 28, padding)
		body := appendText(appendText(nil, wire.AnyTypeURL, typeURL), wire.AnyValue, string(value))
		r := appendText(appendText(appendText(nil, wire.ResourceName, name), wire.ResourceVersion, "1"), wire.ResourceAny, string(body))
		b = appendText(b, wire.ResponseResources, string(r))
	}
	return appendText(appendText(b, wire.ResponseTypeURL, typeURL), wire.ResponseNonce, "1")
}

// Parsing allocates for each resource what is kept of it, and no more for many than for few.
func BenchmarkParseDelta(b *testing.B) {
	for _, n := range []int{1, 2, 10, 100, 1000, 1_000_000} {
		msg := encodedClusters(n)
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if r, err := Delta.Parse(msg); err != nil || len(r.Resources) != n {
					b.Fatal(err)
				}
			}
		})
	}
}

// The first answer to a wildcard, in one response, as far as the cache.
func BenchmarkFirstAnswer(b *testing.B) {
	for _, n := range []int{1, 100, 1_000_000} {
		msg := encodedClusters(n)
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				of := newTopics(testScope, typeURLs["cds"], true)
				session := Delta.Begin(of)
				u := of.NewUpdate()
				of.Start(cache.Wildcard, nil, &u)
				session.Requests(t0, maxRequestBytes)
				r, err := Delta.Parse(msg)
				if err != nil {
					b.Fatal(err)
				}
				if _, nack := session.Response(t0, r); nack != "" || of.Sets.members().Len() != n {
					b.Fatal(nack)
				}
			}
		})
	}
}
