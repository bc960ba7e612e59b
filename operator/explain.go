package operator

// Explanations, step by step, of where a client's name leads, and why the client does not have the resource.

import (
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/xds-relay/xds-relay/admin/page"
	"github.com/xds-relay/xds-relay/client"
	"github.com/xds-relay/xds-relay/configs"
	"github.com/xds-relay/xds-relay/downstream"
	"github.com/xds-relay/xds-relay/internal/loglines"
	"github.com/xds-relay/xds-relay/internal/naming"
	"github.com/xds-relay/xds-relay/internal/xdstype"
	"github.com/xds-relay/xds-relay/urn"
)

// Explanation describes where a client's name leads, as /api/explain shows it.
type Explanation struct {
	Stream uint64 `json:"stream"`
	Client string `json:"client"`
	Type   string `json:"type"`
	Name   string `json:"name"`
	// Has says whether the client holds the resource.
	Has bool `json:"has"`
	// Verdict describes in one sentence what the client has, or why it does not have it.
	Verdict string `json:"verdict"`
	// Steps lead from the client to the source and back.
	Steps []ExplanationStep `json:"steps"`
	// Resource is the resource of an authority that the name stands for, if there is one.
	Resource *ResourceRef `json:"resource,omitempty"`
	// Held is what the client holds under the name.
	Held *HeldResource `json:"held,omitempty"`
	// Relay is the relay of the fleet that has the client.
	Relay string `json:"relay,omitempty"`
}

// ExplanationStep is one step: the part of the relay, such as name, rights or source, and its finding.
type ExplanationStep struct {
	Part string `json:"part"`
	Text string `json:"text"`
	// Page is the page that shows more.
	Page string `json:"page,omitempty"`
	// Stops says that the explanation ends here: the name gets no further.
	Stops bool `json:"stops,omitempty"`
}

func (e *Explanation) say(part, page, format string, args ...any) {
	e.Steps = append(e.Steps, ExplanationStep{Part: part, Text: words(fmt.Sprintf(format, args...)), Page: page})
}

// stop is like say, for the step at which the name gets no further.
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
func (r *Observer) explain(q url.Values) (*Explanation, error) {
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

// typeOfName returns the type URL of a name: from the query, from the name, or from the client's subscription to it.
func (r *Observer) typeOfName(c *downstream.Inspected, word, name string) (string, error) {
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
func (r *Observer) explainName(e *Explanation, c *downstream.Inspected, typeURL, name string) {
	now := r.now()
	asks := configs.Client{Node: c.Node, Identity: c.Identity}
	e.say("client", clientPage(c.Stream), "client %q, stream %d, %s from %s, identity %s", e.Client, c.Stream, c.Form, c.Peer, c.Identity.String())
	lines, err := now.Router.Explain(asks, typeURL, name)
	e.sayAll("name", lines)
	if err != nil {
		e.stop("name", "", "the name is not served: %v", err)
		return
	}
	lines, err = naming.ExplainRights(now.Config, now.Router, asks, typeURL, name)
	e.sayAll("rights", lines)
	if err != nil {
		e.stop("rights", "", "the client may not have it: %v", err)
		return
	}
	names := &naming.Names{Router: now.Router, Client: asks, Views: now.Router.ViewMatcher(asks)}
	k, err := names.Meaning(typeURL, name)
	if err != nil {
		e.stop("name", "", "the name is not served: %v", err)
		return
	}
	r.explainTopic(e, asks, k.Key, 0)
}

// explainHeld explains what the relay has sent the client.
func (r *Observer) explainHeld(e *Explanation, c *downstream.Inspected, typeURL, name string) {
	h := r.heldUnder(c, typeURL, name)
	if h == nil {
		subscribed := slices.ContainsFunc(c.Types, func(t downstream.TypeStatus) bool { return t.TypeURL == typeURL && t.Subscriptions > 0 })
		if !subscribed {
			e.stop("sent", "", "the client has not subscribed to anything of type %s", e.Type)
		} else {
			e.stop("sent", "", "the client has not subscribed to the name, nor to a wildcard or glob that contains it")
		}
		e.Verdict = "the client does not have it: " + e.Verdict
		return
	}
	e.Held = h
	e.Has = h.Has
	if h.Subscription != name {
		e.say("sent", "", "the client has it as a member of %q, to which it has subscribed", loglines.ClipTo(h.Subscription, 200))
	}
	e.say("sent", clientPage(c.Stream), "%s", h.Words())
	if e.Verdict != "" && !h.Has {
		e.Verdict = "the client does not have it: " + e.Verdict
		return
	}
	e.Verdict = h.Words()
}
