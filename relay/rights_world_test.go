package relay

// The resources of the control planes of rights_property_test.go, and the requests of clients.

import (
	"slices"
	"strings"
	"time"

	xdscorev3 "github.com/cncf/xds/go/xds/core/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/xds-relay/xds-relay/internal/xdstype"
	"github.com/xds-relay/xds-relay/urn"
)

const rightsConfig = `
listeners: [{address: "127.0.0.1:18000", v2: true}]
authorities:
  - name: a
    servers: [{address: "a:18000", protocol: delta}]
    failover: {not_found: true}
  - name: b
    servers: [{address: "b:18000", protocol: delta}]
old_style_names: [{authority: a}]
views:
  - match: {glob: "xdstp://v/envoy.config.cluster.v3.Cluster/all/*"}
    collections: ["xdstp://a/envoy.config.cluster.v3.Cluster/d/*", "xdstp://b/envoy.config.cluster.v3.Cluster/d/*"]
`

// The types, by their words. Those of version 2 have the same content.
var rightsTypes = map[string]string{
	"cluster": xdstype.ClusterV3, "endpoint": xdstype.EndpointsV3, "secret": xdstype.SecretV3,
	"cluster2": xdstype.ClusterV2, "secret2": xdstype.SecretV2,
}

// marker returns a text that is in the content of one resource only.
func marker(word, name string) string {
	return "mark." + strings.NewReplacer("/", "-", ":", "-", "#", "-", "=", "-").Replace(word+"."+name) + ".kram"
}

// sealed is in a private key of each cluster.
const sealed = "sealed-key-of-a-cluster"

// sealedSocket is a transport socket with that key.
func sealedSocket() *corev3.TransportSocket {
	key := &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: sealed}}
	tls := packed("type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext", &tlsv3.UpstreamTlsContext{
		CommonTlsContext: &tlsv3.CommonTlsContext{TlsCertificates: []*tlsv3.TlsCertificate{{PrivateKey: key, CertificateChain: &corev3.DataSource{
			Specifier: &corev3.DataSource_InlineString{InlineString: "chain"},
		}}}},
	})
	return &corev3.TransportSocket{Name: "tls", ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: tls}}
}

// rightsResource is the resource of a type and a name.
func rightsResource(word, name string) *anypb.Any {
	mark := marker(word, name)
	var m proto.Message
	switch strings.TrimSuffix(word, "2") {
	case "cluster":
		m = &clusterv3.Cluster{Name: name, AltStatName: mark, TransportSocket: sealedSocket()}
	case "endpoint":
		m = &endpointv3.ClusterLoadAssignment{ClusterName: name, Endpoints: []*endpointv3.LocalityLbEndpoints{{Locality: &corev3.Locality{Region: mark}}}}
	default:
		m = &tlsv3.Secret{Name: name, Type: &tlsv3.Secret_TlsCertificate{TlsCertificate: &tlsv3.TlsCertificate{
			PrivateKey: &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: mark}},
		}}}
	}
	return packed(rightsTypes[word], m)
}

func packed(typeURL string, m proto.Message) *anypb.Any {
	value, err := proto.Marshal(m)
	if err != nil {
		panic(err) // of a message that the test has made
	}
	return &anypb.Any{TypeUrl: typeURL, Value: value}
}

// xdstpOf is an xdstp name of a type of version 3.
func xdstpOf(authority, word, id string) string {
	return "xdstp://" + authority + "/" + xdstype.Message(rightsTypes[word]) + "/" + id
}

func listOf(word, id string) string {
	return "xdstp://a/" + xdstype.Message(rightsTypes[word]) + "Collection/" + id
}

func locatorTo(name string) *anypb.Any {
	return packed(xdstype.Locator, locatorOf(name))
}

func locatorOf(name string) *xdscorev3.ResourceLocator {
	u, err := urn.ParseURL(name)
	if err != nil {
		panic(err)
	}
	locator, err := u.Proto()
	if err != nil {
		panic(err)
	}
	return locator
}

// rightsPlane is a control plane that has, of each type, the same resources for all clients, without changes.
type rightsPlane struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	*memoryServer
}

func newRightsPlane() *rightsPlane {
	p := &rightsPlane{memoryServer: &memoryServer{}}
	p.ads = p
	p.up()
	return p
}

