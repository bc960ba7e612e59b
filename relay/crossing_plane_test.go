package relay

// The control plane of the crossings: it does what the transcript says, and records the requests that it receives.

import (
	"cmp"
	"errors"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/chain"
	"github.com/xds-relay/xds-relay/internal/xdstype"
)

type scriptedPlane struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	*memoryServer
	form string

	mu      sync.Mutex
	streams []*planeStream // those that are open, the newest last
	events  []planeEvent
	// wildcards are the types with a wildcard request. namesStream says for each stream whether its first request had
	// names of such a type.
	wildcards   map[string]bool
	namesStream map[int]bool
	params      map[int]string // the dynamic parameters of each stream
	nodes       map[int]string // the id of the Node of each stream
	// before is the number of names in the last SotW request that take returned.
	before map[eventKey]int
	opened int      // streams
	behind []string // of each stream, the relays that it announced
	nonces int
}

// planeStream is a stream that the relay has opened.
type planeStream struct {
	number int
	send   func(proto.Message) error
	end    chan error
}

// planeEvent is a request, or something else that happened.
type planeEvent struct {
	stream int
	what   string
	delta  *discoveryv3.DeltaDiscoveryRequest
	sotw   *discoveryv3.DiscoveryRequest
}

func newScriptedPlane(form string) *scriptedPlane {
	p := &scriptedPlane{memoryServer: &memoryServer{}, form: form, before: map[eventKey]int{}, wildcards: map[string]bool{}, namesStream: map[int]bool{}, params: map[int]string{}, nodes: map[int]string{}}
	p.ads = p
	p.up()
	return p
}

// DeltaAggregatedResources serves a delta stream.
func (p *scriptedPlane) DeltaAggregatedResources(stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	return p.serve(stream, "delta", func() (planeEvent, error) {
		req, err := stream.Recv()
		return planeEvent{delta: req}, err
	})
}

// StreamAggregatedResources serves a SotW stream.
func (p *scriptedPlane) StreamAggregatedResources(stream discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
	return p.serve(stream, "sotw", func() (planeEvent, error) {
		req, err := stream.Recv()
		return planeEvent{sotw: req}, err
	})
}

func (p *scriptedPlane) serve(stream grpc.ServerStream, form string, recv func() (planeEvent, error)) error {
	st := &planeStream{
		send: func(m proto.Message) error { return stream.SendMsg(m) },
		end:  make(chan error, 1),
	}
	p.mu.Lock()
	p.streams = append(p.streams, st)
	p.opened++
	p.behind = append(p.behind, strings.Join(metadata.ValueFromIncomingContext(stream.Context(), chain.Header), "|"))
	number := p.opened
	st.number = number
	p.mu.Unlock()
	note := func(e planeEvent) {
		e.stream = number
		p.mu.Lock()
		defer p.mu.Unlock()
		p.events = append(p.events, e)
	}
	note(planeEvent{what: "a new stream, " + form})
	go func() {
		for {
			e, err := recv()
			if errors.Is(err, io.EOF) {
				note(planeEvent{what: "no more requests"})
			}
			if err != nil {
				return
			}
			note(e)
		}
	}()
	var err error
	select {
	case err = <-st.end:
	case <-stream.Context().Done():
		note(planeEvent{what: "the stream has ended"})
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.streams = slices.DeleteFunc(p.streams, func(o *planeStream) bool { return o == st })
	return err
}

// chains returns the relays that each stream announced, in their order.
func (p *scriptedPlane) chains() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.behind)
}

// open returns the newest open stream that is a names stream, or that is not. It may be
// nil.
func (p *scriptedPlane) open(names bool) *planeStream {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, st := range slices.Backward(p.streams) {
		if len(p.streams) == 1 || p.namesStream[st.number] == names {
			return st
		}
	}
	return nil
}

func (p *scriptedPlane) endStream(names bool) {
	p.open(names).end <- status.Error(codes.Unavailable, "going to another replica")
}

// all returns the streams that are open.
func (p *scriptedPlane) all() []*planeStream {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.streams)
}

// newest returns only the newest of the open streams.
func (p *scriptedPlane) newest() []*planeStream {
	all := p.all()
	return all[max(0, len(all)-1):]
}

