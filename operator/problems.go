package operator

// The problems that exist now, in words: the first thing that an operator sees.

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/xds-relay/xds-relay/internal/loglines"
	"github.com/xds-relay/xds-relay/internal/process"
	"github.com/xds-relay/xds-relay/rollout/gate"
)

// Severities of a Problem.
const (
	SeverityError   = "error"   // clients lack resources, or get no updates
	SeverityWarning = "warning" // no client lacks anything yet
)

// Problem is a problem that exists now.
type Problem struct {
	Severity string `json:"severity"`
	// Text describes the problem in one sentence.
	Text  string     `json:"text"`
	Since *time.Time `json:"since,omitempty"`
	// Last is when the problem was last seen, or a remedy was last tried, if that is later.
	Last *time.Time `json:"last,omitempty"`
	// Affects says how many clients the problem affects, and Who is the page that lists them.
	Affects string `json:"affects,omitempty"`
	Who     string `json:"who,omitempty"`
	// Page is the path and query of the page that shows more.
	Page string `json:"page"`
	// Relay is the relay of the fleet that has the problem. Page and Who of another relay are empty.
	Relay string `json:"relay,omitempty"`
}

// mostOfAKind bounds the problems of one kind that are listed. The others are counted.
const mostOfAKind = 20

// mostInProblem bounds the names in a problem.
const mostInProblem = 3

// problems collects the problems.
type problems struct {
	all  []Problem
	more int
}

func (p *problems) add(severity string, since time.Time, page, format string, args ...any) *Problem {
	one := Problem{Severity: severity, Text: words(fmt.Sprintf(format, args...)), Page: page}
	if !since.IsZero() {
		one.Since = &since
	}
	p.all = append(p.all, one)
	return &p.all[len(p.all)-1]
}

// last notes when a problem was last seen.
func (p *Problem) last(at time.Time) {
	if !at.IsZero() && p.Since != nil && at.Sub(*p.Since) >= time.Second {
		p.Last = &at
	}
}

// few calls f for the first elements of a list, and counts the others.
func few[T any](p *problems, list []T, f func(T)) {
	for i, v := range list {
		if i == mostOfAKind {
			p.more += len(list) - i
			return
		}
		f(v)
	}
}

// overviewFor is how long an answer is used again: the pages of several operators share it.
const overviewFor = time.Second

// overviews caches the newest answer.
type overviews struct {
	mu     sync.Mutex // held while an answer is made
	at     time.Time
	newest *RelayStatus
}

// RelayStatus is the status of the whole relay, as /api/status shows it.
type RelayStatus struct {
	Version string    `json:"version"`
	Started time.Time `json:"started"`
	// Ready is the result of /readyz.
	Ready  bool         `json:"ready"`
	Config ConfigStatus `json:"config"`
	// Clients counts the open streams of clients. Resources counts names, wildcards and globs in the cache.
	Clients   int `json:"clients"`
	Resources int `json:"resources"`
	// Problems are the current problems, the worst first, and More counts those that are left out.
	Problems []Problem `json:"problems"`
	More     int       `json:"more,omitempty"`
	// Unread counts the resources whose references were not read yet.
	Unread int `json:"unread,omitempty"`
	// Fleet is nil without a fleet.
	Fleet *FleetStatus `json:"fleet,omitempty"`
	// Relay is this relay's address in the fleet, AllClients counts the clients' streams at all relays that answer, and
	// NoAnswer has the others.
	Relay       string            `json:"relay,omitempty"`
	AllClients  int               `json:"all_clients,omitempty"`
	NoAnswer    []NoAnswer        `json:"no_answer,omitempty"`
	Authorities []AuthorityStatus `json:"-"`
	Rollouts    []RolloutStatus   `json:"-"`
}

// overview returns the relay's status.
func (r *Observer) overview() *RelayStatus { return r.overviews.get(r.LookAround) }

// get returns the newest answer, or makes a new one.
func (o *overviews) get(make func() *RelayStatus) *RelayStatus {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.newest == nil || time.Since(o.at) > overviewFor {
		o.newest = make()
		o.at = time.Now()
	}
	return o.newest
}

