package client

// The requested names, and to which of them a name in a response belongs.

import (
	"slices"
	"strings"

	"github.com/xds-relay/xds-relay/urn"
)

// wildcard requests all resources of a type.
const wildcard = "*"

// names are the requested names. They do not change.
type names struct {
	list  []string            // in the requested order, each once
	spelt map[string][]string // the names of list by canonical spelling, which several may share
	globs []glob
	all   bool // the wildcard is requested
}

// glob is an xdstp glob collection.
//
// TP1: "Glob".
type glob struct {
	name   string
	prefix string // of the canonical spelling of its members
	params string // those of its members
}

func newNames(requested []string) names {
	n := names{spelt: make(map[string][]string, len(requested)), all: len(requested) == 0}
	for _, name := range requested {
		key := canonical(name)
		if slices.Contains(n.spelt[key], name) {
			continue
		}
		n.list = append(n.list, name)
		n.spelt[key] = append(n.spelt[key], name)
		if name == wildcard {
			n.all = true
		}
		// Members of a glob with #alt have the names of the primary.
		if u, err := urn.Unfold(name); err == nil && u.Key().Glob {
			path, params, _ := strings.Cut(u.Key().Name, "?")
			n.globs = append(n.globs, glob{name, strings.TrimSuffix(path, "*"), params})
		}
	}
	return n
}

// openEnded reports whether the number of resources in the answer is unknown.
func (n names) openEnded() bool {
	return n.all || len(n.globs) > 0
}

// spellings returns the requested spellings of a name.
func (n names) spellings(name string) []string {
	return n.spelt[canonical(name)]
}

// covering returns the requested globs of which this name is a member.
func (n names) covering(name string) []string {
	if len(n.globs) == 0 {
		return nil
	}
	path, params, _ := strings.Cut(canonical(name), "?")
	var covering []string
	for _, g := range n.globs {
		if strings.HasPrefix(path, g.prefix) && params == g.params {
			covering = append(covering, g.name)
		}
	}
	return covering
}

// canonical returns the canonical spelling of an xdstp name, and every other name unchanged.
func canonical(name string) string {
	if key, err := urn.KeyOf(name); err == nil {
		return key.Name
	}
	return name
}
