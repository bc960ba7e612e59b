package authority

// Explanations of a router's decisions, for people.

import (
	"fmt"
	"slices"
	"strings"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/configs"
	"github.com/xds-relay/xds-relay/internal/xdstype"
	"github.com/xds-relay/xds-relay/urn"
)

// Explain describes, one step per line, how the router routes a name that a client requests under typeURL. For an
// xdstp name, typeURL may be empty. The error is the error of Xdstp or OldStyle, after the last step.
func (r *Router) Explain(client configs.Client, typeURL, name string) (string, error) {
	var steps strings.Builder
	if r.explainView(&steps, client, typeURL, name) {
		return steps.String(), nil
	}
	if urn.IsXdstp(name) {
		err := r.explainXdstp(&steps, typeURL, name)
		return steps.String(), err
	}
	err := r.explainOldStyle(&steps, client, typeURL, name)
	return steps.String(), err
}

func (r *Router) explainXdstp(steps *strings.Builder, typeURL, name string) error {
	fmt.Fprintf(steps, "%s is an xdstp name: it means the same to every client\n", name)
	route, err := r.Xdstp(name)
	if opaque, ok := r.Opaque(name); ok && (err != nil || !urn.HasID(name)) {
		why := "it has no id"
		if err != nil {
			why = err.Error()
		}
		fmt.Fprintf(steps, "but not a valid one (%s): the relay requests it from its authority unchanged\n", why)
		r.explainSource(steps, opaque.Scope)
		return nil
	}
	if err != nil {
		return err
	}
	var params []string
	if i, ok := r.find(route.Scope.Authority); ok && route.Scope.Derived == "" {
		if params = dropped(r.authorities[i].ContextParameters, name); len(params) > 0 {
			fmt.Fprintf(steps, "authorities[%d].context_parameters drops %s\n", i, strings.Join(params, ", "))
		}
	}
	if route.Key.Name != name {
		fmt.Fprintf(steps, "its key is %s\n", route.Key.Name)
	}
	switch {
	case route.Key.Glob && len(params) > 0:
		fmt.Fprintf(steps, "it is a glob collection: all resources in that directory with exactly these parameters; their names get the parameters that the client requests\n")
	case route.Key.Glob:
		fmt.Fprintf(steps, "it is a glob collection: all resources in that directory with exactly these parameters\n")
	}
	if requested := xdstype.Message(typeURL); typeURL != "" && !route.Under(requested) {
		if _, ok := r.Opaque(name); ok {
			fmt.Fprintf(steps, "its type is %s; the relay requests it from its authority under %s nevertheless\n", route.Key.Type, typeURL)
		} else {
			fmt.Fprintf(steps, "its type is %s, so it does not exist under %s\n", route.Key.Type, typeURL)
		}
	}
	if route.Scope.Derived != "" {
		u, _ := urn.ParseURL(route.Key.Name)
		r.explainDirectives(steps, u)
		return nil
	}
	r.explainSource(steps, route.Scope)
	return nil
}

func (r *Router) explainOldStyle(steps *strings.Builder, client configs.Client, typeURL, name string) error {
	fmt.Fprintf(steps, "%q is an old-style name: its meaning depends on the client, here node %q of cluster %q, and on the type, here %q\n",
		name, client.Node.GetId(), client.Node.GetCluster(), typeURL)
	scope, i, err := r.oldStyle(client, typeURL, func(i int, err error) {
		when := oneLine(r.rules[i].When)
		if err != nil {
			fmt.Fprintf(steps, "old_style_names[%d] does not match: %s cannot be evaluated: %v\n", i, when, err)
			return
		}
		fmt.Fprintf(steps, "old_style_names[%d] does not match: %s is false\n", i, when)
	})
	if i < 0 {
		return err
	}
	rule := r.rules[i]
	if rule.When == "" {
		fmt.Fprintf(steps, "old_style_names[%d] matches: it has no when\n", i)
	} else {
		fmt.Fprintf(steps, "old_style_names[%d] matches: %s is true\n", i, oneLine(rule.When))
	}
	if err != nil {
		return err
	}
	if rule.Partition == "" {
		fmt.Fprintf(steps, "partition %q: the only one of the rule\n", scope.Partition)
	} else {
		fmt.Fprintf(steps, "partition %q: %s\n", scope.Partition, oneLine(rule.Partition))
	}
	r.explainSource(steps, scope)
	if r.hasServers(rule.Authority) {
		fmt.Fprintf(steps, "the relay sends the control plane %s\n", describeUpstream(rule))
	}
	return nil
}

