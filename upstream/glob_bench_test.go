package upstream

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
				subs := newSets(cache.Scope{Authority: "a"}, typeURLs["cds"])
				subs.noGlobs = how != "glob"
				session := newDelta(&topics{sets: subs})
				u := subs.newUpdate()
				subs.start("xdstp://a/t/foo/*", nil, &u)
				session.requests(t0, defaultMaxRequestBytes)
				all := &response{typeURL: typeURLs["cds"], nonce: "1"}
				for i := range members {
					all.resources = append(all.resources, member(i, "0"))
				}
				if u, nack := session.response(t0, all); nack != "" || len(u.Sets) != 1 || len(u.Sets[0].Changes) != members {
					b.Fatalf("%s, %d sets", nack, len(u.Sets))
				}
				b.ReportAllocs()
				n := 0
				for b.Loop() {
					n++
					one := &response{typeURL: typeURLs["cds"], nonce: "2", resources: []resource{member(n%members, fmt.Sprint(n))}}
					u, _ := session.response(t0, one)
					if len(u.Sets) != 1 || len(u.Sets[0].Changes) != 1 {
						b.Fatalf("the cache gets %d sets", len(u.Sets))
					}
					session.requests(t0.Add(time.Second), defaultMaxRequestBytes)
				}
			})
		}
	}
}

func member(i int, version string) resource {
	return resource{
		name: fmt.Sprintf("xdstp://a/t/foo/%06d", i), version: version,
		present: true, typeURL: typeURLs["cds"], value: appendText(nil, 1, fmt.Sprint(i)),
	}
}
