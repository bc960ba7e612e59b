package downstream

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	clusterv2 "github.com/envoyproxy/go-control-plane/envoy/api/v2"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/downstream/session"
	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// restServer is a served cache, over HTTP.
type restServer struct {
	*httptest.Server
	relay *Server
	cache *cache.Cache
	log   *bytes.Buffer
}

// newRESTServer serves until the test ends. It logs all there is.
func newRESTServer(t testing.TB, o ListenerOptions, start func(*httptest.Server)) *restServer {
	t.Helper()
	r := &restServer{log: new(bytes.Buffer)}
	r.cache = newTestCache(&recordingSource{}, 1000)
	t.Cleanup(r.cache.Close)
	r.relay = NewServer(r.cache, newClusterNames, Options{Log: slog.New(slog.NewTextHandler(r.log, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	if o.LongPoll == 0 {
		o.LongPoll = patience
	}
	r.Server = httptest.NewUnstartedServer(nil)
	r.Config = r.relay.HTTPServer(o)
	start(r.Server)
	t.Cleanup(r.Close)
	return r
}

// put has the origin send a resource, to all who request it by name or by a wildcard.
func (r *restServer) put(t testing.TB, name string, m proto.Message) {
	t.Helper()
	a, err := anypb.New(m)
	if err != nil {
		t.Fatal(err)
	}
	res := cache.NewResource(cache.Spec{Name: name, TypeURL: a.GetTypeUrl(), Value: a.GetValue()})
	change := []cache.Change{{Name: name, Resource: res}}
	r.cache.Apply(cache.Update{Scope: oldStyleScope(""), TypeURL: a.GetTypeUrl(), Changes: change,
		Sets: []cache.SetUpdate{{Name: cache.Wildcard, Changes: change}}})
}

// keep has topics fed that nobody has asked for yet.
func (r *restServer) keep(t testing.TB, typeURL string, names ...string) {
	t.Helper()
	w := &watcher{}
	for _, name := range names {
		key := cache.Key{Scope: oldStyleScope(""), TypeURL: typeURL, Name: name}
		if name == cache.Wildcard {
			set := &setWatcher{}
			r.cache.WatchSet(key, set)
			r.cache.Unwatch(set)
			continue
		}
		r.cache.Watch(key, w)
		r.cache.Unwatch(w)
	}
}

// post sends a request and reads the answer.
func post(t testing.TB, client *http.Client, url, body string) (*http.Response, []byte) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, b
}

func TestRESTTakesOnlyJSON(t *testing.T) {
	r := newRESTServer(t, ListenerOptions{}, (*httptest.Server).Start)
	for kind, want := range map[string]int{
		"application/json": http.StatusOK, "Application/JSON; charset=utf-8": http.StatusOK,
		"": http.StatusUnsupportedMediaType, "text/plain": http.StatusUnsupportedMediaType,
		"application/x-www-form-urlencoded": http.StatusUnsupportedMediaType, "application/json;;": http.StatusUnsupportedMediaType,
	} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, r.URL+"/v3/discovery:clusters", strings.NewReader(`{"node": {"id": "n"}, "resource_names": ["nothing"]}`))
		if err != nil {
			t.Fatal(err)
		}
		req.Header["Content-Type"] = []string{kind}
		req.Header.Set(timeoutHeader, "1")
		resp, err := r.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if is := resp.StatusCode; (is == http.StatusUnsupportedMediaType) != (want == http.StatusUnsupportedMediaType) {
			t.Errorf("%q is answered with %s", kind, resp.Status)
		}
	}
}

// xDS: "REST-JSON polling subscriptions": the messages are in canonical JSON.
func TestRESTAnswersInCanonicalJSON(t *testing.T) {
	r := newRESTServer(t, ListenerOptions{}, (*httptest.Server).Start)
	router, err := anypb.New(&routerv3.Router{SuppressEnvoyHeaders: true})
	if err != nil {
		t.Fatal(err)
	}
	l := &listenerv3.Listener{Name: "l", ListenerFilters: []*listenerv3.ListenerFilter{
		{Name: "f", ConfigType: &listenerv3.ListenerFilter_TypedConfig{TypedConfig: router}},
	}}
	r.keep(t, xdstype.ListenerV3, "l")
	r.put(t, "l", l)
	// The request as Envoy writes it, and with a field that is not known yet.
	resp, body := post(t, r.Client(), r.URL+"/v3/discovery:listeners", `{
		"node": {"id": "n", "user_agent_name": "envoy", "extensions": [{"name": "x", "type_urls": ["y"]}], "field_of_2030": {}},
		"resource_names": ["l"], "type_url": "type.googleapis.com/envoy.config.listener.v3.Listener"}`)
	if resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Type") != "application/json" {
		t.Fatalf("got %s, %q: %s", resp.Status, resp.Header.Get("Content-Type"), body)
	}
	var msg discoveryv3.DiscoveryResponse
	if err := protojson.Unmarshal(body, &msg); err != nil {
		t.Fatal(err)
	}
	got := new(listenerv3.Listener)
	if len(msg.GetResources()) != 1 || msg.GetResources()[0].UnmarshalTo(got) != nil || !proto.Equal(got, l) {
		t.Errorf("got %s, want %s", body, l)
	}
	if msg.GetTypeUrl() != xdstype.ListenerV3 || msg.GetVersionInfo() == "" || msg.GetNonce() != msg.GetVersionInfo() {
		t.Errorf("got %s, want type, version, and the version as the nonce", body)
	}
	for _, want := range []string{`"versionInfo"`, `"@type"`, `"suppressEnvoyHeaders"`} {
		if !bytes.Contains(body, []byte(want)) {
			t.Errorf("no %s in %s", want, body)
		}
	}
}

