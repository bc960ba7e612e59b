package envoy

// A control plane that does what a test says. It serves every type, in both forms, over ADS and over the services
// of single types.

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
)

// script is such a control plane. Its methods may be called concurrently.
type script struct {
	mu      sync.Mutex
	now     world
	changed chan struct{} // closed, and replaced, at each change
	// refuse returns an error with which a request ends its stream.
	refuse func(heard) error
	ttls   map[string]time.Duration // by resource name
	beats  int                      // how many heartbeats there were of all resources with a TTL
	alias  map[[2]string][]string   // of a resource, by type URL and name
	// hidden reports whether a resource is no answer to a wildcard, but only to its name.
	hidden func(typeURL, name string) bool
	// mute reports whether a request for a name that does not exist gets no answer, in delta, either.
	mute func(typeURL, name string) bool
	// bodiless says that a name that does not exist is answered by a resource without body, as Envoy's
	// documentation of VHDS wants it.
	bodiless bool
	// version returns the version of a resource. The default is a hash of its content.
	version func(typeURL, name string, content []byte) string
	push    string // a text in every version: a change makes everything new
}

func newScript() *script {
	return &script{now: world{}, changed: make(chan struct{}), ttls: map[string]time.Duration{}, alias: map[[2]string][]string{}}
}

func (s *script) register(*grpc.Server) {} // its handler serves unknown services

func (s *script) publish(to world) {
	s.change(func() { s.now = to })
}

// change changes the script, and wakes its streams.
func (s *script) change(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
	close(s.changed)
	s.changed = make(chan struct{})
}

// versioned is a resource with its version.
type versioned struct {
	name, version string
	body          *anypb.Any
	ttl           time.Duration
	aliases       []string
}

// view returns the resources of a type that match, in the order of their names, and the channel that is closed
// at the next change.
func (s *script) view(typeURL string, matches func(name string) bool) ([]versioned, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []versioned
	for _, name := range slices.Sorted(maps.Keys(s.now[typeURL])) {
		aliases := s.alias[[2]string{typeURL, name}]
		if !matches(name) && !slices.ContainsFunc(aliases, matches) {
			continue
		}
		body := anyOf(s.now[typeURL][name])
		version := hash(append([]byte(s.push), body.GetValue()...))
		if s.version != nil {
			version = s.version(typeURL, name, body.GetValue())
		}
		all = append(all, versioned{name, version, body, s.ttls[name], aliases})
	}
	return all, s.changed
}

// beat sends a heartbeat of each resource with a TTL.
func (s *script) beat() { s.change(func() { s.beats++ }) }

// due returns the number of heartbeats so far.
func (s *script) due() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.beats
}

func hash(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:6])
}

func anyOf(m proto.Message) *anypb.Any {
	value, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		panic(err)
	}
	return &anypb.Any{TypeUrl: resourceType(m), Value: value}
}

// serve is the handler of all streams.
func (s *script) serve(_ any, stream grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(stream)
	if strings.HasPrefix(method[strings.LastIndex(method, "/")+1:], "Delta") {
		return serveStream(s, stream, func() *discoveryv3.DeltaDiscoveryRequest { return &discoveryv3.DeltaDiscoveryRequest{} },
			func(typeURL string) session[*discoveryv3.DeltaDiscoveryRequest] {
				return &deltaSession{script: s, typeURL: typeURL, names: map[string]bool{}, sent: map[string]string{}}
			})
	}
	return serveStream(s, stream, func() *discoveryv3.DiscoveryRequest { return &discoveryv3.DiscoveryRequest{} },
		func(typeURL string) session[*discoveryv3.DiscoveryRequest] {
			return &sotwSession{script: s, typeURL: typeURL, fresh: map[string]bool{}}
		})
}

// session is the state of one type on a stream.
type session[R any] interface {
	// receive takes a request.
	receive(r R)
	// respond returns the next response, or nil if there is none, and the channel of the next change.
	respond() (proto.Message, <-chan struct{})
}

func serveStream[R interface {
	proto.Message
	GetTypeUrl() string
}](s *script, stream grpc.ServerStream, empty func() R, open func(typeURL string) session[R]) error {
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	method, _ := grpc.MethodFromServerStream(stream)
	requests := make(chan R)
	failed := make(chan error, 1)
	go func() {
		for {
			r := empty()
			if err := stream.RecvMsg(r); err != nil {
				failed <- err
				return
			}
			select {
			case requests <- r:
			case <-ctx.Done():
				return
			}
		}
	}()
	sessions := map[string]session[R]{}
	for {
		// A change wakes the stream. The channel is that of the moment before the first session looks.
		_, changed := s.view("", nil)
		for _, typeURL := range inWireOrder(maps.Keys(sessions)) {
			if response, _ := sessions[typeURL].respond(); response != nil {
				if err := stream.SendMsg(response); err != nil {
					return err
				}
			}
		}
		select {
		case r := <-requests:
			if err := s.refusal(method, r); err != nil {
				return err
			}
			if sessions[r.GetTypeUrl()] == nil {
				sessions[r.GetTypeUrl()] = open(r.GetTypeUrl())
			}
			sessions[r.GetTypeUrl()].receive(r)
		case <-changed:
		case err := <-failed:
			return err
		}
	}
}

