package integration

// A control plane whose resources have secrets in all kinds of places. It may also send invalid resources
// with secrets.

import (
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	xdscorev3 "github.com/cncf/xds/go/xds/core/v3"
	xdstypev3 "github.com/cncf/xds/go/xds/type/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	basicauthv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/basic_auth/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"
)

// secretMarker is in every secret of these tests. Text that contains it contains a secret.
const secretMarker = "d0n0tsh0wTh1sKeyMaterial7f3a91c2"

const secretsType = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret"

// findMarker returns the text around the marker, or "". It also finds the marker in base64 and in
// hexadecimal.
func findMarker(text string) string {
	wanted := []string{secretMarker, strings.ToLower(secretMarker), fmt.Sprintf("%x", secretMarker)}
	for shift := range 3 {
		encoded := base64.StdEncoding.EncodeToString([]byte("xx"[:shift] + secretMarker))
		wanted = append(wanted, encoded[4:len(encoded)-4])
	}
	// Half of the marker is enough.
	wanted = append(wanted, secretMarker[:len(secretMarker)/2], secretMarker[len(secretMarker)/2:])
	for _, w := range wanted {
		if at := strings.Index(text, w); at >= 0 {
			return text[max(0, at-300):min(len(text), at+300)]
		}
	}
	return ""
}

func secretData(i int) *corev3.DataSource {
	if i%2 == 0 {
		return &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: "-----BEGIN THING-----\n" + secretMarker + "\n"}}
	}
	return &corev3.DataSource{Specifier: &corev3.DataSource_InlineBytes{InlineBytes: []byte("\x00" + secretMarker)}}
}

// secretMessages returns resources, by name, with secrets in all kinds of places.
func secretMessages(t testing.TB, prefix string) map[string]*anypb.Any {
	t.Helper()
	certificate := &tlsv3.TlsCertificate{CertificateChain: secretData(0), PrivateKey: secretData(1), Password: secretData(0), OcspStaple: secretData(1)}
	context := toAny(t, &tlsv3.UpstreamTlsContext{CommonTlsContext: &tlsv3.CommonTlsContext{
		TlsCertificates: []*tlsv3.TlsCertificate{{PrivateKey: secretData(0), Password: secretData(1)}},
	}})
	users, err := structpb.NewStruct(map[string]any{"users": map[string]any{"inline_string": secretMarker}})
	if err != nil {
		t.Fatal(err)
	}
	metadata, err := structpb.NewStruct(map[string]any{"nested": []any{map[string]any{"private_key": secretMarker}}})
	if err != nil {
		t.Fatal(err)
	}
	name := func(message, id string) string {
		if prefix == "" {
			return id
		}
		return prefix + "envoy." + message + "/" + id
	}
	all := map[string]*anypb.Any{}
	add := func(message, id string, m func(name string) proto.Message) {
		all[name(message, id)] = toAny(t, m(name(message, id)))
	}
	const secret, cluster, listener = "extensions.transport_sockets.tls.v3.Secret", "config.cluster.v3.Cluster", "config.listener.v3.Listener"
	add(secret, "certificate", func(n string) proto.Message {
		return &tlsv3.Secret{Name: n, Type: &tlsv3.Secret_TlsCertificate{TlsCertificate: certificate}}
	})
	add(secret, "tickets", func(n string) proto.Message {
		return &tlsv3.Secret{Name: n, Type: &tlsv3.Secret_SessionTicketKeys{SessionTicketKeys: &tlsv3.TlsSessionTicketKeys{Keys: []*corev3.DataSource{secretData(1)}}}}
	})
	add(secret, "generic", func(n string) proto.Message {
		return &tlsv3.Secret{Name: n, Type: &tlsv3.Secret_GenericSecret{GenericSecret: &tlsv3.GenericSecret{Secret: secretData(0), Secrets: map[string]*corev3.DataSource{"a": secretData(1)}}}}
	})
	add(secret, "roots", func(n string) proto.Message {
		return &tlsv3.Secret{Name: n, Type: &tlsv3.Secret_ValidationContext{ValidationContext: &tlsv3.CertificateValidationContext{TrustedCa: secretData(0), Crl: secretData(1)}}}
	})
	add(cluster, "keyed", func(n string) proto.Message {
		return &clusterv3.Cluster{Name: n, TransportSocket: &corev3.TransportSocket{Name: "tls", ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: context}}}
	})
	add(cluster, "described", func(n string) proto.Message {
		return &clusterv3.Cluster{Name: n, Metadata: &corev3.Metadata{
			FilterMetadata: map[string]*structpb.Struct{"a": metadata}, TypedFilterMetadata: map[string]*anypb.Any{"b": context},
		}}
	})
	add(cluster, "unheard", func(n string) proto.Message {
		return &clusterv3.Cluster{Name: n, TransportSocket: &corev3.TransportSocket{Name: "tls", ConfigType: &corev3.TransportSocket_TypedConfig{
			TypedConfig: &anypb.Any{TypeUrl: "type.googleapis.com/example.Unheard", Value: []byte(secretMarker)},
		}}}
	})
	add(cluster, "broken-inside", func(n string) proto.Message {
		return &clusterv3.Cluster{Name: n, TransportSocket: &corev3.TransportSocket{Name: "tls", ConfigType: &corev3.TransportSocket_TypedConfig{
			TypedConfig: &anypb.Any{TypeUrl: context.TypeUrl, Value: []byte("\xff" + secretMarker)},
		}}}
	})
	add(listener, "guarded", func(n string) proto.Message {
		return &listenerv3.Listener{Name: n, FilterChains: []*listenerv3.FilterChain{{Filters: []*listenerv3.Filter{{
			Name: "hcm", ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: toAny(t, &hcmv3.HttpConnectionManager{StatPrefix: "a", HttpFilters: []*hcmv3.HttpFilter{
				{Name: "users", ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: toAny(t, &basicauthv3.BasicAuth{Users: secretData(0)})}},
				{Name: "struct", ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: toAny(t, &xdstypev3.TypedStruct{
					TypeUrl: "type.googleapis.com/envoy.extensions.filters.http.basic_auth.v3.BasicAuth", Value: users,
				})}},
			}})},
		}}}}}
	})
	return all
}