func TestRESTRefusesWhatIsNoRequest(t *testing.T) {
	const limit = 1000
	v3 := newRESTServer(t, ListenerOptions{MaxRequestBytes: limit}, (*httptest.Server).Start)
	for _, test := range []struct {
		name, method, path, body string
		status                   int
		code                     codes.Code
		message                  string // a part of it
	}{
		{"no JSON", "POST", "/v3/discovery:clusters", `{"node": `, 400, codes.InvalidArgument, "the body is not a DiscoveryRequest in JSON: "},
		{"nothing", "POST", "/v3/discovery:clusters", ``, 400, codes.InvalidArgument, "the body is not a DiscoveryRequest in JSON: "},
		{"other JSON", "POST", "/v3/discovery:clusters", `[1]`, 400, codes.InvalidArgument, "the body is not a DiscoveryRequest in JSON: "},
		{"a wrong type of a field", "POST", "/v3/discovery:clusters", `{"resource_names": "a"}`, 400, codes.InvalidArgument, `unexpected token "a"`},
		{"another type's request", "POST", "/v3/discovery:clusters", `{"type_url": "type.googleapis.com/envoy.config.listener.v3.Listener"}`,
			400, codes.InvalidArgument, `the request is for type_url "type.googleapis.com/envoy.config.listener.v3.Listener" on the service of`},
		{"a v2 type on v3", "POST", "/v3/discovery:clusters", `{"type_url": "type.googleapis.com/envoy.api.v2.Cluster"}`, 400, codes.InvalidArgument, "envoy.api.v2.Cluster"},
		{"an unknown path", "POST", "/v3/discovery:widgets", `{}`, 404, codes.NotFound, `there is no discovery service at "/v3/discovery:widgets" (want a path such as /v3/discovery:`},
		{"ADS", "POST", "/v3/discovery:aggregated", `{}`, 404, codes.NotFound, "there is no discovery service"},
		{"the root", "GET", "/", ``, 404, codes.NotFound, "there is no discovery service"},
		{"v2 where it is off", "POST", "/v2/discovery:clusters", `{}`, 404, codes.NotFound, "is of the v2 transport, which this listener does not serve"},
		{"GET", "GET", "/v3/discovery:clusters", ``, 405, codes.Unimplemented, "the method is GET (want POST)"},
		{"too much", "POST", "/v3/discovery:clusters", `{"versionInfo": "` + strings.Repeat("x", limit) + `"}`, 413, codes.ResourceExhausted, "a request of at least 1019 bytes, but max_request_bytes is 1000"},
		{"too much that is no JSON", "POST", "/v3/discovery:clusters", strings.Repeat(" ", limit+1), 413, codes.ResourceExhausted, "a request of at least 1001 bytes, but max_request_bytes is 1000"},
	} {
		t.Run(test.name, func(t *testing.T) {
			req, err := http.NewRequestWithContext(testContext(t), test.method, v3.URL+test.path, strings.NewReader(test.body))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Content-Type", "application/json")
			resp, err := v3.Client().Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			body, err := io.ReadAll(resp.Body)
			if err != nil {
				t.Fatal(err)
			}
			var st statuspb.Status
			if err := protojson.Unmarshal(body, &st); err != nil {
				t.Fatalf("%s is no google.rpc.Status: %v", body, err)
			}
			if resp.StatusCode != test.status || codes.Code(st.GetCode()) != test.code || !strings.Contains(st.GetMessage(), test.message) {
				t.Errorf("got %s, %s; want %d, %s: %s", resp.Status, &st, test.status, test.code, test.message)
			}
			if resp.Header.Get("Content-Type") != "application/json" {
				t.Errorf("the content type is %q", resp.Header.Get("Content-Type"))
			}
			if allow := resp.Header.Get("Allow"); (test.status == http.StatusMethodNotAllowed) != (allow == "POST") {
				t.Errorf("Allow is %q", allow)
			}
		})
	}
	if n := v3.relay.Clients(); n != 0 {
		t.Errorf("%d clients are left", n)
	}
	if n := v3.relay.Stats().Limits["max_request_bytes"]; n != 2 {
		t.Errorf("%d requests are counted as too large, want 2", n)
	}
}

