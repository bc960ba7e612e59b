package rights

import "sync"

// Place is the rights of a class on the names of an authority and a type. It is safe for concurrent
// use.
type Place struct {
	class  *Class
	at     variables
	shared *sharedPlace
	rules  []ruleAt // those that can match
	// costly: to remember a decision is cheaper than to make it again.
	costly bool

	mu    sync.Mutex
	allow []residual // of rules; nil until one is needed
}

// fewRules are decided in less time than a decision is found.
const fewRules = 8

// ruleAt is what is left of a rule.
type ruleAt struct {
	index int
	when  residual
	// shared: whether it matches a name is the same for all classes.
	shared bool
}

// Decision says whether a client may have a name.
type Decision struct {
	Allowed bool
	// Rule is the index of the rule that decided, -1 if none matched.
	Rule int
	// Failed says that an expression of the rule could not be evaluated.
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
	matches := p.class.of.impersonal.matches(p.shared, name)
	for i := range p.rules {
		r := &p.rules[i]
		var when truth
		if r.shared && matches != nil {
			when = matches[r.index]
		} else {
			when = r.when.of(name)
		}
		switch when {
		case isFalse:
			continue
		case failed:
			return Decision{Rule: r.index, Failed: true}
		case isTrue:
		}
		allow := p.allowed(i).of(name)
		return Decision{Allowed: allow == isTrue, Rule: r.index, Failed: allow == failed}
	}
	return Decision{Rule: -1}
}

// allowed returns what is left of the allow of a rule. It is evaluated when the rule matches first.
func (p *Place) allowed(i int) residual {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.allow[i] == nil {
		p.allow[i] = p.class.of.rules[p.rules[i].index].allow.at(&p.at)
	}
	return p.allow[i]
}

// DecideUnspelled decides on a name that has no canonical spelling. A rule that reads the name
// cannot be evaluated.
func (p *Place) DecideUnspelled() Decision {
	if len(p.rules) == 0 {
		return Decision{Rule: -1}
	}
	r := &p.rules[0]
	if when, fixed := r.when.(truth); !fixed || when != isTrue {
		return Decision{Rule: r.index, Failed: true}
	}
	allow, fixed := p.allowed(0).(truth)
	return Decision{Allowed: fixed && allow == isTrue, Rule: r.index, Failed: !fixed || allow == failed}
}

// evaluates reports whether a residual has an expression in it that CEL evaluates.
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