// secretPlane is a control plane for the names of secretMessages, and for a collection and a redirect of an
// authority.
type secretPlane struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	resources []*discoveryv3.Resource
	// garbage says that responses also have resources that the relay cannot store, and that the first streams
	// end with an invalid message.
	garbage bool
	broken  watched[int]      // streams that could end with an invalid message
	errors  watched[[]string] // the error messages of received NACKs
	address string
}

func startSecretPlane(t testing.TB, authority string, garbage bool) *secretPlane {
	t.Helper()
	p := &secretPlane{garbage: garbage}
	xdstp := "xdstp://" + authority + "/"
	for _, prefix := range []string{"", xdstp} {
		all := secretMessages(t, prefix)
		for name, content := range all {
			p.resources = append(p.resources, &discoveryv3.Resource{Name: name, Version: "1", Resource: content})
		}
	}
	entry := func(content *anypb.Any) *xdscorev3.CollectionEntry {
		return &xdscorev3.CollectionEntry{ResourceSpecifier: &xdscorev3.CollectionEntry_InlineEntry_{
			InlineEntry: &xdscorev3.CollectionEntry_InlineEntry{Name: "inline", Version: "1", Resource: content},
		}}
	}
	keyed := secretMessages(t, "")["keyed"]
	var list []byte
	for _, e := range []*xdscorev3.CollectionEntry{
		entry(keyed), located(xdstp + "envoy.config.cluster.v3.Cluster/keyed"),
		entry(&anypb.Any{TypeUrl: keyed.TypeUrl, Value: []byte("\xff" + secretMarker)}),
	} {
		b, err := proto.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		list = protowire.AppendBytes(protowire.AppendTag(list, 1, protowire.BytesType), b)
	}
	const clusterCollection = "envoy.config.cluster.v3.ClusterCollection"
	p.resources = append(p.resources,
		&discoveryv3.Resource{Name: xdstp + clusterCollection + "/list", Version: "1", Resource: &anypb.Any{TypeUrl: "type.googleapis.com/" + clusterCollection, Value: list}},
		&discoveryv3.Resource{Name: xdstp + "envoy.extensions.transport_sockets.tls.v3.Secret/moved", Version: "1", Resource: toAny(t, locatorOf(t, authority, "certificate"))},
	)
	port := openPort(t)
	p.address = port.address
	s := grpc.NewServer(grpc.WaitForHandlers(true))
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(s, p)
	serve(s, port.listen())
	t.Cleanup(s.Stop)
	return p
}

