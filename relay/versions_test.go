package relay

import (
	"context"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/datadriven"
)

// A version names one content. A client that was away while another server, or the same one after a restart, gave the
// version that the client has to another content is sent that when it comes back. Who states the version of the new
// content is sent nothing.
func TestAVersionNamesOneContent(t *testing.T) {
	for _, tt := range []struct {
		name string
		typ  string
		ask  []string // what the client requests
		// change has the client's version stand for another content.
		change func(t *testing.T, v *versionsTest)
	}{
		{"a name, the same server", "rds", []string{"x"}, func(t *testing.T, v *versionsTest) { v.says(t, "first:1", "x@1=two") }},
		{"a name, the same server, removed meanwhile", "rds", []string{"x"}, func(t *testing.T, v *versionsTest) {
			v.says(t, "first:1", "removed x")
			v.says(t, "first:1", "x@1=two")
		}},
		{"a name, another server", "rds", []string{"x"}, func(t *testing.T, v *versionsTest) {
			v.says(t, "first:1", "x@2=between")
			v.failOver(t)
			v.says(t, "second:1", "missing@1=there\nx@1=two")
		}},
		{"a wildcard, the same server", "cds", []string{"*"}, func(t *testing.T, v *versionsTest) { v.says(t, "first:1", "x@1=two") }},
		{"a wildcard, another server", "cds", []string{"*"}, func(t *testing.T, v *versionsTest) {
			v.says(t, "first:1", "x@2=between")
			v.failOver(t)
			v.says(t, "second:1", "x@1=two\nmissing@1=there")
		}},
		{"a glob, the same server", "cds", []string{"xdstp://fleet/envoy.config.cluster.v3.Cluster/*"}, func(t *testing.T, v *versionsTest) {
			v.says(t, "first:1", "x@1=two")
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				v := startVersions(t, tt.typ, tt.ask)
				defer v.close()
				v.says(t, "first:1", "x@1=one")
				stays := v.delta(t, "stays", "")
				if got := received(stays, 0); !strings.Contains(got, "@1=one") {
					t.Fatalf("the client receives %q", got)
				}
				tt.change(t, v)
				if got := received(stays, 15*time.Second); !strings.Contains(got, "=two") {
					t.Fatalf("the client that stays receives %q", got)
				}
				back := v.delta(t, "back", v.full("x")+"@1")
				if got := received(back, 15*time.Second); !strings.Contains(got, "=two") {
					t.Errorf("the client that comes back receives %q", got)
				}
				has := back.held[typeURLOf(t, tt.typ)+" "+v.full("x")]
				if has == "1" || has == "" {
					t.Errorf("clients see version %q", has)
				}
				again := v.delta(t, "again", v.full("x")+"@"+has)
				if got := received(again, 15*time.Second); strings.Contains(got, "=two") {
					t.Errorf("a client with version %q receives %q", has, got)
				}
			})
		})
	}
}

// The same holds for version_info of a wildcard, by which clients in SotW resume.
func TestAVersionInfoNamesOneState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := startVersions(t, "cds", []string{"*"})
		defer v.close()
		first, second := v.planes["first:1"], v.planes["second:1"]
		first.respond(t, "cds", "1", "", first.all(), "x@a=one")
		first.respond(t, "cds", "2", "", first.all(), "x@b=between")
		synctest.Wait()
		v.failOver(t)
		second.respond(t, "cds", "1", "", second.all(), "x@c=two\nmissing@c=there")
		back := v.client("relay", "sotw", "back")
		back.request(t, &datadriven.TestData{CmdArgs: []datadriven.CmdArg{{Key: "back"}, {Key: "cds"}}, Input: "names *\nversion 1"})
		got := received(back, 15*time.Second)
		if !strings.Contains(got, "=two") {
			t.Errorf("the client that comes back receives %q", got)
		}
		back.mu.Lock()
		has := back.types[typeURLOf(t, "cds")].version
		back.mu.Unlock()
		again := v.client("relay", "sotw", "again")
		again.request(t, &datadriven.TestData{CmdArgs: []datadriven.CmdArg{{Key: "again"}, {Key: "cds"}}, Input: "names *\nversion " + has})
		if got := received(again, 15*time.Second); has == "1" || got != "" {
			t.Errorf("a client with version %q receives %q", has, got)
		}
	})
}

// versionsTest is a relay with two servers for one authority.
type versionsTest struct {
	*relayNet
	planes map[string]*scriptedPlane
	typ    string
	ask    []string
	begun  *scriptedClient
}

func startVersions(t *testing.T, typ string, ask []string) *versionsTest {
	t.Helper()
	v := &versionsTest{typ: typ, ask: ask, planes: map[string]*scriptedPlane{"first:1": newScriptedPlane("delta"), "second:1": newScriptedPlane("delta")}}
	v.relayNet = &relayNet{t: t, plane: v.planes["first:1"], relays: map[string]*servedRelay{"relay": startInMemory(t, `
listeners: [{address: "127.0.0.1:18000"}]
authorities:
  - name: fleet
    guard: off
    servers:
      - {address: "first:1", protocol: delta, backoff: {base: 1s, max: 1s}}
      - {address: "second:1", protocol: delta}
old_style_names: [{authority: fleet}]
`, func(string) dialer {
		return func(ctx context.Context, address string) (net.Conn, error) {
			return v.planes[address].dial(ctx, address)
		}
	})}}
	v.begun = v.delta(t, "begun", "")
	return v
}

// full returns the name of a resource as clients request it.
func (v *versionsTest) full(name string) string {
	if glob, ok := strings.CutSuffix(v.ask[0], "/*"); ok {
		return glob + "/" + name
	}
	return name
}

// delta connects a client that states versions.
func (v *versionsTest) delta(t *testing.T, name, initial string) *scriptedClient {
	t.Helper()
	c := v.client("relay", "delta", name)
	lines := "subscribe " + strings.Join(v.ask, " ")
	if initial != "" {
		lines += "\ninitial " + initial
	}
	c.request(t, &datadriven.TestData{CmdArgs: []datadriven.CmdArg{{Key: name}, {Key: v.typ}}, Input: lines})
	synctest.Wait()
	return c
}

// says has a server send resources.
func (v *versionsTest) says(t *testing.T, server, lines string) {
	t.Helper()
	for _, name := range []string{"x", "missing"} {
		lines = strings.ReplaceAll(strings.ReplaceAll(lines, "removed "+name, "removed "+v.full(name)), name+"@", v.full(name)+"@")
	}
	v.planes[server].respond(t, v.typ, "", "", v.planes[server].all(), lines)
	synctest.Wait()
}

// failOver ends the first server, and has a client request what only the second one can give.
func (v *versionsTest) failOver(t *testing.T) {
	t.Helper()
	v.planes["first:1"].down()
	v.askFor(v.client("relay", "delta", "wants"), v.typ, v.full("missing"))
	time.Sleep(20 * time.Second)
	synctest.Wait()
}

func (v *versionsTest) close() {
	v.planes["second:1"].down()
	v.relayNet.close()
}
