package configs

// This file is the policy for the context parameters in clients' xdstp names: which of them the relay
// sends to an authority.

import (
	"fmt"
	"strings"
)

// ContextParameters is a policy for the context parameters of an authority's xdstp names. It has Drop or
// Keep or neither, never both.
type ContextParameters struct {
	// The parameters that the relay leaves out of its requests to the authority. Not together with
	// `keep`.
	Drop []string `yaml:"drop" absent:"none"`
	// The parameters that the relay keeps. It leaves out all others.
	Keep []string `yaml:"keep" absent:"all"`
	// The parameters that a name needs. The relay refuses a name without them.
	Require []string `yaml:"require" absent:"none"`
}

// Drops reports whether the relay leaves out the parameter with that key.
func (p *ContextParameters) Drops(key string) bool {
	if p == nil {
		return false
	}
	return matchesAny(p.Drop, key) || len(p.Keep) > 0 && !matchesAny(p.Keep, key)
}

func matchesAny(patterns []string, key string) bool {
	for _, p := range patterns {
		if MatchesParameter(p, key) {
			return true
		}
	}
	return false
}

// MatchesParameter reports whether an entry of Drop, Keep or Require stands for a
// key.
func MatchesParameter(entry, key string) bool {
	beginning, isPattern := strings.CutSuffix(entry, "*")
	return entry == key || isPattern && strings.HasPrefix(key, beginning)
}

// contextParameters checks a policy. It may be nil.
func (k *checker) contextParameters(path string, p *ContextParameters) {
	if p == nil || k.isUnusable(path) {
		return
	}
	has := func(key string) bool { return k.has(path + "." + key) }
	switch {
	case has("drop") && has("keep"):
		k.fail(path, "has both drop and keep (want one of them: what keep does not name is dropped)")
	case !has("drop") && !has("keep") && !has("require"):
		k.fail(path, "is empty (want drop, keep or require, or no such key)")
	}
	for _, list := range []struct {
		key     string
		entries []string
	}{{"drop", p.Drop}, {"keep", p.Keep}, {"require", p.Require}} {
		path := path + "." + list.key
		if has(list.key) && len(list.entries) == 0 {
			k.fail(path, `is empty (want at least one key, such as - shard, or no such key)`)
		}
		first := map[string]int{}
		for i, entry := range list.entries {
			at := fmt.Sprintf("%s[%d]", path, i)
			if j, twice := first[entry]; twice {
				k.fail(at, "%q is already %s[%d] (want each once)", entry, list.key, j)
				continue
			}
			first[entry] = i
			if strings.Contains(strings.TrimSuffix(entry, "*"), "*") {
				k.fail(at, "%q has a * that is not at its end (want a key, or the beginning of keys and a *)", entry)
			}
			// Every key that the entry stands for is dropped.
			if list.key == "require" && p.Drops(entry) {
				k.fail(at, "%q is required and dropped (want it kept, or not required)", entry)
			}
		}
	}
}
