package operator

// Checks of an authority's resources by all rules of lint. They run on request only.

import (
	"net/http"
	"sync"
	"time"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/graph"
	"github.com/xds-relay/xds-relay/internal/loglines"
	"github.com/xds-relay/xds-relay/internal/taster"
	"github.com/xds-relay/xds-relay/internal/xdstype"
	"github.com/xds-relay/xds-relay/lint"
)

const (
	// lintingTakes bounds the time for one report.
	lintingTakes = 2 * time.Second
	// mostLinted and mostLintedBytes bound the resources of one report.
	mostLinted      = 50_000
	mostLintedBytes = 256 << 20
	// mostLintFindings bounds the findings of one report.
	mostLintFindings = 1000
)

// LintReport is the answer of /api/lint.
type LintReport struct {
	// Resources counts the resources, and Unread those of them that were not checked.
	Resources int `json:"resources"`
	Unread    int `json:"unread,omitempty"`
	// Findings are the first findings, and More counts the others.
	Findings []LintFinding `json:"findings"`
	More     int           `json:"more,omitempty"`
}

// LintFinding is a violation of a rule by a resource.
type LintFinding struct {
	ResourceRef
	Severity   lint.Severity `json:"severity"`
	Rule       string        `json:"rule"`
	RejectedBy taster.Family `json:"rejected_by,omitempty"`
	Path       string        `json:"path,omitempty"`
	Text       string        `json:"text"`
	Source     string        `json:"source"`
}

// observeLint adds /api/lint to the admin listener. It makes one report at a time.
func (r *Observer) observeLint() {
	var busy sync.Mutex
	r.Admin.Page("/api/lint", "what is wrong with an authority's resources: ?authority=A, partition", http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		authority := q.URL.Query().Get("authority")
		if _, err := r.authorityCalled(authority); err != nil {
			http.Error(w, err.Error(), http.StatusNotFound)
			return
		}
		if !busy.TryLock() {
			w.Header().Set("Retry-After", "2")
			http.Error(w, "another report is being made", http.StatusServiceUnavailable)
			return
		}
		defer busy.Unlock()
		partition, one := q.URL.Query().Get("partition"), q.URL.Query().Has("partition")
		writeJSON(w, r.lint(func(s cache.Scope) bool { return s.Authority == authority && (!one || s.Partition == partition) }))
	}))
}

// lint checks the cached resources of some scopes. It does not report a reference to a resource that no client has
// requested as missing, nor a resource that no listener leads to as unused: a client may have requested it itself.
func (r *Observer) lint(which func(cache.Scope) bool) *LintReport {
	report := &LintReport{Findings: []LintFinding{}}
	until := time.Now().Add(lintingTakes)
	bytes := 0
	for _, scope := range r.acceptedScopes() {
		if !which(scope) {
			continue
		}
		var resources []lint.Resource
		seen := map[cache.Key]bool{} // a name may be both an entry and a member of a set
		for _, typeURL := range linted {
			r.Cache.Browse(scope, typeURL, func(i cache.Item) bool {
				if i.Resource == nil || seen[i.Key] {
					return true
				}
				seen[i.Key] = true
				report.Resources++
				bytes += i.Resource.ValueSize()
				if report.Resources-report.Unread > mostLinted || bytes > mostLintedBytes {
					report.Unread++
					return true
				}
				resources = append(resources, lint.Resource{TypeURL: i.Resource.TypeURL(), Name: i.Key.Name, Value: i.Resource.Value()})
				return true
			})
		}
		unread := 0
		found := lint.Check(resources, lint.Options{
			Part: true,
			Elsewhere: func(id graph.ID) bool {
				k, ok := r.target(scope, id)
				if !ok {
					return true
				}
				i, known := r.Cache.Look(k)
				return !known || i.Status != cache.Absent
			},
			Stop: func() bool {
				if time.Now().Before(until) {
					return false
				}
				unread++
				return true
			},
		})
		report.Unread += unread
		for _, f := range found {
			if len(report.Findings) == mostLintFindings {
				report.More++
				continue
			}
			of := resources[f.Resource]
			report.Findings = append(report.Findings, LintFinding{
				ResourceRef: refOf(cache.Key{Scope: scope, TypeURL: of.TypeURL, Name: of.Name}),
				Severity:    f.Severity, Rule: f.ID, RejectedBy: f.RejectedBy,
				Path: loglines.Clip(f.Path), Text: words(f.Text), Source: f.Source,
			})
		}
	}
	return report
}

// linted are the types that lint has rules for.
var linted = []string{
	xdstype.ListenerV3, xdstype.RouteV3, xdstype.ScopedRouteV3, xdstype.VirtualHostV3, xdstype.ClusterV3,
	xdstype.EndpointsV3, xdstype.SecretV3, xdstype.ExtensionConfigV3,
}
