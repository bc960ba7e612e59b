package upstream

import (
	"fmt"
	"strings"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/loglines"
)

// A hostile control plane sends ever new faults, and ends the stream now and
// then. In each case the log has ten lines of each kind, and one a minute after
// that, which says how many were left out.

const (
	hostileStreams   = 12
	hostileResponses = 20 // on each stream
)

// hostile has a control plane send responses, over several streams, and one more a minute
// later. wantSkipped is how many of the lines that are about what are left out.
func hostile(t *testing.T, what string, wantSkipped int, begin func(*bench), response func(i int) *discoveryv3.DeltaDiscoveryResponse) {
	t.Helper()
	run(t, Options{Protocol: Delta}, func(b *bench) {
		begin(b)
		sent := 0
		var st *scripted
		send := func() {
			b.respond(st, response(sent))
			sent++
		}
		open := func() {
			st = b.next()
			go func(st *scripted) {
				for {
					if _, err := st.recv(); err != nil {
						return
					}
				}
			}(st)
			pass(time.Millisecond) // what is asked for is
		}
		for i := range hostileStreams {
			if i > 0 {
				st.end <- grpcstatus.Error(codes.Unavailable, "hostile") // which blames no request
			}
			open()
			for range hostileResponses {
				send()
			}
		}
		if n := b.logs.count(what); n != loglines.AtOnce {
			t.Errorf("%d responses are %d lines about %q, want %d", sent, n, what, loglines.AtOnce)
		}
		pass(loglines.Every)
		st.end <- grpcstatus.Error(codes.Unavailable, "hostile") // which blames no request
		open()
		send()
		if n := b.logs.count(what); n != loglines.AtOnce+1 {
			t.Errorf("after a minute there are %d lines about %q, want %d", n, what, loglines.AtOnce+1)
		}
		if want := fmt.Sprintf("skipped=%d", wantSkipped); b.logs.count(want) != 1 {
			t.Errorf("the line after a minute does not say %s:\n%s", want, tail(b.logs))
		}
		b.logs.mu.Lock()
		defer b.logs.mu.Unlock()
		for line := range strings.Lines(b.logs.b.String()) {
			if len(line) > 6<<10 {
				t.Errorf("a line has %d bytes: %.200s", len(line), line)
			}
		}
	})
}

func tail(l *logBuffer) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.b.String()
	return s[max(0, len(s)-2000):]
}

func TestLinesAboutResponsesThatCannotBeStoredAreFew(t *testing.T) {
	const all = hostileStreams * hostileResponses
	hostile(t, "NACK", all-loglines.AtOnce, func(b *bench) { b.watch("eds", "a") }, func(i int) *discoveryv3.DeltaDiscoveryResponse {
		m := deltaResponse(t, "eds", strings.Repeat("n", 10<<10), "a", fmt.Sprint(i, strings.Repeat("x", 10<<10)))
		m.Resources[1].Resource.Value = []byte{0xff}
		return m
	})
}

// A control plane whose responses are rejected for two reasons in turn is just as hostile.
func TestLinesAboutResponsesThatAreRejectedInTurnAreFew(t *testing.T) {
	const all = hostileStreams * hostileResponses
	hostile(t, "NACK", all-loglines.AtOnce, func(b *bench) { b.watch("eds", "a") }, func(i int) *discoveryv3.DeltaDiscoveryResponse {
		m := deltaResponse(t, "eds", "n", []string{"a", "b"}[i%2])
		m.Resources[0].Resource.Value = []byte{0xff}
		return m
	})
}

// Responses of a type that was not requested cause one line for each gRPC stream,
// and few for all streams.
func TestLinesAboutResponsesThatWereNotRequestedAreFew(t *testing.T) {
	hostile(t, "not requested", hostileStreams-loglines.AtOnce, func(b *bench) { b.watch("eds", "a") }, func(i int) *discoveryv3.DeltaDiscoveryResponse {
		return &discoveryv3.DeltaDiscoveryResponse{TypeUrl: fmt.Sprint(strings.Repeat("t", 10<<10), i), Nonce: strings.Repeat("n", 10<<10)}
	})
}

func TestLinesAboutVariantsAreFew(t *testing.T) {
	const all = hostileStreams * hostileResponses
	name := func(i int) string { return fmt.Sprint(i, strings.Repeat("x", 10<<10)) }
	hostile(t, "several variants", all-loglines.AtOnce, func(b *bench) {
		b.mu.Lock()
		defer b.mu.Unlock()
		for i := range all + 1 {
			b.cache.Watch(key("eds", name(i)), &watcher{})
		}
	}, func(i int) *discoveryv3.DeltaDiscoveryResponse {
		m := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: typeURLs["eds"], Nonce: "n"}
		for _, match := range []string{"env", "team"} { // which the stream does not ask with
			m.Resources = append(m.Resources, &discoveryv3.Resource{
				ResourceName: variantName(name(i), match), Version: "1",
				Resource: &anypb.Any{TypeUrl: typeURLs["eds"], Value: value(t, "eds", name(i), match)},
			})
		}
		return m
	})
}

// resource_errors go to the clients of their resources, and are counted. They are not
// logged.
func TestResourceErrorsAreNotLogged(t *testing.T) {
	run(t, Options{Protocol: Delta}, func(b *bench) {
		e := b.watch("eds", "a")["a"]
		st := b.next()
		st.delta(t)
		before := len(tail(b.logs))
		for i := range 100 {
			b.respond(st, &discoveryv3.DeltaDiscoveryResponse{TypeUrl: typeURLs["eds"], Nonce: "n", ResourceErrors: []*discoveryv3.ResourceError{{
				ResourceName: &discoveryv3.ResourceName{Name: "a"},
				ErrorDetail:  &status.Status{Code: int32(codes.Internal), Message: fmt.Sprint(i, strings.Repeat("x", 1<<20))},
			}}})
			st.delta(t)
		}
		if err := e.State().Err; err == nil || len(err.Message) > loglines.MaxText+3 {
			t.Errorf("the client gets %.100v", err)
		}
		if n := b.stream.Status().ResourceErrors; n != 100 {
			t.Errorf("%d are counted, want 100", n)
		}
		if more := tail(b.logs)[before:]; strings.Contains(more, "xxx") {
			t.Errorf("logged: %.1000s", more)
		}
	})
}

// For each stream, the log reports versions that do not fit into the first request.
func TestLinesAboutRequestsThatAreTooLongAreFew(t *testing.T) {
	run(t, Options{Protocol: Delta, MaxRequestBytes: 1 << 10}, func(b *bench) {
		b.cache.WatchSet(key("eds", cache.Wildcard), &setWatcher{})
		st := b.next()
		st.delta(t)
		var names []string
		for i := range 100 {
			names = append(names, fmt.Sprint("name-", i))
		}
		b.respond(st, deltaResponse(t, "eds", "1", names...))
		for range 30 {
			st.end <- grpcstatus.Error(codes.Unavailable, "hostile") // which blames no request
			st = b.next()
			b.respond(st, deltaResponse(t, "eds", "2", names[0])) // so that the next stream comes soon
		}
		if n := b.logs.count("request is too long"); n != loglines.AtOnce {
			t.Errorf("30 streams are %d lines, want %d", n, loglines.AtOnce)
		}
	})
}
