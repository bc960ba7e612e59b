package taster

import (
	"log/slog"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	"google.golang.org/protobuf/proto"

	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// BenchmarkTaste measures checking one small cluster against only decoding it into a new message: a cluster that
// every client accepts, and one that gRPC rejects.
func BenchmarkTaste(b *testing.B) {
	good := encode(b, goodCluster())
	bad := encode(b, cluster(func(c *clusterv3.Cluster) { c.LbPolicy = clusterv3.Cluster_RANDOM }))
	of := Of(xdstype.ClusterV3)
	tally := NewTally(Warn, slog.New(slog.DiscardHandler))
	b.Run("decode", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if (proto.UnmarshalOptions{AllowPartial: true, DiscardUnknown: true}).Unmarshal(good, of.message.New().Interface()) != nil {
				b.Fatal()
			}
		}
	})
	b.Run("good", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if of.Taste(good) != nil {
				b.Fatal()
			}
			tally.Passed("p", of.url, "c")
		}
	})
	b.Run("bad", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			tally.Failed("p", of.url, "c", of.Taste(bad), 0)
		}
	})
}
