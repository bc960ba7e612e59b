package upstream

import (
	"bytes"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/taster"
	"github.com/xds-relay/xds-relay/upstream/session"
)

// clusters is a SotW response of Clusters, each given as kind:name:text.
func clustersResponse(t *testing.T, version string, clusters ...string) *discoveryv3.DiscoveryResponse {
	t.Helper()
	m := &discoveryv3.DiscoveryResponse{TypeUrl: typeURLs["cds"], VersionInfo: version, Nonce: version}
	for _, c := range clusters {
		kind, rest, _ := strings.Cut(c, ":")
		name, text, _ := strings.Cut(rest, ":")
		m.Resources = append(m.Resources, &anypb.Any{TypeUrl: typeURLs["cds"], Value: clusterFor(t, kind, name, text)})
	}
	return m
}

// A resource with the same content as before is not checked again, on the same stream or
// on the next one. A changed resource is.
func TestOnlyWhatHasChangedIsTasted(t *testing.T) {
	var logs bytes.Buffer
	tally := taster.NewTally(taster.Warn, slog.New(slog.NewTextHandler(&logs, nil)))
	run(t, Options{Protocol: SotW, Tally: tally}, func(b *bench) {
		entries := b.watch("cds", "a", "b", "c")
		want := func(what string, n uint64, failing int) {
			t.Helper()
			if got := tally.Counts()[taster.Count{Type: "envoy.config.cluster.v3.Cluster", By: "grpc"}]; got != n {
				t.Errorf("%s: %d were found, want %d", what, got, n)
			}
			if got := tally.Failures(); len(got) != failing {
				t.Errorf("%s: %d fail, want %d: %+v", what, len(got), failing, got)
			}
		}
		st := b.next()
		st.request(t)
		b.respond(st, clustersResponse(t, "1", "for-envoy:a", "for-envoy:b", "for-envoy:c"))
		want("first", 3, 3)
		b.respond(st, clustersResponse(t, "2", "for-envoy:a", "for-envoy:b", "for-envoy:c"))
		want("all the same", 3, 3)
		b.respond(st, clustersResponse(t, "3", "for-envoy:a", "for-envoy:b:changed", "for-envoy:c"))
		want("one has changed", 4, 3)
		st.end <- nil
		st = b.next()
		st.request(t)
		b.respond(st, clustersResponse(t, "4", "for-envoy:a", "for-envoy:b:changed", "for-envoy:c"))
		want("the same on another stream", 4, 3)
		b.respond(st, clustersResponse(t, "5", "for-envoy:a", "good:b", "for-envoy:c"))
		want("one is good now", 4, 2)
		for name, e := range entries {
			if e.State().Status != cache.Present || e.State().Err != nil {
				t.Errorf("%s is %+v", name, e.State())
			}
		}
	})
	// One rule of one type is one line, however many resources break it.
	if n := strings.Count(logs.String(), "level=WARN"); n != 1 || !strings.Contains(logs.String(), "lb_policy is ROUND_ROBIN") {
		t.Errorf("%d lines, want one:\n%s", n, &logs)
	}
}

// Clients keep the last good version of a refused resource, and the rest of the response is stored.
func TestRefusedResourcesKeepTheirLastGoodVersion(t *testing.T) {
	tally := taster.NewTally(taster.Refuse, slog.New(slog.DiscardHandler))
	run(t, Options{Protocol: SotW, Tally: tally}, func(b *bench) {
		entries := b.watch("cds", "a", "b")
		st := b.next()
		st.request(t)
		b.respond(st, clustersResponse(t, "1", "good:a", "good:b"))
		st.request(t) // the ACK
		b.respond(st, clustersResponse(t, "2", "for-envoy:a:changed", "good:b:changed"))
		if nack := st.request(t).(*discoveryv3.DiscoveryRequest); !strings.Contains(nack.GetErrorDetail().GetMessage(), `resources[0] "a" would be rejected by gRPC: it requires that lb_policy is`) {
			t.Errorf("the control plane is sent %v", nack)
		}
		if s := entries["a"].State(); s.Status != cache.Present || s.Err == nil || s.Err.Code != codes.InvalidArgument || !s.Err.Invalid || !bytes.Equal(s.Resource.Value(), clusterFor(t, "good", "a", "")) {
			t.Errorf("a is %+v", s)
		}
		if s := entries["b"].State(); s.Err != nil || !bytes.Equal(s.Resource.Value(), clusterFor(t, "good", "b", "changed")) {
			t.Errorf("b is %+v", s)
		}
		if refused, warned := tally.Totals(); refused != 1 || warned != 0 {
			t.Errorf("%d refused and %d warned, want 1 and 0", refused, warned)
		}
	})
}

// Resources that were not requested are not checked.
func TestResponsesThatWereNotRequestedAreNotTasted(t *testing.T) {
	tally := taster.NewTally(taster.Warn, slog.New(slog.DiscardHandler))
	run(t, Options{Protocol: SotW, Tally: tally}, func(b *bench) {
		b.watch("eds", "a")
		st := b.next()
		st.request(t)
		b.respond(st, clustersResponse(t, "1", "for-envoy:a"))
		if refused, warned := tally.Totals(); refused+warned != 0 {
			t.Errorf("%d were looked at", refused+warned)
		}
	})
}

// BenchmarkTasteState measures a full state of 100,000 Clusters that every client accepts: the
// first one, and one in which a single Cluster has changed.
func BenchmarkTasteState(b *testing.B) {
	const n = 100_000
	states := [2][]byte{}
	for i := range states {
		m := &discoveryv3.DiscoveryResponse{TypeUrl: typeURLs["cds"], VersionInfo: strconv.Itoa(i), Nonce: strconv.Itoa(i)}
		for j := range n {
			text := ""
			if j == n/2 {
				text = strconv.Itoa(i)
			}
			m.Resources = append(m.Resources, &anypb.Any{TypeUrl: typeURLs["cds"], Value: clusterFor(b, "good", fmt.Sprintf("cluster-%07d", j), text)})
		}
		var err error
		if states[i], err = proto.Marshal(m); err != nil {
			b.Fatal(err)
		}
	}
	// begin returns a stream without I/O that has requested the wildcard.
	begin := func() *Stream {
		of, requested := wildcard(session.SotW, testScope, typeURLs["cds"])
		s := &Stream{scope: testScope, feeds: map[string]*feed{typeURLs["cds"]: {topics: of, session: requested}}}
		return s
	}
	take := func(s *Stream, state []byte) {
		r, err := sotwForm.spoken.Parse(state)
		if err != nil {
			b.Fatal(err)
		}
		s.taste(r)
		if _, nack := s.feeds[r.TypeURL].session.Response(t0, r); nack != "" {
			b.Fatal(nack)
		}
		s.report(r)
	}
	b.Run("first", func(b *testing.B) {
		for b.Loop() {
			take(begin(), states[0])
		}
	})
	b.Run("one of 100000 changes", func(b *testing.B) {
		s := begin()
		take(s, states[0])
		for i := 1; b.Loop(); i++ {
			take(s, states[i%2])
		}
	})
}