// The limits of a listener also apply to clients that poll.
func TestRESTKeepsTheLimits(t *testing.T) {
	r := newRESTServer(t, ListenerOptions{LongPoll: time.Hour, Limits: Limits{Streams: 1, Subscriptions: 2}}, (*httptest.Server).Start)
	resp, body := post(t, r.Client(), r.URL+"/v3/discovery:endpoints", `{"resource_names": ["a", "b", "c"]}`)
	if resp.StatusCode != http.StatusTooManyRequests || !bytes.Contains(body, []byte("limits.subscriptions is 2")) {
		t.Errorf("got %s: %s", resp.Status, body)
	}
	ctx, cancel := context.WithCancel(testContext(t))
	waits := make(chan struct{})
	go func() {
		defer close(waits)
		req := httptest.NewRequestWithContext(ctx, http.MethodPost, "/v3/discovery:endpoints", strings.NewReader(`{"resource_names": ["a"]}`))
		req.Header.Set("Content-Type", "application/json")
		r.Config.Handler.ServeHTTP(httptest.NewRecorder(), req)
	}()
	eventually(t, "one waits", func() bool { return r.relay.Clients() == 1 })
	resp, body = post(t, r.Client(), r.URL+"/v3/discovery:endpoints", `{"resource_names": ["b"]}`)
	if resp.StatusCode != http.StatusTooManyRequests || !bytes.Contains(body, []byte("limits.streams is 1")) {
		t.Errorf("got %s: %s", resp.Status, body)
	}
	cancel()
	<-waits
	if s := r.relay.Stats().Limits; s["subscriptions"] != 1 || s["streams"] != 1 {
		t.Errorf("the limits are counted as %v", s)
	}
}

func TestANodeIsBoundedOverREST(t *testing.T) {
	r := newRESTServer(t, ListenerOptions{}, (*httptest.Server).Start)
	resp, body := post(t, r.Client(), r.URL+"/v3/discovery:clusters", fmt.Sprintf(`{"node": {"id": %q}}`, strings.Repeat("x", maxNodeBytes)))
	if resp.StatusCode != http.StatusTooManyRequests || !bytes.Contains(body, []byte("a node of ")) {
		t.Errorf("got %s: %s", resp.Status, body)
	}
}

var unheard = &anypb.Any{TypeUrl: "type.googleapis.com/example.Unheard", Value: []byte{8, 1}}

// A resource without a JSON form is reported, and the others are sent.
func TestRESTReportsWhatItCannotRender(t *testing.T) {
	r := newRESTServer(t, ListenerOptions{V2: true}, (*httptest.Server).Start)
	r.keep(t, xdstype.RouteV3, "bad", "good")
	r.put(t, "bad", &routev3.RouteConfiguration{Name: "bad", TypedPerFilterConfig: map[string]*anypb.Any{"f": unheard}})
	r.put(t, "good", &routev3.RouteConfiguration{Name: "good"})
	for _, path := range []string{"/v3/discovery:routes", "/v2/discovery:routes"} {
		t.Run(path, func(t *testing.T) {
			r.log.Reset()
			resp, body := post(t, r.Client(), r.URL+path, fmt.Sprintf(`{"type_url": %q, "resource_names": ["bad", "good"]}`, xdstype.RouteV3))
			var msg discoveryv3.DiscoveryResponse
			if err := protojson.Unmarshal(body, &msg); err != nil || resp.StatusCode != http.StatusOK {
				t.Fatalf("got %s: %s (%v)", resp.Status, body, err)
			}
			if res := msg.GetResources(); len(res) != 1 || nameOf(res[0]) != "good" {
				t.Errorf("got %s, want the good one", body)
			}
			errs := msg.GetResourceErrors()
			switch {
			case strings.HasPrefix(path, "/v2"):
				if errs != nil {
					t.Errorf("v2 has no resource_errors: %s", body)
				}
			case len(errs) != 1 || errs[0].GetResourceName().GetName() != "bad" ||
				codes.Code(errs[0].GetErrorDetail().GetCode()) != codes.Unimplemented || !strings.Contains(errs[0].GetErrorDetail().GetMessage(), "example.Unheard"):
				t.Errorf("got %s, want an error of the bad one", body)
			}
			if log := r.log.String(); !strings.Contains(log, "level=WARN") || !strings.Contains(log, "name=bad") {
				t.Errorf("the log lacks it:\n%s", log)
			}
		})
	}
}