// locatorOf returns a redirect to a Secret of an authority.
func locatorOf(t testing.TB, authority, id string) proto.Message {
	t.Helper()
	return located("xdstp://" + authority + "/envoy.extensions.transport_sockets.tls.v3.Secret/" + id).GetLocator()
}

// wanted returns the resources of a type that a request subscribes to.
func (p *secretPlane) wanted(typeURL string, names []string) (all []*discoveryv3.Resource) {
	for _, r := range p.resources {
		directory, _, _ := strings.Cut(r.GetName(), "\x00")
		directory = directory[:strings.LastIndexByte(directory, '/')+1] + "*"
		ofType := r.GetResource().GetTypeUrl() == typeURL || strings.Contains(r.GetName(), "/moved") && typeURL == secretsType
		old := !strings.HasPrefix(r.GetName(), "xdstp:")
		if ofType && (slices.Contains(names, r.GetName()) || !old && slices.Contains(names, directory) || old && (len(names) == 0 || slices.Contains(names, wildcard))) {
			all = append(all, r)
		}
	}
	return all
}

// rubbish returns resources that the relay cannot store.
func rubbish(typeURL string) []*discoveryv3.Resource {
	bad := func(name, typeURL, value string) *discoveryv3.Resource {
		return &discoveryv3.Resource{Name: name, Version: "1", Resource: &anypb.Any{TypeUrl: typeURL, Value: []byte(value)}}
	}
	return []*discoveryv3.Resource{
		bad("undecodable", typeURL, "\xff"+secretMarker),
		bad("no-text", typeURL, "\x12\x30"+secretMarker),
		bad("of-another-type", "type.googleapis.com/google.protobuf.StringValue", "\x12\x20"+secretMarker),
		bad("", typeURL, "\x1a\x20"+secretMarker),
		bad("twice", typeURL, "\x0a\x05twice"), bad("twice", typeURL, "\x0a\x05twice\x1a\x20"+secretMarker),
	}
}

// DeltaAggregatedResources implements the service in delta.
func (p *secretPlane) DeltaAggregatedResources(stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	for n := 0; ; n++ {
		req, err := stream.Recv()
		if err != nil {
			return ended(err)
		}
		p.nacked(req.GetErrorDetail().GetMessage())
		if len(req.GetResourceNamesSubscribe()) == 0 && req.GetResponseNonce() != "" {
			continue
		}
		resp := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: req.GetTypeUrl(), Nonce: fmt.Sprint(n), Resources: p.wanted(req.GetTypeUrl(), req.GetResourceNamesSubscribe())}
		if p.garbage {
			resp.Resources = append(rubbish(req.GetTypeUrl()), resp.Resources...)
		}
		if err := stream.Send(resp); err != nil {
			return err
		}
		if p.garbage && n == 5 && p.isAmongFirst() {
			return notAMessage(stream)
		}
	}
}

