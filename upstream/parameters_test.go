package upstream

import (
	"slices"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/xds-relay/xds-relay/cache"
)

// Dynamic parameters (TP2) on the streams: whoever asks with whichever, there is one.

func paramsKey(typ, name, params string) cache.Key {
	k := key(typ, name)
	k.Scope.Params = params
	return k
}

// watchWith watches an entry with parameters.
func (b *bench) watchWith(typ, name, params string) *cache.Entry {
	return entryOf(b.cache.Watch(paramsKey(typ, name, params), &watcher{}))
}

// variantsOf is a response with a variant of a name for each value of env.
func variantsOf(t *testing.T, form Protocol, typ, nonce, name string, envs ...string) proto.Message {
	t.Helper()
	delta := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: typeURLs[typ], Nonce: nonce}
	sotw := &discoveryv3.DiscoveryResponse{TypeUrl: typeURLs[typ], Nonce: nonce, VersionInfo: nonce}
	for _, env := range envs {
		r := &discoveryv3.Resource{
			ResourceName: variantName(name, "env:"+env), Version: env + nonce,
			Resource: &anypb.Any{TypeUrl: typeURLs[typ], Value: value(t, typ, name, env)},
		}
		delta.Resources = append(delta.Resources, r)
		sotw.Resources = append(sotw.Resources, wrapAny(t, r))
	}
	if form == Delta {
		return delta
	}
	return sotw
}

// askedIn are the locators in a request.
func askedIn(m proto.Message) []string {
	var list []string
	switch m := m.(type) {
	case *discoveryv3.DeltaDiscoveryRequest:
		list = append(locators(m.GetResourceLocatorsSubscribe()), m.GetResourceNamesSubscribe()...)
	case *discoveryv3.DiscoveryRequest:
		list = append(locators(m.GetResourceLocators()), m.GetResourceNames()...)
	}
	return slices.Sorted(slices.Values(list))
}

func TestParametersShareAStream(t *testing.T) {
	for _, form := range []Protocol{Delta, SotW} {
		t.Run(string(form), func(t *testing.T) {
			run(t, Options{Protocol: form}, func(b *bench) {
				b.mu.Lock() // so that one request asks for both
				prod, test := b.watchWith("rds", "a", "env=prod"), b.watchWith("rds", "a", "env=test")
				b.mu.Unlock()
				st := b.next()
				if got, want := askedIn(st.request(t)), []string{"a{env=prod}", "a{env=test}"}; !slices.Equal(got, want) {
					t.Fatalf("the first request asks for %q, want %q", got, want)
				}
				b.respond(st, variantsOf(t, form, "rds", "1", "a", "prod", "test"))
				b.want(prod, "present prod1")
				b.want(test, "present test1")
				st.request(t) // the ACK, of which there is one

				plain := b.watchWith("rds", "b", "")
				if got := askedIn(st.request(t)); !slices.Contains(got, "b") {
					t.Errorf("the second request asks for %q, and not for b", got)
				}
				b.want(plain, "requested")
				if s := b.stream.Status(); s.Subscriptions != 3 || s.Parameters != 2 || s.Responses != 1 {
					t.Errorf("status %+v, want 3 subscriptions with 2 different parameters, and 1 response", s)
				}
				st.end <- nil
				st = b.next()
				if got, want := askedIn(st.request(t)), []string{"a{env=prod}", "a{env=test}", "b"}; !slices.Equal(got, want) {
					t.Errorf("the new stream asks for %q, want %q", got, want)
				}
				if len(b.script.streams) > 0 {
					t.Error("there is more than one stream")
				}
			})
		})
	}
}

// Parameters come from clients, and there is no end to them: what is not asked for
// any more is forgotten while the stream goes on.
func TestParametersThatNobodyUsesAreForgotten(t *testing.T) {
	run(t, Options{Protocol: Delta}, func(b *bench) {
		b.watchWith("rds", "a", "")
		st := b.next()
		st.delta(t)
		w := &watcher{}
		b.cache.Watch(paramsKey("rds", "a", "env=prod"), w)
		st.delta(t)
		b.cache.Unwatch(w)
		pass(2 * time.Minute)
		if got := locators(st.delta(t).GetResourceLocatorsUnsubscribe()); !slices.Equal(got, []string{"a{env=prod}"}) {
			t.Errorf("given up is %q, want what was asked for with these parameters", got)
		}
		b.stream.mu.Lock()
		defer b.stream.mu.Unlock()
		if n := len(b.stream.feeds[typeURLs["rds"]].sets.list); n != 1 {
			t.Errorf("%d sets of parameters are kept, want 1", n)
		}
	})
}

// A wildcard needs a stream that begins with it. Who comes with ever new parameters
// does not take the stream from others each time.
func TestWildcardsOfNewParametersShareANewStream(t *testing.T) {
	const base = 10 * time.Second
	run(t, Options{Protocol: Delta, BackoffBase: base}, func(b *bench) {
		begin := time.Now()
		b.cache.WatchSet(paramsKey("cds", cache.Wildcard, ""), &setWatcher{})
		st := b.next()
		st.delta(t)
		b.cache.WatchSet(paramsKey("cds", cache.Wildcard, "env=prod"), &setWatcher{})
		st = b.next()
		if got, want := askedIn(st.delta(t)), []string{"*", "*{env=prod}"}; !slices.Equal(got, want) || time.Since(begin) > 0 {
			t.Errorf("after %v the new stream begins with %q, want %q at once", time.Since(begin), got, want)
		}
		b.cache.WatchSet(paramsKey("cds", cache.Wildcard, "env=test"), &setWatcher{})
		b.cache.WatchSet(paramsKey("cds", cache.Wildcard, "env=dev"), &setWatcher{})
		st = b.next()
		if got, want := askedIn(st.delta(t)), []string{"*", "*{env=dev}", "*{env=prod}", "*{env=test}"}; !slices.Equal(got, want) || time.Since(begin) != base {
			t.Errorf("after %v the new stream begins with %q, want %q after %v", time.Since(begin), got, want, base)
		}
	})
}

func TestTypeThatCannotBeAskedForIsRefusedToAllParameters(t *testing.T) {
	runSeparate(t, Options{}, func(s *separate) {
		plain, prod := s.watchWith("other", "a", ""), s.watchWith("other", "a", "env=prod")
		pass(time.Second)
		s.streams.Resend() // both at once
		pass(time.Second)
		for _, e := range []*cache.Entry{plain, prod} {
			s.want(e, "failed "+codes.Unimplemented.String())
		}
	})
}

// A poll with parameters that are new is made at once, like one with a name that is.
func TestPollsTellParametersApart(t *testing.T) {
	ask := func(envs ...string) *discoveryv3.DiscoveryRequest {
		r := &discoveryv3.DiscoveryRequest{ResourceNames: []string{"b"}}
		for _, env := range envs {
			r.ResourceLocators = append(r.ResourceLocators, locator("a", cache.Params{"env": env}))
		}
		return r
	}
	if !grown(namesOf(ask("prod")), namesOf(ask("prod", "dev"))) {
		t.Error("a locator with other parameters is not taken for a new one")
	}
	if grown(namesOf(ask("prod", "dev")), namesOf(ask("dev"))) {
		t.Error("less is taken for more")
	}
}
