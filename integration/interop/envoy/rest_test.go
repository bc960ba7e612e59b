package envoy

// Endpoints that Envoy polls over REST, and files beside xDS.

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"sigs.k8s.io/yaml"

	"github.com/xds-relay/xds-relay/integration/interop/peers"
)

// poll serves the endpoints of a script over REST, and returns the address.
func (p *plane) poll() string {
	p.t.Helper()
	address := peers.Address(p.t)
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		response, err := p.answerPoll(r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(response)
	})}
	l := peers.Listen(p.t, address)
	go func() { _ = server.Serve(l) }()
	p.t.Cleanup(func() { _ = server.Close() })
	return address
}

func (p *plane) answerPoll(r *http.Request) ([]byte, error) {
	text, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	var request discoveryv3.DiscoveryRequest
	if err := protojson.Unmarshal(text, &request); err != nil {
		return nil, err
	}
	s := &sotwSession{script: p.script, typeURL: resource.EndpointType, fresh: map[string]bool{}}
	s.receive(&discoveryv3.DiscoveryRequest{ResourceNames: request.GetResourceNames()})
	response, _ := s.respond()
	if response == nil {
		response = &discoveryv3.DiscoveryResponse{TypeUrl: s.typeURL, VersionInfo: "none"}
	}
	return protojson.Marshal(response)
}

// pollServer is the cluster that the bootstrap has for the server that is polled.
const pollServer = "polled"

// polling adds the server to a bootstrap: direct the control plane, else the relay.
func polling(s *side, bootstrap object) {
	if s.polled == "" {
		s.polled = s.plane.poll()
	}
	resources := bootstrap["static_resources"].(object)
	c := endpoints(pollServer, &backend{address: s.polled})
	text, err := protojson.Marshal(&clusterv3.Cluster{
		Name: pollServer, ConnectTimeout: durationpb.New(time.Second), LoadAssignment: c,
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC},
	})
	if err != nil {
		s.Fatal(err)
	}
	var cluster object
	if err := yaml.Unmarshal(text, &cluster); err != nil {
		s.Fatal(err)
	}
	resources["clusters"] = append(resources["clusters"].([]any), cluster)
}

// pollingSource returns the config source for what Envoy polls.
func pollingSource() *corev3.ConfigSource {
	return &corev3.ConfigSource{
		ResourceApiVersion: corev3.ApiVersion_V3,
		ConfigSourceSpecifier: &corev3.ConfigSource_ApiConfigSource{ApiConfigSource: &corev3.ApiConfigSource{
			ApiType: corev3.ApiConfigSource_REST, TransportApiVersion: corev3.ApiVersion_V3,
			ClusterNames: []string{pollServer}, RefreshDelay: durationpb.New(100 * time.Millisecond),
		}},
	}
}

// Envoy polls the endpoints of one cluster over REST, and gets everything else over gRPC.
func TestEndpointsOverREST(t *testing.T) {
	play(t, scenario{
		// How Envoy speaks gRPC matters to the other resources only.
		forms: []form{{delta: true, aggregated: true}, {delta: false, aggregated: true}},
		relay: func(s *side, config peers.Config) {
			s.polled = peers.Address(s)
			config["listeners"] = []any{
				peers.Config{"address": peers.Address(s)},
				peers.Config{"address": s.polled, "protocol": "rest"},
			}
		},
		bootstrap: polling,
		run: func(s *side) {
			first, second := s.backend("first"), s.backend("second")
			s.push(func(w world) {
				s.shop(w, "one", first)
				w.set("one", s.polledCluster("one"))
			})
			s.step("requests reach the backend", s.reaches(first))
			s.push(func(w world) { w.set("one", endpoints("one", second)) })
			s.step("endpoints change", s.reaches(second))
			s.push(func(w world) {
				w.set("later", s.polledCluster("later"))
				w.set("routes", routesTo("routes", "later"))
			})
			s.step("a cluster has no endpoints yet", s.answers(call{}, http.StatusServiceUnavailable, ""))
			s.push(func(w world) { w.set("later", endpoints("later", first)) })
			s.step("it has", s.reaches(first))
		},
	})
}

// polledCluster returns a Cluster whose endpoints Envoy polls, for a second at most when it starts.
func (s *side) polledCluster(name string) *clusterv3.Cluster {
	c := s.cluster(name, "")
	c.EdsClusterConfig.EdsConfig = patient(pollingSource(), time.Second)
	return c
}

// Files that Envoy reads itself beside xDS: a Listener from a file has routes from xDS, to a cluster from xDS with
// endpoints from a file, and back.
func TestFilesBesideXDS(t *testing.T) {
	play(t, scenario{
		unversioned: severalNames,
		bootstrap: func(s *side, bootstrap object) {
			bootstrap["dynamic_resources"].(object)["lds_config"] = asObject(s, s.inFile("listeners"))
			s.write("listeners", s.listener("shop", s.address, "routes"))
			s.write("endpoints", endpoints("one", s.backend("first")))
		},
		run: func(s *side) {
			first, second := s.backend("first"), s.backend("second")
			s.push(func(w world) {
				c := s.cluster("one", "")
				c.EdsClusterConfig.EdsConfig = s.inFile("endpoints")
				w.set("one", c)
				w.set("routes", routesTo("routes", "one"))
			})
			s.step("requests reach the backend", s.reaches(first))
			s.write("endpoints", endpoints("one", second))
			s.step("the file with the endpoints changes", s.reaches(second))
			s.push(func(w world) {
				s.clusterWith(w, "two", first)
				w.set("routes", routesTo("routes", "two"))
			})
			s.step("the routes change", s.reaches(first))
			s.write("listeners", s.listener("shop", s.address, "others"))
			s.push(func(w world) { w.set("others", routesTo("others", "one")) })
			s.step("the Listener names other routes", s.reaches(second))
		},
	})
}

// folder returns the folder of the files, which is the same on each side.
func (s *side) folder() string {
	if s.shared.folder == "" {
		s.shared.folder = s.shared.t.TempDir()
	}
	return s.shared.folder
}

// inFile returns the config source for resources in a file.
func (s *side) inFile(name string) *corev3.ConfigSource {
	return &corev3.ConfigSource{
		ResourceApiVersion: corev3.ApiVersion_V3,
		ConfigSourceSpecifier: &corev3.ConfigSource_PathConfigSource{PathConfigSource: &corev3.PathConfigSource{
			Path: filepath.Join(s.folder(), name+".json"),
		}},
	}
}

// write writes a file with a resource, in one step, as Envoy wants it.
func (s *side) write(name string, m proto.Message) {
	s.Helper()
	path := s.inFile(name).GetPathConfigSource().GetPath()
	text, err := protojson.Marshal(&discoveryv3.DiscoveryResponse{Resources: []*anypb.Any{anyOf(m)}})
	if err != nil {
		s.Fatal(err)
	}
	if err := os.WriteFile(path+".new", text, 0o600); err != nil {
		s.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		s.Fatal(err)
	}
}
