package integration

// Clients of several programs, which can reject a change or crash because of it.

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
)

// fleet is a group of clients, and the resources that they hold.
type fleet struct {
	watched[fleetState]
	t    testing.TB
	form form
	conn func() *grpc.ClientConn
}

type fleetState struct {
	// holds has, by client, type and name, the content of each resource that a client holds, as plainContent
	// returns it.
	holds map[string]map[topic]string
	// had counts, by content and client, how often the client received the content.
	had map[string]map[string]int
	// log has all contents that clients received, in order.
	log []sentContent
	// ended has the clients whose streams have ended.
	ended map[string]bool
}

// sentContent is a content that a client received.
type sentContent struct {
	at          time.Time
	to, content string
}

// String describes the fleet, for a failed test.
func (s *fleetState) String() string {
	var b strings.Builder
	for _, id := range slices.Sorted(maps.Keys(s.holds)) {
		fmt.Fprintf(&b, "\n%s", id)
		for t, content := range s.holds[id] {
			fmt.Fprintf(&b, " %s=%s", t.name, content)
		}
	}
	for content, clients := range s.had {
		fmt.Fprintf(&b, "\n%s was sent to %d clients", content, len(clients))
	}
	return b.String()
}

// who returns the sorted ids of the clients that hold a content.
func (s *fleetState) who(content string) (ids []string) {
	for id, holds := range s.holds {
		for _, is := range holds {
			if is == content {
				ids = append(ids, id)
				break
			}
		}
	}
	slices.Sort(ids)
	return ids
}

// temper says which resources make a client reject a response or crash.
type temper struct {
	rejects string // a prefix of contents
	diesOf  string // a prefix of contents
	// alone: two Listeners have the same address. The client applies the removals of a response first, and rejects a
	// Listener beside another one.
	alone bool
}

func newFleet(t testing.TB, f form, conn func() *grpc.ClientConn) *fleet {
	fl := &fleet{t: t, form: f, conn: conn}
	fl.value = fleetState{holds: map[string]map[topic]string{}, had: map[string]map[string]int{}, ended: map[string]bool{}}
	return fl
}

// join adds a client of a program, which subscribes to the wildcards of some types. leave disconnects it.
func (f *fleet) join(id, program string, is temper, types ...string) (leave func()) {
	f.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	f.t.Cleanup(cancel)
	node := &corev3.Node{Id: id, UserAgentName: program, UserAgentVersionType: &corev3.Node_UserAgentVersion{UserAgentVersion: "1.0"}}
	f.update(func(s *fleetState) { s.holds[id], s.ended[id] = map[topic]string{}, false })
	ads := discoveryv3.NewAggregatedDiscoveryServiceClient(f.conn())
	var stream fleetStream
	if f.form == delta {
		s, err := ads.DeltaAggregatedResources(ctx)
		if err != nil {
			f.t.Fatal(err)
		}
		stream = &deltaFleetStream{s, node}
	} else {
		s, err := ads.StreamAggregatedResources(ctx)
		if err != nil {
			f.t.Fatal(err)
		}
		stream = &sotwFleetStream{s, node, map[string]string{}}
	}
	for _, typeURL := range types {
		if err := stream.answer(typeURL, "", "", ""); err != nil {
			f.t.Fatal(err)
		}
	}
	go func() {
		defer f.update(func(s *fleetState) { s.ended[id] = true })
		for {
			r, err := stream.receive()
			if err != nil {
				return
			}
			words := ""
			f.update(func(s *fleetState) {
				news := map[topic]string{}
				for name, value := range r.resources {
					content := plainContent(value.value)
					if s.had[content] == nil {
						s.had[content] = map[string]int{}
					}
					s.had[content][id]++
					s.log = append(s.log, sentContent{time.Now(), id, content})
					if is.rejects != "" && strings.HasPrefix(content, is.rejects) {
						words = "no such filter: " + content
					}
					news[topic{r.typeURL, name}] = content
				}
				if words != "" {
					return // the client keeps its resources
				}
				for _, name := range r.removed {
					delete(s.holds[id], topic{r.typeURL, name})
				}
				if r.full {
					maps.DeleteFunc(s.holds[id], func(t topic, _ string) bool { return t.typeURL == r.typeURL })
				}
				if is.alone {
					if words = beside(s.holds[id], news); words != "" {
						return
					}
				}
				maps.Copy(s.holds[id], news)
			})
			for _, value := range r.resources {
				if is.diesOf != "" && strings.HasPrefix(plainContent(value.value), is.diesOf) {
					cancel()
					return
				}
			}
			if err := stream.answer(r.typeURL, r.version, r.nonce, words); err != nil {
				return
			}
		}
	}()
	return cancel
}

// beside returns why a client rejects Listeners that come beside those that it holds, "" if it does not.
func beside(holds, news map[topic]string) string {
	var names []string
	for _, of := range []map[topic]string{holds, news} {
		for is := range of {
			if is.typeURL == listenerType && !slices.Contains(names, is.name) {
				names = append(names, is.name)
			}
		}
	}
	if len(names) < 2 {
		return ""
	}
	slices.Sort(names)
	return fmt.Sprintf("listeners %s have the same address", strings.Join(names, " and "))
}

// plainContent returns the content of a plainListener or plainCluster.
func plainContent(value string) string {
	for _, word := range strings.FieldsFunc(value, func(r rune) bool { return r < ' ' || r > '~' }) {
		if _, content, found := strings.Cut(word, "content-"); found {
			return content
		}
	}
	return ""
}

// fleetStream is a stream in either form. answer ACKs a response, or NACKs it if words is not empty. Without
// a nonce, it sends a first request.
type fleetStream interface {
	receive() (response, error)
	answer(typeURL, version, nonce, words string) error
}

func detail(words string) *statuspb.Status {
	if words == "" {
		return nil
	}
	return &statuspb.Status{Code: int32(codes.InvalidArgument), Message: words}
}

type deltaFleetStream struct {
	stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesClient
	node   *corev3.Node
}

func (s *deltaFleetStream) receive() (response, error) {
	return (&deltaSpeaker{stream: s.stream}).receive()
}

func (s *deltaFleetStream) answer(typeURL, _, nonce, words string) error {
	req := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: typeURL, ResponseNonce: nonce, ErrorDetail: detail(words), Node: s.node}
	s.node = nil
	return s.stream.Send(req)
}

type sotwFleetStream struct {
	stream   discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesClient
	node     *corev3.Node
	accepted map[string]string
}

func (s *sotwFleetStream) receive() (response, error) {
	r, err := (&sotwSpeaker{stream: s.stream}).receive()
	r.full = true
	return r, err
}

func (s *sotwFleetStream) answer(typeURL, version, nonce, words string) error {
	if words == "" {
		s.accepted[typeURL] = version
	}
	req := &discoveryv3.DiscoveryRequest{TypeUrl: typeURL, ResponseNonce: nonce, VersionInfo: s.accepted[typeURL], ErrorDetail: detail(words), Node: s.node}
	s.node = nil
	return s.stream.Send(req)
}