// StreamAggregatedResources implements the service in SotW.
func (p *secretPlane) StreamAggregatedResources(stream discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
	for n := 0; ; n++ {
		req, err := stream.Recv()
		if err != nil {
			return ended(err)
		}
		p.nacked(req.GetErrorDetail().GetMessage())
		resp := &discoveryv3.DiscoveryResponse{TypeUrl: req.GetTypeUrl(), Nonce: fmt.Sprint(n), VersionInfo: "1"}
		all := p.wanted(req.GetTypeUrl(), req.GetResourceNames())
		if p.garbage {
			all = append(rubbish(req.GetTypeUrl()), all...)
		}
		for _, r := range all {
			resp.Resources = append(resp.Resources, r.GetResource())
		}
		if n > 20 || req.GetResponseNonce() != "" && len(all) == 0 {
			continue
		}
		if err := stream.Send(resp); err != nil {
			return err
		}
		if p.garbage && n == 5 && p.isAmongFirst() {
			return notAMessage(stream)
		}
	}
}

// isAmongFirst returns true for its first calls.
func (p *secretPlane) isAmongFirst() (is bool) {
	p.broken.update(func(n *int) { *n++; is = *n <= 4 })
	return is
}

// notAMessage sends bytes that are not a valid response.
func notAMessage(stream grpc.ServerStream) error {
	m := &discoveryv3.DiscoveryResponse{}
	m.ProtoReflect().SetUnknown([]byte("\x12\xff\x01" + secretMarker))
	return stream.SendMsg(m)
}

func (p *secretPlane) nacked(message string) {
	if message != "" {
		p.errors.update(func(all *[]string) { *all = append(*all, message) })
	}
}

// serveREST serves the resources over REST. Most of the answers are invalid, and the others have bad
// resources besides the good ones.
func (p *secretPlane) serveREST(t testing.TB) (address string) {
	t.Helper()
	polls := watched[map[string]int]{value: map[string]int{}} // number of polls, by type and client
	cp := &polledPlane{port: openPort(t)}
	cp.serve(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var req discoveryv3.DiscoveryRequest
		body, err := io.ReadAll(r.Body)
		if err == nil {
			err = protojson.Unmarshal(body, &req)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		p.nacked(req.GetErrorDetail().GetMessage())
		var resources []string
		for _, res := range p.wanted(req.GetTypeUrl(), req.GetResourceNames()) {
			if text, err := protojson.Marshal(res.GetResource()); err == nil { // an error: it contains an unknown type
				resources = append(resources, string(text))
			}
		}
		n := 0
		of := req.GetTypeUrl() + " " + req.GetNode().GetId()
		polls.update(func(all *map[string]int) { (*all)[of]++; n = (*all)[of] })
		bad := fmt.Sprintf(`{"@type": %q, "name": "bad%%d", %%s}`, req.GetTypeUrl())
		for i, fields := range []string{
			`"` + secretMarker + `": 1`, `"tls_certificate": "` + secretMarker + `"`, `"load_assignment": "` + secretMarker + `"`,
			`"tls_certificate": {"private_key": {"inline_bytes": "` + secretMarker + `!"}}`, `"type": "` + secretMarker + `"`,
			`"connect_timeout": "` + secretMarker + `"`, `"filter_chains": [{"filters": [{"typed_config": {"@type": "a/b", "x": "` + secretMarker + `"}}]}]`,
		} {
			resources = append(resources, fmt.Sprintf(bad, i, fields))
		}
		answer := fmt.Sprintf(`{"version_info": "1", "resources": [%s]}`, strings.Join(resources, ","))
		switch n % 6 {
		case 1:
			http.Error(w, answer, http.StatusInternalServerError)
		case 2:
			w.WriteHeader(http.StatusNonAuthoritativeInfo)
			fmt.Fprint(w, answer)
		case 3:
			fmt.Fprint(w, answer[:len(answer)-2]+secretMarker)
		case 4:
			fmt.Fprintf(w, `{"version_info": "1", "resources": %q}`, secretMarker)
		default:
			fmt.Fprint(w, answer)
		}
	}))
	t.Cleanup(func() { cp.end() })
	return cp.address
}
