package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/anypb"
)

// o: clients that long-poll over REST-JSON. The floor is a bare HTTP server that holds
// requests, and answers all of them with the same JSON.

func longPolls() []scenario {
	poll := func(b *bench, system string, spec *Spec) []metric {
		spec.Polls, spec.Size = true, kib
		clients, n := b.scale(1000, 200), b.scale(20, 10)
		s := b.beginWarm(system, spec, command{Clients: clients, PerConn: 1})
		cpu, _, last := s.updates(n)
		return []metric{
			{"first poll: CPU per client", "µs", micros(s.coldCPU, clients)},
			{"first poll: last client", "ms", millis(s.coldLast)},
			{"memory per client", "KiB", s.perClient(s.rest)},
			{"one changes: CPU per answer", "µs", micros(cpu, n*clients)},
			{"one changes: last client", "ms", millis(middle(last))},
		}
	}
	return []scenario{
		of("o1", "long polls of 1,000 clients for 100 clusters of 1 KB, one changes", ours, func(b *bench, system string) []metric {
			return poll(b, system, &Spec{Full: true, Resources: 100, PerClient: 1})
		}).atMost(1),
		of("o2", "long polls of 1,000 clients for 10 names of 1 KB, one changes", ours, func(b *bench, system string) []metric {
			return poll(b, system, &Spec{Resources: 10, PerClient: 10})
		}).atMost(1),
	}
}

// protocol is the listener's configuration apart from its address. It is empty for gRPC,
// because the relays of old commits do not know the key.
func (s *Spec) protocol() string {
	if s.Polls {
		return ", protocol: rest"
	}
	return ""
}

func (s *Spec) pollPath() string {
	if s.Full {
		return "/v3/discovery:clusters"
	}
	return "/v3/discovery:endpoints"
}

// poll starts clients that poll until ctx ends.
func (s *swarm) poll(ctx context.Context, g *group, c *command) {
	g.transport = &http.Transport{MaxIdleConnsPerHost: c.Clients, ReadBufferSize: 4 << 10, WriteBufferSize: 4 << 10}
	client := &http.Client{Transport: g.transport}
	for i := range c.Clients {
		p := &poller{swarm: s, group: g, client: client, url: "http://" + c.Address + c.Spec.pollPath(), names: `"` + strings.Join(c.Spec.names(c.First+i), `","`) + `"`}
		if c.Spec.Full {
			p.names = ""
		}
		go func() {
			for ctx.Err() == nil {
				if err := p.poll(ctx); err != nil && ctx.Err() == nil {
					s.fail(fmt.Errorf("client %d: %w", i, err))
					return
				}
			}
		}()
	}
}

type poller struct {
	swarm   *swarm
	group   *group
	client  *http.Client
	url     string
	names   string // as JSON
	version string
	saw     *watch
}

var versionInJSON = regexp.MustCompile(`"version_?[iI]nfo":\s*"([^"]*)"`)

// poll polls once.
func (p *poller) poll(ctx context.Context) error {
	body := fmt.Sprintf(`{"node":{"id":"bench","cluster":"bench"},"resource_names":[%s],"version_info":%q}`, p.names, p.version)
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, p.url, strings.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := p.client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	switch response.StatusCode {
	case http.StatusNotModified:
		return nil
	case http.StatusOK:
	default:
		return fmt.Errorf("status %s: %s", response.Status, answer)
	}
	found := versionInJSON.FindSubmatch(answer)
	if found == nil {
		return fmt.Errorf("no version in an answer of %d bytes", len(answer))
	}
	p.version = string(found[1])
	p.swarm.messages.Add(1)
	p.swarm.bytes.Add(int64(len(answer)))
	if w := p.group.watch.Load(); w != nil && p.saw != w && w.look(answer) {
		p.saw = w
	}
	return nil
}

// pollFloor is the HTTP server. It holds the answer to all clients.
type pollFloor struct {
	spec *Spec

	mu       sync.Mutex // guards the fields below
	versions []int
	version  string
	body     []byte
	changed  chan struct{} // closed at the next change
}

func (f *pollFloor) update(index, v int) (answer, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	at := time.Now()
	f.versions[index] = v
	r := discoveryv3.DiscoveryResponse{VersionInfo: version(v), TypeUrl: f.spec.typeURL(), Nonce: version(v)}
	for i, v := range f.versions {
		resource, err := anypb.New(f.spec.resource(i, v))
		if err != nil {
			return answer{}, err
		}
		r.Resources = append(r.Resources, resource)
	}
	body, err := protojson.Marshal(&r)
	if err != nil {
		return answer{}, err
	}
	f.version, f.body = version(v), body
	if f.changed != nil {
		close(f.changed)
	}
	f.changed = make(chan struct{})
	return answer{At: at.UnixNano()}, nil
}

// ServeHTTP implements http.Handler.
func (f *pollFloor) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	request, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	var has string
	if found := versionInJSON.FindSubmatch(request); found != nil {
		has = string(found[1])
	}
	for {
		f.mu.Lock()
		version, body, changed := f.version, f.body, f.changed
		f.mu.Unlock()
		if version != has {
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write(body) // the client has left
			return
		}
		select {
		case <-changed:
		case <-r.Context().Done():
			return
		}
	}
}

func runPollFloor(spec *Spec) error {
	f := &pollFloor{spec: spec, versions: make([]int, spec.Resources)}
	for i := range f.versions {
		f.versions[i] = 1
	}
	if _, err := f.update(0, 1); err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	s := &http.Server{Handler: f, ReadHeaderTimeout: time.Minute}
	go func() { _ = s.Serve(l) }() // ends with the process
	return serveCommands(answer{Address: l.Addr().String()}, func(c *command) (answer, error) {
		if c.Do == "update" {
			return f.update(c.Index, c.Version)
		}
		return answer{}, nil
	})
}