// LookAround finds the problems.
func (r *Observer) LookAround() *RelayStatus {
	stats := r.Cache.Stats()
	s := &RelayStatus{
		Version: process.Version(), Started: r.Process.Began(), Ready: r.Admin.IsReady(), Config: r.Process.Config(),
		Clients: r.Server.Clients(), Resources: stats.Entries + stats.Sets, Authorities: r.Authorities(),
		Rollouts: r.rolloutViews(gate.Which{AnyPartition: true}), Fleet: r.Sources.Fleet(),
	}
	p := &problems{}
	r.relayProblems(p, s)
	problemsOfFleet(p, s.Fleet)
	down := r.outages(p, s.Authorities)
	rolloutProblems(p, s.Rollouts)
	for i := range s.Authorities {
		authorityProblems(p, &s.Authorities[i], down[s.Authorities[i].Authority])
	}
	r.clientProblems(p)
	s.Unread = r.referenceProblems(p)
	slices.SortStableFunc(p.all, func(a, b Problem) int { return cmp.Compare(a.Severity, b.Severity) }) // error, warning
	s.Problems, s.More = p.all, p.more
	if s.Problems == nil {
		s.Problems = []Problem{}
	}
	return s
}

// relayProblems finds the problems of the relay itself.
func (r *Observer) relayProblems(p *problems, s *RelayStatus) {
	if s.Config.Problem != "" {
		first, _, _ := strings.Cut(s.Config.Problem, "\n")
		p.add(SeverityError, time.Time{}, "/ui#configuration", "the newest configuration was not loaded, and an older one runs: %s", first)
	}
	if err := r.Credentials.CheckListeners(); err != nil {
		p.add(SeverityError, time.Time{}, "/ui#configuration", "clients cannot connect: %v", err)
	}
	if of := r.now().Store; of != nil {
		if failure := of.Stats().Failure; failure != nil {
			p.add(SeverityError, failure.Since, "/ui#configuration", "accepted resources cannot be stored in %s: %s", r.now().Config.Store.Path, failure.Reason)
		}
	}
	r.Process.Lost(func(address string, why error) {
		if why != nil {
			p.add(SeverityError, time.Time{}, "/ui#configuration", "listener %s accepts no connections: %v", address, why)
		}
	})
	few(p, r.Process.Listeners(), func(l ListenerStatus) {
		for _, f := range l.Door.FailedConns() {
			one := p.add(SeverityWarning, f.Since, "/ui#configuration", "clients could not connect to listener %s (failed connections lately: %d, the last from %s): %s", l.Address, f.Count, f.Peer, f.Reason)
			one.last(f.Last)
		}
	})
}

// outage is an authority's outage: how many of its partitions have no reachable server, and since when.
type outage struct {
	since  time.Time
	scopes int
}

// outages adds and returns the authorities that have outages.
func (r *Observer) outages(p *problems, authorities []AuthorityStatus) map[string]outage {
	down, unreachable := map[string]outage{}, r.cutOff()
	affected, all := r.countAffected(unreachable)
	for name, scopes := range unreachable {
		o := outage{scopes: len(scopes)}
		for _, since := range scopes {
			if o.since.IsZero() || since.Before(o.since) {
				o.since = since
			}
		}
		down[name] = o
	}
	few(p, authorities, func(a AuthorityStatus) {
		o, is := down[a.Authority]
		page := authorityPage(a.Authority)
		if !is {
			if why := r.Process.Missing(a.Authority); why != "" {
				p.add(SeverityError, time.Time{}, page, "authority %q has nothing to serve yet: %s", a.Authority, why)
			}
			return
		}
		of := ""
		if n := partitionsOf(&a); n > o.scopes {
			of = fmt.Sprintf(" for %d of %d partitions", o.scopes, n)
		}
		why, last := "", time.Time{}
		for i := range a.Streams {
			st := &a.Streams[i]
			if st.Connected || st.LastError == "" {
				continue
			}
			if why == "" {
				why = ": " + st.LastError
			}
			if st.LastErrorAt != nil && st.LastErrorAt.After(last) {
				last = *st.LastErrorAt
			}
		}
		one := p.add(SeverityError, o.since, page, "authority %q: no server can be reached%s%s", a.Authority, of, why)
		one.last(last)
		one.Affects, one.Who = affects(affected[a.Authority], all), affectedPage(a.Authority)
	})
	return down
}

// affects describes how many clients are affected. all says that all clients were looked at.
func affects(n int, all bool) string {
	text := fmt.Sprintf("%d clients are affected", n)
	if n == 1 {
		text = "1 client is affected"
	}
	if !all {
		text = "at least " + text
	}
	return text
}

// partitionsOf counts the partitions of an authority that have streams.
func partitionsOf(a *AuthorityStatus) int {
	type partition struct {
		authority, partition, parameters string
		old                              bool
	}
	all := map[partition]struct{}{}
	for i := range a.Streams {
		st := &a.Streams[i]
		all[partition{st.Authority, st.Partition, st.Parameters, st.OldStyleNames}] = struct{}{}
	}
	return len(all)
}