// DeltaAggregatedResources implements the service.
func (p *rightsPlane) DeltaAggregatedResources(stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	begun, asked := map[string]bool{}, map[string]bool{}
	for {
		req, err := stream.Recv()
		if err != nil {
			return err
		}
		resp := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: req.GetTypeUrl(), Nonce: "n"}
		names := req.GetResourceNamesSubscribe()
		if len(names) == 0 && !begun[req.GetTypeUrl()] {
			names = []string{"*"}
		}
		begun[req.GetTypeUrl()] = true
		sent := map[string]bool{} // a resource is in a response once, with all of its aliases that are asked for
		for _, name := range names {
			asked[req.GetTypeUrl()+name] = true
		}
		for _, name := range names {
			found := answerTo(req.GetTypeUrl(), name)
			if found == nil {
				resp.RemovedResources = append(resp.RemovedResources, name)
			}
			for _, r := range found {
				for alias, own := range rightsAliases {
					folder := r.GetName()[:strings.LastIndexByte(r.GetName(), '/')+1]
					if folder+own == r.GetName() && asked[req.GetTypeUrl()+folder+alias] {
						r.Aliases = append(r.Aliases, folder+alias)
					}
				}
				if !sent[r.GetName()] {
					resp.Resources = append(resp.Resources, r)
				}
				sent[r.GetName()] = true
			}
		}
		if len(resp.GetResources())+len(resp.GetRemovedResources()) == 0 {
			continue
		}
		if err := stream.Send(resp); err != nil {
			return err
		}
	}
}

// rightsAliases are the resources that have these names as aliases.
var rightsAliases = map[string]string{"al0": "o1", "al1": "o2", "al": "n1"}

// answerTo returns the resources that the control planes have under a name.
func answerTo(typeURL, name string) []*discoveryv3.Resource {
	word := ""
	for w, of := range rightsTypes {
		if of == strings.TrimSuffix(typeURL, "Collection") {
			word = w
		}
	}
	if word == "" {
		return nil
	}
	as := func(name string, content *anypb.Any) *discoveryv3.Resource {
		return &discoveryv3.Resource{Name: name, Version: "1", Resource: content}
	}
	is := func(names ...string) (all []*discoveryv3.Resource) {
		for _, name := range names {
			all = append(all, as(name, rightsResource(word, name)))
		}
		return all
	}
	at := strings.LastIndexByte(name, '/') + 1
	authority, _ := urn.AuthorityOf(name)
	switch id := name[at:]; {
	case name == "*":
		return is("o0", "o1", "o2", "o3")
	case strings.HasSuffix(name, "/d/*"):
		return is(name[:at]+"m0", name[:at]+"m1")
	case rightsAliases[id] != "":
		return is(name[:at] + rightsAliases[id])
	case strings.HasSuffix(typeURL, "Collection"):
		return []*discoveryv3.Resource{as(name, packed(typeURL, &listenerv3.ListenerCollection{Entries: []*xdscorev3.CollectionEntry{
			{ResourceSpecifier: &xdscorev3.CollectionEntry_InlineEntry_{InlineEntry: &xdscorev3.CollectionEntry_InlineEntry{
				Name: "e0", Version: "1", Resource: rightsResource(word, name+"#entry=e0"),
			}}},
			{ResourceSpecifier: &xdscorev3.CollectionEntry_Locator{Locator: locatorOf(xdstpOf("b", word, "n0"))}},
		}}))}
	case id == "r0":
		return []*discoveryv3.Resource{as(name, locatorTo(xdstpOf("b", word, "n0")))}
	case id == "r1":
		return []*discoveryv3.Resource{as(name, locatorTo(xdstpOf("a", word, "al")))}
	case slices.Contains([]string{"o0", "o1", "o2", "o3"}, name), (authority == "a" || authority == "b") && (id == "n0" || id == "n1" || id == "m0" || id == "m1"):
		return is(name)
	}
	return nil
}

// request is a request of clients.
type request struct {
	word, name string
	// words are the authorities and names in it; own is the resource of which its name is an alias.
	words []nameOf
	own   []nameOf
	gives []string // markers
	// notJSON: no JSON form has all of it: the API has no messages for lists, or wrong ones.
	notJSON bool
}

type nameOf struct{ authority, name string }

