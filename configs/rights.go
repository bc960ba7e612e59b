package configs

// This file is the keys of `rights`, and their checks.

import (
	"fmt"
	"path/filepath"

	"cel.dev/cel-go/cel"

	"github.com/xds-relay/xds-relay/rights"
)

// Right is a rule that says which clients may have which resources.
type Right struct {
	// Which requests the rule is for: an expression that gives a bool. If the relay cannot evaluate it
	// for a name that a client requests, the client may not have the resource.
	When Expression `yaml:"when" absent:"everything"`
	// Whether the client may have the resource: an expression that gives a bool, often just `true` or
	// `false`. If the relay cannot evaluate it, the client may not have the resource.
	Allow Expression `yaml:"allow" required:"true"`

	compiled *rights.Rule
	place    string
}

// Expression is a CEL expression that gives a bool. In YAML, true and false need no quotes.
type Expression string

// UnmarshalText sets e from its text.
func (e *Expression) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		return fmt.Errorf(`is "" (want an expression, or no such key)`)
	}
	*e = Expression(text)
	return nil
}

// Secrets says which clients may have resources of type Secret.
type Secrets string

// The values of [Listener.Secrets].
const (
	SecretsAuthenticated Secrets = "authenticated" // authenticated clients, and those on this machine
	SecretsAnyone        Secrets = "anyone"
)

func (Secrets) choices() []Secrets { return []Secrets{SecretsAuthenticated, SecretsAnyone} }

// UnmarshalText sets s from its notation.
func (s *Secrets) UnmarshalText(text []byte) error {
	return choose(s, text, "is not a value of secrets")
}

// Always reports whether r is for every request. The relay never reaches a rule after it.
func (r *Right) Always() bool { return always(string(r.When)) }

// Place returns where r was written, for clients and logs, such as "rights[2] (relay.yaml:14)".
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

// CompiledRights returns the rules of rights. It returns nil if there are none, so that every client may
// have everything.
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

// RightsPlace returns where the list of rights was written, for clients and logs.
func (c *Config) RightsPlace() string { return c.source.placeText("rights") }

// placeText returns a path with its place, such as "rights[2] (relay.yaml:14)". Clients see it, so it
// leaves out the file's folder.
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
