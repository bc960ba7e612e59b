package integration

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// endsWithin is the longest time that the relay may take to end.
const endsWithin = 15 * time.Second

// swallow starts a server that accepts connections, reads all data, and never answers.
func swallow(t testing.TB) (address string) {
	t.Helper()
	socket, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			conn, err := socket.Accept()
			if err != nil {
				return
			}
			all.Go(func() { _, _ = io.Copy(io.Discard, conn); _ = conn.Close() })
		}
	})
	t.Cleanup(func() { _ = socket.Close() })
	return socket.Addr().String()
}

// The relay ends in time even if one client does not read, another one polls, an operator's request is
// incomplete, a control plane never answers, and another control plane has just sent a long list.
func TestTheRelayEndsWhateverIsGoingOn(t *testing.T) {
	t.Parallel()
	const view = "xdstp://views/envoy.config.cluster.v3.Cluster/all/*"
	const list = "xdstp://cp.example.com/envoy.config.cluster.v3.ClusterCollection/list"
	const listType = "type.googleapis.com/envoy.config.cluster.v3.ClusterCollection"
	h := startHandmade(t)
	config := pollable(h.address, "delta") + fmt.Sprintf(`
views:
  - match: {glob: %q}
    collections: [%q]
`, view, list)
	config = strings.Replace(config, "authorities:\n", fmt.Sprintf("authorities:\n  - name: mute\n    servers: [{address: %q, protocol: delta}]\n", swallow(t)), 1)
	r := startRelay(t, config)

	// The resources for the client that does not read are larger than the buffers of its connection.
	sleeper := openClient(t, connect(t, r.address), delta, node("sleeps", ""))
	sleeper.subscribe(clusterType, wildcard)
	s := h.stream(t)
	s.awaitAsked(t, clusterType, wildcard)
	var large []*discoveryv3.Resource
	for i := range 64 {
		large = append(large, versioned(t, "1", plainCluster(fmt.Sprint("cluster-", i), strings.Repeat("x", 64<<10))))
	}
	if nack := s.respond(t, clusterType, "1", large...); nack != "" {
		t.Fatal(nack)
	}

	viewer := openClient(t, connect(t, r.address), delta, node("views", ""))
	viewer.subscribe(clusterType, view)
	go viewer.takeAll()
	waits := openClient(t, connect(t, r.address), delta, node("waits", ""))
	waits.subscribe(clusterType, "xdstp://mute/envoy.config.cluster.v3.Cluster/x")
	go waits.takeAll()

	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	p := newPoller(t, r, "polls")
	first := p.must("/v3/discovery:clusters", "", 0)
	polled := make(chan struct{})
	go func() {
		defer close(polled)
		_, _ = p.poll(ctx, "/v3/discovery:clusters", first.version, 600_000)
	}()
	operator, err := net.Dial("tcp", r.admin)
	if err != nil {
		t.Fatal(err)
	}
	defer operator.Close()
	if _, err := io.WriteString(operator, "GET /metrics HTTP/1.1\r\nHost: "); err != nil {
		t.Fatal(err)
	}

	lists := h.stream(t)
	lists.awaitAsked(t, listType, list)
	var value []byte
	for i := range 90_000 {
		entry, err := proto.Marshal(located(fmt.Sprintf("xdstp://mute/envoy.config.cluster.v3.Cluster/c-%d", i)))
		if err != nil {
			t.Fatal(err)
		}
		value = protowire.AppendBytes(protowire.AppendTag(value, 1, protowire.BytesType), entry)
	}
	lists.send(t, listType, "1", &discoveryv3.Resource{Name: list, Version: "1", Resource: &anypb.Any{TypeUrl: listType, Value: value}})

	begin := time.Now()
	r.end(t, syscall.SIGTERM)
	if took := time.Since(begin); took > endsWithin {
		t.Errorf("the relay took %v to end, want at most %v", took, endsWithin)
	}
	cancel()
	<-polled
}

// unreadable starts a relay that is reading its configuration and never reaches the end of the file.
func unreadable(t *testing.T) *relay {
	t.Helper()
	file := filepath.Join(t.TempDir(), "relay.yaml")
	if err := syscall.Mkfifo(file, 0o600); err != nil {
		t.Skipf("this system has no named pipes: %v", err)
	}
	r := &relay{ended: make(chan struct{}), cmd: command("serve", "--config", file)}
	r.cmd.Stdout, r.cmd.Stderr = &r.stdout, &r.stderr
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = r.cmd.Wait()
		close(r.ended)
	}()
	// The call returns when the relay has opened the other end.
	pipe, err := os.OpenFile(file, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = pipe.Close() })
	return r
}

// The relay ends even if a disk hangs, here the one with its configuration.
func TestTheRelayEndsWhileItWaitsForADisk(t *testing.T) {
	t.Parallel()
	r := unreadable(t)
	begin := time.Now()
	r.end(t, syscall.SIGTERM)
	if took := time.Since(begin); took > endsWithin {
		t.Errorf("the relay took %v to end, want at most %v", took, endsWithin)
	}
	if status := r.cmd.ProcessState.ExitCode(); status != 0 {
		t.Errorf("the relay ended with %v, want status 0", r.cmd.ProcessState)
	}
	if logs := r.stderr.String(); !strings.Contains(logs, "still=starting") {
		t.Errorf("the relay does not log what it was doing:\n%s", logs)
	}
}

func TestASecondSignalEndsTheRelayAtOnce(t *testing.T) {
	t.Parallel()
	r := unreadable(t)
	// The system may deliver two signals that come in quick succession as one.
	every := time.NewTicker(100 * time.Millisecond)
	defer every.Stop()
	begin := time.Now()
	for !r.hasEnded() {
		_ = r.cmd.Process.Signal(syscall.SIGTERM) // an error means that the relay has ended
		select {
		case <-every.C:
		case <-r.ended:
		}
	}
	if status, _ := r.cmd.ProcessState.Sys().(syscall.WaitStatus); !status.Signaled() || status.Signal() != syscall.SIGTERM {
		t.Errorf("the relay ended with %v after %v, want that the second SIGTERM killed it", r.cmd.ProcessState, time.Since(begin))
	}
}