// A full state from which a resource is missing would remove it from the client. So the client keeps the last one.
func TestRESTSendsNoFullStateThatIsNotWhole(t *testing.T) {
	r := newRESTServer(t, ListenerOptions{V2: true}, (*httptest.Server).Start)
	r.keep(t, xdstype.ListenerV3, cache.Wildcard)
	r.put(t, "bad", &listenerv3.Listener{Name: "bad", ListenerFilters: []*listenerv3.ListenerFilter{
		{Name: "f", ConfigType: &listenerv3.ListenerFilter_TypedConfig{TypedConfig: unheard}},
	}})
	r.put(t, "good", &listenerv3.Listener{Name: "good"})
	for _, path := range []string{"/v3/discovery:listeners", "/v2/discovery:listeners"} {
		for _, version := range []string{"", "other"} {
			r.log.Reset()
			resp, body := post(t, r.Client(), r.URL+path, fmt.Sprintf(`{"type_url": %q, "version_info": %q}`, xdstype.ListenerV3, version))
			if text := string(body); resp.StatusCode != http.StatusServiceUnavailable || !strings.Contains(text, `lack \"bad\"`) || !strings.Contains(text, "example.Unheard") {
				t.Errorf("%s, version %q: got %s: %s", path, version, resp.Status, body)
			}
			if log := r.log.String(); !strings.Contains(log, "level=WARN") || !strings.Contains(log, "name=bad") {
				t.Errorf("the log lacks it:\n%s", log)
			}
		}
	}
	r.put(t, "bad", &listenerv3.Listener{Name: "bad"})
	if resp, body := post(t, r.Client(), r.URL+"/v3/discovery:listeners", `{}`); resp.StatusCode != http.StatusOK {
		t.Errorf("once it has a JSON form: got %s: %s", resp.Status, body)
	}
}

func TestAResourceIsNamedAlsoWhereItIsWrapped(t *testing.T) {
	for _, r := range []*discoveryv3.Resource{
		{Name: "a", Version: "7"},
		{ResourceName: &discoveryv3.ResourceName{Name: "a"}, Version: "7"},
	} {
		wrapped, err := anypb.New(r)
		if err != nil {
			t.Fatal(err)
		}
		if name := nameOf(wrapped); name != "a" {
			t.Errorf("%v is named %q, want a", r, name)
		}
	}
}

// The response of v2 has no resource_errors, and a client's JSON may be strict.
func TestRESTOfV2HasTheMessageOfV2(t *testing.T) {
	r := newRESTServer(t, ListenerOptions{V2: true}, (*httptest.Server).Start)
	r.keep(t, xdstype.ClusterV2, "a")
	r.put(t, "a", &clusterv2.Cluster{Name: "a"})
	resp, body := post(t, r.Client(), r.URL+"/v2/discovery:clusters", `{"resource_names": ["a", "xdstp://nowhere/t/b"], "node": {"id": "n", "build_version": "1.12"}}`)
	var msg clusterv2.DiscoveryResponse
	if err := protojson.Unmarshal(body, &msg); err != nil || resp.StatusCode != http.StatusOK || len(msg.GetResources()) != 1 || msg.GetTypeUrl() != xdstype.ClusterV2 {
		t.Errorf("got %s: %s (%v)", resp.Status, body, err)
	}
}

