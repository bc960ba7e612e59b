package resource

import (
	"strings"

	"github.com/xds-relay/xds-relay/internal/graph"
	"github.com/xds-relay/xds-relay/urn"
)

// The names that a resource refers to, as it writes them. Envoy requests an xdstp name in its normal form, but compares
// the name inside of the resource that it gets with the name as the Cluster or route wrote it.

// Spelling is a name to which a resource refers, and which it does not write in the canonical spelling; or a name with
// directives, in any spelling.
type Spelling struct {
	TypeURL string // of the resource with the name
	Name    string // canonical, with its directives
	Written string
}

const (
	// mostSearched is the length of the longest resource whose spellings are found, in bytes. mostSpellings is how many
	// of a resource are.
	mostSearched  = 1 << 20
	mostSpellings = 1000

	xdstp = "xdstp:"
)

// spellingsIn returns the spellings in an encoded resource. Few resources have any, so it decodes only what may have.
func spellingsIn(typeURL string, value []byte) []Spelling {
	if len(value) > mostSearched || !maySpell(text(value)) {
		return nil
	}
	references, _ := graph.References(typeURL, value) // clients reject a resource that cannot be read
	var found []Spelling
	for i := range references {
		target := &references[i].To
		if !maySpell(target.Name) {
			continue
		}
		u, err := urn.Unfold(target.Name)
		if err != nil || u.String() == target.Name && !strings.Contains(target.Name, "#") {
			continue
		}
		s := Spelling{TypeURL: strings.Clone(target.TypeURL), Name: strings.Clone(u.String()), Written: strings.Clone(target.Name)}
		if found = append(found, s); len(found) == mostSpellings {
			break
		}
	}
	return found
}

// maySpell reports whether a text may have an xdstp name that has directives, or is not canonical.
func maySpell(text string) bool {
	for {
		_, after, ok := strings.Cut(text, xdstp)
		if !ok {
			return false
		}
		end := strings.IndexFunc(after, func(c rune) bool { return c <= ' ' || c > '~' })
		if end < 0 {
			end = len(after)
		}
		if strings.ContainsAny(after[:end], "%#?") {
			return true
		}
		text = after
	}
}
