package configs

// This file is the warnings: about settings that are allowed but dangerous.

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/xds-relay/xds-relay/identity"
	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// Warnings returns one warning for each dangerous setting, in the order of the file's lines. The relay
// starts anyway.
func (c *Config) Warnings() Errors {
	w := warner{source: c.source}
	for i := range c.Listeners {
		w.listener(fmt.Sprintf("listeners[%d]", i), &c.Listeners[i])
	}
	if c.Fleet != nil {
		w.rolloutsOfFleet(c.Authorities)
	}
	w.rights(c.Rights)
	if len(c.Rights) > 0 {
		w.partitions(c.OldStyleNames)
		w.views(c.Views)
	}
	_ = inOrder(w.found)
	return w.found
}

type warner struct {
	source
	found Errors
}

func (w *warner) warn(path, format string, args ...any) {
	w.found = append(w.found, w.errorf(path, format, args...))
}

func (w *warner) listener(path string, l *Listener) {
	if _, unix := UnixPath(l.Address); l.TLS == nil && !unix && !IsLoopback(l.Address) {
		w.warn(path+".address", "%s is in plaintext, and other machines can reach it: anyone on the path can read and change everything, and no client is authenticated (want tls, 127.0.0.1 or a unix socket)", l.Address)
	}
	if l.Secrets == SecretsAnyone {
		w.warn(path+".secrets", "is anyone: every client that connects gets private keys (want authenticated)")
	}
}

// rolloutsOfFleet warns of rollouts, which each relay of the fleet has for itself.
func (w *warner) rolloutsOfFleet(authorities []Authority) {
	for i := range authorities {
		if authorities[i].Rollout != nil {
			w.warn(fmt.Sprintf("authorities[%d].rollout", i), "each relay of the fleet makes its own rollout of a change, in which it begins with one of its own clients, and what it holds back it also keeps from the relays that get a scope from it: their clients may be sent the accepted version again (want a fleet without rollout, or a rollout without fleet)")
		}
	}
}

// rights warns of rules that never match.
func (w *warner) rights(rules []Right) {
	always := -1                    // the first rule that is for every request
	matched := map[Expression]int{} // the first rule with this condition
	for i := range rules {
		r, path := &rules[i], fmt.Sprintf("rights[%d]", i)
		first, repeated := matched[r.When]
		switch {
		case always >= 0:
			w.warn(path, "can never match, because rights[%d] always does (want that rule last)", always)
			continue
		case r.Always():
			always = i
		case repeated:
			w.warn(path+".when", "can never match, because rights[%d] has the same condition (want another one)", first)
			continue
		case strings.TrimSpace(string(r.When)) == "false":
			w.warn(path+".when", "can never match, because it is false (want a condition, or no such rule)")
		default:
			matched[r.When] = i
		}
		for key, e := range map[string]Expression{"when": r.When, "allow": r.Allow} {
			if barePath.MatchString(string(e)) {
				w.warn(path+"."+key, `compares with identity.spiffe_path alone: /ns/pay is the beginning of /ns/payroll too, and the same in every trust domain (want identity.trust_domain == "..." && name.startsWith(identity.spiffe_path + "/"))`)
			}
			for _, url := range typeURLs.FindAllString(string(e), -1) {
				if is := xdstype.OfResources(url); is != url {
					w.warn(path+"."+key, "has the type URL %s, which type_url never is in rights (want %s)", url, is)
				}
			}
		}
	}
}

// views warns of views that a client can avoid by sending another Node.
func (w *warner) views(views []View) {
	for i := range views {
		if v := &views[i]; strings.Contains(v.When, nodeVariable) && !strings.Contains(v.When, identity.Variable) {
			w.warn(fmt.Sprintf("views[%d].when", i), "reads only the Node, in which a client can claim anything: with another Node it gets what the view replaces, as far as rights allow the name (want identity in when)")
		}
	}
}

// barePath matches a prefix comparison that does not end at a slash, so that it also matches neighbours
// of a path.
var barePath = regexp.MustCompile(`startsWith\(\s*identity\.spiffe_path\s*\)`)

var typeURLs = regexp.MustCompile(regexp.QuoteMeta(xdstype.Prefix) + `[A-Za-z0-9_.]+`)

// partitions warns of partitions that depend on the client's Node alone, although there are rights.
func (w *warner) partitions(rules []Rule) {
	for i := range rules {
		r := &rules[i]
		if !slices.ContainsFunc([]string{r.When, r.Partition}, func(e string) bool { return strings.Contains(e, "identity") }) && r.Partition != "" {
			w.warn(fmt.Sprintf("old_style_names[%d].partition", i), "reads only the Node, in which a client can claim anything: it can get what the partition of any other Node has, as far as rights allow the names (want identity in partition or when)")
		}
	}
}
