package authority

// This file is why a name has no scope. Clients may be told the texts as they
// are: they say what the client sent, and nothing else of the configuration.
// PartitionError is for the operator, because it quotes the expression.

import (
	"fmt"
	"strings"
)

// UnknownAuthorityError is for an xdstp name of an authority that is not
// configured. To its client the resource does not exist.
type UnknownAuthorityError struct {
	Name      string // as it was asked for
	Authority string
}

func (e *UnknownAuthorityError) Error() string {
	return fmt.Sprintf("xdstp name %q: authority %q is not configured at this relay", e.Name, e.Authority)
}

// MissingParameterError is for an xdstp name that lacks context parameters without
// which its authority is not asked.
type MissingParameterError struct {
	Name       string // as it was asked for
	Authority  string
	Parameters []string // keys, or beginnings of keys and a *
}

func (e *MissingParameterError) Error() string {
	return fmt.Sprintf("xdstp name %q: authority %q requires the context parameter %s", e.Name, e.Authority, strings.Join(e.Parameters, ", and "))
}

// NoRuleError is for a client that asks for old-style names and that no rule
// matches.
type NoRuleError struct {
	Node, Cluster string // the client's Node's id and cluster
	TypeURL       string
}

func (e *NoRuleError) Error() string {
	return fmt.Sprintf("old-style names: no rule of old_style_names matches node %q of cluster %q for type %q", e.Node, e.Cluster, e.TypeURL)
}

// PartitionError is for a client that a rule matches whose partition cannot be
// evaluated for it.
type PartitionError struct {
	Rule      int    // its index
	Partition string // its expression
	Node      string // the client's Node's id
	Err       error  // what CEL says
}

func (e *PartitionError) Error() string {
	return fmt.Sprintf("old_style_names[%d].partition: %s for node %q: %v", e.Rule, oneLine(e.Partition), e.Node, e.Err)
}

// Unwrap returns e.Err.
func (e *PartitionError) Unwrap() error { return e.Err }