// Invariant: secrets are never logged.
func TestRESTServesSecretsAndDoesNotLogThem(t *testing.T) {
	r := newRESTServer(t, ListenerOptions{}, (*httptest.Server).Start)
	const hush = "hush-hush"
	secret := &tlsv3.Secret{Name: "s", Type: &tlsv3.Secret_GenericSecret{GenericSecret: &tlsv3.GenericSecret{
		Secret: &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: hush}},
	}}}
	broken := &anypb.Any{TypeUrl: xdstype.SecretV3, Value: append(encodeContent("broken", ""), 0x0a, 4, 0xff, 'h', 'u', 0xff)}
	r.keep(t, xdstype.SecretV3, "s", "broken")
	r.put(t, "s", secret)
	r.cache.Apply(cache.Update{Scope: oldStyleScope(""), TypeURL: xdstype.SecretV3, Changes: []cache.Change{
		{Name: "broken", Resource: cache.NewResource(cache.Spec{Name: "broken", TypeURL: xdstype.SecretV3, Value: broken.GetValue()})},
	}})
	_, body := post(t, r.Client(), r.URL+"/v3/discovery:secrets", `{"resource_names": ["s"]}`)
	if !bytes.Contains(body, []byte(hush)) {
		t.Errorf("got %s, want the secret", body)
	}
	post(t, r.Client(), r.URL+"/v3/discovery:secrets", `{"resource_names": ["s", "broken"], "response_nonce": "1",
		"error_detail": {"code": 3, "message": "cannot use `+hush+`"}}`)
	if log := r.log.String(); strings.Contains(log, hush) || !strings.Contains(log, "client rejected") || !strings.Contains(log, "reason=\"it has no form in JSON here\"\n") {
		t.Errorf("the log has a secret, or not what is to be in it:\n%s", log)
	}
}

// A client may use any version of HTTP.
func TestRESTSpeaksHTTP1AndHTTP2(t *testing.T) {
	secure := newRESTServer(t, ListenerOptions{KeepaliveTime: time.Minute, KeepaliveTimeout: time.Minute}, func(s *httptest.Server) {
		s.EnableHTTP2 = true
		s.StartTLS()
	})
	plain := newRESTServer(t, ListenerOptions{}, (*httptest.Server).Start)
	for _, test := range []struct {
		name  string
		r     *restServer
		setup func(*http.Protocols)
		major int
	}{
		{"HTTP/1.1", plain, func(p *http.Protocols) { p.SetHTTP1(true) }, 1},
		{"HTTP/2 with prior knowledge", plain, func(p *http.Protocols) { p.SetUnencryptedHTTP2(true) }, 2},
		{"HTTP/1.1 over TLS", secure, func(p *http.Protocols) { p.SetHTTP1(true) }, 1},
		{"HTTP/2 over TLS", secure, func(p *http.Protocols) { p.SetHTTP2(true) }, 2},
	} {
		t.Run(test.name, func(t *testing.T) {
			transport := &http.Transport{Protocols: new(http.Protocols)}
			defer transport.CloseIdleConnections()
			test.setup(transport.Protocols)
			if trusted, ok := test.r.Client().Transport.(*http.Transport); ok && test.r == secure {
				transport.TLSClientConfig = &tls.Config{RootCAs: trusted.TLSClientConfig.RootCAs, MinVersion: tls.VersionTLS12}
			}
			test.r.keep(t, clusterType, "c")
			test.r.put(t, "c", &clusterv3.Cluster{Name: "c"})
			resp, body := post(t, &http.Client{Transport: transport}, test.r.URL+"/v3/discovery:clusters", `{"resourceNames": ["c"]}`)
			if resp.StatusCode != http.StatusOK || resp.ProtoMajor != test.major {
				t.Errorf("got %s, %s: %s", resp.Proto, resp.Status, body)
			}
		})
	}
}

