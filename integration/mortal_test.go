package integration

// A control plane that can be killed, as in killed_test.go. Unlike go-control-plane, it supports TP1:
// redirects, list collections and globs. The test can change its resources while it runs.

import (
	"bufio"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"

	xdscorev3 "github.com/cncf/xds/go/xds/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// mortalPlane is the environment variable that turns the test's binary into a mortal control plane. Its value
// is the form that the control plane speaks. The control plane reads its resources from standard input.
const mortalPlane = "INTEGRATION_MORTAL_PLANE"

// mortal is a control plane in its own process.
type mortal struct {
	*killable
	speaks form
	input  io.WriteCloser
}

func newMortal(t testing.TB, speaks form) *mortal {
	return &mortal{killable: newKillable(t), speaks: speaks}
}

// said is a control plane's answer for a name: a resource of any type, or its removal.
type said struct {
	topic
	value *anypb.Any // nil for a removal
}

// has returns the answer with a resource under its own name.
func has(t testing.TB, m proto.Message) said {
	t.Helper()
	return said{topic{typeOf(m), nameOf(m)}, toAny(t, m)}
}

// redirect returns the answer that redirects a name to another. TP1: "Server redirects".
func redirect(t testing.TB, typeURL, name, to string) said {
	t.Helper()
	return said{topic{typeURL, name}, toAny(t, locatorTo(to))}
}

// gone returns the answer that a resource does not exist.
func gone(typeURL, name string) said { return said{topic: topic{typeURL, name}} }

// listing returns the answer with a list collection. Its type is the one in its name.
func listing(t testing.TB, name string, entries ...*xdscorev3.CollectionEntry) said {
	t.Helper()
	value := toAny(t, &listenerv3.ListenerCollection{Entries: entries})
	value.TypeUrl = "type.googleapis.com/" + strings.Split(name, "/")[3] // all collections have one encoding
	return said{topic{value.GetTypeUrl(), name}, value}
}

// located returns an entry of a list collection with the locator of a member or of another collection.
func located(url string) *xdscorev3.CollectionEntry {
	return &xdscorev3.CollectionEntry{ResourceSpecifier: &xdscorev3.CollectionEntry_Locator{Locator: locatorTo(url)}}
}

// inlined returns an entry of a list collection with an inline member.
func inlined(t testing.TB, name, version string, m proto.Message) *xdscorev3.CollectionEntry {
	t.Helper()
	return &xdscorev3.CollectionEntry{ResourceSpecifier: &xdscorev3.CollectionEntry_InlineEntry_{
		InlineEntry: &xdscorev3.CollectionEntry_InlineEntry{Name: name, Version: version, Resource: toAny(t, m)},
	}}
}

// locatorTo returns a URL, perhaps with an alternative, as a ResourceLocator.
func locatorTo(url string) *xdscorev3.ResourceLocator {
	url, alt, hasAlt := strings.Cut(url, "#alt=")
	parts := strings.SplitN(strings.TrimPrefix(url, "xdstp://"), "/", 3)
	l := &xdscorev3.ResourceLocator{Scheme: xdscorev3.ResourceLocator_XDSTP, Authority: parts[0], ResourceType: parts[1], Id: parts[2]}
	if hasAlt {
		l.Directives = []*xdscorev3.ResourceLocator_Directive{{
			Directive: &xdscorev3.ResourceLocator_Directive_Alt{Alt: locatorTo(alt)},
		}}
	}
	return l
}

// start starts the control plane's process with these answers.
func (m *mortal) start(all ...said) {
	m.t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), mortalPlane+"="+string(m.speaks))
	var err error
	if m.input, err = cmd.StdinPipe(); err != nil {
		m.t.Fatal(err)
	}
	// The process reads the first line before it serves.
	line := m.line(all)
	go func(input io.Writer) { _, _ = io.WriteString(input, line) }(m.input)
	m.run(cmd)
}

// say changes these answers of the control plane at the same time.
func (m *mortal) say(all ...said) {
	m.t.Helper()
	if _, err := io.WriteString(m.input, m.line(all)); err != nil {
		m.t.Fatalf("sending the answers to the control plane: %v", err)
	}
}

// line encodes answers as a line of words. Each word is a delta response in base64.
func (m *mortal) line(all []said) string {
	m.t.Helper()
	var words []string
	for _, s := range all {
		of := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: s.typeURL}
		if s.value == nil {
			of.RemovedResources = []string{s.name}
		} else {
			of.Resources = []*discoveryv3.Resource{{Name: s.name, Resource: s.value}}
		}
		raw, err := proto.Marshal(of)
		if err != nil {
			m.t.Fatal(err)
		}
		words = append(words, base64.StdEncoding.EncodeToString(raw))
	}
	return strings.Join(words, " ") + "\n"
}

// runMortal is the control plane's main function. It serves until it is killed.
func runMortal(speaks form, input io.Reader) error {
	// The versions contain the process id, so that each process has its own.
	p := &collectionPlane{speaks: speaks, prefix: fmt.Sprint(os.Getpid(), "-"), says: map[topic]*discoveryv3.Resource{}, changed: make(chan struct{})}
	lines := bufio.NewReader(input)
	if err := p.read(lines); err != nil {
		return err
	}
	socket, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	s := grpc.NewServer()
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(s, p)
	failed := make(chan error, 2)
	go func() { failed <- s.Serve(socket) }()
	go func() {
		for {
			if err := p.read(lines); err != nil {
				failed <- err
				return
			}
		}
	}()
	if _, err := fmt.Fprintln(os.Stdout, socket.Addr()); err != nil {
		return err
	}
	return <-failed
}

// read reads one line of answers, and applies them.
func (p *collectionPlane) read(lines *bufio.Reader) error {
	line, err := lines.ReadString('\n')
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for word := range strings.FieldsSeq(line) {
		raw, err := base64.StdEncoding.DecodeString(word)
		if err != nil {
			return err
		}
		var m discoveryv3.DeltaDiscoveryResponse
		if err := proto.Unmarshal(raw, &m); err != nil {
			return err
		}
		p.versions++
		for _, r := range m.GetResources() {
			r.Version = fmt.Sprint(p.prefix, p.versions)
			p.says[topic{m.GetTypeUrl(), r.GetName()}] = r
		}
		for _, name := range m.GetRemovedResources() {
			delete(p.says, topic{m.GetTypeUrl(), name})
		}
	}
	close(p.changed)
	p.changed = make(chan struct{})
	return nil
}