// respond sends a response of the lines of a directive, on each of the streams.
func (p *scriptedPlane) respond(t *testing.T, typ, version, nonce string, streams []*planeStream, lines string) {
	t.Helper()
	p.mu.Lock()
	if nonce == "" {
		nonce = string(rune('A' + p.nonces))
		p.nonces++
	}
	p.mu.Unlock()
	if len(streams) == 0 || streams[0] == nil {
		t.Fatal("there is no stream to respond on")
	}
	typeURL := typeURLOf(t, typ)
	delta := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: typeURL, Nonce: nonce, SystemVersionInfo: version}
	sotw := &discoveryv3.DiscoveryResponse{TypeUrl: typeURL, Nonce: nonce, VersionInfo: version}
	for line := range strings.Lines(lines) {
		words := strings.Fields(line)
		switch words[0] {
		case "removed":
			for _, word := range words[1:] {
				if word == `""` {
					word = ""
				}
				if n := variantName(t, word); n != nil {
					delta.RemovedResourceNames = append(delta.RemovedResourceNames, n)
				} else {
					delta.RemovedResources = append(delta.RemovedResources, word)
				}
			}
		case "error":
			var code codes.Code
			if err := code.UnmarshalJSON([]byte(`"` + words[2] + `"`)); err != nil {
				t.Fatal(err)
			}
			name := variantName(t, words[1])
			if name == nil {
				name = &discoveryv3.ResourceName{Name: words[1]}
			}
			e := &discoveryv3.ResourceError{
				ResourceName: name,
				ErrorDetail:  &statuspb.Status{Code: int32(code), Message: strings.Join(words[3:], " ")},
			}
			delta.ResourceErrors = append(delta.ResourceErrors, e)
			sotw.ResourceErrors = append(sotw.ResourceErrors, e)
		default:
			r := scriptedResource(t, typ, words)
			delta.Resources = append(delta.Resources, r)
			a := r.GetResource()
			if a.GetTypeUrl() == xdstype.Locator || r.GetTtl() != nil || r.GetAliases() != nil || r.GetCacheControl() != nil || r.GetResourceName() != nil {
				var err error
				if a, err = anypb.New(r); err != nil {
					t.Fatal(err)
				}
			}
			sotw.Resources = append(sotw.Resources, a)
		}
	}
	var m proto.Message = delta
	if p.form == "sotw" {
		m = sotw
	}
	for _, st := range streams {
		if err := st.send(m); err != nil {
			t.Fatal(err)
		}
	}
}

// take returns the events since the last call, one stream after another: the end of a stream and the beginning of the
// next have no order.
func (p *scriptedPlane) take() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.classify()
	slices.SortStableFunc(p.events, func(a, b planeEvent) int {
		if p.namesStream[a.stream] != p.namesStream[b.stream] {
			return map[bool]int{true: 1, false: -1}[p.namesStream[a.stream]]
		}
		return a.stream - b.stream
	})
	var merged []planeEvent
	for _, e := range p.events {
		n := len(merged)
		if n > 0 && (merged[n-1].takesDelta(e) || merged[n-1].takesSotW(e, p.before)) {
			continue
		}
		if n > 0 && merged[n-1].sotw != nil {
			p.before[merged[n-1].key()] = sotwAsked(merged[n-1].sotw)
		}
		merged = append(merged, e)
	}
	if n := len(merged); n > 0 && merged[n-1].sotw != nil {
		p.before[merged[n-1].key()] = sotwAsked(merged[n-1].sotw)
	}
	p.events = nil
	out := make([]string, 0, len(merged))
	for _, e := range merged {
		what := e.what
		switch {
		case e.delta != nil:
			what = describeDeltaRequest(e.delta, p.nodeOf(e.stream, e.delta.GetNode()))
		case e.sotw != nil:
			what = describeSotWRequest(e.sotw, p.nodeOf(e.stream, e.sotw.GetNode()))
		}
		who := "control plane"
		if params := p.params[e.stream]; params != "" {
			who += " {" + params + "}"
		}
		if p.namesStream[e.stream] {
			who += ", names stream"
		}
		out = append(out, who+" <- "+what)
	}
	return out
}

// nodeOf returns what the line of a request says about the Node: its id in the first request of a stream. Each later
// request has the same Node, which its line does not repeat. The caller holds mu.
func (p *scriptedPlane) nodeOf(stream int, node *corev3.Node) string {
	before, known := p.nodes[stream]
	p.nodes[stream] = cmp.Or(before, node.GetId())
	switch {
	case node == nil:
		return "none"
	case known && before == node.GetId():
		return ""
	}
	return node.GetId()
}