// A waiting request ends when its client goes.
func TestRESTClientThatGoesEndsItsWait(t *testing.T) {
	r := newRESTServer(t, ListenerOptions{LongPoll: time.Hour}, (*httptest.Server).Start)
	for _, protocol := range []string{"HTTP/1.1", "HTTP/2"} {
		t.Run(protocol, func(t *testing.T) {
			transport := &http.Transport{Protocols: new(http.Protocols)}
			defer transport.CloseIdleConnections()
			transport.Protocols.SetHTTP1(protocol == "HTTP/1.1")
			transport.Protocols.SetUnencryptedHTTP2(protocol == "HTTP/2")
			ctx, cancel := context.WithCancel(testContext(t))
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.URL+"/v3/discovery:clusters", strings.NewReader(`{"node": {"id": "n"}}`))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Content-Type", "application/json")
			done := make(chan error, 1)
			go func() {
				resp, err := (&http.Client{Transport: transport}).Do(req)
				if err == nil {
					_ = resp.Body.Close()
				}
				done <- err
			}()
			eventually(t, "it waits", func() bool { return r.relay.Clients() == 1 })
			c := slices.Collect(r.relay.Describe())[0]
			eventually(t, "it is known", func() bool { c = slices.Collect(r.relay.Describe())[0]; return len(c.Types) == 1 })
			host, _, err := net.SplitHostPort(c.Peer)
			if c.Form != "rest" || c.Node.GetId() != "n" || c.Types[0] != (TypeStatus{Status: session.Status{TypeURL: clusterType, Subscriptions: 1}}) || err != nil || host != "127.0.0.1" {
				t.Errorf("the operator sees %+v", c)
			}
			cancel()
			if err := <-done; err == nil {
				t.Error("it was answered")
			}
			eventually(t, "its wait has ended", func() bool { return r.relay.Clients() == 0 })
		})
	}
}

// Envoy states how long it waits, and is answered before that time.
func TestRESTClientIsAnsweredBeforeItGoes(t *testing.T) {
	for header, want := range map[string]time.Duration{"1000": time.Second, "0": 0, "": 0, "-1": 0, "soon": 0, "99999999999999": 0} {
		got, ok := clientPatience(http.Header{timeoutHeader: []string{header}})
		if ok != (want > 0) || ok && got != want {
			t.Errorf("%q is %v, %t; want %v", header, got, ok, want)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		r := newRESTServer(t, ListenerOptions{LongPoll: time.Hour}, func(*httptest.Server) {})
		req := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v3/discovery:endpoints", strings.NewReader(`{"version_info": "1", "resource_names": ["a"]}`))
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("x-envoy-expected-rq-timeout-ms", "5")
		w := httptest.NewRecorder()
		began := time.Now()
		r.Config.Handler.ServeHTTP(w, req)
		if w.Code != http.StatusNotModified || w.Body.Len() != 0 {
			t.Errorf("got %d: %s", w.Code, w.Body)
		}
		if took := time.Since(began); took >= 5*time.Millisecond {
			t.Errorf("the answer came after %v, want less than 5 ms", took)
		}
	})
}

// A wildcard's JSON is made once for all who wait for it.
func TestJSONOfAStateIsShared(t *testing.T) {
	ch := newTestCache(&recordingSource{}, 1000)
	defer ch.Close()
	server, _ := newTestServer(ch, DefaultMaxResponseBytes)
	fetch := func(service *xdstype.Service, names ...string) []byte {
		t.Helper()
		r, err := server.fetch(testContext(t), newGate(ListenerOptions{}), nil, formREST, clusterType, &discoveryv3.DiscoveryRequest{TypeUrl: clusterType, ResourceNames: names}, patience)
		if err != nil {
			t.Fatal(err)
		}
		body, err := server.toJSON(r, service).get()
		if err != nil {
			t.Fatal(err)
		}
		return body
	}
	put := func(size int) {
		t.Helper()
		value, err := proto.Marshal(&clusterv3.Cluster{Name: "a", AltStatName: strings.Repeat("x", size)})
		if err != nil {
			t.Fatal(err)
		}
		res := cache.NewResource(cache.Spec{Name: "a", TypeURL: clusterType, Value: value})
		ch.Apply(cache.Update{Scope: oldStyleScope(""), TypeURL: clusterType,
			Sets: []cache.SetUpdate{{Name: cache.Wildcard, Extent: cache.Whole, Changes: []cache.Change{{Name: "a", Resource: res}}}}})
	}
	ch.WatchSet(cache.Key{Scope: oldStyleScope(""), TypeURL: clusterType, Name: cache.Wildcard}, new(setWatcher))
	v3, v2 := xdstype.Cluster.V3, xdstype.Cluster.V2
	put(minJSONCached)
	first := fetch(v3)
	if &first[0] != &fetch(v3)[0] {
		t.Error("the same state was rendered twice")
	}
	if &first[0] == &fetch(v2)[0] {
		t.Error("the other service's rendering was taken")
	}
	put(minJSONCached + 1)
	second := fetch(v3)
	if bytes.Equal(first, second) {
		t.Error("an old state's rendering was taken")
	}
	if n := len(server.jsonCache.entries); n != 3 {
		t.Errorf("%d renderings are kept, want 3", n)
	}
	put(maxJSONCached)
	fetch(v3)
	if n := len(server.jsonCache.entries); n != 1 {
		t.Errorf("%d renderings are kept in addition to one that is as large as all may be, want none", n-1)
	}
	if server.jsonCache.size != server.jsonCache.entries[0].key.size {
		t.Errorf("%d bytes are counted, not the %d of the one that is kept", server.jsonCache.size, server.jsonCache.entries[0].key.size)
	}
	put(10)
	if fetch(v3); server.jsonCache.size < maxJSONCached {
		t.Error("a rendering that costs nothing takes the place of others")
	}
}

