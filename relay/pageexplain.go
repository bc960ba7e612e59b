package relay

// Where a name comes from for one client, step by step, and why the client does not have it.

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/xds-relay/xds-relay/admin/page"
	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/chain"
	"github.com/xds-relay/xds-relay/client"
	"github.com/xds-relay/xds-relay/configs"
	"github.com/xds-relay/xds-relay/downstream"
	"github.com/xds-relay/xds-relay/loglines"
	"github.com/xds-relay/xds-relay/urn"
	"github.com/xds-relay/xds-relay/xdstype"
)

// Explanation says where a name comes from for a client, as /api/explain shows it.
type Explanation struct {
	Stream uint64 `json:"stream"`
	Client string `json:"client"`
	Type   string `json:"type"`
	Name   string `json:"name"`
	// Has says whether the client holds the resource.
	Has bool `json:"has"`
	// Verdict says in one sentence what the client has, or why it does not have it.
	Verdict string `json:"verdict"`
	// Steps lead from the client to the source and back.
	Steps []ExplanationStep `json:"steps"`
	// Resource is the resource of an authority that the name stands for, if there is one.
	Resource *ResourceRef `json:"resource,omitempty"`
	// Held is what the client holds under the name.
	Held *HeldResource `json:"held,omitempty"`
}

// ExplanationStep is one step: its part, such as name, rights or source, and what is so there.
type ExplanationStep struct {
	Part string `json:"part"`
	Text string `json:"text"`
	// Page is where more of it is to be seen.
	Page string `json:"page,omitempty"`
	// Stops says that the name does not get further.
	Stops bool `json:"stops,omitempty"`
}

func (e *Explanation) say(part, page, format string, args ...any) {
	e.Steps = append(e.Steps, ExplanationStep{Part: part, Text: words(fmt.Sprintf(format, args...)), Page: page})
}

// stop is say for the step at which the name ends.
func (e *Explanation) stop(part, page, format string, args ...any) {
	e.say(part, page, format, args...)
	last := &e.Steps[len(e.Steps)-1]
	last.Stops = true
	if e.Verdict == "" {
		e.Verdict = last.Text
	}
}

// sayAll adds lines as steps.
func (e *Explanation) sayAll(part, lines string) {
	for line := range strings.Lines(lines) {
		e.say(part, "", "%s", strings.TrimSuffix(line, "\n"))
	}
}

// explain answers a query for an explanation: client, name, and type for an old-style name.
func (r *Relay) explain(q url.Values) (*Explanation, error) {
	c, err := r.clientOf(q, "client")
	if err != nil {
		return nil, err
	}
	name := q.Get("name")
	if name == "" {
		return nil, page.Unclear("name is missing: want the name that the client requests, or * for a wildcard")
	}
	typeURL, err := r.typeOfName(c, q.Get("type"), name)
	if err != nil {
		return nil, err
	}
	e := &Explanation{Stream: c.Stream, Client: headOf(&c.ClientStatus).name(), Type: typeWord(typeURL), Name: loglines.ClipTo(name, longestLink)}
	r.explainName(e, c, typeURL, name)
	r.explainHeld(e, c, typeURL, name)
	return e, nil
}

// typeOfName returns the type URL of a name: that of the query, that in the name, or the one under which the
// client has subscribed to it.
func (r *Relay) typeOfName(c *downstream.Inspected, word, name string) (string, error) {
	if word != "" {
		typeURL, err := xdstype.Parse(word)
		if err != nil {
			return "", page.Unclear("type: " + err.Error())
		}
		return typeURL, nil
	}
	if urn.IsXdstp(name) {
		typeURL, err := client.TypeOfName(name)
		if err != nil || typeURL == "" {
			return "", page.Unclear("the name has no type: want type")
		}
		return typeURL, nil
	}
	var found []string
	for _, t := range c.Types {
		if r.heldUnder(c, t.TypeURL, name) != nil {
			found = append(found, t.TypeURL)
		}
	}
	if len(found) != 1 {
		var has []string
		for _, t := range c.Types {
			has = append(has, typeWord(t.TypeURL))
		}
		return "", page.Unclear(fmt.Sprintf("type is missing: it is not clear which type %q is (the client subscribes to %s)", loglines.ClipTo(name, 200), strings.Join(has, ", ")))
	}
	return found[0], nil
}

