package integration

// A handwritten control plane that follows the protocol in one of its two forms. It serves names, wildcards
// and, in delta, globs.

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/types/known/anypb"
)

type collectionPlane struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	speaks form
	prefix string // of versions
	// repeats: in delta, a glob that is requested later than other names is answered with all of its members, also if
	// they were all sent because of these names.
	repeats bool
	// forgetful: in delta, as java-control-plane does, it does not read initial_resource_versions, does not say that a
	// name is absent unless it has sent the name on the stream, and sends a name that it has removed only to a new
	// subscription.
	forgetful bool
	// strict: in SotW, as java-control-plane does, it sends a type only if it has every name of the last request for it. A
	// response ends its watch until the next request, and so does a request, or a change, by which it does not have them all.
	strict bool

	mu       sync.Mutex
	says     map[topic]*discoveryv3.Resource
	hides    map[topic]bool // served by name, but missing from wildcards and globs
	versions int
	changed  chan struct{} // closed at the next change
}

// requestedNames are the requested names of a type on a stream.
type requestedNames struct {
	names map[string]bool
	sent  map[string]string // versions, by name
	nonce string            // SotW: of the last response
	fresh []string          // names to answer even if the client was sent their current versions
	late  bool              // they are not in the first request
	// unnamed says that a SotW client has a wildcard because it never requested a name. xDS: the legacy rule.
	unnamed   bool
	unwatched bool // see collectionPlane.strict
}

// covers reports whether a name is requested: by itself, by the wildcard, or by the glob of its directory.
func (a *requestedNames) covers(name string) bool {
	directory := name[:strings.LastIndexByte(name, '/')+1]
	return a.names[name] || a.names[wildcard] || strings.HasPrefix(name, "xdstp:") && a.names[directory+"*"]
}

// matching returns the requested resources, and the version of this state.
func (p *collectionPlane) matching(typeURL string, a *requestedNames) (found map[string]*discoveryv3.Resource, version string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	found = map[string]*discoveryv3.Resource{}
	for t, r := range p.says {
		if t.typeURL == typeURL && a.covers(t.name) && (a.names[t.name] || !p.hides[t]) {
			found[t.name] = r
		}
	}
	return found, fmt.Sprint(p.prefix, p.versions)
}

// serveRequests calls take with each request. After each request or change, it calls answer for each
// requested type. It returns when receive or answer fails, or the stream is done. Another goroutine, which
// ends with the stream, calls receive.
func serveRequests[R any](p *collectionPlane, done <-chan struct{}, receive func() (R, error), take func(R, map[string]*requestedNames), answer func(typeURL string, a *requestedNames) error) error {
	requests, failed := make(chan R), make(chan error, 1)
	go func() {
		for {
			r, err := receive()
			if err != nil {
				failed <- err
				return
			}
			select {
			case requests <- r:
			case <-done:
				return
			}
		}
	}()
	all := map[string]*requestedNames{}
	for {
		p.mu.Lock()
		changed := p.changed
		p.mu.Unlock()
		for _, typeURL := range slices.Sorted(maps.Keys(all)) {
			if err := answer(typeURL, all[typeURL]); err != nil {
				return err
			}
		}
		select {
		case r := <-requests:
			take(r, all)
		case <-changed:
		case err := <-failed:
			return err
		case <-done: // the goroutine that receives may have dropped a request
			return context.Canceled
		}
	}
}

// DeltaAggregatedResources implements the service in delta.
func (p *collectionPlane) DeltaAggregatedResources(stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	if p.speaks != delta {
		return p.UnimplementedAggregatedDiscoveryServiceServer.DeltaAggregatedResources(stream)
	}
	nonces := 0
	return serveRequests(p, stream.Context().Done(), stream.Recv, p.takeDelta, func(typeURL string, a *requestedNames) error {
		found, version := p.matching(typeURL, a)
		resp := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: typeURL, SystemVersionInfo: version}
		for name, r := range found {
			if a.sent[name] != r.GetVersion() || slices.Contains(a.fresh, name) {
				resp.Resources = append(resp.Resources, r)
				a.sent[name] = r.GetVersion()
			}
		}
		for name := range a.sent {
			if found[name] == nil {
				delete(a.sent, name)
				resp.RemovedResources = append(resp.RemovedResources, name)
				if p.forgetful {
					delete(a.names, name)
				}
			}
		}
		for _, name := range a.fresh {
			directory, isGlob := strings.CutSuffix(name, "*")
			inGlob := func(r *discoveryv3.Resource) bool { return strings.HasPrefix(r.GetName(), directory) }
			empty := found[name] == nil
			if isGlob {
				empty = !slices.ContainsFunc(slices.Collect(maps.Values(found)), inGlob)
			}
			if isGlob && p.repeats && a.late && !slices.ContainsFunc(resp.Resources, inGlob) {
				for _, r := range found {
					if inGlob(r) {
						resp.Resources = append(resp.Resources, r)
					}
				}
			}
			if empty && name != wildcard && (isGlob || !p.forgetful) && !slices.Contains(resp.RemovedResources, name) {
				resp.RemovedResources = append(resp.RemovedResources, name)
			}
		}
		a.fresh = nil
		if len(resp.Resources)+len(resp.RemovedResources) == 0 {
			return nil
		}
		nonces++
		resp.Nonce = fmt.Sprint(nonces)
		return stream.Send(resp)
	})
}

