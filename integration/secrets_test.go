package integration

// Secrets never appear in logs, pages, error messages and output, whatever clients, control planes and files
// contain.

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/structpb"
)

// secretAuthorities are the authorities of the relay of this test. Old-style names belong to the authority
// that the Node's cluster names.
var secretAuthorities = []string{"delta", "sotw", "rubbish", "rubbish-sotw", "rest", "files"}

func secretConfig(t *testing.T, folder string, planes map[string]string) string {
	t.Helper()
	var b strings.Builder
	b.WriteString("listeners:\n  - address: 127.0.0.1:0\n  - {address: '127.0.0.1:0', protocol: rest, v2: true, long_poll: 100ms}\n")
	b.WriteString("admin: {address: '127.0.0.1:0'}\nauthorities:\n")
	for _, a := range secretAuthorities {
		switch {
		case a == "files":
			fmt.Fprintf(&b, "  - {name: files, directory: %s}\n", folder)
		case a == "rest":
			fmt.Fprintf(&b, "  - {name: rest, servers: [{address: %q, protocol: rest, poll_interval: 100ms, backoff: {base: 50ms, max: 100ms}}]}\n", planes[a])
		default:
			protocol := "delta"
			if strings.Contains(a, "sotw") {
				protocol = "sotw"
			}
			fmt.Fprintf(&b, "  - {name: %s, servers: [{address: %q, protocol: %s, backoff: {base: 50ms, max: 100ms}}]}\n", a, planes[a], protocol)
		}
	}
	b.WriteString("old_style_names:\n")
	for _, a := range secretAuthorities {
		fmt.Fprintf(&b, "  - {when: 'node.cluster == %q', authority: %s, partition: node.id}\n", a, a)
	}
	// A rule that fails for a client with a secret in its Node.
	b.WriteString("  - {when: 'node.cluster == \"none\"', authority: delta, partition: string(int(node.metadata.token))}\n")
	b.WriteString("views:\n  - match: {glob: 'xdstp://views/envoy.config.cluster.v3.Cluster/all/*'}\n    collections:\n")
	b.WriteString("      - xdstp://delta/envoy.config.cluster.v3.ClusterCollection/list\n      - xdstp://delta/envoy.config.cluster.v3.Cluster/*\n")
	return b.String()
}

// secretFiles writes the files of a directory: a good one, and files with all kinds of mistakes.
func secretFiles(t *testing.T, folder string) {
	t.Helper()
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	good := `{"resources": [`
	for i, content := range secretMessages(t, "") {
		if text, err := protojson.Marshal(content); err == nil {
			good += string(text) + ","
		} else if i == "certificate" {
			t.Fatal(err)
		}
	}
	write("good.json", strings.TrimSuffix(good, ",")+"]}")
	const head = "\"@type\": " + secretsType + "\nname: bad\n"
	for i, text := range []string{
		head + "tls_certificate: {private_key: {inline_string: \"" + secretMarker + "}}\n",                                    // an open quote
		head + "tls_certificate:\n  private_key:\n    inline_string: -----BEGIN: KEY-----\n" + secretMarker + "\n",            // no indentation
		head + "tls_certificate:\n  private_key:\n    inline_string: *" + secretMarker + "\n",                                 // an alias
		head + "tls_certificate:\n  private_key:\n    inline_string: !" + secretMarker + " x\n",                               // a tag
		head + "tls_certificate:\n  private_key:\n    inline_string: {" + secretMarker + "}\n",                                // a map
		head + "tls_certificate:\n  private_key:\n    " + secretMarker + ": x\n",                                              // a key
		head + "tls_certificate:\n  private_key: " + secretMarker + "\n",                                                      // a text instead of a map
		head + "tls_certificate:\n  private_key: {inline_bytes: \"" + secretMarker + "!\"}\n",                                 // not base64
		head + "tls_certificate:\n  private_key: {inline_string: a}\n  private_key: {inline_string: " + secretMarker + "}\n",  // a field twice
		head + "generic_secret: {secrets: {" + secretMarker + ": {inline_string: a}, " + secretMarker + ": {filename: a}}}\n", // a key of a map, twice
		head + "tls_certificate:\n\tprivate_key: " + secretMarker + "\n",                                                      // a tab
		"name: bad\ntls_certificate: {private_key: {inline_string: " + secretMarker + "}}\n",                                  // no type
		"\"@type\": type.googleapis.com/envoy.config.cluster.v3.Cluster\nname: bad\nconnect_timeout: " + secretMarker + "\n",
		"\"@type\": type.googleapis.com/envoy.config.cluster.v3.Cluster\nname: bad\ntype: " + secretMarker + "\n",
		"\"@type\": type.googleapis.com/envoy.config.cluster.v3.Cluster\nname: bad\n" + secretMarker + ": 1\n",
		"- " + secretMarker + "\n",
		secretMarker + "\n",
	} {
		write(fmt.Sprintf("bad%02d.yaml", i), text)
	}
	write("bad.json", `{"@type": "`+secretsType+`", "name": "bad", "tls_certificate": {"private_key": {"inline_string": "`+secretMarker)
	write("bad2.json", `{"@type": "`+secretsType+`", "name": "bad", "tls_certificate": `+secretMarker+`}`)
	for i, text := range []string{
		`tls_certificate { private_key { inline_string: ` + secretMarker + ` } }`,
		`tls_certificate { private_key { ` + secretMarker + `: 1 } }`,
		`tls_certificate { private_key { inline_string: "` + secretMarker + ` } }`,
		`tls_certificate { private_key { inline_string: "\q` + secretMarker + `" } }`,
		`tls_certificate { private_key: "` + secretMarker + `" }`,
		`tls_certificate { private_key { inline_string: "a" } } tls_certificate { private_key { inline_string: "` + secretMarker + `" } }`,
		secretMarker,
	} {
		write(fmt.Sprintf("bad%d.textpb", i), "# proto-message: envoy.extensions.transport_sockets.tls.v3.Secret\nname: \"bad\"\n"+text+"\n")
	}
	write("bad.pb", "\x0a\x05\xff"+secretMarker)
}

