package main

import (
	"encoding/json"
	"maps"
	"os"
	"strings"
	"testing"
)

const viewsYAML = `listeners:
  - address: 127.0.0.1:0
authorities:
  - name: cloud.example.com
    directory: cloud
  - name: onprem
    directory: onprem
old_style_names:
  - authority: onprem
views:
  - match: {type: listener, wildcard: true}
    when: node.cluster == "edge"
    collections:
      - xdstp://cloud.example.com/envoy.config.listener.v3.ListenerCollection/edge
      - xdstp://onprem/envoy.config.listener.v3.Listener/edge/*
  - match: {glob: "xdstp://fleet/envoy.config.listener.v3.Listener/all/*"}
    collections:
      - xdstp://onprem/envoy.config.listener.v3.Listener/edge/*
    rename: true
`

const edgeCollection = `"@type": type.googleapis.com/envoy.service.discovery.v3.Resource
name: xdstp://cloud.example.com/envoy.config.listener.v3.ListenerCollection/edge
resource:
  "@type": type.googleapis.com/envoy.config.listener.v3.ListenerCollection
  entries:
    - locator: {authority: onprem, resourceType: envoy.config.listener.v3.Listener, id: shared/admin}
    - inlineEntry:
        name: health
        version: "7"
        resource:
          "@type": type.googleapis.com/envoy.config.listener.v3.Listener
          name: health
`

func listenerYAML(name, stat string) string {
	return "\"@type\": type.googleapis.com/envoy.config.listener.v3.Listener\nname: " + name + "\nstatPrefix: " + stat + "\n"
}

// state is what a client that watches has come to know: each resource's name inside,
// and its stat_prefix.
type state map[string]string

// follow reads the watch until the client knows what is wanted.
func (s state) follow(t *testing.T, w watched, want state) {
	t.Helper()
	for !maps.Equal(s, want) {
		var change struct {
			Change, Name string
			Resource     *struct {
				Resource struct {
					Name       string
					StatPrefix string `json:"stat_prefix"`
				}
			}
		}
		line := w.line()
		if err := json.Unmarshal([]byte(line), &change); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		switch {
		case change.Change == "removed":
			delete(s, change.Name)
		case change.Resource == nil || change.Resource.Resource.Name != change.Name:
			t.Fatalf("not named %s inside: %s", change.Name, line)
		default:
			s[change.Name] = change.Resource.Resource.StatPrefix
		}
		t.Logf("%s %s: %v, want %v", change.Change, change.Name, s, want)
	}
}

// A client that has never heard of collections requests all listeners, and gets the
// union of a list collection and a glob of two authorities, live.
func TestAWildcardClientGetsAView(t *testing.T) {
	const edge = "xdstp://onprem/envoy.config.listener.v3.Listener/edge/"
	const admin = "xdstp://onprem/envoy.config.listener.v3.Listener/shared/admin"
	for _, protocol := range []string{"delta", "sotw"} {
		t.Run(protocol, func(t *testing.T) {
			inFolder(t, map[string]string{
				"relay.yaml": viewsYAML, "cloud/edge.yaml": edgeCollection,
				"onprem/admin.yaml": listenerYAML(admin, "admin"),
				"onprem/http.yaml":  listenerYAML(edge+"http", "http"),
				"onprem/plain.yaml": listenerYAML("plain", "old-style"),
			})
			server, stop := startServe(t, "relay.yaml")
			watch := func(cluster string, names ...string) watched {
				return startWatch(t, append([]string{"--server", server, "--type", "listener", "--node-cluster", cluster, "--protocol", protocol, "-o", "json"}, names...)...)
			}
			inView, without, glob := watch("edge"), watch("mesh"), watch("mesh", "xdstp://fleet/envoy.config.listener.v3.Listener/all/*")
			knows, others, members := state{}, state{}, state{}
			const fleet = "xdstp://fleet/envoy.config.listener.v3.Listener/all/"
			knows.follow(t, inView, state{admin: "admin", "health": "", edge + "http": "http"})
			others.follow(t, without, state{"plain": "old-style"})
			members.follow(t, glob, state{fleet + "http": "http"})

			for name, text := range map[string]string{
				"onprem/https.yaml": listenerYAML(edge+"https", "https"),
				"onprem/admin.yaml": listenerYAML(admin, "changed"),
				"cloud/edge.yaml":   edgeCollection[:strings.Index(edgeCollection, "    - inlineEntry")],
			} {
				if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			knows.follow(t, inView, state{admin: "changed", edge + "http": "http", edge + "https": "https"})
			members.follow(t, glob, state{fleet + "http": "http", fleet + "https": "https"})
			if err := os.Remove("onprem/http.yaml"); err != nil {
				t.Fatal(err)
			}
			knows.follow(t, inView, state{admin: "changed", edge + "https": "https"})
			members.follow(t, glob, state{fleet + "https": "https"})
			for _, w := range []watched{inView, without, glob} {
				_, _ = w.stop()
			}
			if log, status := stop(); status != 0 {
				t.Errorf("status %d\n%s", status, log)
			}
		})
	}
}
