package interop

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/xds-relay/xds-relay/integration/interop/peers"
)

func TestMain(m *testing.M) { os.Exit(peers.Main(m, "../..", sections)) }

// pins has the pinned versions of clients and control planes.
var pins = map[string]peers.Pin{
	"grpc-go":            {File: "go.mod", Name: "google.golang.org/grpc"},
	"grpc-js":            {File: "grpcjs/package.json", Name: "@grpc/grpc-js-xds"},
	"C++ core":           {File: "python/requirements.txt", Name: "grpcio"},
	"grpc-java":          {File: "java/pom.xml", Name: "grpc.version"},
	"ratelimit":          {File: "ratelimit/go.mod", Name: "github.com/envoyproxy/ratelimit"},
	"go-control-plane":   {File: "go.mod", Name: "github.com/envoyproxy/go-control-plane"},
	"java-control-plane": {File: "java/pom.xml", Name: "controlplane.version"},
	"Istio":              {File: "go.mod", Name: "istio.io/istio"},
}

// sections returns the sections of docs/clients.md with the results.
func sections() ([]peers.Section, error) {
	versions := map[string]string{}
	for program, pin := range pins {
		version, err := pin.Version()
		if err != nil {
			return nil, err
		}
		versions[program] = " " + version
	}
	label := func(name string) string {
		program, _, _ := strings.Cut(name, ",")
		return program + versions[program] + strings.TrimPrefix(name, program)
	}
	for _, p := range controlPlanes {
		for _, c := range clients {
			if reason := c.without(p); reason != "" {
				meetings.Set(p.name, c.name, "n/a", reason)
			}
		}
	}
	var all []peers.Section
	for name, table := range map[string]*peers.Matrix{"gRPC": &commonSet, "control planes": &meetings} {
		if err := table.Complete(); err != nil {
			return nil, fmt.Errorf("docs/clients.md: the table %q is not complete: %w", name, err)
		}
		all = append(all, peers.Section{Name: name, Text: table.Markdown(label)})
	}
	return all, nil
}