func (p *collectionPlane) takeDelta(r *discoveryv3.DeltaDiscoveryRequest, all map[string]*requestedNames) {
	if p.forgetful {
		r.InitialResourceVersions = nil
	}
	a, names := all[r.GetTypeUrl()], r.GetResourceNamesSubscribe()
	if a != nil {
		a.late = true
	} else {
		a = &requestedNames{names: map[string]bool{}, sent: maps.Clone(r.GetInitialResourceVersions())}
		if all[r.GetTypeUrl()] = a; a.sent == nil {
			a.sent = map[string]string{}
		}
		if len(names) == 0 {
			names = []string{wildcard}
		}
	}
	for _, name := range names {
		a.names[name] = true
		a.fresh = append(a.fresh, name)
	}
	for _, name := range r.GetResourceNamesUnsubscribe() {
		delete(a.names, name)
	}
	maps.DeleteFunc(a.sent, func(name, _ string) bool { return !a.covers(name) })
	// Of the resources in initial_resource_versions, the control plane sends only those with other versions.
	a.fresh = slices.DeleteFunc(a.fresh, func(name string) bool { return r.GetInitialResourceVersions()[name] != "" })
}

// StreamAggregatedResources implements the service in SotW.
func (p *collectionPlane) StreamAggregatedResources(stream discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
	if p.speaks != sotw {
		return p.UnimplementedAggregatedDiscoveryServiceServer.StreamAggregatedResources(stream)
	}
	nonces := 0
	return serveRequests(p, stream.Context().Done(), stream.Recv, takeSotW, func(typeURL string, a *requestedNames) error {
		found, version := p.matching(typeURL, a)
		full := a.names[wildcard] || typeURL == listenerType || typeURL == clusterType
		versions := map[string]string{}
		for name, r := range found {
			versions[name] = r.GetVersion()
		}
		if len(a.fresh) == 0 && maps.Equal(versions, a.sent) || len(found) == 0 && !full || len(a.names) == 0 {
			return nil
		}
		if p.strict {
			for name := range a.names {
				a.unwatched = a.unwatched || found[name] == nil && name != wildcard
			}
			if a.unwatched {
				return nil
			}
		}
		a.sent, a.fresh, a.unwatched = versions, nil, p.strict
		nonces++
		a.nonce = fmt.Sprint(nonces)
		resp := &discoveryv3.DiscoveryResponse{TypeUrl: typeURL, Nonce: a.nonce, VersionInfo: version}
		for _, name := range slices.Sorted(maps.Keys(found)) {
			in, err := inSotW(typeURL, found[name])
			if err != nil {
				return err
			}
			resp.Resources = append(resp.Resources, in)
		}
		return stream.Send(resp)
	})
}

// inSotW returns a resource as SotW sends it. A resource without its own name inside is wrapped in a
// Resource.
func inSotW(typeURL string, r *discoveryv3.Resource) (*anypb.Any, error) {
	if r.GetResource().GetTypeUrl() == typeURL && innerName(r.GetResource().GetValue()) == r.GetName() {
		return r.GetResource(), nil
	}
	return anypb.New(r)
}

func takeSotW(r *discoveryv3.DiscoveryRequest, all map[string]*requestedNames) {
	a := all[r.GetTypeUrl()]
	if a == nil {
		a = &requestedNames{names: map[string]bool{}}
		all[r.GetTypeUrl()] = a
	} else if r.GetResponseNonce() != a.nonce {
		return // a stale nonce: the client will send the request again
	}
	a.unwatched = false
	names := r.GetResourceNames()
	a.unnamed = len(names) == 0 && (a.unnamed || r.GetResponseNonce() == "")
	if a.unnamed {
		names = []string{wildcard}
	}
	before := a.names
	a.names = map[string]bool{}
	for _, name := range names {
		if a.names[name] = true; !before[name] {
			a.fresh = append(a.fresh, name)
		}
	}
}
