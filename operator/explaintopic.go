package operator

// The steps of an explanation between the client's name and its control plane: rollouts, the guard, redirects, and
// the cache.

import (
	"cmp"
	"slices"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/configs"
	"github.com/xds-relay/xds-relay/internal/loglines"
	"github.com/xds-relay/xds-relay/internal/naming"
	"github.com/xds-relay/xds-relay/urn"
)

// mostRedirects bounds the redirects that an explanation follows.
const mostRedirects = 10

// explainTopic explains what the relay has of a name. depth counts the redirects that led to it.
func (r *Observer) explainTopic(e *Explanation, asks configs.Client, k cache.Key, depth int) {
	if k.Scope.Derived != "" && r.now().Router.ViewSources(k.Scope) != nil {
		e.say("view", "", "a view puts it together from other collections")
		r.explainState(e, k)
		return
	}
	if u, err := urn.ParseURL(k.Name); err == nil && k.Scope.Derived != "" && u.String() != u.Key().Name {
		r.explainDirectives(e, asks, k, u, depth)
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
	if i, known := r.Cache.Look(leaf); known && i.Resource != nil {
		if to := i.Resource.Redirect(); to != "" {
			e.say("redirect", ref.Page(), "its authority redirects it to %s", loglines.ClipTo(to, 200))
			next, err := naming.XdstpKey(r.now().Router.Xdstp, k.TypeURL, to)
			switch {
			case err != nil:
				e.stop("redirect", "", "that cannot be followed: %v", err)
			case depth >= mostRedirects:
				e.stop("redirect", "", "that is more than %d redirects", mostRedirects)
			default:
				r.explainTopic(e, asks, next, depth+1)
			}
			return
		}
		if own := i.Resource.OwnName(); own != "" && own != leaf.Name {
			e.say("alias", "", "the name is an alias: the resource's own name is %s", loglines.ClipTo(own, 200))
			if depth == 0 { // after a redirect, the control plane chose the name, and the client may have it
				r.explainOwn(e, asks, leaf, own)
			}
		}
	}
	r.explainState(e, leaf)
}

// explainOwn explains whether a client that requests an alias of a resource may have the resource under its own name.
func (r *Observer) explainOwn(e *Explanation, asks configs.Client, k cache.Key, own string) {
	lines, err := naming.ExplainRightsToOwn(r.now().Config, r.now().Router, asks, k, own)
	e.sayAll("rights", lines)
	if err != nil {
		e.stop("rights", "", "the client may not have the resource that the name is an alias of: %v", err)
	}
}

// explainDirectives explains a name with directives: the entry of a list, and the alternatives. The first alternative
// that is available counts. TP1: "Alternatives".
func (r *Observer) explainDirectives(e *Explanation, asks configs.Client, k cache.Key, u urn.URL, depth int) {
	for n := 1; ; n++ {
		name := u.Key().Name
		alternative, more := u.Alt()
		if n > 1 || more {
			e.say("choice", "", "alternative %d is %s", n, loglines.ClipTo(name, 200))
		}
		if entry, ok := u.Entry(); ok {
			e.say("choice", "", "it is entry %q of that list", loglines.ClipTo(entry, 200))
		}
		one := &Explanation{}
		if of, err := naming.XdstpKey(r.now().Router.Xdstp, k.TypeURL, name); err != nil {
			one.stop("name", "", "the name is not served: %v", err)
		} else {
			r.explainTopic(one, asks, of, depth)
		}
		e.Steps = append(e.Steps, one.Steps...)
		e.Resource = cmp.Or(e.Resource, one.Resource)
		denied := slices.ContainsFunc(one.Steps, func(s ExplanationStep) bool { return s.Part == "rights" && s.Stops })
		if one.Verdict == "" || denied || !more {
			e.Verdict = one.Verdict
			return
		}
		u = alternative
	}
}

// explainSource explains where the resources of a scope come from. It returns false if that ends the explanation.
func (r *Observer) explainSource(e *Explanation, k cache.Key) bool {
	a, ok := r.now().Router.Source(k.Scope)
	if !ok {
		e.stop("source", "", "authority %q is not configured", k.Scope.Authority)
		return false
	}
	at := authorityPage(a.Name)
	if a.Directory != "" {
		return true
	}
	if since, down := r.Reachability.Unreachable(k.Scope); down {
		e.say("source", at, "no server of authority %q can be reached since %s", a.Name, moment(since))
	}
	streams := r.Sources.Statuses()[k.Scope]
	if len(streams) == 0 {
		e.say("source", at, "no stream to authority %q is open for it, because no client has requested anything there", a.Name)
	}
	for _, st := range streams {
		switch {
		case st.Connected:
			e.say("source", at, "a stream to server %s is open since %s (%s)", st.Server.Address, moment(st.Since), st.Protocol)
		case st.Subscriptions > 0 && st.LastError != "":
			e.say("source", at, "the stream to server %s is lost since %s: %s", st.Server.Address, moment(st.Since), st.LastError)
		}
	}
	return true
}

// explainGates explains the guard's and rollouts' effects on a name.
func (r *Observer) explainGates(e *Explanation, k cache.Key) {
	for _, of := range r.Sources.Held() {
		for _, h := range of {
			if h.Key.Scope == k.Scope && h.Key.TypeURL == k.TypeURL {
				e.say("guard", authorityPage(k.Scope.Authority), "the control plane %s; the guard keeps them until %s", heldWords(&h), moment(h.Until))
			}
		}
	}
	newest, waits := r.Rollouts.Newest(k)
	switch {
	case !waits:
	case newest == nil:
		e.say("rollout", "/rollout", "a rollout keeps its removal back until all clients have the new state")
	default:
		e.say("rollout", "/rollout", "a rollout keeps version %q back from clients whose turn has not come", loglines.ClipTo(newest.Version(), 200))
	}
}

// explainState explains what the relay has of a name.
func (r *Observer) explainState(e *Explanation, k cache.Key) {
	at := ""
	if e.Resource != nil && k.Scope.Derived == "" {
		at = e.Resource.Page()
	}
	if k.IsSet() {
		members, status, known := r.Cache.LookSet(k)
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
	i, known := r.Cache.Look(k)
	switch {
	case !known:
		e.stop("cache", "", "the relay does not have it: no client has requested it")
	case i.Status == cache.Absent && i.Set != "":
		e.stop("cache", at, "it does not exist: the authority sends all resources of the type, and this one is not among them")
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
			stale = ", from the store: no control plane has confirmed it since the relay started"
		}
		e.say("cache", at, "the relay has version %q, %d bytes%s", loglines.ClipTo(i.Resource.Version(), 200), i.Resource.ValueSize(), stale)
		if i.Err != nil {
			e.say("cache", at, "nothing newer could be fetched: %s", errorText(i.Err))
		}
	}
}
