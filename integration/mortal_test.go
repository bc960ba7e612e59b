package integration

// A control plane that can be killed, as in killed_test.go, and that knows TP1, which
// go-control-plane does not: redirects, list collections, and globs. What it has can be
// changed as long as it lives.

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

// mortalPlane is the environment variable that makes the program such a control plane,
// of that form. What it has comes on its standard input.
const mortalPlane = "INTEGRATION_MORTAL_PLANE"

// mortal is such a control plane, in a process of its own.
type mortal struct {
	*killable
	speaks form
	input  io.WriteCloser
}

func newMortal(t testing.TB, speaks form) *mortal {
	return &mortal{killable: newKillable(t), speaks: speaks}
}

// said is what a control plane sends for a name: a resource, of any type, or its removal.
type said struct {
	topic
	value *anypb.Any // nil if it is gone
}

// has says a resource under its own name.
func has(t testing.TB, m proto.Message) said {
	t.Helper()
	return said{topic{typeOf(m), nameOf(m)}, toAny(t, m)}
}

// redirect says that a name is found elsewhere. TP1: "Server redirects".
func redirect(t testing.TB, typeURL, name, to string) said {
	t.Helper()
	return said{topic{typeURL, name}, toAny(t, locatorTo(to))}
}

// gone says that there is no such resource any more.
func gone(typeURL, name string) said { return said{topic: topic{typeURL, name}} }

// listing says a list collection, of the type that is in its name.
func listing(t testing.TB, name string, entries ...*xdscorev3.CollectionEntry) said {
	t.Helper()
	value := toAny(t, &listenerv3.ListenerCollection{Entries: entries})
	value.TypeUrl = "type.googleapis.com/" + strings.Split(name, "/")[3] // encoded all alike
	return said{topic{value.GetTypeUrl(), name}, value}
}

// located is an entry of a list collection that says where a member, or more, is found.
func located(url string) *xdscorev3.CollectionEntry {
	return &xdscorev3.CollectionEntry{ResourceSpecifier: &xdscorev3.CollectionEntry_Locator{Locator: locatorTo(url)}}
}

// inlined is an entry of a list collection that has the member in it.
func inlined(t testing.TB, name, version string, m proto.Message) *xdscorev3.CollectionEntry {
	t.Helper()
	return &xdscorev3.CollectionEntry{ResourceSpecifier: &xdscorev3.CollectionEntry_InlineEntry_{
		InlineEntry: &xdscorev3.CollectionEntry_InlineEntry{Name: name, Version: version, Resource: toAny(t, m)},
	}}
}

// locatorTo is a URL, perhaps with an alternative, as protobuf has it.
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

// start runs the control plane with what it is to say.
func (m *mortal) start(all ...said) {
	m.t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), mortalPlane+"="+string(m.speaks))
	var err error
	if m.input, err = cmd.StdinPipe(); err != nil {
		m.t.Fatal(err)
	}
	// The first line is taken before anybody is served.
	line := m.line(all)
	go func(input io.Writer) { _, _ = io.WriteString(input, line) }(m.input)
	m.run(cmd)
}

// say changes what the control plane says, all at once.
func (m *mortal) say(all ...said) {
	m.t.Helper()
	if _, err := io.WriteString(m.input, m.line(all)); err != nil {
		m.t.Fatalf("telling the control plane: %v", err)
	}
}

// line encodes what is said: delta responses, one for each, in words of a line.
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
	// Versions are those of this process.
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

// read takes one line.
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
