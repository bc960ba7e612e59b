package integration

// Control planes that can be killed. Each is go-control-plane in its own process, which runs the test's
// binary.

import (
	"bufio"
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	cachev3 "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	serverv3 "github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// planeResources is the environment variable that turns the test's binary into a control plane. Its value is
// an encoded DiscoveryResponse with the resources.
const planeResources = "INTEGRATION_CONTROL_PLANE"

// runPlane is the control plane's main function. It serves until it is killed.
func runPlane(encoded string) error {
	raw, err := base64.StdEncoding.DecodeString(encoded)
	if err != nil {
		return err
	}
	var all discoveryv3.DiscoveryResponse
	if err := proto.Unmarshal(raw, &all); err != nil {
		return err
	}
	byType := map[string]map[string]types.Resource{listenerType: {}, routeType: {}, clusterType: {}, endpointType: {}}
	for _, a := range all.GetResources() {
		m, err := a.UnmarshalNew()
		if err != nil {
			return err
		}
		byType[a.GetTypeUrl()][nameOf(m)] = m
	}
	mux := &cachev3.MuxCache{
		Classify:      func(r *cachev3.Request) string { return r.GetTypeUrl() },
		ClassifyDelta: func(r *cachev3.DeltaRequest) string { return r.GetTypeUrl() },
		Caches:        map[string]cachev3.Cache{},
	}
	for typeURL, resources := range byType {
		// The versions contain the process id, so that each process has its own.
		mux.Caches[typeURL] = cachev3.NewLinearCache(typeURL, cachev3.WithInitialResources(resources), cachev3.WithVersionPrefix(fmt.Sprint(os.Getpid(), "-")))
	}
	socket, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	s := grpc.NewServer()
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(s, serverv3.NewServer(context.Background(), mux, nil))
	if _, err := fmt.Fprintln(os.Stdout, socket.Addr()); err != nil {
		return err
	}
	return s.Serve(socket)
}

// killable is a control plane that can be killed, and started again with other
// resources on the same port.
type killable struct {
	*port
	t   testing.TB
	cmd *exec.Cmd
	gap net.Listener // accepts the port's connections while the process runs
	wg  sync.WaitGroup
}

// newKillable returns a control plane that is not started yet. Its port is reserved.
func newKillable(t testing.TB) *killable {
	k := &killable{port: openPort(t), t: t}
	t.Cleanup(func() {
		k.kill()
		k.wg.Wait()
	})
	return k
}

// start starts the control plane's process with these resources.
func (k *killable) start(resources ...proto.Message) {
	k.t.Helper()
	all := &discoveryv3.DiscoveryResponse{}
	for _, r := range resources {
		a, err := anypb.New(r)
		if err != nil {
			k.t.Fatal(err)
		}
		all.Resources = append(all.Resources, a)
	}
	raw, err := proto.Marshal(all)
	if err != nil {
		k.t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), planeResources+"="+base64.StdEncoding.EncodeToString(raw))
	k.run(cmd)
}

// run starts the process, which prints its address, and connects the port to it.
func (k *killable) run(cmd *exec.Cmd) {
	k.t.Helper()
	cmd.Stderr = os.Stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		k.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		k.t.Fatal(err)
	}
	k.cmd = cmd
	address, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		k.t.Fatalf("the control plane does not start: %v", err)
	}
	gap := k.listen()
	k.gap = gap
	k.wg.Go(func() { k.pass(gap, strings.TrimSpace(address)) })
}

// kill kills the process, which cannot end its streams in order.
func (k *killable) kill() {
	if k.cmd == nil {
		return
	}
	_ = k.gap.Close()
	_ = k.cmd.Process.Kill()
	_ = k.cmd.Wait() // an error: the process was killed
	k.cmd = nil
}

// pass forwards the port's connections to the process.
func (k *killable) pass(from net.Listener, address string) {
	for {
		in, err := from.Accept()
		if err != nil {
			return
		}
		out, err := net.Dial("tcp", address)
		if err != nil {
			_ = in.Close()
			continue
		}
		ends := func(to, from net.Conn) {
			_, _ = io.Copy(to, from) // until one side closes its connection
			_ = to.Close()
			_ = from.Close()
		}
		k.wg.Go(func() { ends(in, out) })
		k.wg.Go(func() { ends(out, in) })
	}
}
