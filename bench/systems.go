package main

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// What is measured.

const (
	systemFloor    = "floor"
	systemRelay    = "xds-relay"
	systemLinear   = "go-control-plane linear"
	systemSnapshot = "go-control-plane snapshot"
	systemDirect   = "origin alone"
	systemHop      = "bare gRPC hop"
)

// system is a server that clients connect to, running.
type system struct {
	name   string
	server *child // of which the cost is measured
	source *child // that is told of updates: the server, or the origin behind it
}

func (s *system) stop() {
	if s.source != s.server {
		s.source.stop()
	}
	s.server.stop()
}

// start starts a system. relay is the relay's binary, env what it is to have in its
// environment.
func start(name string, spec *Spec, relay string, env ...string) (*system, error) {
	roles := map[string]string{systemFloor: "floor", systemLinear: "linear", systemSnapshot: "snapshot"}
	if role, ok := roles[name]; ok {
		c, err := startRole(name, role, spec)
		if err != nil {
			return nil, err
		}
		return &system{name: name, server: c, source: c}, nil
	}
	origin, err := startRole("origin", "origin", spec)
	if err != nil {
		return nil, err
	}
	c, err := startRelay(relay, origin.address, env...)
	if err != nil {
		origin.stop()
		return nil, err
	}
	return &system{name: name, server: c, source: origin}, nil
}

const relayConfig = `
listeners: [{address: "%s"}]
admin: {address: "%s"}
node: {id: bench}
authorities:
  - {name: bench, servers: [{address: "%s"}]}
old_style_names: [{authority: bench}]
`

// startRelay starts the relay in front of an origin.
func startRelay(binary, origin string, env ...string) (*child, error) {
	address, err := freeAddress()
	if err != nil {
		return nil, err
	}
	operator, err := freeAddress()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "xds-relay-bench")
	if err != nil {
		return nil, err
	}
	config := filepath.Join(dir, "relay.yaml")
	if err := os.WriteFile(config, fmt.Appendf(nil, relayConfig, address, operator, origin), 0o600); err != nil {
		return nil, err
	}
	c := &child{name: systemRelay, address: address, operator: operator, cmd: exec.Command(binary, "serve", "--config", config), files: []string{dir}}
	c.cmd.Env = append(os.Environ(), env...)
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	c.cmd.Stdout, c.cmd.Stderr = log, log
	if err := c.cmd.Start(); err != nil {
		return nil, err
	}
	deadline := time.Now().Add(10 * time.Second)
	for {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			_ = conn.Close()
			return c, nil
		}
		if time.Now().After(deadline) {
			text, _ := os.ReadFile(filepath.Join(dir, "log"))
			c.stop()
			return nil, fmt.Errorf("the relay does not serve: %w\n%s", err, text)
		}
		pause(10 * time.Millisecond)
	}
}

// freeAddress is one on which nobody listened a moment ago.
func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}

// buildRelay builds the relay from this module, and returns the binary's path.
func buildRelay(dir string) (string, error) {
	binary := filepath.Join(dir, "xds-relay")
	cmd := exec.Command("go", "build", "-trimpath", "-o", binary, "github.com/xds-relay/xds-relay/cmd/xds-relay")
	cmd.Stderr = os.Stderr
	return binary, cmd.Run()
}

func pause(d time.Duration) { <-time.After(d) }