// FuzzREST holds that every request is answered, and well-formed.
func FuzzREST(f *testing.F) {
	for _, service := range servicesOf(ListenerOptions{V2: true}) {
		f.Add(service.Path, []byte(`{}`))
	}
	for _, body := range []string{
		`{"node":{"id":"n","cluster":"c","metadata":{"a":[1,null,{"b":"c"}]}},"resource_names":["a","*",""],"type_url":"type.googleapis.com/envoy.config.cluster.v3.Cluster"}`,
		`{"versionInfo":"1","responseNonce":"2","errorDetail":{"code":3,"message":"no","details":[{"@type":"type.googleapis.com/google.protobuf.Empty"}]}}`,
		`{"resourceNames":["xdstp://known/envoy.config.cluster.v3.Cluster/a","xdstp://x","xdstp:///?","a","a"]}`,
		`{"resourceLocators":[{"name":"a","dynamicParameters":{"params":{"b":"c"}}}]}`,
		`[`, `nul`, ``, "{\"node\":\"\xff\"}",
	} {
		f.Add("/v3/discovery:clusters", []byte(body))
	}
	r := newRESTServer(f, ListenerOptions{LongPoll: time.Nanosecond, MaxRequestBytes: 1 << 16, V2: true}, (*httptest.Server).Start)
	for _, typeURL := range []string{xdstype.ClusterV3, xdstype.ClusterV2} {
		r.keep(f, typeURL, "a", cache.Wildcard)
	}
	r.put(f, "a", &clusterv3.Cluster{Name: "a"})
	r.put(f, "a", &clusterv2.Cluster{Name: "a"})
	f.Fuzz(func(t *testing.T, path string, body []byte) {
		req := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", bytes.NewReader(body))
		req.URL.Path = path
		req.Header.Set("Content-Type", "application/json")
		w := httptest.NewRecorder()
		r.Config.Handler.ServeHTTP(w, req)
		r.log.Reset()
		switch w.Code {
		case http.StatusOK:
			var msg discoveryv3.DiscoveryResponse
			if err := protojson.Unmarshal(w.Body.Bytes(), &msg); err != nil || msg.GetVersionInfo() == "" || msg.GetTypeUrl() == "" {
				t.Errorf("%s is answered with %s (%v)", body, w.Body, err)
			}
		case http.StatusNotModified:
			if w.Body.Len() > 0 {
				t.Errorf("not modified has a body: %s", w.Body)
			}
		case http.StatusBadRequest, http.StatusNotFound, http.StatusRequestEntityTooLarge, http.StatusTooManyRequests, http.StatusServiceUnavailable:
			var st statuspb.Status
			if err := protojson.Unmarshal(w.Body.Bytes(), &st); err != nil || st.GetCode() == 0 || st.GetMessage() == "" || !json.Valid(w.Body.Bytes()) {
				t.Errorf("%s is refused with %s (%v)", body, w.Body, err)
			}
		default:
			t.Errorf("%s is answered with status %d: %s", body, w.Code, w.Body)
		}
		if n := r.relay.Clients(); n != 0 {
			t.Errorf("%d requests are left", n)
		}
	})
}

// pipes is a listener in memory, whose connections keep a bubble's time.
type pipes struct {
	conns chan net.Conn
	ended chan struct{}
}

// Accept implements net.Listener.
func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.ended:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (p *pipes) Close() error {
	close(p.ended)
	return nil
}

// Addr implements net.Listener.
func (p *pipes) Addr() net.Addr { return remoteAddr("memory") }

func (p *pipes) dial(context.Context, string, string) (net.Conn, error) {
	client, server := net.Pipe()
	p.conns <- server
	return client, nil
}

