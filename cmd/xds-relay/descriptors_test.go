package main

// Types that no Go package defines: those of Envoy's contrib extensions, and those of descriptor sets.

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/xds-relay/xds-relay/internal/descriptors"
	"github.com/xds-relay/xds-relay/internal/descriptors/descriptorstest"
)

// listenerWith returns a Listener in YAML whose HTTP filter has a configuration.
func listenerWith(filter string) string {
	return `"@type": type.googleapis.com/envoy.config.listener.v3.Listener
name: shop
address: {socket_address: {address: 127.0.0.1, port_value: 80}}
filter_chains:
- filters:
  - name: http
    typed_config:
      "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
      stat_prefix: shop
      route_config: {virtual_hosts: [{name: all, domains: ["*"], routes: [{match: {prefix: /}, direct_response: {status: 200}}]}]}
      http_filters:
      - name: mine
        typed_config:
` + indented(filter) + `
      - {name: router, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}
`
}

func indented(text string) string {
	return "          " + strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n          ")
}

const golangFilter = `"@type": type.googleapis.com/envoy.extensions.filters.http.golang.v3alpha.Config
library_id: auth
library_path: /lib/auth.so
plugin_name: auth
merge_policy: override
`

const widgetFilter = `"@type": ` + descriptorstest.WidgetURL + `
name: gear
api_token: do-not-show
parts: {name: cog}
`

func TestLintReadsTypesOfDescriptors(t *testing.T) {
	set := descriptorstest.Write(t, descriptorstest.Widget)
	t.Cleanup(func() { descriptors.Use(nil) })
	inFolder(t, map[string]string{
		"golang.yaml":      listenerWith(golangFilter),
		"golang-typo.yaml": listenerWith(golangFilter + "plugin_nam: x"),
		"golang-bad.yaml":  listenerWith(strings.Replace(golangFilter, "plugin_name: auth", "plugin_name: [auth]", 1)),
		"widget.yaml":      listenerWith(widgetFilter),
		"widget-typo.yaml": listenerWith(widgetFilter + "partz: {}"),
		"set.txt":          "no set",
	})
	const at = "filter_chains[0].filters[0].typed_config.http_filters[0].typed_config"
	for _, test := range []struct {
		args   string
		status int
		want   string // on standard output
	}{
		{"golang.yaml --strict", 0, ""},
		{"golang-typo.yaml", 0, "golang-typo.yaml:19: warning: known-fields: Config has no such field, at " + at + ".plugin_nam (Envoy"},
		{"golang-bad.yaml", 1, "golang-bad.yaml:17: error: readable-file: invalid value for string field pluginName"},
		{"widget.yaml", 1, `widget.yaml:14: error: readable-file: type "type.googleapis.com/acme.v1.Widget" is not known (add a descriptor set`},
		{"widget.yaml --strict --descriptor-set " + set, 0, ""},
		{"widget-typo.yaml --descriptor-set " + set, 0, "widget-typo.yaml:18: warning: known-fields: Widget has no such field, at " + at + ".partz (Envoy"},
		{"widget.yaml --descriptor-set set.txt", 2, ""},
	} {
		t.Run(test.args, func(t *testing.T) {
			descriptors.Use(nil)
			stdout, stderr, status := runCommand(t, append([]string{"lint", "--for", "envoy"}, strings.Fields(test.args)...)...)
			if status != test.status || !strings.Contains(stdout, test.want) || test.want == "" && stdout != "" {
				t.Errorf("status %d, want %d\n%s\nwant\n%s\n%s", status, test.status, stdout, test.want, stderr)
			}
			if test.status == 2 && !strings.Contains(stderr, "set.txt: no FileDescriptorSet") {
				t.Errorf("standard error: %s", stderr)
			}
		})
	}
}

