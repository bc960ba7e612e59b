package downstream

import (
	"testing"
	"testing/synctest"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"pgregory.net/rapid"

	"github.com/xds-relay/xds-relay/identity"
)

func TestTheFirstExpiryIsKnown(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var e Expiries
		var open []*expiry
		t.Repeat(map[string]func(*rapid.T){
			"begin": func(t *rapid.T) {
				open = append(open, e.add(time.Unix(int64(rapid.IntRange(0, 50).Draw(t, "at")), 0)))
			},
			"end": func(t *rapid.T) {
				if len(open) == 0 {
					t.Skip("none is open")
				}
				i := rapid.IntRange(0, len(open)-1).Draw(t, "which")
				e.remove(open[i])
				open = append(open[:i], open[i+1:]...)
			},
			"": func(t *rapid.T) {
				want, any := time.Time{}, false
				for _, of := range open {
					if !any || of.at.Before(want) {
						want, any = of.at, true
					}
				}
				if got, ok := e.First(); ok != any || !got.Equal(want) {
					t.Fatalf("got %v, %t, want %v, %t", got, ok, want, any)
				}
			},
		})
	})
}

// When the certificate or token of a client expires, its waiting request is answered as at the end of any wait. No
// stream ends, so the operator sees nothing.
func TestARequestWhoseIdentityExpiresIsAnswered(t *testing.T) {
	for _, form := range []string{formUnary, formREST} {
		t.Run(form, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ch := newTestCache(&recordingSource{}, 1000)
				defer ch.Close()
				server, log := newTestServer(ch, DefaultMaxResponseBytes)
				const left = 5 * time.Second
				began := time.Now()
				id := &identity.Identity{Source: identity.JWT, Subject: "s", Ends: identity.End{At: began.Add(left), Because: identity.TokenExpired}}
				req := &discoveryv3.DiscoveryRequest{VersionInfo: "1", ResourceNames: []string{"a"}}
				r, err := server.fetch(t.Context(), newGate(ListenerOptions{}), id, form, endpointType, req, time.Minute)
				synctest.Wait()
				if took := time.Since(began); r != nil || took != left {
					t.Errorf("after %v: %v, %v", took, r, err)
				}
				if n := server.Stats().ClientsRefused[identity.TokenExpired.String()]; n != 0 {
					t.Errorf("%d ends are counted", n)
				}
				if lines := log.take(); len(lines) > 0 {
					t.Errorf("the log says %q", lines)
				}
			})
		})
	}
}