// explainName explains where the name leads.
func (r *Relay) explainName(e *Explanation, c *downstream.Inspected, typeURL, name string) {
	now := r.now()
	asks := configs.Client{Node: c.Node, Identity: c.Identity}
	e.say("client", clientPage(c.Stream), "client %q, stream %d, %s from %s, identity %s", e.Client, c.Stream, c.Form, c.Peer, c.Identity.String())
	lines, err := now.router.Explain(asks, typeURL, name)
	e.sayAll("name", lines)
	if err != nil {
		e.stop("name", "", "the name is not served: %v", err)
		return
	}
	lines, err = ExplainRights(now.cfg, now.router, asks, typeURL, name)
	e.sayAll("rights", lines)
	if err != nil {
		e.stop("rights", "", "the client may not have it: %v", err)
		return
	}
	names := &clientNames{router: now.router, client: asks, views: now.router.ViewMatcher(asks), through: chain.Chain{}}
	k, err := names.meaning(typeURL, name)
	if err != nil {
		e.stop("name", "", "the name is not served: %v", err)
		return
	}
	r.explainTopic(e, k.Key, 0)
}

// mostRedirects is how many redirects an explanation follows.
const mostRedirects = 10

// explainTopic explains what the relay knows of a name.
func (r *Relay) explainTopic(e *Explanation, k cache.Key, depth int) {
	if k.Scope.Derived != "" && r.now().router.ViewSources(k.Scope) != nil {
		e.say("view", "", "a view puts it together from other collections")
		r.explainState(e, k)
		return
	}
	leaf := k
	leaf.Scope = k.Scope.Accepted()
	ref := refOf(leaf)
	e.Resource = &ref
	if !r.explainSource(e, leaf) {
		return
	}
	r.explainGates(e, leaf)
	if i, known := r.cache.Look(leaf); known && i.Resource != nil {
		if to := i.Resource.Redirect(); to != "" {
			e.say("redirect", ref.Page(), "its authority redirects it to %s", loglines.ClipTo(to, 200))
			next, err := xdstpKey(r.now().router.Xdstp, k.TypeURL, to)
			switch {
			case err != nil:
				e.stop("redirect", "", "that cannot be followed: %v", err)
			case depth >= mostRedirects:
				e.stop("redirect", "", "that is more than %d redirects", mostRedirects)
			default:
				r.explainTopic(e, next, depth+1)
			}
			return
		}
		if own := i.Resource.OwnName(); own != "" && own != leaf.Name {
			e.say("alias", "", "the name is an alias: the resource's own name is %s", loglines.ClipTo(own, 200))
		}
	}
	r.explainState(e, leaf)
}

// explainSource explains where the resources of a scope come from. It returns false if that ends the explanation.
func (r *Relay) explainSource(e *Explanation, k cache.Key) bool {
	a, ok := r.now().router.Source(k.Scope)
	if !ok {
		e.stop("source", "", "authority %q is not configured", k.Scope.Authority)
		return false
	}
	at := authorityPage(a.Name)
	if a.Directory != "" {
		return true
	}
	if since, down := r.origins.reachability.Unreachable(k.Scope); down {
		e.say("source", at, "no server of authority %q can be reached since %s", a.Name, since.Format(time.DateTime))
	}
	streams := r.origins.statuses()[k.Scope]
	if len(streams) == 0 {
		e.say("source", at, "no stream to authority %q is open for it: no client has requested something there", a.Name)
	}
	for _, st := range streams {
		switch {
		case st.Connected:
			e.say("source", at, "a stream to server %s is open since %s (%s)", st.server.Address, st.Since.Format(time.DateTime), st.Protocol)
		case st.Subscriptions > 0 && st.LastError != "":
			e.say("source", at, "the stream to server %s is lost since %s: %s", st.server.Address, st.Since.Format(time.DateTime), st.LastError)
		}
	}
	return true
}