// get prints, and REST writes, what gRPC passes on as bytes.
func TestTypesOfDescriptorsArePrintedAndServedOverREST(t *testing.T) {
	inFolder(t, map[string]string{
		"relay.yaml": `listeners: [{address: '127.0.0.1:0'}, {address: 'unix:rest.sock', protocol: rest}]
authorities: [{name: files, directory: resources}]
old_style_names: [{authority: files}]
admin: {address: '127.0.0.1:0'}
`,
		"resources/shop.yaml": listenerWith(golangFilter),
	})
	set := descriptorstest.Write(t, descriptorstest.Widget)
	t.Cleanup(func() { descriptors.Use(nil) })
	r := startReloading(t, "relay.yaml")
	stdout, stderr, _ := runCommand(t, "get", "--server", r.server, "--type", "listener", "shop")
	for _, want := range []string{"library_path: /lib/auth.so", "merge_policy: OVERRIDE"} {
		if !strings.Contains(stdout, want) {
			t.Errorf("no %q in\n%s\n%s", want, stdout, stderr)
		}
	}
	if body, status := discover(t, ""); status != http.StatusOK || !strings.Contains(body, "libraryPath") {
		t.Errorf("over REST: %d %s", status, body)
	}

	// A file with a type that is not known yet keeps its last good state, until a reload brings the type.
	config, err := os.ReadFile("relay.yaml")
	if err != nil {
		t.Fatal(err)
	}
	writeConfig(t, "resources/shop.yaml", listenerWith(widgetFilter))
	r.await(`acme\.v1\.Widget`)
	for _, bad := range []struct{ set, want string }{
		{"resources/shop.yaml", `relay.yaml:5:1: descriptors: resources/shop.yaml: no FileDescriptorSet`},
		{"missing.binpb", `relay.yaml:5:1: descriptors: open missing.binpb: no such file or directory`},
	} {
		writeConfig(t, "relay.yaml", fmt.Sprintf("%sdescriptors: [%s]\n", config, bad.set))
		if body, status := r.post("/reload"); status != http.StatusUnprocessableEntity || !strings.Contains(body, bad.want) {
			t.Errorf("status %d, answer %q, want %q", status, body, bad.want)
		}
	}
	// The same holds if the set is good, and something else is wrong that shows late.
	writeConfig(t, "relay.yaml", strings.Replace(string(config), "{address: '127.0.0.1:0'}, ", "{address: '127.0.0.1:0'}, {address: '192.0.2.1:80'}, ", 1)+"descriptors: ["+set+"]\n")
	if body, status := r.post("/reload"); status != http.StatusUnprocessableEntity || !strings.Contains(body, "192.0.2.1") {
		t.Errorf("status %d, answer %q", status, body)
	}
	if descriptors.Newest() != nil {
		t.Error("the types of a configuration that was refused are known")
	}
	before, status := discover(t, "")
	if status != http.StatusOK || !strings.Contains(before, "libraryPath") {
		t.Errorf("after reloads that were refused: %d %s", status, before)
	}
	writeConfig(t, "relay.yaml", fmt.Sprintf("%sdescriptors: [%s]\n", config, set))
	if body, status := r.post("/reload"); status != http.StatusOK {
		t.Fatalf("status %d, answer %q", status, body)
	}
	for version := before; !strings.Contains(version, "apiToken"); { // it may be the last good state, from the new source
		if body, status := discover(t, versionIn(t, version)); status == http.StatusOK {
			version = body
		}
	}
	stdout, stderr, _ = runCommand(t, "get", "--server", r.server, "--type", "listener", "shop")
	if !strings.Contains(stdout, "name: cog") || !strings.Contains(stdout, "[redacted]") || strings.Contains(stdout, "do-not-show") {
		t.Errorf("got\n%s\n%s", stdout, stderr)
	}

	// Without the set, the Listener has no form in JSON any more. A poll would lack it: the client keeps what it has.
	writeConfig(t, "relay.yaml", string(config))
	if body, status := r.post("/reload"); status != http.StatusOK {
		t.Fatalf("status %d, answer %q", status, body)
	}
	body, status := discover(t, "")
	if status != http.StatusServiceUnavailable || !strings.Contains(body, `lack \"shop\"`) || !strings.Contains(body, "acme.v1.Widget") {
		t.Errorf("without the set: %d %s", status, body)
	}
	r.await(`level=WARN msg="a client over REST gets no update, because a resource has no JSON form" .*name=shop`)
}

// discover polls a REST listener for all Listeners. With a version, it waits for another one.
func discover(t *testing.T, version string) (body string, status int) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", "rest.sock")
		},
	}}
	request := fmt.Sprintf(`{"node": {"id": "test"}, "version_info": %q}`, version)
	answer, err := client.Post("http://localhost/v3/discovery:listeners", "application/json", strings.NewReader(request))
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text), answer.StatusCode
}

func versionIn(t *testing.T, body string) string {
	t.Helper()
	var answer struct{ VersionInfo string }
	if err := json.Unmarshal([]byte(body), &answer); err != nil {
		t.Fatalf("%v in %s", err, body)
	}
	return answer.VersionInfo
}