// rejecter is a client that rejects every response, with an error message that contains a secret.
type rejecter struct {
	conn    *grpc.ClientConn
	cluster string
	names   map[string][]string // by type
}

func (c *rejecter) node(form string) *corev3.Node {
	return &corev3.Node{Id: "rejecter-" + form, Cluster: c.cluster}
}

var wordsOfRejection = &status.Status{Code: int32(codes.InvalidArgument), Message: "Error adding/updating x: Proto constraint validation failed (A.B: [\"value\"]): private_key { inline_string: \"" +
	secretMarker + "\" } and -----BEGIN PRIVATE KEY-----\n" + secretMarker + " and " + secretMarker}

// delta opens a delta stream, and rejects its responses as rejects does.
func (c *rejecter) delta(ctx context.Context, done func()) (received string, err error) {
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(c.conn).DeltaAggregatedResources(ctx)
	if err != nil {
		return "", err
	}
	for typeURL, names := range c.names {
		if err := stream.Send(&discoveryv3.DeltaDiscoveryRequest{Node: c.node("delta"), TypeUrl: typeURL, ResourceNamesSubscribe: names}); err != nil {
			return "", err
		}
	}
	return c.rejects(ctx, done, func() (anyResponse, int, error) {
		resp, err := stream.Recv()
		return resp, len(resp.GetResources()), err
	}, func(resp anyResponse) error {
		return stream.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: resp.GetTypeUrl(), ResponseNonce: resp.GetNonce(), ErrorDetail: wordsOfRejection})
	})
}

// sotw opens a SotW stream, and rejects its responses as rejects does.
func (c *rejecter) sotw(ctx context.Context, done func()) (received string, err error) {
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(c.conn).StreamAggregatedResources(ctx)
	if err != nil {
		return "", err
	}
	for typeURL, names := range c.names {
		if err := stream.Send(&discoveryv3.DiscoveryRequest{Node: c.node("sotw"), TypeUrl: typeURL, ResourceNames: names}); err != nil {
			return "", err
		}
	}
	return c.rejects(ctx, done, func() (anyResponse, int, error) {
		resp, err := stream.Recv()
		return resp, len(resp.GetResources()), err
	}, func(resp anyResponse) error {
		return stream.Send(&discoveryv3.DiscoveryRequest{TypeUrl: resp.GetTypeUrl(), ResourceNames: c.names[resp.GetTypeUrl()], ResponseNonce: resp.GetNonce(), ErrorDetail: wordsOfRejection})
	})
}

// anyResponse is a response in either form.
type anyResponse interface {
	GetTypeUrl() string
	GetNonce() string
}

// rejects answers each response with a NACK until it has rejected resources of each type. Then it calls done, and waits
// until ctx ends. It returns the text of the responses.
func (c *rejecter) rejects(ctx context.Context, done func(), recv func() (_ anyResponse, resources int, _ error), reject func(anyResponse) error) (received string, err error) {
	for rejected := map[string]bool{}; len(rejected) < len(c.names); {
		resp, resources, err := recv()
		if err != nil {
			return received, err
		}
		received += fmt.Sprint(resp)
		rejected[resp.GetTypeUrl()] = rejected[resp.GetTypeUrl()] || resources > 0
		if err := reject(resp); err != nil {
			return received, err
		}
	}
	done()
	<-ctx.Done() // so that /clients shows the client
	return received, nil
}

