package main

// The resources of a server that `lint` checks: those that its clients would request, step by step.

import (
	"context"
	"fmt"
	"net"
	"slices"

	"github.com/xds-relay/xds-relay/client"
	"github.com/xds-relay/xds-relay/internal/graph"
	"github.com/xds-relay/xds-relay/internal/loglines"
	"github.com/xds-relay/xds-relay/internal/xdstype"
	"github.com/xds-relay/xds-relay/lint"
	"github.com/xds-relay/xds-relay/urn"
)

// server checks the resources of a server.
func (f *lintFlags) server(ctx context.Context, address string, report *lintReport) error {
	c := newCrawl(f)
	if err := c.prepare(address); err != nil {
		return usageError(err)
	}
	if err := c.run(ctx); err != nil {
		return &exitError{status: statusFailed, err: err}
	}
	options, err := f.options()
	if err != nil {
		return usageError(err)
	}
	options.Why = func(id graph.ID) string { return c.missing[id] }
	options.Part = len(f.listeners) > 0
	f.look(c.found, options, report, func(_ lint.Finding, line *lintFinding) { line.Server = address })
	return nil
}

// crawl requests the resources of one server.
type crawl struct {
	flags  *lintFlags
	server client.Server
	query  client.Query

	found     []lint.Resource
	resources map[graph.ID]bool   // the ids of found
	missing   map[graph.ID]string // why a resource is not there
	requested map[graph.ID]bool
}

func newCrawl(f *lintFlags) *crawl {
	return &crawl{flags: f, resources: map[graph.ID]bool{}, missing: map[graph.ID]string{}, requested: map[graph.ID]bool{}}
}

func (c *crawl) prepare(address string) (err error) {
	if _, port, splitErr := net.SplitHostPort(address); splitErr != nil || port == "" {
		return fmt.Errorf("--server %q: want host:port", address)
	}
	c.server.Address = address
	if c.server.Credentials, err = c.flags.tls.credentials(); err != nil {
		return err
	}
	if err := c.flags.form.set(&c.query); err != nil {
		return err
	}
	c.query.Node, err = c.flags.node.node()
	return err
}

// wildcard is all resources of a type.
const wildcard = "*"

// run requests the first resources, then those that they refer to, and so on.
func (c *crawl) run(ctx context.Context) error {
	next := map[string][]string{xdstype.ListenerV3: c.flags.listeners}
	if len(c.flags.listeners) == 0 {
		next = map[string][]string{xdstype.ListenerV3: {wildcard}, xdstype.ClusterV3: {wildcard}}
	}
	for len(next) > 0 {
		before := len(c.found)
		for _, typeURL := range sortedKeys(next) {
			if err := c.get(ctx, typeURL, next[typeURL]); err != nil {
				return err
			}
		}
		next = map[string][]string{}
		for _, r := range c.found[before:] {
			references, _ := graph.References(r.TypeURL, r.Value) // what cannot be read is a finding of lint
			for _, reference := range references {
				if c.follows(reference) {
					next[reference.To.TypeURL] = append(next[reference.To.TypeURL], reference.To.Name)
				}
			}
		}
	}
	return nil
}

func sortedKeys(m map[string][]string) (keys []string) {
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

// follows reports whether the crawl has to request the resource that r refers to. It marks that resource
// as requested.
func (c *crawl) follows(r graph.Reference) bool {
	// Clients discover VirtualHosts and the clusters that a header names only when a request comes.
	isKnown := !r.Many || urn.IsXdstp(r.To.Name) || r.To.TypeURL == xdstype.ScopedRouteV3
	if r.Source != graph.Stream || !isKnown || c.requested[r.To] || c.resources[r.To] {
		return false
	}
	c.requested[r.To] = true
	return true
}

// most is the largest number of names in one request.
const most = 1000

// get requests resources of a type.
func (c *crawl) get(ctx context.Context, typeURL string, names []string) error {
	for chunk := range slices.Chunk(names, most) {
		query := c.query
		query.TypeURL, query.Names = typeURL, chunk
		if len(chunk) == 1 && chunk[0] == wildcard {
			query.Names = nil
		}
		answer, err := client.Get(ctx, c.server, query, c.flags.timeout)
		if err != nil {
			return err
		}
		c.take(typeURL, answer)
		if query.Names == nil && !answer.Answered && len(answer.Failed) > 0 {
			return fmt.Errorf("%s: all of type %s: %w", c.server.Address, xdstype.Word(typeURL), answer.Failed[0].Err)
		}
	}
	return nil
}

func (c *crawl) take(typeURL string, answer client.Answer) {
	for _, r := range answer.Resources {
		id := graph.ID{TypeURL: r.GetResource().GetTypeUrl(), Name: r.GetName()}
		if c.resources[id] {
			continue
		}
		c.resources[id] = true
		c.found = append(c.found, lint.Resource{TypeURL: id.TypeURL, Name: id.Name, Value: r.GetResource().GetValue()})
	}
	why := func(e client.NameError, otherwise string) {
		if e.Err != nil {
			otherwise += ": " + loglines.Clip(e.Err.Error())
		}
		c.missing[graph.ID{TypeURL: typeURL, Name: e.Name}] = otherwise
	}
	for _, e := range answer.Missing {
		why(e, "does not exist")
	}
	for _, e := range answer.Failed {
		why(e, "is not available")
	}
	for _, name := range answer.Unanswered {
		c.missing[graph.ID{TypeURL: typeURL, Name: name}] = fmt.Sprintf("is not answered within %v", c.flags.timeout)
	}
}
