package urn

// The context parameters of a key, for policies.

import (
	"iter"
	"strings"
)

// ParamKeys iterates over the keys of the name's context parameters, decoded and in the order of the
// canonical spelling. An old-style name has none.
// TP1: "Context parameters".
func (k Key) ParamKeys() iter.Seq[string] {
	return func(yield func(string) bool) {
		for key := range k.pairs() {
			if !yield(key) {
				return
			}
		}
	}
}

// WithParams returns the key of the name with only those context parameters for whose key keep
// returns true. If it keeps all of them, it returns k itself, and allocates nothing.
func (k Key) WithParams(keep func(key string) bool) Key {
	all := true
	for key := range k.pairs() {
		all = all && keep(key)
	}
	if all {
		return k
	}
	var name strings.Builder
	name.Grow(len(k.Name))
	bare, _, _ := strings.Cut(k.Name, "?")
	name.WriteString(bare)
	separator := byte('?')
	for key, pair := range k.pairs() {
		if keep(key) {
			name.WriteByte(separator)
			name.WriteString(pair)
			separator = '&'
		}
	}
	k.Name = name.String()
	return k
}

// pairs iterates over the decoded keys and the parameters as spelled.
func (k Key) pairs() iter.Seq2[string, string] {
	return func(yield func(key, pair string) bool) {
		if k.Type == "" {
			return
		}
		// The first question mark of a canonical spelling begins the parameters.
		_, query, found := strings.Cut(k.Name, "?")
		if !found {
			return
		}
		for pair := range strings.SplitSeq(query, "&") {
			key, _, _ := strings.Cut(pair, "=")
			if !yield(decoded(key), pair) {
				return
			}
		}
	}
}