// pollRejecting sends polls and rejections over REST, and returns the errors in the answers.
func pollRejecting(t *testing.T, address, cluster, typeURL, path string, names []string) (errors string) {
	t.Helper()
	for _, version := range []string{"", "0"} {
		req := &discoveryv3.DiscoveryRequest{Node: &corev3.Node{Id: "poller", Cluster: cluster}, TypeUrl: typeURL, ResourceNames: names, VersionInfo: version}
		if version != "" {
			req.ErrorDetail, req.ResponseNonce = wordsOfRejection, "0"
		}
		body, err := protojson.Marshal(req)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.Post("http://"+address+path, "application/json", bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		if resp.StatusCode != http.StatusOK {
			errors += string(text)
		}
		var answer discoveryv3.DiscoveryResponse
		if protojson.Unmarshal(text, &answer) == nil {
			errors += fmt.Sprint(answer.GetResourceErrors())
		}
	}
	return errors
}

func TestSecretsAreNowhereToBeRead(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	secretFiles(t, folder)
	planes := map[string]string{}
	all := map[string]*secretPlane{}
	for _, a := range secretAuthorities {
		if a != "files" {
			all[a] = startSecretPlane(t, a, strings.HasPrefix(a, "rubbish"))
			planes[a] = all[a].address
		}
	}
	planes["rest"] = all["rest"].serveREST(t)
	config := filepath.Join(t.TempDir(), "relay.yaml")
	if err := os.WriteFile(config, []byte(secretConfig(t, folder, planes)), 0o600); err != nil {
		t.Fatal(err)
	}
	seen := map[string]string{} // all texts, by where they were found
	add := func(where string, texts ...string) {
		seen[where] += strings.Join(texts, "\n")
	}
	stdout, stderr, _ := run(t, "check", "--config", config)
	add("check", stdout, stderr)

	r := runRelay(t, "serve", "--config", config, "--log-level", "debug")
	rest := r.awaitLog(t, `msg="serving clients" address=(\S+) protocol=rest`)
	conn, err := grpc.NewClient(r.address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })

	// Clients that reject every response.
	ctx, leave := context.WithTimeout(t.Context(), patience)
	defer leave()
	byType := map[string][]string{}
	for name, content := range secretMessages(t, "") {
		byType[content.GetTypeUrl()] = append(byType[content.GetTypeUrl()], name)
	}
	type outcome struct{ who, received string }
	outcomes := make(chan outcome)
	clients := 0
	var rejected watched[[]string]
	for _, a := range secretAuthorities {
		names := map[string][]string{}
		for typeURL, old := range byType {
			names[typeURL] = slices.Clone(old)
			if a == "delta" {
				names[typeURL] = append(names[typeURL], "xdstp://delta/"+strings.TrimPrefix(typeURL, "type.googleapis.com/")+"/*")
			}
		}
		if a == "delta" {
			names[secretsType] = append(names[secretsType], "xdstp://delta/envoy.extensions.transport_sockets.tls.v3.Secret/moved")
			names[clusterType] = append(names[clusterType], "xdstp://views/envoy.config.cluster.v3.Cluster/all/*", "xdstp://delta/envoy.config.cluster.v3.ClusterCollection/list", "xdstp://nowhere/envoy.config.cluster.v3.Cluster/x")
		}
		c := &rejecter{conn: conn, cluster: a, names: names}
		for form, f := range map[string]func(context.Context, func()) (string, error){"delta": c.delta, "sotw": c.sotw} {
			clients++
			go func() {
				all, isDone := "", false
				done := func() {
					isDone = true
					rejected.update(func(who *[]string) { *who = append(*who, a+" by "+form) })
				}
				for ctx.Err() == nil && !isDone { // the relay ends streams while it has no resources for them
					received, _ := f(ctx, done)
					all += received
				}
				outcomes <- outcome{a + " by " + form, all}
			}()
		}
	}
	// A client for which a rule fails, polls that reject, and polls with invalid bodies.
	odd := &corev3.Node{Id: "odd", Cluster: "none"}
	if odd.Metadata, err = structpb.NewStruct(map[string]any{"token": secretMarker}); err != nil {
		t.Fatal(err)
	}
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&discoveryv3.DiscoveryRequest{Node: odd, TypeUrl: clusterType, ResourceNames: []string{"a"}}); err != nil {
		t.Fatal(err)
	}
	for cluster, path := range map[string]string{"delta": "/v3/discovery:secrets", "sotw": "/v3/discovery:clusters", "files": "/v3/discovery:listeners", "rest": "/v3/discovery:clusters"} {
		typeURL := map[string]string{"secrets": secretsType, "clusters": clusterType, "listeners": listenerType}[path[len("/v3/discovery:"):]]
		add("answers over REST", pollRejecting(t, rest, cluster, typeURL, path, byType[typeURL]))
	}
	for _, body := range []string{`{"node": {"metadata": {"token": "` + secretMarker, `{"` + secretMarker + `": 1}`, secretMarker} {
		resp, err := http.Post("http://"+rest+"/v3/discovery:clusters", "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close() // the answer may quote the client's own request
	}

	rejected.await(t, "all clients have rejected all types", func(who *[]string) bool { return len(*who) == clients })
	r.stderr.await(t, "the log has the rejections", func(log *bytes.Buffer) bool {
		return bytes.Count(log.Bytes(), []byte(`msg="client rejected a response"`)) >= 2*clients &&
			bytes.Count(log.Bytes(), []byte(`msg="NACK: the response`)) >= 3 && bytes.Contains(log.Bytes(), []byte(`msg="control plane lost"`))
	})
	for _, path := range []string{"/", "/clients", "/authorities", "/metrics", "/healthz", "/readyz"} {
		add("page "+path, fetch(t, "http://"+r.admin+path))
	}

	// The commands get and watch.
	for _, args := range []string{
		"get --type secret", "get --type secret -o json", "get --type cluster", "get --type cluster -o json", "get --type listener", "get --type listener --protocol sotw",
		"get --type secret --protocol sotw certificate tickets generic roots", "get --type cluster --protocol sotw keyed described unheard broken-inside",
		"get xdstp://delta/envoy.extensions.transport_sockets.tls.v3.Secret/moved", "get xdstp://delta/envoy.config.cluster.v3.ClusterCollection/list",
	} {
		words := append(strings.Fields(args), "--server", r.address, "--node-id", "tool", "--node-cluster", "delta", "--timeout", "30s")
		stdout, stderr, _ := run(t, words...)
		add(args, stdout, stderr)
		if !strings.Contains(stdout, "[redacted]") && !strings.Contains(stdout, "hidden") {
			t.Errorf("the output of %s has no redacted secrets:\n%s%s", args, stdout, stderr)
		}
		stdout, _, _ = run(t, append(words, "--show-secrets")...)
		if findMarker(stdout) == "" {
			t.Errorf("the output of %s --show-secrets has no secrets:\n%s", args, stdout)
		}
	}
	stdout, stderr, _ = run(t, "get", "--server", r.address, "--node-id", "tool", "--node-cluster", "rubbish", "--type", "secret", "--timeout", "1s", "undecodable", "no-such")
	add("get of invalid resources", stdout, stderr)
	for _, form := range []string{"yaml", "json"} {
		watching := command("watch", "--server", r.address, "--node-id", "watcher", "--node-cluster", "sotw", "--type", "secret", "-o", form)
		var out output
		watching.Stdout, watching.Stderr, watching.WaitDelay = &out, &out, patience
		if err := watching.Start(); err != nil {
			t.Fatal(err)
		}
		out.await(t, "watch prints the secrets redacted", func(all *bytes.Buffer) bool { return bytes.Count(all.Bytes(), []byte("[redacted]")) >= 4 })
		_ = watching.Process.Signal(os.Interrupt)
		_ = watching.Wait()
		add("watch in "+form, out.String())
	}

	leave()
	for range clients {
		o := <-outcomes
		if findMarker(o.received) == "" {
			t.Errorf("the client of %s received no secret: %.2000s", o.who, o.received)
		}
	}
	for a, p := range all {
		p.errors.read(func(nacks *[]string) { add("NACKs to the control plane "+a, *nacks...) })
	}
	// SIGQUIT makes the relay crash and print its goroutines.
	r.killed = true
	r.end(t, syscall.SIGQUIT)
	add("the log", r.stderr.String())
	add("standard output", r.stdout.String())
	for _, want := range []string{
		"goroutine 1 ", "bad resource file", "NACK: the response has resources that cannot be stored", "client rejected a response", "the client's words are not shown",
		"bad entry in a list collection", "control plane lost", "client's request is not valid", "client's names cannot be served",
	} {
		if !strings.Contains(seen["the log"], want) {
			t.Errorf("the log has no %q, so the test did not cause it", want)
		}
	}
	for where, text := range seen {
		if at := findMarker(text); at != "" {
			t.Errorf("%s contains a secret:\n%s", where, at)
		}
	}
}