func (s *script) refusal(method string, r any) error {
	s.mu.Lock()
	refuse := s.refuse
	s.mu.Unlock()
	if refuse == nil {
		return nil
	}
	h := heard{method: method}
	switch full := r.(type) {
	case *discoveryv3.DiscoveryRequest:
		h.typeURL, h.names, h.node = full.GetTypeUrl(), full.GetResourceNames(), full.GetNode().GetId()
	case *discoveryv3.DeltaDiscoveryRequest:
		h.typeURL, h.names, h.node = full.GetTypeUrl(), full.GetResourceNamesSubscribe(), full.GetNode().GetId()
	}
	return refuse(h)
}

// inWireOrder returns type URLs in the order in which their responses are sent.
func inWireOrder(typeURLs func(func(string) bool)) []string {
	rank := func(typeURL string) int {
		if i := slices.Index(wireOrder, typeURL); i >= 0 {
			return i
		}
		return len(wireOrder)
	}
	return slices.SortedFunc(typeURLs, func(a, b string) int {
		if d := rank(a) - rank(b); d != 0 {
			return d
		}
		return strings.Compare(a, b)
	})
}

// isFullState reports whether a SotW response has all resources of the type.
func isFullState(typeURL string) bool {
	return typeURL == resource.ListenerType || typeURL == resource.ClusterType
}

// inCollection reports whether a name is a member of a glob of xdstp names.
func inCollection(glob, name string) bool {
	path, params, _ := strings.Cut(glob, "?")
	directory, isGlob := strings.CutSuffix(path, "*")
	if !isGlob || !strings.HasPrefix(glob, "xdstp:") {
		return false
	}
	namePath, nameParams, _ := strings.Cut(name, "?")
	rest, inside := strings.CutPrefix(namePath, directory)
	return inside && !strings.Contains(rest, "/") && params == nameParams
}

// requested reports whether a client that requests names, and perhaps the wildcard, gets a resource.
func (s *script) requested(typeURL string, names map[string]bool, wildcard bool, name string) bool {
	if names[name] {
		return true
	}
	if wildcard && (s.hidden == nil || !s.hidden(typeURL, name)) {
		return true
	}
	for glob := range names {
		if inCollection(glob, name) {
			return true
		}
	}
	return false
}

func (s *script) silent(typeURL, name string) bool { return s.mute != nil && s.mute(typeURL, name) }

// deltaSession is a session of the delta form.
type deltaSession struct {
	script   *script
	typeURL  string
	begun    bool
	wildcard bool
	names    map[string]bool
	answered map[string]bool   // names that do not exist, and of which the client knows it
	sent     map[string]string // versions, by name
	due      bool              // a request has to be answered, even if nothing is new
	beats    int               // the heartbeats that were sent, or that the session has missed
	nonce    int
}

func (d *deltaSession) receive(r *discoveryv3.DeltaDiscoveryRequest) {
	subscribe := r.GetResourceNamesSubscribe()
	if !d.begun && len(subscribe) == 0 {
		subscribe = []string{"*"}
	}
	if !d.begun {
		d.answered = map[string]bool{}
		for name, version := range r.GetInitialResourceVersions() {
			d.sent[name] = version
		}
	}
	d.begun = true
	for _, name := range subscribe {
		if name == "*" {
			d.wildcard = true
		} else {
			d.names[name] = true
			if r.GetResponseNonce() != "" || r.GetInitialResourceVersions()[name] == "" {
				delete(d.sent, name) // a name that is subscribed again is sent again
			}
			delete(d.answered, name)
		}
		d.due = d.due || !d.script.silent(d.typeURL, name)
	}
	for _, name := range r.GetResourceNamesUnsubscribe() {
		if name == "*" {
			d.wildcard = false
		}
		delete(d.names, name)
		if !d.wildcard {
			delete(d.sent, name)
		}
	}
}