// The timeouts for a request to arrive, and for its answer to be read, do not bound the wait for the answer.
func TestRESTWaitIsNotBoundedByOtherTimes(t *testing.T) {
	const hold = time.Hour
	for _, protocol := range []string{"HTTP/1.1", "HTTP/2"} {
		t.Run(protocol, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ch := newTestCache(&recordingSource{}, 1000)
				defer ch.Close()
				server, _ := newTestServer(ch, DefaultMaxResponseBytes)
				srv := server.HTTPServer(ListenerOptions{LongPoll: hold})
				lis := &pipes{conns: make(chan net.Conn, 1), ended: make(chan struct{})}
				served := make(chan error, 1)
				go func() { served <- srv.Serve(lis) }()
				transport := &http.Transport{DialContext: lis.dial, Protocols: new(http.Protocols)}
				transport.Protocols.SetHTTP1(protocol == "HTTP/1.1")
				transport.Protocols.SetUnencryptedHTTP2(protocol == "HTTP/2")
				for range 2 { // on one connection
					began := time.Now()
					req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://memory/v3/discovery:clusters", strings.NewReader(`{"version_info": "1"}`))
					if err != nil {
						t.Fatal(err)
					}
					req.Header.Set("Content-Type", "application/json")
					resp, err := transport.RoundTrip(req)
					if err != nil {
						t.Fatal(err)
					}
					_ = resp.Body.Close()
					if took := time.Since(began); resp.StatusCode != http.StatusNotModified || took != hold {
						t.Errorf("got %s after %v, want 304 after %v", resp.Status, took, hold)
					}
				}
				transport.CloseIdleConnections()
				_ = srv.Close()
				if err := <-served; !errors.Is(err, http.ErrServerClosed) {
					t.Error(err)
				}
			})
		})
	}
}

// A request that begins and does not continue costs little, and is soon given up.
func TestRESTRequestThatDoesNotComeIsGivenUp(t *testing.T) {
	for path, want := range map[string]int{"/v3/discovery:clusters": http.StatusBadRequest, "/": http.StatusNotFound} {
		t.Run(path, func(t *testing.T) { synctest.Test(t, func(t *testing.T) { beginRequest(t, path, want) }) })
	}
}

func beginRequest(t *testing.T, path string, want int) {
	t.Helper()
	ch := newTestCache(&recordingSource{}, 1000)
	defer ch.Close()
	server, _ := newTestServer(ch, DefaultMaxResponseBytes)
	srv := server.HTTPServer(ListenerOptions{LongPoll: time.Hour})
	lis := &pipes{conns: make(chan net.Conn, 1), ended: make(chan struct{})}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(lis) }()
	conn, _ := lis.dial(t.Context(), "", "")
	began := time.Now()
	if _, err := io.WriteString(conn, "POST "+path+" HTTP/1.1\r\nHost: memory\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if took := time.Since(began); resp.StatusCode != want || took != restPatience {
		t.Errorf("got %s after %v, want %d after %v", resp.Status, took, want, restPatience)
	}
	_ = conn.Close()
	_ = srv.Close()
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		t.Error(err)
	}
}

// Requests are decoded in turns that are fair among clients: however many of one wait, another waits for one of them.
func TestRESTDecodesInTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRESTServer(t, ListenerOptions{}, func(*httptest.Server) {})
		h := r.Config.Handler.(*restHandler)
		h.decoding = NewPlaces(1, 0, 0)
		busy, err := h.decoding.take(t.Context(), proven("busy", nil)(), nil)
		if err != nil {
			t.Fatal(err)
		}
		answered := make(chan string, 20)
		send := func(address string) {
			go func() {
				req := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v3/discovery:clusters", strings.NewReader("no JSON"))
				req.Header.Set("Content-Type", "application/json")
				req.RemoteAddr = address
				w := httptest.NewRecorder()
				w.Body = nil
				h.ServeHTTP(writerFunc{w, func() { answered <- address }}, req)
			}()
			synctest.Wait()
		}
		const many, one = "192.0.2.1:1", "192.0.2.2:1"
		for range cap(answered) - 1 {
			send(many)
		}
		send(one)
		busy.Give()
		synctest.Wait()
		first, second := <-answered, <-answered
		if first != many || second != one {
			t.Errorf("%s is answered first, and then %s", first, second)
		}
		if n := 2 + len(answered); n != cap(answered) {
			t.Errorf("%d of %d requests are answered", n, cap(answered))
		}
	})
}

// writerFunc is a ResponseWriter that reports when an answer begins.
type writerFunc struct {
	http.ResponseWriter
	begins func()
}

// WriteHeader implements http.ResponseWriter.
func (w writerFunc) WriteHeader(status int) {
	w.begins()
	w.ResponseWriter.WriteHeader(status)
}
