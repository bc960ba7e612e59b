package configs

// This file is the keys of `rights`, and their checks.

import (
	"fmt"
	"path/filepath"

	"cel.dev/cel-go/cel"

	"github.com/xds-relay/xds-relay/rights"
)

// Right is a rule that says who may have what.
type Right struct {
	// What the rule is about: an expression that gives a bool. If the relay cannot evaluate it for
	// what a client requests, the client may not have that.
	When Expression `yaml:"when" absent:"everything"`
	// Whether the client may have it: an expression that gives a bool, often just `true` or `false`.
	// If the relay cannot evaluate it, the client may not have it.
	Allow Expression `yaml:"allow" required:"true"`

	compiled *rights.Rule
	place    string
}

// Expression is a CEL expression that gives a bool. In YAML, true and false need no quotes.
type Expression string

// UnmarshalText sets e from its notation.
func (e *Expression) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		return fmt.Errorf(`is "" (want an expression, or no such key)`)
	}
	*e = Expression(text)
	return nil
}

// Secrets is who may have resources of type Secret.
type Secrets string

// Who may have them.
const (
	SecretsAuthenticated Secrets = "authenticated" // who has proven who it is, or is on this machine
	SecretsAnyone        Secrets = "anyone"
)

func (Secrets) choices() []Secrets { return []Secrets{SecretsAuthenticated, SecretsAnyone} }

// UnmarshalText sets s from its notation.
func (s *Secrets) UnmarshalText(text []byte) error {
	return choose(s, text, "is not a value of secrets")
}

// Always reports whether r is about everything. No rule after it is reached.
func (r *Right) Always() bool { return always(string(r.When)) }

// Place returns where r is, for clients and logs, as rights[2] (relay.yaml:14).
func (r *Right) Place() string { return r.place }

var ofRights = expressions{rights.Environment, "authority, type_url, name and identity"}

// compile prepares r. The errors' paths are keys of the rule.
func (r *Right) compile() (errs Errors) {
	env, err := ofRights.env()
	if err != nil {
		return Errors{{Err: err}}
	}
	check := func(path string, expression Expression) *cel.Ast {
		if expression == "" {
			return nil
		}
		checked, err := ofRights.check(env, string(expression), cel.BoolType)
		if err != nil {
			errs = append(errs, Error{Path: path, Err: err})
		}
		return checked
	}
	when, allow := check("when", r.When), check("allow", r.Allow)
	if len(errs) > 0 || allow == nil {
		return errs
	}
	if r.compiled, err = rights.NewRule(when, allow); err != nil {
		return Errors{{Err: err}}
	}
	return nil
}

// CompiledRights returns the rules of rights; nil if there are none, and every client may have
// everything.
func (c *Config) CompiledRights() *rights.Rules {
	if len(c.Rights) == 0 {
		return nil
	}
	rules := make([]*rights.Rule, len(c.Rights))
	for i := range c.Rights {
		rules[i] = c.Rights[i].compiled
	}
	return rights.New(rules)
}

// RightsPlace returns where the list of rights is, for clients and logs.
func (c *Config) RightsPlace() string { return c.source.placeText("rights") }

// placeText returns a path with its place, as rights[2] (relay.yaml:14). Clients see it, and so not
// the folder of the file.
func (s source) placeText(path string) string {
	at := s.at[path]
	switch {
	case at.file == "":
		return path
	case at.line == 0: // a variable or a flag
		return fmt.Sprintf("%s (%s)", path, at.file)
	}
	return fmt.Sprintf("%s (%s:%d)", path, filepath.Base(at.file), at.line)
}

// rights checks the rules of rights.
func (k *checker) rights(c *Config) {
	if k.has("rights") && !k.isUnusable("rights") && len(c.Rights) == 0 {
		k.fail("rights", "is empty (want at least one rule, such as - allow: true, or no such key)")
	}
	for i := range c.Rights {
		r := &c.Rights[i]
		path := fmt.Sprintf("rights[%d]", i)
		r.place = k.placeText(path)
		if k.isUnusable(path) {
			continue
		}
		if !k.has(path + ".allow") {
			k.fail(path+".allow", "missing (want an expression that gives a bool, such as true)")
		}
		for _, err := range r.compile() {
			k.fail(join(path, err.Path), "%w", err.Err)
		}
	}
}
