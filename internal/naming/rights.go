package naming

import (
	"cmp"
	"fmt"
	"strings"

	"google.golang.org/grpc/codes"

	"github.com/xds-relay/xds-relay/authority"
	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/configs"
	"github.com/xds-relay/xds-relay/downstream"
	"github.com/xds-relay/xds-relay/identity"
	"github.com/xds-relay/xds-relay/internal/xdstype"
	"github.com/xds-relay/xds-relay/rights"
	"github.com/xds-relay/xds-relay/urn"
)

// Rights decides what clients may have, by the rules of `rights` and the settings of their listener.
type Rights struct {
	cfg    *configs.Config
	router *authority.Router
	rules  *rights.Rules // nil: all clients may have everything
}

// NewRights returns the rights of a configuration.
func NewRights(cfg *configs.Config, router *authority.Router) *Rights {
	return &Rights{cfg: cfg, router: router, rules: cfg.CompiledRights()}
}

// ClientRights are the rights of one client. It is not safe for concurrent use. It implements
// downstream.Rights.
type ClientRights struct {
	*Rights
	// noSecrets: the client may not have resources of type Secret, whatever the rules say.
	noSecrets bool
	class     *rights.Class // nil without rules
	at        rightsPlace   // for the last name
}

// rightsPlace is the part of the rights for the names of an authority and a type.
type rightsPlace struct {
	authority, typeURL string // as in the name's key
	canonical          string // the authority as rules see it
	secret             bool
	rights             *rights.Place // nil without rules
}

// Of returns the rights of a client, nil if it may have everything. secretsForAnyone says that its listener gives
// Secrets to clients that have proven nothing.
func (r *Rights) Of(id *identity.Identity, secretsForAnyone bool) *ClientRights {
	if id == nil {
		id = identity.Anonymous(nil)
	}
	c := &ClientRights{Rights: r, noSecrets: !secretsForAnyone && !id.Local && !id.Authenticated()}
	switch {
	case r.rules != nil:
		c.class = r.rules.Class(id)
	case !c.noSecrets:
		return nil
	}
	return c
}

// Class implements downstream.Rights.
func (c *ClientRights) Class() uint64 {
	if c.class == nil {
		return 0
	}
	return c.class.ID
}

// KnowsViews reports whether the rules have to distinguish names that views match.
func (c *ClientRights) KnowsViews() bool { return c.class != nil && len(c.cfg.Views) > 0 }

// Requested is a name that a client requests, as rights see it.
type Requested struct {
	cache.Key
	// Plain: it consists of one canonical name, without directives.
	Plain bool
	view  bool
	of    *oldStyleScope // set for an old-style name
	// unspelled: it is a malformed xdstp name, which has no canonical spelling.
	unspelled bool
}

// parts iterates over the names that the requested name consists of, each with its authority: the name without
// directives, its entry, and those of its alternatives.
func (k Requested) parts(yield func(authority, name string) bool) {
	if k.Plain || !urn.IsXdstp(k.Name) || k.unspelled {
		yield(k.Scope.Authority, k.Name)
		return
	}
	u, err := urn.ParseURL(k.Name)
	for more := err == nil; more; u, more = u.Alt() {
		key := u.Key()
		if !yield(key.Authority, key.Name) {
			return
		}
		if entry, ok := u.Entry(); ok && !yield(key.Authority, key.Name+"#entry="+entry) {
			return
		}
	}
}

// May returns why the client may not have the name, nil if it may. It must have the right to each part.
func (c *ClientRights) May(k Requested) (why error) {
	if k.Plain {
		return c.mayHave(k.Scope.Authority, k.TypeURL, k.Name, false)
	}
	decided := false
	k.parts(func(authority, name string) bool {
		why, decided = c.mayHave(authority, k.TypeURL, name, k.unspelled), true
		return why == nil
	})
	if !decided { // not reached: the name was parsed before
		return c.mayHave(k.Scope.Authority, k.TypeURL, k.Name, true)
	}
	return why
}

// BypassesView returns why a client may not have the name: it is another spelling of a name that a view matches, and
// rules that allow the view cannot recognize it.
func (c *ClientRights) BypassesView(k Requested, views authority.ViewMatcher) (why error) {
	if !c.KnowsViews() || k.view || k.unspelled {
		return nil
	}
	k.parts(func(_, name string) bool {
		list, _, _ := strings.Cut(name, "#") // the list of an entry
		if i, is := c.router.Shadows(k.TypeURL, list, views); is {
			why = refused(downstream.RefusedRight, codes.PermissionDenied, fmt.Errorf(
				"this is another spelling of a name that views[%d] matches, and would bypass the view (request the name as the view's match spells it)", i))
		}
		return why == nil
	})
	return why
}

