package relay

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"

	"github.com/xds-relay/xds-relay/downstream"
	"github.com/xds-relay/xds-relay/internal/certs/certtest"
	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// proxied returns a header of version 2 of the PROXY protocol, as a balancer sends it for a client.
func proxied(client string) string {
	from := netip.MustParseAddrPort(client)
	family, size := byte(0x11), 12
	if from.Addr().Is6() {
		family, size = 0x21, 36
	}
	b := []byte("\r\n\r\n\x00\r\nQUIT\n\x21")
	b = append(b, family, 0, byte(size))
	b = append(b, from.Addr().AsSlice()...)
	b = append(b, from.Addr().AsSlice()...) // the listener's address does not matter
	b = binary.BigEndian.AppendUint16(b, from.Port())
	return string(binary.BigEndian.AppendUint16(b, 443))
}

// local is a header for a connection of the balancer's own.
const local = "\r\n\r\n\x00\r\nQUIT\n\x20\x00\x00\x00"

// described returns what the relay knows of a client with an open stream.
func described(t *testing.T, r *listening, address string, c caller) downstream.ClientStatus {
	t.Helper()
	ctx, conn, leave := c.dial(t, address)
	defer leave()
	s, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Send(&discoveryv3.DiscoveryRequest{TypeUrl: xdstype.ClusterV3}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Recv(); err != nil {
		t.Fatal(err)
	}
	var all []downstream.ClientStatus
	await(t, "clients that were there before have left", func() bool {
		all = slices.Collect(r.server.Describe())
		return len(all) == 1
	})
	return all[0]
}

// A client behind a balancer has the address in the balancer's header, and what its certificate proves, over every
// protocol. The balancer has its own address.
func TestClientsBehindABalancerHaveTheirAddresses(t *testing.T) {
	ca := certtest.NewCA(t, "ca")
	r := listen(t, grpcAndREST(`tls: `+mutualTLS(t, ca, "")+`, proxy_protocol: {trusted: [127.0.0.0/8]}, admit: 'identity.spiffe_id == "spiffe://example.org/pay"'`))
	pay := with(t, ca, certtest.Options{SPIFFEID: "spiffe://example.org/pay"})
	for header, want := range map[string]string{
		proxied("192.0.2.7:4711"):                     "192.0.2.7:4711",
		proxied("[2001:db8::7]:4711"):                 "[2001:db8::7]:4711",
		"PROXY TCP4 192.0.2.8 192.0.2.2 4712 443\r\n": "192.0.2.8:4712",
		local: "127.0.0.1:",
	} {
		pay.header = header
		everyDoor(t, r, pay, codes.OK)
		if got := described(t, r, r.Addresses()[0], pay).Peer; !strings.HasPrefix(got, want) {
			t.Errorf("/clients shows %s, want %s", got, want)
		}
	}
	shop := with(t, ca, certtest.Options{SPIFFEID: "spiffe://example.org/shop"})
	shop.header = proxied("192.0.2.9:4711")
	everyDoor(t, r, shop, codes.PermissionDenied)
	if n := strings.Count(r.log.String(), `msg="client is refused because of its identity" client=192.0.2.9:4711`); n != len(doors) {
		t.Errorf("the log has the client's address %d times, want %d", n, len(doors))
	}
}

// A client behind a balancer on the relay's machine is not on that machine, unless the header says so.
func TestClientsBehindALocalBalancerAreNotLocal(t *testing.T) {
	r := listen(t, grpcAndREST(`proxy_protocol: {trusted: [127.0.0.1, "::1"]}`))
	for header, want := range map[string]bool{proxied("192.0.2.7:4711"): false, proxied("127.0.0.1:4711"): true, local: true} {
		if got := described(t, r, r.Addresses()[0], caller{header: header}).Identity.Local; got != want {
			t.Errorf("the client of %q is local: %t", header, got)
		}
	}
}

// Over a unix socket, the user of the balancer's process is not that of its clients.
func TestABalancerOnAUnixSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "xds.sock")
	r := listen(t, fmt.Sprintf("listeners:\n- {address: 'unix:%s', proxy_protocol: {trusted: [unix]}}", path))
	if got := described(t, r, "unix:"+path, caller{header: proxied("192.0.2.7:4711")}).Peer; got != "192.0.2.7:4711" {
		t.Errorf("/clients shows %s", got)
	}
	if got, want := identities(t, r, "unix:"+path, caller{header: proxied("192.0.2.7:4711")}), "{Source:none"; !strings.HasPrefix(got, want) {
		t.Errorf("the client is %s, want %s", got, want)
	}
	if got, want := identities(t, r, "unix:"+path, caller{header: local}), "{Source:unix"; !strings.HasPrefix(got, want) {
		t.Errorf("the balancer is %s, want %s", got, want)
	}
}
