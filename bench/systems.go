package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// The systems.

const (
	systemFloor    = "floor"
	systemRelay    = "xds-relay"
	systemLinear   = "go-control-plane linear"
	systemSnapshot = "go-control-plane snapshot"
	systemDirect   = "origin alone"
	systemHop      = "bare gRPC hop"
)

// system is a running server for clients.
type system struct {
	name   string
	server *child // its cost is measured
	source *child // where updates are made: the server, or the origin behind it
	// between are relays between the server and the source.
	between []*child
}

func (s *system) stop() {
	if s.source != s.server {
		s.source.stop()
	}
	for _, c := range s.between {
		c.stop()
	}
	s.server.stop()
}

// start starts a system for the scenario. env are additional environment variables of its
// relays.
func (b *bench) start(name string, spec *Spec, env ...string) *system {
	roles := map[string]string{systemFloor: "floor", systemLinear: "linear", systemSnapshot: "snapshot"}
	if spec.Polls {
		roles[systemFloor] = "poll floor"
	}
	if role, ok := roles[name]; ok {
		c := b.role(name, role, spec)
		return &system{name: name, server: c, source: c}
	}
	origin := b.role("origin", "origin", spec)
	sys := &system{name: name, server: origin, source: origin}
	for range max(1, spec.Tiers) {
		c := b.relay(spec, sys.server.address, env...)
		if sys.server != origin {
			sys.between = append(sys.between, sys.server)
		}
		sys.server = c
	}
	return sys
}

const relayConfig = `
listeners: [{address: "%s"%s}]
%snode: {id: "bench %s"}
old_style_names: [{authority: bench}]
%s`

// reconnects returns configuration for clients that reconnect soon after they came: otherwise their address would be slowed
// down.
func reconnects(spec *Spec) string {
	if spec.Polls {
		return ""
	}
	return ", limits: {connections_per_second: 1000000}"
}

// startRelay starts a relay between clients and an origin.
func startRelay(binary string, spec *Spec, origin string, env ...string) (*child, error) {
	authorities, err := spec.authorities(origin)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "xds-relay-bench")
	if err != nil {
		return nil, err
	}
	admin := fmt.Sprintf("admin: {address: %q}\n", anyPort)
	if spec.Unseen {
		admin = ""
	}
	if spec.Store != "" {
		more, err := storeIn(spec.Store)
		if err != nil {
			return nil, err
		}
		authorities += more
	}
	config := filepath.Join(dir, "relay.yaml")
	if err := os.WriteFile(config, fmt.Appendf(nil, relayConfig, anyPort, spec.protocol()+spec.relayTLS()+reconnects(spec), admin, filepath.Base(dir), authorities), 0o600); err != nil {
		return nil, err
	}
	c := &child{name: systemRelay, cmd: exec.Command(binary, "serve", "--config", config), files: []string{dir}}
	c.cmd.Env = slices.Concat(os.Environ(), env, spec.Env)
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	c.cmd.Stdout, c.cmd.Stderr = log, log
	if err := c.cmd.Start(); err != nil {
		return nil, err
	}
	ended := make(chan struct{})
	c.ended = ended
	go func() {
		_ = c.cmd.Wait() // the log has the reason
		close(ended)
	}()
	if err := c.serves(log.Name(), !spec.Unseen, 10*time.Second); err != nil {
		text, _ := os.ReadFile(log.Name())
		c.stop()
		return nil, fmt.Errorf("%w; its last words:\n%s", err, lastLines(string(text), 8))
	}
	return c, nil
}

// anyPort is an address of which the system chooses the port.
const anyPort = "127.0.0.1:0"

var (
	servesClients  = regexp.MustCompile(`msg="serving clients" address=(\S+)`)
	servesOperator = regexp.MustCompile(`msg="serving the operator" address=(\S+)`)
)

// serves waits until a relay's log says on which addresses it serves.
func (c *child) serves(log string, operator bool, patience time.Duration) error {
	deadline := time.After(patience)
	for {
		text, err := os.ReadFile(log)
		if err != nil {
			return err
		}
		c.address, c.operator = found(servesClients, text), found(servesOperator, text)
		if c.address != "" && (c.operator != "" || !operator) {
			return nil
		}
		select {
		case <-c.ended:
			return fmt.Errorf("the relay ends as it starts (%s)", strings.Join(c.cmd.Args[1:], " "))
		case <-deadline:
			return errors.New("the relay does not serve")
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func found(address *regexp.Regexp, in []byte) string {
	if m := address.FindSubmatch(in); m != nil {
		return string(m[1])
	}
	return ""
}

func lastLines(text string, n int) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// freeAddresses returns n different addresses without a listener.
func freeAddresses(n int) (all []string, err error) {
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close() // only when all are known, because the system may assign a free port again
		all = append(all, l.Addr().String())
	}
	return all, nil
}

// buildRelay builds the relay of this checkout with the libraries of its own module, and returns the binary's path.
func buildRelay(dir string) (string, error) {
	module, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/xds-relay/xds-relay").Output()
	if err != nil {
		return "", fmt.Errorf("cannot find the relay's module; run this in bench/: %w", err)
	}
	binary := filepath.Join(dir, "xds-relay")
	cmd := exec.Command("go", "build", "-trimpath", "-o", binary, "./cmd/xds-relay")
	cmd.Dir, cmd.Stderr = strings.TrimSpace(string(module)), os.Stderr
	return binary, cmd.Run()
}

func pause(d time.Duration) { <-time.After(d) }