func (c *ClientRights) mayHave(of, typeURL, name string, unspelled bool) error {
	at := c.placeOf(of, typeURL)
	if c.noSecrets && at.secret {
		return refused(downstream.RefusedSecret, codes.PermissionDenied, errSecret)
	}
	if at.rights == nil {
		return nil
	}
	var d rights.Decision
	if name, ok := withAuthority(name, of, at.canonical); ok && !unspelled {
		d = at.rights.Decide(name)
	} else {
		d = at.rights.DecideUnspelled()
	}
	if d.Allowed {
		return nil
	}
	return refused(downstream.RefusedRight, codes.PermissionDenied, c.denial(d))
}

var errSecret = fmt.Errorf("the listener gives Secrets only to clients that have proven who they are, or that are on the relay's machine")

// denial returns why a decision denies a name. It names the rule, but not the rule's content.
func (r *Rights) denial(d rights.Decision) error {
	switch {
	case d.Rule < 0:
		return fmt.Errorf("no rule of %s allows it", r.cfg.RightsPlace())
	case d.Failed:
		return fmt.Errorf("%s cannot be evaluated for this client, and so does not allow it", r.cfg.Rights[d.Rule].Place())
	}
	return fmt.Errorf("%s does not allow it", r.cfg.Rights[d.Rule].Place())
}

// placeOf returns the rights for the names of an authority and a type, which are mostly the same as for the name
// before.
func (c *ClientRights) placeOf(of, typeURL string) *rightsPlace {
	if c.at.canonical != "" && c.at.authority == of && c.at.typeURL == typeURL {
		return &c.at
	}
	resources := xdstype.OfResources(typeURL)
	c.at = rightsPlace{authority: of, typeURL: typeURL, canonical: c.router.Canonical(of), secret: resources == xdstype.SecretV3}
	if c.class != nil {
		c.at.rights = c.class.At(c.at.canonical, resources)
	}
	return &c.at
}

// withAuthority returns a canonical name with its authority as rules see it, or false if that makes it too long.
func withAuthority(name, spelled, canonical string) (string, bool) {
	if spelled == canonical || !urn.IsXdstp(name) {
		return name, true
	}
	const scheme = "xdstp://"
	_, rest, _ := strings.Cut(strings.TrimPrefix(name, scheme), "/")
	name, entry, _ := strings.Cut(rest, "#")
	key, err := urn.KeyOf(scheme + escapedAuthority(canonical) + "/" + name)
	if entry != "" {
		key.Name += "#" + entry
	}
	return key.Name, err == nil
}

// escapedAuthority escapes the characters that would end an authority in a name.
func escapedAuthority(authority string) string {
	return strings.NewReplacer("%", "%25", "/", "%2F", "?", "%3F", "#", "%23").Replace(authority)
}

// MayHaveAll implements downstream.Rights.
func (c *ClientRights) MayHaveAll(names []string, of cache.Key) bool {
	for _, name := range names {
		if c.mayHave(of.Scope.Authority, of.TypeURL, name, false) != nil {
			return false
		}
	}
	return true
}

// MayHaveOwn implements downstream.Rights: the client requests an alias, and own is the resource's own name.
func (c *ClientRights) MayHaveOwn(k cache.Key, own string) error {
	of, name, unspelled := c.ownName(k, own)
	return c.mayHave(of, k.TypeURL, name, unspelled)
}

// ownName returns the authority and canonical spelling of the own name of a resource that has the alias k.
func (r *Rights) ownName(k cache.Key, own string) (of, name string, unspelled bool) {
	if !urn.IsXdstp(own) {
		return k.Scope.Authority, own, false
	}
	if to, err := r.router.Leaf(own); err == nil {
		return to.Key.Authority, to.Key.Name, false
	}
	key, err := urn.KeyOf(own)
	return cmp.Or(key.Authority, k.Scope.Authority), cmp.Or(key.Name, own), err != nil
}

// MayHaveOwnOf reports whether the client may have the resources of h also by their own names.
func (c *ClientRights) MayHaveOwnOf(k cache.Key, h *downstream.Held) bool {
	for _, r := range []*cache.Resource{h.Resource, h.Rejected} {
		if r != nil && r.OwnName() != "" && c.MayHaveOwn(k, r.OwnName()) != nil {
			return false
		}
	}
	return true
}