// rightsRequests are all requests of clients.
var rightsRequests = func() (all []request) {
	escape := strings.NewReplacer("%", "%25", "#", "%23", ",", "%2C").Replace
	old := func(word, name string, gives ...string) {
		r := request{word: word, name: name, words: []nameOf{{"a", name}}}
		if own := rightsAliases[name]; own != "" {
			r.own = []nameOf{{"a", own}}
		}
		for _, of := range gives {
			r.gives = append(r.gives, marker(word, of))
		}
		all = append(all, r)
	}
	for word := range rightsTypes {
		old(word, "*", "o0", "o1", "o2", "o3")
		old(word, "o0", "o0")
		old(word, "o1", "o1")
		old(word, "o2", "o2")
		old(word, "al0", "o1")
		old(word, "al1", "o2")
		if strings.HasSuffix(word, "2") {
			continue
		}
		x := func(authority, id string) string { return xdstpOf(authority, word, id) }
		name := func(authority, id string) nameOf { return nameOf{authority, x(authority, id)} }
		list, entry := listOf(word, "l"), listOf(word, "l")+"#entry=e0"
		add := func(name string, words []nameOf, own []nameOf, gives ...string) {
			r := request{word: word, name: name, words: words, own: own, notJSON: name == list}
			for _, of := range gives {
				r.gives = append(r.gives, marker(word, of))
			}
			all = append(all, r)
		}
		add(x("a", "n0"), []nameOf{name("a", "n0")}, nil, x("a", "n0"))
		add(strings.Replace(x("a", "%6e0"), "//a/", "//%61/", 1), []nameOf{name("a", "n0")}, nil, x("a", "n0"))
		add(x("a", "n1"), []nameOf{name("a", "n1")}, nil, x("a", "n1"))
		add(x("b", "n0"), []nameOf{name("b", "n0")}, nil, x("b", "n0"))
		add(x("b", "n1"), []nameOf{name("b", "n1")}, nil, x("b", "n1"))
		add(x("a", "d/*"), []nameOf{name("a", "d/*")}, nil, x("a", "d/m0"), x("a", "d/m1"))
		add(x("b", "%64/*"), []nameOf{name("b", "d/*")}, nil, x("b", "d/m0"), x("b", "d/m1"))
		add(x("b", "d/m1"), []nameOf{name("b", "d/m1")}, nil, x("b", "d/m1"))
		add(x("a", "r0"), []nameOf{name("a", "r0")}, nil, x("b", "n0"))
		add(x("a", "r1"), []nameOf{name("a", "r1")}, nil, x("a", "n1"))
		add(x("a", "al"), []nameOf{name("a", "al")}, []nameOf{name("a", "n1")}, x("a", "n1"))
		add(x("a", "gone")+"#alt="+x("b", "n1"), []nameOf{name("a", "gone"), name("b", "n1")}, nil, x("b", "n1"))
		add(x("a", "gone")+"%23alt="+strings.Replace(x("b", "n1"), ":", "%3A", 1), []nameOf{name("a", "gone"), name("b", "n1")}, nil, x("b", "n1"))
		add(x("a", "n0")+"#alt="+x("b", "n1"), []nameOf{name("a", "n0"), name("b", "n1")}, nil, x("a", "n0"))
		add(x("a", "al")+"#alt="+x("b", "n1"), []nameOf{name("a", "al"), name("b", "n1")}, []nameOf{name("a", "n1")}, x("a", "n1"))
		add(x("a", "gone")+"#alt="+escape(x("a", "gone2")+"#alt="+escape(x("b", "n0"))), []nameOf{name("a", "gone"), name("a", "gone2"), name("b", "n0")}, nil, x("b", "n0"))
		add(x("a", "gone")+"#alt="+escape(entry), []nameOf{name("a", "gone"), {"a", list}, {"a", entry}}, nil, entry)
		add(entry, []nameOf{{"a", list}, {"a", entry}}, nil, entry)
		add(list, []nameOf{{"a", list}}, nil, entry)
		if word == "cluster" {
			add(x("v", "all/*"), []nameOf{name("v", "all/*")}, nil, x("a", "d/m0"), x("a", "d/m1"), x("b", "d/m0"), x("b", "d/m1"))
		}
	}
	slices.SortFunc(all, func(a, b request) int { return strings.Compare(a.word+" "+a.name, b.word+" "+b.name) })
	return all
}()

// longer than the relay and its clients take for anything.
const longEnough = 40 * time.Second
