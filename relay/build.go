package relay

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"

	"go.opentelemetry.io/otel/attribute"

	"github.com/xds-relay/xds-relay/admin"
)

// BuildInfo says which program runs, and where.
type BuildInfo struct {
	Version string `json:"version"`
	// Revision is the commit, with "+dirty" if files were changed. It is empty if the build does not know it.
	Revision string `json:"revision,omitempty"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
	// Host is the name of the host: in Kubernetes, that of the pod.
	Host string `json:"host,omitempty"`
}

// Build returns which program this is.
func Build() BuildInfo {
	b := BuildInfo{Version: version(), Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	b.Host, _ = os.Hostname() // it stays empty
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			switch {
			case s.Key == "vcs.revision":
				b.Revision = s.Value + b.Revision
			case s.Key == "vcs.modified" && s.Value == "true":
				b.Revision += "+dirty"
			}
		}
	}
	return b
}

// String implements fmt.Stringer.
func (b BuildInfo) String() string {
	commit := ""
	if b.Revision != "" {
		commit = "commit " + b.Revision + ", "
	}
	return fmt.Sprintf("%s (%s%s, %s)", b.Version, commit, b.Go, b.Platform)
}

// observeBuild adds the program to the admin listener.
func (r *Relay) observeBuild() {
	b := Build()
	r.admin.JSON("/version", "which program runs, and on which host", func() any { return b })
}

// buildInstruments returns the metric of the program.
func (r *Relay) buildInstruments() []instrument {
	b := Build()
	labels := []attribute.KeyValue{
		attribute.String("version", b.Version), attribute.String("revision", b.Revision), attribute.String("go_version", b.Go), attribute.String("host", b.Host),
	}
	return []instrument{{r.metrics.Gauge, "xds_relay.build.info", "The program that runs, and its host. The value is always 1.", func() []admin.Sample {
		return []admin.Sample{{Value: 1, Labels: labels}}
	}}}
}
