package rights

import (
	"sync"
	"sync/atomic"
	"weak"

	"cel.dev/cel-go/cel"

	"github.com/xds-relay/xds-relay/identity"
)

// Environment returns the environment of the expressions.
var Environment = sync.OnceValues(func() (*cel.Env, error) {
	identities, err := identity.CELOptions()
	if err != nil {
		return nil, err
	}
	return cel.NewEnv(
		identities,
		cel.EnableMacroCallTracking(), // without it, parts of expressions have no text
		cel.Variable(authorityVariable, cel.StringType),
		cel.Variable(typeVariable, cel.StringType),
		cel.Variable(nameVariable, cel.StringType),
	)
})

// Rule is a compiled rule.
type Rule struct {
	when, allow condition
	reads       []identityPath
	// personal: when reads the identity.
	personal bool
	// evaluates: allow contains an expression that CEL evaluates for each name.
	evaluates bool
}

// NewRule compiles a rule of two expressions of Environment. A nil when is true.
func NewRule(when, allow *cel.Ast) (*Rule, error) {
	env, err := Environment()
	if err != nil {
		return nil, err
	}
	r := &Rule{when: isTrue}
	for _, part := range []struct {
		of *cel.Ast
		to *condition
	}{{when, &r.when}, {allow, &r.allow}} {
		if part.of == nil {
			continue
		}
		checked := part.of.NativeRep()
		c := compiler{env: env, info: checked.SourceInfo()}
		if *part.to, err = c.condition(checked.Expr()); err != nil {
			return nil, err
		}
		reads := identityReads(checked)
		r.reads = append(r.reads, reads...)
		r.personal = r.personal || part.to == &r.when && len(reads) > 0
	}
	r.evaluates = evaluatesNames(r.allow)
	return r, nil
}

// evaluatesNames reports whether a condition contains an expression that CEL evaluates for each name.
func evaluatesNames(c condition) bool {
	switch c := c.(type) {
	case *atom:
		return c.readsName
	case *both:
		return evaluatesNames(c.a) || evaluatesNames(c.b)
	case *not:
		return evaluatesNames(c.a)
	}
	return false
}

// at implements condition.
func (t truth) at(*variables) residual { return t }

// Rules are all rules, in order. They are safe for concurrent use.
type Rules struct {
	rules []*Rule
	reads []identityPath

	mu      sync.Mutex
	classes map[string]weak.Pointer[Class] // by the parts of the identity that the rules read
	purgeAt int                            // the size of classes at which unused ones are removed
	recent  [recentClasses]*Class          // kept for clients that reconnect
	next    int                            // an index in recent

	impersonal impersonal
}

// lastClass is the ID of the newest class. Classes of other rules, such as those before a reload, have
// other IDs.
var lastClass atomic.Uint64

const (
	recentClasses = 128
	leastPurge    = 1 << 10
)

// New returns rules.
func New(rules []*Rule) *Rules {
	r := &Rules{rules: rules, classes: map[string]weak.Pointer[Class]{}, purgeAt: leastPurge}
	for _, rule := range rules {
		r.reads = append(r.reads, rule.reads...)
	}
	r.reads = unique(r.reads)
	return r
}

// Class returns the class of a client.
func (r *Rules) Class(id *identity.Identity) *Class {
	key, ok := keyOf(id, r.reads)
	r.mu.Lock()
	defer r.mu.Unlock()
	if ok {
		if c := r.classes[key].Value(); c != nil {
			return c
		}
	}
	c := &Class{ID: lastClass.Add(1), of: r, identity: id}
	if !ok {
		return c
	}
	if len(r.classes) >= r.purgeAt {
		for key, c := range r.classes {
			if c.Value() == nil {
				delete(r.classes, key)
			}
		}
		r.purgeAt = max(leastPurge, 2*len(r.classes))
	}
	r.classes[key] = weak.Make(c)
	r.recent[r.next] = c
	r.next = (r.next + 1) % len(r.recent)
	return c
}
