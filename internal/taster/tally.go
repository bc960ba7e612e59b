package taster

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/xds-relay/xds-relay/internal/loglines"
	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// Tally has the resources of one authority that clients would reject: counters, log lines, and the last failures, for
// the operator. Its methods may be called concurrently. Their cost does not grow with the number of resources.
type Tally struct {
	mode Mode
	log  *slog.Logger

	// kept is the number of failures, which Passed reads without the lock.
	kept atomic.Int32

	mu     sync.Mutex // comes last in the order of locks
	counts map[Count]uint64
	// refused and warned count each resource once.
	refused, warned uint64
	failures        *simplelru.LRU[subject, Failure]
	// logged are the kinds of failures that were logged at warn. latest is the kind of the latest failure, with its
	// complete reason.
	logged map[kind]bool
	latest kind
	// latestVerdict is a verdict of that kind.
	latestVerdict *Verdict
	lines         loglines.Lines
}

const (
	// mostFailures is how many of the last failures are kept.
	mostFailures = 100
	// mostKinds bounds logged. There are some thousands of rules.
	mostKinds = 1000
)

// Count identifies a counter.
type Count struct {
	// Type is the name of a type's message, or "other" for a type that the relay does not know.
	Type string
	// By is the family that would reject the resource: "all", "envoy" or "grpc".
	By string
	// Refused: the relay refused the resource.
	Refused bool
}

// Failure is a resource that clients would reject.
type Failure struct {
	Partition, TypeURL, Name string
	Refused                  bool
	Reason                   string
	At                       time.Time
}

type subject struct{ partition, typeURL, name string }

// kind is a kind of failure: a rule and a type.
type kind struct{ typeURL, reason string }

// NewTally returns the tally of an authority. It logs to log.
func NewTally(mode Mode, log *slog.Logger) *Tally {
	failures, _ := simplelru.NewLRU[subject, Failure](mostFailures, nil) // it fails only for a size of 0
	t := &Tally{mode: mode, log: log, counts: map[Count]uint64{}, failures: failures, logged: map[kind]bool{}}
	if mode == Off {
		return t
	}
	// A counter that starts at 0 shows its first increment.
	for typeURL := range grpcParsers {
		t.counts[Count{xdstype.Label(typeURL), "all", true}] = 0
		t.counts[Count{xdstype.Label(typeURL), "envoy", mode == Refuse}] = 0
		t.counts[Count{xdstype.Label(typeURL), "grpc", mode == Refuse}] = 0
	}
	return t
}

// Mode returns the mode. It may be called on nil.
func (t *Tally) Mode() Mode {
	if t == nil {
		return Warn
	}
	return t.mode
}

// Failed records that a resource failed, and that the given number of failed resources follow at once. It may be
// called on nil.
func (t *Tally) Failed(partition, typeURL, name string, v *Verdict, others int) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	refused := t.mode.Refuses(v)
	label := xdstype.Label(typeURL)
	for _, by := range v.by() {
		t.counts[Count{Type: label, By: by, Refused: refused}]++
	}
	if refused {
		t.refused++
	} else {
		t.warned++
	}
	if others >= mostFailures && t.isLatest(typeURL, v) && !t.log.Enabled(context.Background(), slog.LevelDebug) {
		return // the failure would not be among the last ones, and needs no log line
	}
	id := subjectOf(partition, typeURL, name)
	f := Failure{Partition: id.partition, TypeURL: id.typeURL, Name: id.name, Refused: refused, Reason: v.Reason(), At: time.Now()}
	last, _ := t.failures.Peek(id)
	t.failures.Add(id, f)
	t.kept.Store(int32(t.failures.Len()))
	log, level := t.log, slog.LevelDebug
	if newest := (kind{f.TypeURL, f.Reason}); last.Reason != f.Reason && newest != t.latest {
		if similar := (kind{f.TypeURL, withoutDigits(f.Reason)}); t.logged[similar] {
			t.latest, t.latestVerdict = newest, v
		} else {
			log, level = t.line(similar)
		}
	}
	if !log.Enabled(context.Background(), level) {
		return
	}
	log.Log(context.Background(), level, "clients would reject a resource",
		"partition", f.Partition, "type_url", f.TypeURL, "name", f.Name, "refused", f.Refused, "reason", f.Reason)
}

// isLatest reports whether a verdict is of the latest kind. The caller holds mu.
func (t *Tally) isLatest(typeURL string, v *Verdict) bool {
	return t.latestVerdict != nil && *v == *t.latestVerdict && typeURL == t.latest.typeURL
}

// line returns the logger and the level for a kind's first log line: warn if the rate of lines allows it, otherwise
// debug. The caller holds mu.
func (t *Tally) line(k kind) (*slog.Logger, slog.Level) {
	log, ok := t.lines.Next(t.log)
	if !ok {
		return log, slog.LevelDebug
	}
	if len(t.logged) < mostKinds {
		t.logged[k] = true
	}
	return log, slog.LevelWarn
}

// subjectOf returns the identity of a resource, with bounded lengths: the control plane chooses the names.
func subjectOf(partition, typeURL, name string) subject {
	const most = 256
	return subject{loglines.ClipTo(partition, most), loglines.ClipTo(typeURL, most), loglines.ClipTo(name, most)}
}

// Passed records that a resource did not fail, or was removed. It may be called on nil.
func (t *Tally) Passed(partition, typeURL, name string) {
	if t == nil || t.kept.Load() == 0 {
		return
	}
	id := subjectOf(partition, typeURL, name)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.failures.Remove(id)
	t.kept.Store(int32(t.failures.Len()))
}

// Counts returns how many resources failed.
func (t *Tally) Counts() map[Count]uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return maps.Clone(t.counts)
}

// Totals returns how many resources were refused, and how many passed with a warning.
func (t *Tally) Totals() (refused, warned uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.refused, t.warned
}

// Failures returns the last resources that failed and have not passed since, the latest first.
func (t *Tally) Failures() []Failure {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := t.failures.Values()
	slices.Reverse(all)
	return all
}

// withoutDigits returns a reason without list indices.
func withoutDigits(reason string) string {
	return strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' {
			return -1
		}
		return r
	}, reason)
}

// by returns the families that would reject the resource.
func (v *Verdict) by() []string {
	switch {
	case v.Unreadable != "":
		return []string{"all"}
	case v.Envoy != "" && v.GRPC != "":
		return []string{"envoy", "grpc"}
	case v.Envoy != "":
		return []string{"envoy"}
	}
	return []string{"grpc"}
}
