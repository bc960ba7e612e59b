package integration

import (
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// drainedRelay returns a relay with this drain configuration, and its clients, each on its own connection.
func drainedRelay(t *testing.T, clients int, drain string) (*relay, []*client) {
	t.Helper()
	cp := startControlPlane(t, delta)
	cp.set(plainCluster("a", ""))
	r := startRelay(t, relayTo(cp.address, "delta")+"drain: "+drain+"\n")
	var all []*client
	for i := range clients {
		c := newClient(t, r, []form{delta, sotw}[i%2], node(fmt.Sprint("client-", i), ""))
		c.subscribe(clusterType, "a")
		all = append(all, c)
	}
	for _, c := range all {
		c.awaitHas(t, "its cluster", plainCluster("a", ""))
	}
	return r, all
}

// readyStatus returns the HTTP status of /readyz.
func readyStatus(r *relay) (int, error) {
	transport := &http.Transport{DisableKeepAlives: true}
	req, err := http.NewRequest(http.MethodGet, "http://"+r.admin+"/readyz", nil)
	if err != nil {
		return 0, err
	}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return 0, err
	}
	_ = resp.Body.Close()
	return resp.StatusCode, nil
}

// After SIGTERM the relay is not ready. After the delay it closes its clients' connections one after another,
// and then ends with status 0.
func TestSIGTERMDrains(t *testing.T) {
	t.Parallel()
	const clients, delay, within = 20, 5 * time.Second, 10 * time.Second
	r, all := drainedRelay(t, clients, "{delay: 5s, time: 10s}")
	begin := time.Now()
	if err := r.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	r.awaitLog(t, `msg=(draining)`)
	if status, err := readyStatus(r); status != http.StatusServiceUnavailable {
		t.Errorf("/readyz of a draining relay returned %d, %v, want 503", status, err)
	}
	moments := make(chan time.Duration, clients)
	for _, c := range all {
		go func() {
			var ended error
			_ = c.wait(t.Context(), func(v *view) bool { ended = v.ended; return v.ended != nil })
			if status.Code(ended) != codes.Unavailable {
				t.Errorf("a stream ended with %v, want UNAVAILABLE", ended)
			}
			moments <- time.Since(begin)
		}()
	}
	var at []time.Duration
	for range clients {
		at = append(at, <-moments)
	}
	slices.Sort(at)
	<-r.ended
	took := time.Since(begin)
	if code := r.cmd.ProcessState.ExitCode(); code != 0 {
		t.Errorf("the relay ended with %v, want status 0", r.cmd.ProcessState)
	}
	if at[0] < delay {
		t.Errorf("the relay closed the first connection %v after the signal, before the delay had passed", at[0])
	}
	if spread := at[clients-1] - at[0]; spread < within/2 { // a busy machine shortens the time
		t.Errorf("the relay closed all connections within %v, want about %v", spread, within)
	}
	if took > delay+within+endsWithin {
		t.Errorf("the relay took %v to end", took)
	}
	t.Logf("the relay closed connections %v to %v after the signal, and ended after %v", at[0], at[clients-1], took)
}

// After a second signal, or after SIGINT, the relay ends without waiting for its clients.
func TestSignalsThatDoNotWaitForClients(t *testing.T) {
	t.Parallel()
	t.Run("SIGINT", func(t *testing.T) {
		t.Parallel()
		r, all := drainedRelay(t, 2, "{delay: 1h, time: 1h}")
		r.end(t, os.Interrupt)
		if code := r.cmd.ProcessState.ExitCode(); code != 0 {
			t.Errorf("the relay ended with %v, want status 0", r.cmd.ProcessState)
		}
		for _, c := range all {
			c.await(t, "the client's stream ends", func(v *view) bool { return v.ended != nil })
		}
	})
	for _, second := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		t.Run("SIGTERM and "+second.String(), func(t *testing.T) {
			t.Parallel()
			r, _ := drainedRelay(t, 2, "{delay: 1h, time: 1h}")
			if err := r.cmd.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			r.awaitLog(t, `msg=(draining)`)
			r.killed = true
			r.end(t, second)
		})
	}
}

// A draining relay without clients ends at once.
func TestARelayWithoutClientsDrainsAtOnce(t *testing.T) {
	t.Parallel()
	r, _ := drainedRelay(t, 0, "{time: 1h}")
	r.end(t, syscall.SIGTERM)
	if code := r.cmd.ProcessState.ExitCode(); code != 0 {
		t.Errorf("the relay ended with %v, want status 0", r.cmd.ProcessState)
	}
}

// The relay closes a connection that has reached its maximum age as it does in a drain. The client connects
// again.
func TestConnectionsDoNotOutliveTheirMaximumAge(t *testing.T) {
	t.Parallel()
	cp := startControlPlane(t, delta)
	cp.set(plainCluster("a", ""))
	config := strings.Replace(relayTo(cp.address, "delta"), "  - address: 127.0.0.1:0\n", "  - address: 127.0.0.1:0\n    max_connection_age: 8s\n", 1)
	r := startRelay(t, config)
	conn := connect(t, r.address)
	begin := time.Now()
	for range 2 { // gRPC opens a new connection
		c := newClientOn(t, conn, delta, node("ages", ""))
		c.subscribe(clusterType, "a")
		c.awaitHas(t, "its cluster", plainCluster("a", ""))
		c.await(t, "the client's stream ends with UNAVAILABLE", func(v *view) bool { return status.Code(v.ended) == codes.Unavailable })
	}
	if took := time.Since(begin); took < 12*time.Second {
		t.Errorf("two connections lasted %v together, want at least 6s each", took)
	}
}