// explainGates explains what stands between the source and clients.
func (r *Relay) explainGates(e *Explanation, k cache.Key) {
	for _, of := range r.held() {
		for _, h := range of {
			if h.Key.Scope == k.Scope && h.Key.TypeURL == k.TypeURL {
				e.say("guard", authorityPage(k.Scope.Authority), "the guard keeps %d members of %q that the control plane left out, until %s", h.Members, h.Key.Name, h.Until.Format(time.DateTime))
			}
		}
	}
	newest, waits := r.rollouts.Newest(k)
	switch {
	case !waits:
	case newest == nil:
		e.say("rollout", "/rollout", "a rollout keeps its removal back until all clients have the new state")
	default:
		e.say("rollout", "/rollout", "a rollout keeps version %q back from clients whose turn has not come", loglines.ClipTo(newest.Version(), 200))
	}
}

// explainState explains what the relay has of a name.
func (r *Relay) explainState(e *Explanation, k cache.Key) {
	at := ""
	if e.Resource != nil && k.Scope.Derived == "" {
		at = e.Resource.Page()
	}
	if k.IsSet() {
		members, status, known := r.cache.LookSet(k)
		switch {
		case !known:
			e.stop("cache", "", "no client has requested it")
		case status != cache.Present:
			e.stop("cache", "", "it is %s: the authority has not answered", status)
		default:
			e.say("cache", "", "the relay has %d members of it", members)
		}
		return
	}
	i, known := r.cache.Look(k)
	switch {
	case !known:
		e.stop("cache", "", "the relay does not have it: no client has requested it")
	case i.Status == cache.Absent && i.Set != "":
		e.stop("cache", at, "it does not exist: the authority sends everything of the type, and it is not part of that")
	case i.Status == cache.Absent && i.Err != nil:
		e.stop("cache", at, "it does not exist: %s", errorText(i.Err))
	case i.Status == cache.Absent:
		e.stop("cache", at, "it does not exist: the authority says so")
	case i.Status == cache.Failed:
		e.stop("cache", at, "it could not be fetched: %s", errorText(i.Err))
	case i.Status == cache.Requested:
		e.stop("cache", at, "the relay has requested it, and the authority has not answered")
	default:
		stale := ""
		if i.Stale {
			stale = ", from the store: no control plane has said since the relay began that it is still so"
		}
		e.say("cache", at, "the relay has version %q, %d bytes%s", loglines.ClipTo(i.Resource.Version(), 200), len(i.Resource.Value()), stale)
		if i.Err != nil {
			e.say("cache", at, "nothing newer could be fetched: %s", errorText(i.Err))
		}
	}
}

// explainHeld explains what the client has been sent.
func (r *Relay) explainHeld(e *Explanation, c *downstream.Inspected, typeURL, name string) {
	h := r.heldUnder(c, typeURL, name)
	if h == nil {
		subscribed := slices.ContainsFunc(c.Types, func(t downstream.TypeStatus) bool { return t.TypeURL == typeURL && t.Subscriptions > 0 })
		if !subscribed {
			e.stop("sent", "", "the client has not subscribed to anything of type %s", e.Type)
		} else {
			e.stop("sent", "", "the client has not subscribed to the name, nor has a wildcard or glob of it that has it")
		}
		e.Verdict = "the client does not have it: " + e.Verdict
		return
	}
	e.Held = h
	e.Has = h.Has
	e.say("sent", clientPage(c.Stream), "%s", h.Words())
	if e.Verdict != "" && !h.Has {
		e.Verdict = "the client does not have it: " + e.Verdict
		return
	}
	e.Verdict = h.Words()
}
