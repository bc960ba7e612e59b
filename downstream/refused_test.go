package downstream

import (
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"

	"github.com/xds-relay/xds-relay/cache"
)

// refusingNames refuses each name for the reason that it names.
type refusingNames struct{}

func (refusingNames) Key(_, name string) (cache.Key, error) {
	why := &RefusedError{Client: &cache.Error{Code: codes.FailedPrecondition, Message: "sent to clients"}}
	switch {
	case strings.HasPrefix(name, "authority"):
		why.Refusal = RefusedAuthority
	case name == cache.Wildcard:
		why.Refusal = RefusedPartition
	default:
		return cache.Key{}, why.Client
	}
	return cache.Key{}, why
}

func (refusingNames) Close() {}

func newRefusingServer(t *testing.T) *Server {
	t.Helper()
	ch := newTestCache(&recordingSource{}, 1000)
	t.Cleanup(ch.Close)
	server, _ := newTestServer(ch, DefaultMaxResponseBytes)
	server.Reconfigure(func(Client) Names { return refusingNames{} })
	return server
}

func TestRefusedNamesAreCountedAndShown(t *testing.T) {
	for _, form := range []string{deltaForm.name, sotwForm.name} {
		server := newRefusingServer(t)
		c := newTestClient(server, form, &corev3.Node{})
		defer c.close()
		long := "authority " + strings.Repeat("x", 2*maxRefusedName)
		names := []string{"authority a", "authority b", "*", "?", long}
		var err error
		if form == deltaForm.name {
			err = c.delta(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: clusterType, ResourceNamesSubscribe: names})
		} else {
			err = c.sotw(&discoveryv3.DiscoveryRequest{TypeUrl: clusterType, ResourceNames: names})
		}
		if err != nil {
			t.Fatal(err)
		}
		got := server.Stats().Refusals
		if len(got) != int(numRefusals) || got["authority"] != 3 || got["partition"] != 1 || got["other"] != 1 {
			t.Errorf("%s: counted %v", form, got)
		}
		refused := c.st.describe().Types[0].Refused
		if refused.Total != 5 || len(refused.Last) > maxRefusedName+3 || refused.Reason != "sent to clients" {
			t.Errorf("%s: shown %+v", form, refused)
		}
	}
}

// A name for which a request to the control plane has no room is counted once, shown, and
// the client's stream logged once.
func TestNamesWithoutRoomUpstreamAreCountedAndShown(t *testing.T) {
	for _, form := range []string{deltaForm.name, sotwForm.name} {
		ch := newTestCache(&recordingSource{}, 1000)
		defer ch.Close()
		server, log := newTestServer(ch, DefaultMaxResponseBytes)
		c := newTestClient(server, form, &corev3.Node{Id: "greedy"})
		defer c.close()
		names := []string{"a", "b", "c"}
		var err error
		if form == deltaForm.name {
			err = c.delta(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: endpointType, ResourceNamesSubscribe: names})
		} else {
			err = c.sotw(&discoveryv3.DiscoveryRequest{TypeUrl: endpointType, ResourceNames: names})
		}
		if err != nil {
			t.Fatal(err)
		}
		noRoom := func(message string) {
			why := &cache.Error{Code: codes.ResourceExhausted, Message: message, Refused: true}
			ch.Apply(cache.Update{Scope: oldStyleScope(""), TypeURL: endpointType, Changes: []cache.Change{
				{Name: "a", Err: why}, {Name: "b", Err: why},
			}})
			c.readAll(t)
		}
		noRoom("no room")
		noRoom("still no room")
		if n := server.Stats().Refusals["limit"]; n != 2 {
			t.Errorf("%s: %d names are counted, want 2", form, n)
		}
		refused := c.st.describe().Types[0].Refused
		if refused.Total != 2 || refused.Refusal != RefusedLimit || refused.Reason != "no room" {
			t.Errorf("%s: shown %+v", form, refused)
		}
		lines := *log.lines
		if want := "log: client is refused names because of a limit client=greedy limit=max_request_bytes reason=no room"; len(lines) != 1 || lines[0] != want {
			t.Errorf("%s: logged %q, want one line: %s", form, lines, want)
		}
	}
}
