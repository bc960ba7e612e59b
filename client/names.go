package client

// What was asked for, and which of it a name from the server answers.

import (
	"slices"
	"strings"

	"github.com/xds-relay/xds-relay/urn"
)

// wildcard is the name that stands for everything.
const wildcard = "*"

// names are the names that are asked for. They do not change.
type names struct {
	list   []string            // in the order asked, each once
	spelt  map[string][]string // those of list by their canonical spelling, which several may share
	globs  []glob
	anyOne bool // all names are asked for
}

// glob is an xdstp glob collection.
//
// TP1: "Glob".
type glob struct {
	name   string
	prefix string // of its members' canonical spelling
	params string // which the members share
}

func newNames(asked []string) names {
	n := names{spelt: make(map[string][]string, len(asked)), anyOne: len(asked) == 0}
	for _, name := range asked {
		key := canonical(name)
		if slices.Contains(n.spelt[key], name) {
			continue
		}
		n.list = append(n.list, name)
		n.spelt[key] = append(n.spelt[key], name)
		if name == wildcard {
			n.anyOne = true
		}
		// With an alternative its members are named by it all the same.
		if u, err := urn.Unfold(name); err == nil && u.Key().Glob {
			path, params, _ := strings.Cut(u.Key().Name, "?")
			n.globs = append(n.globs, glob{name, strings.TrimSuffix(path, "*"), params})
		}
	}
	return n
}

// openEnded says that nobody knows how many resources the answer has.
func (n names) openEnded() bool {
	return n.anyOne || len(n.globs) > 0
}

// spellings gives the names that were asked for and are this one.
func (n names) spellings(name string) []string {
	return n.spelt[canonical(name)]
}

// covering gives the globs of which this name is a member.
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

// canonical gives one spelling for all spellings of an xdstp name, and every
// other name as it is.
func canonical(name string) string {
	if key, err := urn.KeyOf(name); err == nil {
		return key.Name
	}
	return name
}