// quarantines returns the streams for which something is requested apart.
func quarantines(streams []StreamStatus) []StreamStatus {
	return slices.DeleteFunc(slices.Clone(streams), func(st StreamStatus) bool { return st.Quarantined == 0 })
}

// withUnsaid returns the streams on which a server has not sent again what it may not have any more.
func withUnsaid(streams []StreamStatus) []StreamStatus {
	return slices.DeleteFunc(slices.Clone(streams), func(st StreamStatus) bool { return st.UnsaidSince == nil })
}

// unanswered is what of a type a server does not answer, in all partitions.
type unanswered struct {
	server string
	UnansweredStatus
}

// unansweredBy returns what the servers of an authority do not answer, in all partitions together.
func unansweredBy(streams []StreamStatus) (all []unanswered) {
	type key struct{ server, typeWord string }
	at := map[key]int{}
	for i := range streams {
		for _, q := range streams[i].Unanswered {
			k := key{streams[i].Server, q.Type}
			n, is := at[k]
			if !is {
				n = len(all)
				at[k], all = n, append(all, unanswered{k.server, UnansweredStatus{Type: q.Type, Since: q.Since}})
			}
			sum := &all[n]
			sum.Names, sum.LeftOut = sum.Names+q.Names, sum.LeftOut+q.LeftOut
			if q.Since.Before(sum.Since) {
				sum.Since = q.Since
			}
			for _, name := range q.Newest {
				if len(sum.Newest) < mostInProblem {
					sum.Newest = append(sum.Newest, strconv.Quote(loglines.ClipTo(name, 100)))
				}
			}
		}
	}
	return all
}

// nodesInDoubt returns the streams whose Node the server may refuse.
func nodesInDoubt(streams []StreamStatus) []StreamStatus {
	return slices.DeleteFunc(slices.Clone(streams), func(st StreamStatus) bool { return !st.NodeRefused || st.Connected || st.LastError == "" })
}

// authorityProblems adds the problems of one authority that has a reachable server in some partition.
func authorityProblems(p *problems, a *AuthorityStatus, down outage) {
	page := authorityPage(a.Authority)
	if d := a.Directory; d != nil {
		few(p, d.Errors, func(err string) {
			p.add(SeverityError, time.Time{}, page, "authority %q: a file of directory %s cannot be used: %s", a.Authority, d.Path, err)
		})
	}
	stored, lost := 0, map[string]StreamStatus{}
	for _, st := range a.Streams {
		stored = max(stored, st.Stored)
		if st.Active && !st.Connected && st.Subscriptions > 0 && st.LastError != "" {
			if _, is := lost[st.Server]; !is {
				lost[st.Server] = st
			}
		}
	}
	few(p, quarantines(a.Streams), func(st StreamStatus) {
		p.add(SeverityWarning, time.Time{}, page, "authority %q: server %s ends streams on which one of %d names of partition %q is requested; the relay requests them apart: %s",
			a.Authority, st.Server, st.Quarantined, st.Partition, cmp.Or(st.QuarantineReason, "it is not known yet which"))
	})
	few(p, withUnsaid(a.Streams), func(st StreamStatus) {
		p.add(SeverityWarning, *st.UnsaidSince, page,
			"authority %q: server %s does not read which resources the relay holds, and has not sent %d of partition %q again; the relay keeps them until the answer is complete",
			a.Authority, st.Server, st.Unsaid, st.Partition)
	})
	few(p, unansweredBy(a.Streams), func(u unanswered) {
		names, leftOut := strings.Join(u.Newest, ", "), ""
		if u.Names > len(u.Newest) {
			names += ", ..."
		}
		if u.LeftOut > 0 {
			leftOut = fmt.Sprintf("; %d of them are left out of requests, because the server answers only requests of which it has every name", u.LeftOut)
		}
		p.add(SeverityWarning, u.Since, page, "authority %q: server %s has not answered %d requested names of type %s: %s%s",
			a.Authority, u.server, u.Names, u.Type, names, leftOut)
	})
	few(p, nodesInDoubt(a.Streams), func(st StreamStatus) {
		p.add(SeverityWarning, time.Time{}, page, "authority %q: server %s may refuse the Node %q of partition %q; the relay tries those of the other connected clients: %s",
			a.Authority, st.Server, st.Node, st.Partition, st.LastError)
	})
	for _, st := range lost {
		if down.scopes > 0 {
			break // reported as an outage already
		}
		one := p.add(SeverityWarning, st.Since, page, "authority %q: a stream to server %s is lost: %s", a.Authority, st.Server, st.LastError)
		if st.LastErrorAt != nil {
			one.last(*st.LastErrorAt)
		}
	}
	if stored > 0 {
		p.add(SeverityWarning, time.Time{}, page, "authority %q: %d names are served from the store, because no control plane has answered since the relay started", a.Authority, stored)
	}
	few(p, a.Held, func(h HeldStatus) {
		p.add(SeverityWarning, h.Since, page, "authority %q: the control plane %s; the relay keeps them until %s", a.Authority, h.words, clock(h.Until))
	})
	few(p, a.Check.Last, func(f FailureStatus) {
		ref := ResourceRef{Authority: a.Authority, Partition: f.Partition, Type: f.Type, Name: f.Name}
		if f.Refused {
			p.add(SeverityError, f.At, ref.Page(), "%s %q of authority %q was refused, because clients would reject it: %s", f.Type, f.Name, a.Authority, f.Reason)
			return
		}
		p.add(SeverityWarning, f.At, ref.Page(), "%s %q of authority %q %s", f.Type, f.Name, a.Authority, f.Reason)
	})
}