func (r *Router) explainSource(steps *strings.Builder, scope cache.Scope) {
	i, _ := r.find(scope.Authority)
	a := &r.authorities[i]
	fmt.Fprintf(steps, "authority %q: authorities[%d]", scope.Authority, i)
	if a.Name != scope.Authority {
		fmt.Fprintf(steps, ", which is %s", a.Name)
	}
	fmt.Fprintf(steps, "\nfed by %s\n", describeSource(a))
}

// Describe describes each authority, rule and view, one per line.
func (r *Router) Describe() string {
	var b strings.Builder
	for i, a := range r.authorities {
		fmt.Fprintf(&b, "authorities[%d]: xdstp://%s/... is fed by %s", i, a.Name, describeSource(&a))
		if strings.HasPrefix(a.Name, "*") {
			b.WriteString(", separately for each authority")
		}
		b.WriteString("\n")
		if p := a.ContextParameters; p != nil {
			fmt.Fprintf(&b, "authorities[%d].context_parameters: %s\n", i, describePolicy(p))
		}
	}
	always := false
	for i, rule := range r.rules {
		who := "every client"
		switch {
		case !rule.Always():
			who = "a client with " + oneLine(rule.When)
		case i > 0:
			who = "every other client"
		}
		always = rule.Always()
		share := "with all clients of this rule"
		if rule.Partition != "" {
			share = "with those that have the same " + oneLine(rule.Partition)
		}
		fmt.Fprintf(&b, "old_style_names[%d]: %s is served from authority %q, sharing %s\n", i, who, rule.Authority, share)
		if rule.Joins() {
			fmt.Fprintf(&b, "old_style_names[%d]: different Nodes can have the same partition, because it joins texts that clients choose: see docs/partitions.md\n", i)
		}
		if r.hasServers(rule.Authority) {
			fmt.Fprintf(&b, "old_style_names[%d]: the relay sends the control plane %s; %s\n", i, describeUpstream(rule), describeSharing(rule))
		}
	}
	if !always {
		b.WriteString("old_style_names: any other client is refused, except for xdstp names\n")
	}
	r.describeViews(&b)
	return b.String()
}

func describeSource(a *configs.Authority) string {
	if a.Directory != "" {
		return "directory " + a.Directory
	}
	servers := make([]string, len(a.Servers))
	for i := range a.Servers {
		servers[i] = describeServer(&a.Servers[i])
	}
	if len(servers) == 1 {
		return servers[0]
	}
	f := a.Failover
	when := "missing resources"
	if f.Policy == configs.PolicyUnreachable {
		when = fmt.Sprintf("missing resources, and for all resources after %s", f.Grace)
	}
	return fmt.Sprintf("%s (the next server takes over for %s; a server has %s to answer)", strings.Join(servers, ", else "), when, f.Timeout)
}

func describeServer(s *configs.Server) string {
	how := string(s.Protocol)
	if !s.Globs && s.Protocol != configs.ProtocolSotW && s.Protocol != configs.ProtocolREST {
		how += ", globs from wildcards"
	}
	switch {
	case s.Protocol == configs.ProtocolREST:
		how = fmt.Sprintf("rest, polled every %s", s.PollInterval)
	case !s.Aggregated:
		how += ", a stream for each type"
	}
	return fmt.Sprintf("server %s (%s, %s)", s.Address, how, describeSecurity(s))
}

// describeSecurity describes how the relay authenticates a server, and the server the relay.
func describeSecurity(s *configs.Server) string {
	t := s.TLS
	if t == nil {
		return "plaintext"
	}
	security := "TLS"
	if t.ServerID != "" {
		security += " to " + t.ServerID
	}
	switch {
	case t.SPIFFE.WorkloadAPI != "":
		security += ", with an SVID"
	case t.CertFile != "":
		security += ", with a certificate"
	}
	if s.TokenFile != "" {
		security += ", with a token"
	}
	return security
}

