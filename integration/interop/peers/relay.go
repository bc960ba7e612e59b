package peers

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"sigs.k8s.io/yaml"
)

// Config is a configuration of the relay, as the structure of its YAML.
type Config = map[string]any

// ParseConfig returns the configuration of a text.
func ParseConfig(t testing.TB, text string) (config Config) {
	t.Helper()
	if err := yaml.Unmarshal([]byte(text), &config); err != nil {
		t.Fatal(err)
	}
	return config
}

// ConfigFor returns the configuration of a relay in front of a control plane. The relay sends it the Node of each
// client.
func ConfigFor(controlPlane, protocol string) Config {
	return Config{
		"node": Config{"id": "the-relay"},
		"authorities": []any{Config{
			"name": "control-plane",
			"servers": []any{Config{
				"address": controlPlane, "protocol": protocol,
				"backoff": Config{"base": "20ms", "max": "200ms"},
			}},
		}},
		"old_style_names": []any{Config{"authority": "control-plane", "partition": "node.id"}},
	}
}

// Relay is the relay as a subprocess. It keeps its addresses when it is started again.
type Relay struct {
	t       testing.TB
	file    string
	logs    Output // of all its processes
	Address string // for clients
	Admin   string // for the operator
	crashed bool   // the test has killed the process, so it has no exit status 0

	mu      sync.Mutex
	process *Process
}

// StartRelay starts a relay and waits until it serves. The listener and the admin listener get addresses of
// their own, unless the configuration has some.
func StartRelay(t testing.TB, config Config) *Relay {
	t.Helper()
	r := &Relay{t: t, file: filepath.Join(t.TempDir(), "relay.yaml")}
	if config["listeners"] == nil {
		r.Address = Address(t)
		config["listeners"] = []any{Config{"address": r.Address}}
	} else {
		r.Address, _ = config["listeners"].([]any)[0].(Config)["address"].(string)
	}
	r.Admin = Address(t)
	config["admin"] = Config{"address": r.Admin}
	r.Write(config)
	r.logs.Show(t, "the relay")
	t.Cleanup(r.check) // runs after Start's cleanup, which ends the relay
	r.Start()
	return r
}

// Write writes the configuration, which the relay reads when it starts or reloads.
func (r *Relay) Write(config Config) {
	r.t.Helper()
	text, err := yaml.Marshal(config)
	if err != nil {
		r.t.Fatal(err)
	}
	if err := os.WriteFile(r.file, text, 0o600); err != nil {
		r.t.Fatal(err)
	}
}

// File returns the path of the configuration.
func (r *Relay) File() string { return r.file }

// Start starts the relay, which is not running, and waits until it serves.
func (r *Relay) Start() {
	r.t.Helper()
	cmd := exec.Command(Binary(), "serve", "--config", r.file)
	// By default, the race detector delays the exit of a process by a second, to find races at its end. A
	// shorter delay is enough.
	cmd.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=50")
	before := r.logs.Count(serving)
	p := Start(r.t, "the relay", cmd, &r.logs, syscall.SIGTERM)
	r.mu.Lock()
	r.process = p
	r.crashed = false
	r.mu.Unlock()
	Eventually(r.t, "the relay serves", func() error {
		if err := p.Failed(); err != nil {
			r.t.Fatalf("%v; its logs: %s", err, r.logs.Tail())
		}
		if r.logs.Count(serving) == before {
			return os.ErrDeadlineExceeded
		}
		return nil
	})
}

// serving is what the relay logs once its clients can connect.
const serving = `msg="serving clients"`

// Kill ends the relay as a crash would.
func (r *Relay) Kill() {
	r.t.Helper()
	r.mu.Lock()
	r.crashed = true
	p := r.process
	r.mu.Unlock()
	p.End(r.t, syscall.SIGKILL)
}

// AwaitStored waits until the relay has written to its store what its clients have received.
func (r *Relay) AwaitStored() {
	r.t.Helper()
	Eventually(r.t, "the relay's store is written", func() error {
		reply, err := http.Get("http://" + r.Admin + "/metrics")
		if err != nil {
			return err
		}
		defer func() { _ = reply.Body.Close() }()
		text, err := io.ReadAll(reply.Body)
		if err != nil {
			return err
		}
		if !strings.Contains(string(text), "\nxds_relay_store_pending 0\n") || strings.Contains(string(text), "\nxds_relay_store_records_written_total 0\n") {
			return errors.New("records wait to be written")
		}
		return nil
	})
}

// Drain tells the relay to drain, and does not wait for its end.
func (r *Relay) Drain() {
	r.t.Helper()
	if err := r.Process().Signal(syscall.SIGTERM); err != nil {
		r.t.Fatal(err)
	}
}

// Process returns the running process, or the last one.
func (r *Relay) Process() *Process {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.process
}

// Logs returns the logs of all its processes.
func (r *Relay) Logs() *Output { return &r.logs }

// Run runs a command of the relay's CLI for this relay, such as "rollout approve". It returns the standard
// output, and an error if the exit status is not 0.
func (r *Relay) Run(args ...string) (string, error) {
	cmd := exec.Command(Binary(), append(args, "--admin", r.Admin)...)
	out, err := cmd.Output()
	return string(out), err
}

// check fails the test if the relay, which has exited, had errors.
func (r *Relay) check() {
	if r.process == nil {
		return
	}
	if status := r.process.ExitCode(); status != 0 && !r.crashed {
		r.t.Errorf("the relay ended with %v, want status 0", r.process.cmd.ProcessState)
	}
	if strings.Contains(r.logs.String(), "DATA RACE") {
		r.t.Errorf("the relay has a data race:\n%s", r.logs.Tail())
	}
}

// Client is what the admin listener says of a client.
type Client struct {
	Node  string `json:"node"`
	Types []struct {
		Type          string `json:"type"`
		LastRejection string `json:"last_rejection"`
	} `json:"types"`
}

// Clients returns what the admin listener says of the clients.
func (r *Relay) Clients() ([]Client, error) {
	reply, err := http.Get("http://" + r.Admin + "/clients")
	if err != nil {
		return nil, err
	}
	defer func() { _ = reply.Body.Close() }()
	text, err := io.ReadAll(reply.Body)
	if err != nil {
		return nil, err
	}
	var clients []Client
	return clients, json.Unmarshal(text, &clients)
}

// CheckRejections checks that the relay has clients, and that none of them has rejected a response.
func (r *Relay) CheckRejections() {
	r.t.Helper()
	clients, err := r.Clients()
	if err != nil || len(clients) == 0 {
		r.t.Errorf("the relay has %d clients (%v)", len(clients), err)
	}
	for _, c := range clients {
		for _, typ := range c.Types {
			if typ.LastRejection != "" {
				r.t.Errorf("the client %s has rejected a %s: %s", c.Node, typ.Type, typ.LastRejection)
			}
		}
	}
}
