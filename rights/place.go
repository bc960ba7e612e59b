package rights

import (
	"strconv"
	"sync/atomic"
)

// Place has the rights of a class on the names of an authority and a type. It is safe for concurrent use.
type Place struct {
	class *Class
	at    variables
	// The rules that can match: those that do not read the identity, those whose residual does not depend on it, and
	// the rest.
	shared *sharedPlace
	folded *sharedFinder
	own    finder
	first  numbered // the first rule that can match; when is nil if there is none
	// costly: remembering a decision is cheaper than making it again.
	costly bool
	// allow has the residual of each rule's allow, nil until it is needed.
	allow []atomic.Pointer[residual]
}

// fewRules is the number of rules that can be tried in less time than a remembered decision can be found.
const fewRules = 8

// Decision is the decision whether a client may have a name.
type Decision struct {
	Allowed bool
	// Rule is the index of the rule that decided, -1 if none matched.
	Rule int
	// Failed: an expression of the rule could not be evaluated.
	Failed bool
}

// Decide decides on a name: a canonical one, a glob or the wildcard.
func (p *Place) Decide(name string) Decision {
	if !p.costly {
		return p.decide(name)
	}
	key := nameKey{p, name}
	d, known := p.class.remembered(key)
	if !known {
		d = p.decide(name)
		p.class.remember(key, d)
	}
	return d
}

func (p *Place) decide(name string) Decision {
	all := &p.class.of.impersonal
	is := all.first(&p.shared.sharedFinder, name, noRule)
	if folded := all.first(p.folded, name, is.rule); folded.rule != noRule {
		is = folded
	}
	if own := p.own.first(name, is.rule); own.rule != noRule {
		is = own
	}
	switch {
	case is.rule == noRule:
		return Decision{Rule: -1}
	case is.when == failed:
		return Decision{Rule: is.rule, Failed: true}
	}
	allow := p.allowed(is.rule).of(name)
	return Decision{Allowed: allow == isTrue, Rule: is.rule, Failed: allow == failed}
}

// allowed returns the residual of a rule's allow. It is evaluated when the rule first matches.
func (p *Place) allowed(rule int) residual {
	if known := p.allow[rule].Load(); known != nil {
		return *known
	}
	is := p.class.of.rules[rule].allow.at(&p.at)
	p.allow[rule].Store(&is)
	return is
}

// DecideUnspelled decides on a name that has no canonical spelling. A rule that reads the name
// cannot be evaluated.
func (p *Place) DecideUnspelled() Decision {
	if p.first.when == nil {
		return Decision{Rule: -1}
	}
	rule := p.first.rule
	if when, fixed := p.first.when.(truth); !fixed || when != isTrue {
		return Decision{Rule: rule, Failed: true}
	}
	allow, fixed := p.allowed(rule).(truth)
	return Decision{Allowed: fixed && allow == isTrue, Rule: rule, Failed: !fixed || allow == failed}
}

// fold appends a text to a key, which is equal for conditions that are equal at one place. It returns false if the
// condition depends on the identity.
func fold(key []byte, r residual) (_ []byte, ok bool) {
	leafOf := func(l leaf) ([]byte, bool) { return append(strconv.AppendInt(key, int64(l.id), 10), ' '), !l.personal }
	switch r := r.(type) {
	case truth:
		return append(key, "EFT"[r]), true
	case *textOf:
		return leafOf(r.leaf)
	case *namesIn:
		return leafOf(r.leaf)
	case *atomOf:
		return leafOf(r.leaf)
	case *notOf:
		return fold(append(key, '!'), r.a)
	case *bothOf:
		op := byte('&')
		if r.either {
			op = '|'
		}
		if key, ok = fold(append(key, op), r.a); !ok {
			return key, false
		}
		return fold(key, r.b)
	}
	return key, false
}

// evaluates reports whether a residual contains an expression that CEL evaluates.
func evaluates(r residual) bool {
	switch r := r.(type) {
	case *atomOf:
		return true
	case *bothOf:
		return evaluates(r.a) || evaluates(r.b)
	case *notOf:
		return evaluates(r.a)
	}
	return false
}
