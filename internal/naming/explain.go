package naming

// Explanations of rights, for people.

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	"github.com/xds-relay/xds-relay/authority"
	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/configs"
	"github.com/xds-relay/xds-relay/internal/loglines"
	"github.com/xds-relay/xds-relay/internal/xdstype"
	"github.com/xds-relay/xds-relay/rights"
)

// ExplainRights describes, one step per line, whether a client may have a name, and which rule decides that. The
// error is the reason why it may not. A client that requests an alias also needs the right to the resource's own
// name, which only the control plane knows.
func ExplainRights(cfg *configs.Config, router *authority.Router, client configs.Client, typeURL, name string) (string, error) {
	names := &Names{Router: router, Client: client, Views: router.ViewMatcher(client)}
	k, err := names.Meaning(typeURL, name)
	if err != nil {
		return "", err
	}
	e := rightsExplainer{Rights: NewRights(cfg, router), client: client}
	denied := e.listeners(k)
	if e.rules == nil {
		return e.steps.String(), denied
	}
	e.class = e.rules.Class(client.Identity)
	k.parts(func(of, name string) bool {
		err := e.part(k, of, name)
		denied = errors.Join(denied, err)
		return err == nil
	})
	return e.steps.String(), denied
}

// ExplainRightsToOwn describes, one step per line, whether a client that requests an alias of a resource may have the
// resource under its own name. The error is the reason why it may not.
func ExplainRightsToOwn(cfg *configs.Config, router *authority.Router, client configs.Client, k cache.Key, own string) (string, error) {
	e := rightsExplainer{Rights: NewRights(cfg, router), client: client}
	if e.rules == nil {
		return "", nil
	}
	e.class = e.rules.Class(client.Identity)
	of, name, unspelled := e.ownName(k, own)
	k.Name = name
	err := e.part(Requested{Key: k, unspelled: unspelled}, of, name)
	return e.steps.String(), err
}

type rightsExplainer struct {
	*Rights
	client configs.Client
	class  *rights.Class
	steps  strings.Builder
}

func (e *rightsExplainer) say(format string, args ...any) {
	fmt.Fprintf(&e.steps, format+"\n", args...)
}

// listeners describes which listeners give the client a Secret. It returns an error if none does.
func (e *rightsExplainer) listeners(k Requested) error {
	if xdstype.OfResources(k.TypeURL) != xdstype.SecretV3 || e.client.Identity.Authenticated() {
		return nil
	}
	gives := false
	for i, l := range e.cfg.Listeners {
		if l.Secrets == configs.SecretsAnyone {
			gives = true
			e.say("listeners[%d].secrets is %s: the listener gives it to clients that have proven nothing", i, l.Secrets)
		} else {
			e.say("listeners[%d].secrets is %s: the listener gives it only to clients that have proven who they are, or that are on the relay's machine", i, l.Secrets)
		}
	}
	if gives {
		return nil
	}
	return errSecret
}

// part describes the decision on a part of the requested name.
func (e *rightsExplainer) part(k Requested, of, name string) error {
	at := rightsPlace{canonical: e.router.Canonical(of)}
	resources := xdstype.OfResources(k.TypeURL)
	at.rights = e.class.At(at.canonical, resources)
	spelled, ok := withAuthority(name, of, at.canonical)
	var d rights.Decision
	if ok && !k.unspelled {
		d = at.rights.Decide(spelled)
		e.say("rights decide on authority %q, type_url %q, name %q", at.canonical, resources, spelled)
	} else {
		d = at.rights.DecideUnspelled()
		e.say("rights decide on authority %q, type_url %q, and no name: %s has no canonical spelling", at.canonical, resources, loglines.Clip(name))
	}
	last := d.Rule
	if last < 0 {
		last = len(e.cfg.Rights)
	}
	for i := range last {
		e.say("rights[%d] does not match: %s is false", i, oneLine(e.cfg.Rights[i].When))
	}
	if d.Rule < 0 {
		return e.denial(d)
	}
	r := &e.cfg.Rights[d.Rule]
	when := "it has no when"
	if r.When != "" {
		when = oneLine(r.When) + " is true"
	}
	switch {
	case d.Failed:
		e.say("%s denies it, because %s or %s cannot be evaluated for this client", r.Place(), cmp.Or(oneLine(r.When), "its when"), oneLine(r.Allow))
	case d.Allowed:
		e.say("%s matches: %s; it allows it: %s is true", r.Place(), when, oneLine(r.Allow))
		return nil
	default:
		e.say("%s matches: %s; it denies it: %s is false", r.Place(), when, oneLine(r.Allow))
	}
	return e.denial(d)
}

// DescribeRights describes each rule of rights, one per line, and what no client may have.
func DescribeRights(cfg *configs.Config) string {
	var b strings.Builder
	always := false
	for i := range cfg.Rights {
		r := &cfg.Rights[i]
		what := "everything"
		switch {
		case !r.Always():
			what = "what has " + oneLine(r.When)
		case i > 0:
			what = "everything else"
		}
		always = always || r.Always()
		whether := "is for clients with " + oneLine(r.Allow)
		switch oneLine(r.Allow) {
		case "true":
			whether = "is for every client"
		case "false":
			whether = "is for nobody"
		}
		fmt.Fprintf(&b, "rights[%d]: %s %s\n", i, what, whether)
	}
	if len(cfg.Rights) > 0 && !always {
		b.WriteString("rights: everything else is for nobody\n")
	}
	return b.String()
}

func oneLine(e configs.Expression) string { return strings.Join(strings.Fields(string(e)), " ") }