// classify finds out which streams are names streams: a stream that begins with names of a
// type, while another stream has its wildcard. It also records the dynamic parameters of
// each stream. The caller holds mu.
func (p *scriptedPlane) classify() {
	for _, e := range p.events {
		locators := append(e.delta.GetResourceLocatorsSubscribe(), e.sotw.GetResourceLocators()...)
		if len(locators) > 0 {
			p.params[e.stream] = cache.Params(locators[0].GetDynamicParameters()).String()
		}
	}
	for _, e := range p.events {
		if typeURL, names := e.asks(); typeURL != "" && !names {
			p.wildcards[typeURL] = true
		}
	}
	for _, e := range p.events {
		if typeURL, names := e.asks(); typeURL != "" {
			if _, known := p.namesStream[e.stream]; !known {
				p.namesStream[e.stream] = names && p.wildcards[typeURL]
			}
		}
	}
}

// asks returns the type that a request subscribes to, and whether by names.
func (e *planeEvent) asks() (typeURL string, names bool) {
	var list []string
	var locators []*discoveryv3.ResourceLocator
	switch {
	case e.delta != nil && e.delta.GetResponseNonce() == "" && len(e.delta.GetResourceNamesUnsubscribe()) == 0:
		typeURL, list, locators = e.delta.GetTypeUrl(), e.delta.GetResourceNamesSubscribe(), e.delta.GetResourceLocatorsSubscribe()
	case e.sotw != nil:
		typeURL, list, locators = e.sotw.GetTypeUrl(), e.sotw.GetResourceNames(), e.sotw.GetResourceLocators()
	}
	for _, l := range locators {
		list = append(list, l.GetName())
	}
	return typeURL, len(list) > 0 && !slices.Contains(list, "*")
}

// takesDelta merges two requests if both only add or drop names, and reports whether it did. A name that is in both
// is kept.
func (e *planeEvent) takesDelta(next planeEvent) bool {
	a, b := e.delta, next.delta
	if a == nil || b == nil || e.stream != next.stream || a.GetTypeUrl() != b.GetTypeUrl() ||
		a.GetResponseNonce() != "" || b.GetResponseNonce() != "" || len(b.GetInitialResourceVersions()) > 0 {
		return false
	}
	names := deltaAsked(a)
	for _, name := range deltaAsked(b) {
		if strings.HasPrefix(name, "*") || len(names) == 0 || slices.Contains(names, name) {
			return false
		}
	}
	a.ResourceNamesSubscribe = append(a.ResourceNamesSubscribe, b.GetResourceNamesSubscribe()...)
	a.ResourceNamesUnsubscribe = append(a.ResourceNamesUnsubscribe, b.GetResourceNamesUnsubscribe()...)
	a.ResourceLocatorsSubscribe = append(a.ResourceLocatorsSubscribe, b.GetResourceLocatorsSubscribe()...)
	a.ResourceLocatorsUnsubscribe = append(a.ResourceLocatorsUnsubscribe, b.GetResourceLocatorsUnsubscribe()...)
	return true
}

// takesSotW does the same for SotW. before is the number of names in the request before the first one: if the first
// request added names, the second one must add names, too.
func (e *planeEvent) takesSotW(next planeEvent, before map[eventKey]int) bool {
	a, b := e.sotw, next.sotw
	if a == nil || b == nil || e.key() != next.key() || a.GetResponseNonce() != b.GetResponseNonce() ||
		a.GetErrorDetail() != nil || b.GetErrorDetail() != nil {
		return false
	}
	had, has, will := before[e.key()], sotwAsked(a), sotwAsked(b)
	if (had >= has || has >= will) && (had <= has || has <= will || will == 0) {
		return false
	}
	a.ResourceNames, a.ResourceLocators = b.GetResourceNames(), b.GetResourceLocators()
	return true
}

// deltaAsked returns the names and locators of a request.
func deltaAsked(m *discoveryv3.DeltaDiscoveryRequest) []string {
	return slices.Concat(
		withLocators(m.GetResourceNamesSubscribe(), m.GetResourceLocatorsSubscribe()),
		withLocators(m.GetResourceNamesUnsubscribe(), m.GetResourceLocatorsUnsubscribe()))
}

// sotwAsked returns the number of names and locators of a request.
func sotwAsked(m *discoveryv3.DiscoveryRequest) int {
	return len(m.GetResourceNames()) + len(m.GetResourceLocators())
}

// eventKey is a stream and a type.
type eventKey struct {
	stream  int
	typeURL string
}

func (e *planeEvent) key() eventKey { return eventKey{e.stream, e.sotw.GetTypeUrl()} }
