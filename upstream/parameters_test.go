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
	"github.com/xds-relay/xds-relay/internal/delivery/deliverytest"
)

// Dynamic parameters (TP2) are part of a scope, so each set of them has its own stream.

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

// askedIn are the locators and names that a request subscribes to.
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

func TestEachSetOfParametersHasItsOwnStream(t *testing.T) {
	for _, form := range []Protocol{Delta, SotW} {
		t.Run(string(form), func(t *testing.T) {
			run(t, Options{Protocol: form}, func(b *bench) {
				scope := testScope
				scope.Params = cache.Params{"env": "prod"}.String()
				prod := newTestStream(scope, b.conn, b.stream.node, Options{Protocol: form}, deliverytest.Direct(b.cache), b.stream.log)
				defer func() {
					prod.Close()
					<-prod.Done()
				}()
				k := key("rds", "a")
				b.stream.Start(k)
				plainStream := b.next()
				if got, want := askedIn(plainStream.request(t)), []string{"a"}; !slices.Equal(got, want) {
					t.Errorf("without parameters the stream asks for %q, want %q", got, want)
				}
				k.Scope = scope
				w := entryOf(b.cache.Watch(k, &watcher{}))
				prod.Start(k)
				st := b.next()
				if got, want := askedIn(st.request(t)), []string{"a{env=prod}"}; !slices.Equal(got, want) {
					t.Fatalf("with parameters the stream asks for %q, want %q", got, want)
				}
				b.respond(st, variantsOf(t, form, "rds", "1", "a", "test", "prod"))
				b.want(w, "present prod1")
			})
		})
	}
}

func TestTypeThatCannotBeRequestedIsRefused(t *testing.T) {
	runSeparate(t, Options{}, func(s *separate) {
		a := entryOf(s.cache.Watch(key("other", "a"), &watcher{}))
		b := entryOf(s.cache.Watch(key("other", "b"), &watcher{}))
		pass(time.Second)
		s.streams.Resend() // both at once
		pass(time.Second)
		for _, e := range []*cache.Entry{a, b} {
			s.want(e, "failed "+codes.Unimplemented.String())
		}
	})
}