// hasServers reports whether control planes, and not a directory, serve an authority. Only control
// planes receive a Node.
func (r *Router) hasServers(authority string) bool {
	i, ok := r.find(authority)
	return ok && r.authorities[i].Directory == ""
}

// describeUpstream describes the Node that the relay sends to control planes for a rule.
func describeUpstream(rule configs.Rule) string {
	fields, of := rule.Upstream(), "the first client of a partition"
	if rule.Partition == "" {
		of = "the first client of this rule"
	}
	if fields.Whole() {
		return fmt.Sprintf("the whole Node of %s", of)
	}
	// The Node always has the id and the cluster.
	rest := slices.DeleteFunc(fields.Paths(), func(path string) bool { return path == "id" || path == "cluster" })
	return fmt.Sprintf("a Node with only %s of %s", strings.Join(append([]string{"id", "cluster"}, rest...), ", "), of)
}

// describeSharing describes which resources clients with different Nodes get.
func describeSharing(rule configs.Rule) string {
	if rule.Partition == "" {
		return "all clients get the same resources, also where their Nodes differ"
	}
	return "all clients of the partition get the same resources, also where their Nodes differ"
}

// explainDirectives explains a name with directives.
func (r *Router) explainDirectives(steps *strings.Builder, u urn.URL) {
	first := true
	for more := true; more; u, more = u.Alt() {
		if first {
			fmt.Fprintf(steps, "it has directives, which the relay evaluates: it is %s\n", describeURL(u))
		} else {
			fmt.Fprintf(steps, "or, if that is unavailable, %s\n", describeURL(u))
		}
		first = false
		if route, err := r.Leaf(u.Key().Name); err != nil {
			fmt.Fprintf(steps, "which has no source: %v\n", err)
		} else {
			r.explainSource(steps, route.Scope)
		}
	}
}

func describeURL(u urn.URL) string {
	if entry, ok := u.Entry(); ok {
		return fmt.Sprintf("the entry %s of %s", entry, u.Key().Name)
	}
	return u.Key().Name
}

// explainView explains which view of a name the client gets, and why the views before it do not match. It returns
// false if the client gets none.
func (r *Router) explainView(steps *strings.Builder, client configs.Client, typeURL, name string) (found bool) {
	_, i, found := r.view(typeURL, name, r.ViewMatcher(client), func(i int, err error) {
		when := oneLine(r.views[i].When)
		if err != nil {
			fmt.Fprintf(steps, "views[%d] does not match: %s cannot be evaluated: %v\n", i, when, err)
			return
		}
		fmt.Fprintf(steps, "views[%d] does not match: %s is false\n", i, when)
	})
	if !found {
		return false
	}
	v := &r.views[i]
	if v.When == "" {
		fmt.Fprintf(steps, "views[%d] matches: it has no when\n", i)
	} else {
		fmt.Fprintf(steps, "views[%d] matches: %s is true\n", i, oneLine(v.When))
	}
	fmt.Fprintf(steps, "it is %s\n", describeUnion(v))
	for _, of := range r.ViewSources(cache.Scope{Derived: r.ViewScope(i)}) {
		r.explainSource(steps, of)
	}
	return true
}

// describeViews describes each view, one per line.
func (r *Router) describeViews(b *strings.Builder) {
	for i := range r.views {
		v := &r.views[i]
		what := v.Match.Glob + v.Match.List
		if v.Match.Wildcard {
			what = "all resources of type " + xdstype.Word(v.ResourceType())
		}
		who := "every client"
		if !v.Always() {
			who = "a client with " + oneLine(v.When)
		}
		fmt.Fprintf(b, "views[%d]: %s that requests %s gets %s\n", i, who, what, describeUnion(v))
	}
}

func describeUnion(v *configs.View) string {
	union := strings.Join(v.Collections, " and ")
	if v.Rename {
		union += ", renamed by its directory"
	}
	return union
}
