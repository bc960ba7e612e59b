package envoy

// Envoy as a subprocess, and what its admin interface says.

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/xds-relay/xds-relay/integration/interop/peers"
)

// nodeID is the Node's id of every Envoy.
const nodeID = "envoy-1"

// object is a JSON object.
type object = map[string]any

// envoy is an Envoy that can be ended and started again with the same bootstrap.
type envoy struct {
	t       testing.TB
	binary  string
	config  string // the path of the bootstrap
	logs    peers.Output
	process *peers.Process
	admin   string
	client  *http.Client
}

// newEnvoy returns an Envoy with a bootstrap, to which it adds the admin interface. It does not run yet.
func newEnvoy(t testing.TB, bootstrap object) *envoy {
	t.Helper()
	bootstrap["admin"] = object{"address": object{"socket_address": object{"address": "127.0.0.1", "port_value": 0}}}
	text, err := yaml.Marshal(bootstrap)
	if err != nil {
		t.Fatal(err)
	}
	e := &envoy{t: t, binary: requireEnvoy(t), config: filepath.Join(t.TempDir(), "envoy.yaml"), client: &http.Client{Timeout: peers.Patience}}
	if err := os.WriteFile(e.config, text, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.client.CloseIdleConnections)
	e.logs.Show(t, "Envoy")
	return e
}

// start starts Envoy, and waits for its admin interface.
func (e *envoy) start() {
	e.t.Helper()
	file := filepath.Join(e.t.TempDir(), "admin")
	e.process = peers.Start(e.t, "Envoy", exec.Command(e.binary,
		"--config-path", e.config, "--disable-hot-restart", "--concurrency", "1", "--log-level", "warning",
		"--drain-time-s", "1", "--parent-shutdown-time-s", "2", "--admin-address-path", file), &e.logs, syscall.SIGKILL)
	peers.Eventually(e.t, "Envoy has an admin interface", func() error {
		if err := e.process.Failed(); err != nil {
			e.t.Fatalf("%v; its logs: %s", err, e.logs.Tail())
		}
		address, err := os.ReadFile(file)
		if err == nil && len(address) == 0 {
			err = fmt.Errorf("%s is empty", file)
		}
		e.admin = string(address)
		return err
	})
}

// kill ends Envoy as a crash would.
func (e *envoy) kill() {
	e.t.Helper()
	e.process.End(e.t, syscall.SIGKILL)
}

// get returns a page of the admin interface.
func (e *envoy) get(path string) ([]byte, error) {
	reply, err := e.client.Get("http://" + e.admin + path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = reply.Body.Close() }()
	text, err := io.ReadAll(reply.Body)
	if err == nil && reply.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %s", path, reply.Status, text)
	}
	return text, err
}

// page returns a page of the admin interface that is JSON.
func (e *envoy) page(path string) (object, error) {
	text, err := e.get(path)
	if err != nil {
		return nil, err
	}
	var page object
	return page, json.Unmarshal(text, &page)
}

// stats returns the counters and gauges whose names match a regular expression.
func (e *envoy) stats(pattern string) (map[string]float64, error) {
	page, err := e.page("/stats?format=json&filter=" + url.QueryEscape(pattern))
	if err != nil {
		return nil, err
	}
	values := map[string]float64{}
	stats, _ := page["stats"].([]any)
	for _, s := range stats {
		one, _ := s.(object)
		name, _ := one["name"].(string)
		if value, ok := one["value"].(float64); ok {
			values[name] = value
		}
	}
	return values, nil
}

// stat returns the sum of the counters and gauges whose names match a regular expression.
func (e *envoy) stat(pattern string) (sum float64, err error) {
	values, err := e.stats(pattern)
	for _, v := range values {
		sum += v
	}
	return sum, err
}

// updated returns when Envoy last accepted an update of any type: the newest of its update_time gauges. Before
// the first update it is the zero time.
func (e *envoy) updated() (newest time.Time, err error) {
	values, err := e.stats(`\.update_time$`)
	for _, ms := range values {
		if at := time.UnixMilli(int64(ms)); ms > 0 && at.After(newest) {
			newest = at
		}
	}
	return newest, err
}

// live returns an error unless Envoy has initialized.
func (e *envoy) live() error {
	page, err := e.page("/server_info")
	if err != nil {
		return err
	}
	if page["state"] != "LIVE" {
		return fmt.Errorf("Envoy is %v", page["state"])
	}
	return nil
}

// generator sends requests through Envoy, all the time.
type generator struct {
	done  chan struct{} // closed to stop it
	ended chan struct{} // closed when no request is open any more
	once  sync.Once

	mu     sync.Mutex
	sent   int
	failed map[string]int // by reason
}

// requestsPerSecond is how many requests a generator sends.
const requestsPerSecond = 200

// generate begins to send requests to an address of an Envoy. Each has a connection of its own.
func generate(t testing.TB, client *http.Client, target string) *generator {
	t.Helper()
	return generateSome(t, client, target, requestsPerSecond)
}

// generateSome is generate with another number of requests a second.
func generateSome(t testing.TB, client *http.Client, target string, perSecond time.Duration) *generator {
	t.Helper()
	g := &generator{done: make(chan struct{}), ended: make(chan struct{}), failed: map[string]int{}}
	go func() {
		defer close(g.ended)
		var open sync.WaitGroup
		defer open.Wait()
		ticker := time.NewTicker(time.Second / perSecond)
		defer ticker.Stop()
		for {
			select {
			case <-g.done:
				return
			case <-ticker.C:
			}
			open.Go(func() { g.record(visit(client, target)) })
		}
	}()
	t.Cleanup(func() { g.end() })
	return g
}

func (g *generator) record(_ string, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.sent++
	if err != nil {
		reason := err.Error()
		if i := strings.LastIndex(reason, ": "); i >= 0 {
			reason = reason[i+2:]
		}
		g.failed[reason]++
	}
}

// end stops the generator, and returns how many of its requests failed, by reason.
func (g *generator) end() (sent int, failed map[string]int) {
	g.once.Do(func() { close(g.done) })
	<-g.ended
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.sent, g.failed
}

// visit sends a request, and returns the id of the backend that answered.
func visit(client *http.Client, target string) (string, error) {
	reply, err := client.Get(target)
	if err != nil {
		return "", err
	}
	defer func() { _ = reply.Body.Close() }()
	text, err := io.ReadAll(reply.Body)
	if err == nil && reply.StatusCode != http.StatusOK {
		err = fmt.Errorf("status: %s", reply.Status)
	}
	return string(text), err
}
