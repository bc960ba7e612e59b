package operator

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"

	"github.com/xds-relay/xds-relay/internal/process"
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
	b := BuildInfo{Version: process.Version(), Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
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
func (r *Observer) observeBuild() {
	b := Build()
	r.Admin.JSON("/version", "which program runs, and on which host", func() any { return b })
}
