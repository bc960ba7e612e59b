package relay

import (
	"fmt"
	"log/slog"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/cockroachdb/datadriven"
)

// viewsConfig has a view for the wildcard of each type: a glob of two authorities.
func viewsConfig(protocol, store string) string {
	var b strings.Builder
	fmt.Fprintf(&b, `
listeners: [{address: "127.0.0.1:18000"}]
node: {id: relay}
authorities:
  - {name: a, servers: [{address: "a:1", protocol: %[1]s}]}
  - {name: b, servers: [{address: "b:1", protocol: %[1]s}]}
old_style_names: [{authority: a}]
`, protocol)
	if store != "" {
		fmt.Fprintf(&b, "store: {path: %q, wait: 0s}\n", store)
	}
	b.WriteString("views:\n")
	for _, typ := range []string{"CDS", "RDS", "LDS", "NEW"} {
		url := crossingTypes[typ].url
		fmt.Fprintf(&b, "  - match: {type: %s%s, wildcard: true}\n    collections: [%q, %q]\n", crossingPrefix, url, "xdstp://a/"+url+"/g/*", "xdstp://b/"+url+"/g/*")
	}
	return b.String()
}

// TestViews plays the transcripts in testdata/views: crossings with two control planes, of the authorities a and b, and
// with views of a glob of each. A member of the glob of a is written as a/NAME. The directives are those of
// TestCrossings, with "of=b" for the control plane of b, and
//
//	restart [empty]
//	  The relay is started again, with its store. With empty, it has none.
func TestViews(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	for _, upstream := range []string{"delta", "sotw"} {
		datadriven.Walk(t, filepath.Join("testdata", "views", upstream), func(t *testing.T, path string) {
			dir := t.TempDir()
			synctest.Test(t, func(t *testing.T) {
				w := newViewsWorld(t, upstream, filepath.Join(dir, "store"))
				defer w.close()
				datadriven.RunTest(t, path, w.play)
			})
		})
	}
}

// viewsWorld is a crossing with two control planes.
type viewsWorld struct {
	crossing
	t        *testing.T
	upstream string
	store    string
	planes   map[string]*scriptedPlane
}

func newViewsWorld(t *testing.T, upstream, store string) *viewsWorld {
	t.Helper()
	w := &viewsWorld{t: t, upstream: upstream, store: store, planes: map[string]*scriptedPlane{}}
	for _, name := range []string{"a", "b"} {
		w.planes[name] = newScriptedPlane(upstream)
	}
	w.crossing = crossing{form: "delta", clients: map[string]*scriptedClient{}, held: map[string]map[string]string{}}
	w.start()
	return w
}

func (w *viewsWorld) start() {
	w.serving = startInMemoryWith(w.t, viewsConfig(w.upstream, w.store), Options{Log: slog.New(slog.DiscardHandler)}, func(authority string) dialer { return w.planes[authority].dial })
}

func (w *viewsWorld) close() {
	for _, client := range w.clients {
		client.close()
	}
	w.serving.close()
	for _, p := range w.planes {
		p.down()
	}
}

var (
	viewMember  = regexp.MustCompile(`(^|[\s=[])([ab])/([\w*]+)`)
	viewMembers = regexp.MustCompile(`xdstp://([ab])/[\w.]+/g/`)
)

func (w *viewsWorld) play(t *testing.T, d *datadriven.TestData) string {
	t.Helper()
	w.plane = w.planes["a"]
	var of string
	if d.MaybeScanArgs(t, "of", &of); of != "" {
		w.plane = w.planes[of]
	}
	switch d.Cmd {
	case "restart":
		for name, client := range w.clients {
			client.close()
			delete(w.clients, name)
		}
		w.serving.close()
		synctest.Wait()
		w.heardAll()
		if d.HasArg("empty") {
			w.store = ""
		}
		w.start()
		return ""
	case "respond", "request":
		typ := d.CmdArgs[min(1, len(d.CmdArgs)-1)].Key
		if d.Cmd == "respond" {
			typ = d.CmdArgs[0].Key
		}
		d.Input = viewMember.ReplaceAllString(d.Input, "${1}xdstp://$2/"+crossingTypes[strings.ToUpper(typ)].url+"/g/$3")
	}
	w.do(t, d)
	return strings.Join(w.heardAll(), "\n")
}

// heardAll is heard for both control planes. Their ACKs are not shown.
func (w *viewsWorld) heardAll() (out []string) {
	w.plane = w.planes["a"]
	for _, name := range []string{"a", "b"} {
		for _, line := range w.planes[name].take() {
			out = append(out, strings.Replace(line, "control plane", "control plane "+name, 1))
		}
	}
	for _, name := range slices.Sorted(func(yield func(string) bool) {
		for name := range w.clients {
			if !yield(name) {
				return
			}
		}
	}) {
		out = append(out, w.clients[name].take()...)
	}
	out = slices.DeleteFunc(out, func(line string) bool { return strings.Contains(line, " ACK ") || strings.Contains(line, "nonce=A") })
	for i := range out {
		out[i] = viewMembers.ReplaceAllString(out[i], "$1/")
	}
	return out
}
