package session

import (
	"fmt"
	"testing"
	"time"

	"github.com/xds-relay/xds-relay/cache"
)

// The work of a change is that of the change, however many members a glob has:
// taking a response with one, and storing it.

func BenchmarkOneMemberOfAGlob(b *testing.B) {
	for _, members := range []int{100, 100_000} {
		for _, how := range []string{"glob", "from the wildcard"} {
			b.Run(fmt.Sprintf("%s/%d", how, members), func(b *testing.B) {
				subs := NewSets(Config{Scope: cache.Scope{Authority: "a"}, TypeURL: typeURLs["cds"]})
				subs.noGlobs = how != "glob"
				session := newDelta(&Topics{Sets: subs})
				u := subs.NewUpdate()
				subs.start("xdstp://a/t/foo/*", nil, &u)
				session.Requests(t0, maxRequestBytes)
				all := &Response{TypeURL: typeURLs["cds"], Nonce: "1"}
				for i := range members {
					all.Resources = append(all.Resources, member(i, "0"))
				}
				if u, nack := session.Response(t0, all); nack != "" || len(u.Sets) != 1 || len(u.Sets[0].Changes) != members {
					b.Fatalf("%s, %d sets", nack, len(u.Sets))
				}
				b.ReportAllocs()
				n := 0
				for b.Loop() {
					n++
					one := &Response{TypeURL: typeURLs["cds"], Nonce: "2", Resources: []Resource{member(n%members, fmt.Sprint(n))}}
					u, _ := session.Response(t0, one)
					if len(u.Sets) != 1 || len(u.Sets[0].Changes) != 1 {
						b.Fatalf("the cache gets %d sets", len(u.Sets))
					}
					session.Requests(t0.Add(time.Second), maxRequestBytes)
				}
			})
		}
	}
}

func member(i int, version string) Resource {
	return Resource{
		Name: fmt.Sprintf("xdstp://a/t/foo/%06d", i), Version: version,
		Present: true, typeURL: typeURLs["cds"], value: appendText(nil, 1, fmt.Sprint(i)),
	}
}