func (d *deltaSession) respond() (proto.Message, <-chan struct{}) {
	now, changed := d.script.view(d.typeURL, func(name string) bool { return d.script.requested(d.typeURL, d.names, d.wildcard, name) })
	response := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: d.typeURL}
	beats := d.script.due()
	exists := map[string]bool{}
	var system strings.Builder
	for _, r := range now {
		exists[r.name] = true
		for _, alias := range r.aliases {
			exists[alias] = true
			delete(d.answered, alias)
		}
		fmt.Fprint(&system, r.name, r.version)
		delete(d.answered, r.name)
		if d.sent[r.name] != r.version {
			sent := &discoveryv3.Resource{Name: r.name, Version: r.version, Resource: r.body, Aliases: r.aliases}
			if r.ttl > 0 {
				sent.Ttl = durationpb.New(r.ttl)
			}
			response.Resources = append(response.Resources, sent)
			d.sent[r.name] = r.version
		} else if r.ttl > 0 && beats > d.beats {
			response.Resources = append(response.Resources, &discoveryv3.Resource{Name: r.name, Version: r.version, Ttl: durationpb.New(r.ttl)})
		}
	}
	d.beats = beats
	for _, name := range slices.Sorted(maps.Keys(d.sent)) {
		if !exists[name] {
			response.RemovedResources = append(response.RemovedResources, name)
			delete(d.sent, name)
			d.answered[name] = true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(d.names)) {
		if exists[name] || d.answered[name] || strings.Contains(name, "*") || d.script.silent(d.typeURL, name) {
			continue
		}
		if d.script.bodiless {
			response.Resources = append(response.Resources, &discoveryv3.Resource{Name: name, Aliases: []string{name}})
		} else {
			response.RemovedResources = append(response.RemovedResources, name)
		}
		d.answered[name] = true
	}
	if len(response.Resources)+len(response.RemovedResources) == 0 && !d.due {
		return nil, changed
	}
	d.due = false
	d.nonce++
	response.Nonce = fmt.Sprint(d.nonce)
	response.SystemVersionInfo = hash([]byte(system.String()))
	return response, changed
}

// sotwSession is a session of the state of the world.
type sotwSession struct {
	script   *script
	typeURL  string
	begun    bool
	wildcard bool
	names    map[string]bool
	fresh    map[string]bool // newly requested names, which are answered whatever the version
	version  string          // of the last response
	beats    int             // the heartbeats that were sent, or that the session has missed
	nonce    int
}

func (s *sotwSession) receive(r *discoveryv3.DiscoveryRequest) {
	if s.begun && r.GetResponseNonce() != fmt.Sprint(s.nonce) && r.GetResponseNonce() != "" {
		return // xDS: a stale nonce
	}
	names := map[string]bool{}
	for _, name := range r.GetResourceNames() {
		names[name] = true
		if !s.names[name] {
			s.fresh[name] = true
		}
	}
	if !s.begun {
		s.version = r.GetVersionInfo()
		if s.version != "" {
			clear(s.fresh)
		}
		s.wildcard = len(names) == 0
	}
	if names["*"] {
		s.wildcard = true
	} else if len(names) > 0 {
		s.wildcard = false
	}
	s.begun = true
	s.names = names
}

func (s *sotwSession) respond() (proto.Message, <-chan struct{}) {
	now, changed := s.script.view(s.typeURL, func(name string) bool { return s.script.requested(s.typeURL, s.names, s.wildcard, name) })
	response := &discoveryv3.DiscoveryResponse{TypeUrl: s.typeURL}
	var versions strings.Builder
	wanted := false
	for _, r := range now {
		fmt.Fprint(&versions, r.name, r.version)
		wanted = wanted || s.fresh[r.name]
	}
	version := hash([]byte(versions.String()))
	for _, r := range now {
		body := r.body
		if r.ttl > 0 || nameless(s.typeURL, body) {
			body = wrapped(r, version, body)
		}
		response.Resources = append(response.Resources, body)
	}
	beats := s.script.due()
	if s.begun && s.version == version && !wanted && beats > s.beats {
		response.Resources = nil
		for _, r := range now {
			if r.ttl > 0 {
				response.Resources = append(response.Resources, wrapped(r, version, nil))
			}
		}
		wanted = len(response.Resources) > 0
	}
	s.beats = beats
	if !s.begun || version == s.version && !wanted || len(now) == 0 && !isFullState(s.typeURL) {
		return nil, changed
	}
	clear(s.fresh)
	s.version = version
	s.nonce++
	response.VersionInfo = version
	response.Nonce = fmt.Sprint(s.nonce)
	return response, changed
}

// wrapped returns a resource with its name and TTL; without a body it is a heartbeat. Envoy takes it for one if its
// version is that of the last response.
func wrapped(r versioned, version string, body *anypb.Any) *anypb.Any {
	w := &discoveryv3.Resource{Name: r.name, Version: version, Resource: body}
	if r.ttl > 0 {
		w.Ttl = durationpb.New(r.ttl)
	}
	return anyOf(w)
}

// nameless reports whether a resource of a type has no name inside, so that in SotW it has to be wrapped.
func nameless(typeURL string, body *anypb.Any) bool {
	return body.GetTypeUrl() != typeURL || typeURL == localityEndpointType
}
