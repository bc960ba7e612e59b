package session

import (
	"fmt"
	"testing"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// Putting a response together: from the change to the bytes that gRPC is given.
func BenchmarkResponse(b *testing.B) {
	for _, n := range []int{1, 100} {
		var all []*cache.Resource
		for i := range n {
			all = append(all, cache.NewResource(cache.Spec{
				Name: fmt.Sprint("name-", i), Version: "v", TypeURL: xdstype.EndpointsV3, Value: make([]byte, 1000),
			}))
		}
		assemble := func(add func(*Response, *cache.Resource)) func(*testing.B) {
			return func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					r := &Response{TypeURL: xdstype.EndpointsV3, Nonce: "1", Version: "v"}
					for _, res := range all {
						add(r, res)
					}
					if len(r.Encode()) < n {
						b.Fatal("there is too little in it")
					}
				}
			}
		}
		b.Run(fmt.Sprintf("delta/%d", n), assemble(func(r *Response, res *cache.Resource) { r.addDelta(res.Name(), res, 0) }))
		b.Run(fmt.Sprintf("sotw/%d", n), assemble(func(r *Response, res *cache.Resource) { r.addSotW(res.Name(), res, 0) }))
	}
}