// rolloutProblems adds the rollouts that wait for a person.
func rolloutProblems(p *problems, rollouts []RolloutStatus) {
	few(p, rollouts, func(s RolloutStatus) {
		of, page := fmt.Sprintf("the rollout of %q", s.Authority), "/rollout"
		if s.Partition != "" {
			of += fmt.Sprintf(", partition %q,", s.Partition)
		}
		first := ""
		for _, c := range s.Changes {
			if c.Waits != "" {
				first = fmt.Sprintf(": %s %q waits for a person: %s", c.Type, c.Name, c.Waits)
				break
			}
		}
		switch {
		case s.Phase == "stopped":
			p.add(SeverityError, time.Time{}, page, "%s was stopped, and all clients have the accepted state: %s", of, s.Reason)
		case s.Phase == "held" && s.Frozen:
			p.add(SeverityWarning, time.Time{}, page, "%s waits, because it is frozen: changes wait until somebody thaws or approves them (%d)", of, s.Total)
		case s.Phase == "held" || first != "":
			p.add(SeverityWarning, time.Time{}, page, "%s waits%s", of, first)
		case len(s.Rejections) > 0:
			p.add(SeverityWarning, time.Time{}, page, "%s: client %q rejects the change: %s", of, s.Rejections[0].Client, s.Rejections[0].Words)
		}
	})
}

// clientProblems adds what clients reject, and what the relay refuses them. Clients with the same problem share one
// entry.
func (r *Observer) clientProblems(p *problems) {
	type problem struct{ kind, typeURL, text string }
	type clients struct {
		problem
		n      int
		first  string
		stream uint64
		since  time.Time
		last   time.Time
	}
	var found []*clients
	by := map[problem]*clients{}
	note := func(of problem, c *clientHead, since, last time.Time) {
		g := by[of]
		if g == nil {
			if len(found) >= 10*mostOfAKind {
				p.more++
				return
			}
			g = &clients{problem: of, first: c.name(), stream: c.Stream, since: since}
			by[of] = g
			found = append(found, g)
		}
		if g.n++; since.Before(g.since) {
			g.since = since
		}
		if last.After(g.last) {
			g.last = last
		}
	}
	r.eachClient(func(c *clientHead) bool {
		for _, t := range c.Types {
			if nack := t.Rejected(); nack != nil {
				note(problem{"rejects", t.Type, nack.Reason}, c, nack.Since, nack.At)
			}
			if t.Refused > 0 {
				note(problem{"refused", t.Type, t.LastRefused.Error}, c, time.Time{}, time.Time{})
			}
		}
		return true
	})
	slices.SortStableFunc(found, func(a, b *clients) int { return cmp.Compare(b.n, a.n) })
	few(p, found, func(g *clients) {
		who, page := fmt.Sprintf("client %q", loglines.ClipTo(g.first, 200)), clientPage(g.stream)
		verb := map[string]string{"rejects": "rejects", "refused": "requests"}[g.kind]
		if g.n > 1 {
			who, page = fmt.Sprintf("%d clients, the first is %q,", g.n, loglines.ClipTo(g.first, 200)), clientsPage(g.kind)
			verb = map[string]string{"rejects": "reject", "refused": "request"}[g.kind]
		}
		if g.kind == "refused" {
			p.add(SeverityWarning, g.since, page, "%s %s names of type %s that the relay refuses: %s", who, verb, g.typeURL, g.text)
			return
		}
		p.add(SeverityError, g.since, page, "%s %s what it was sent of type %s: %s", who, verb, g.typeURL, g.text).last(g.last)
	})
}
