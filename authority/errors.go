package authority

// Errors for names without a scope. The relay may send their texts to clients: they quote what the
// client sent and, of the configuration, only the names of required parameters. PartitionError is
// for the operator only, because it quotes an expression of the configuration.

import (
	"fmt"
	"strings"
)

// UnknownAuthorityError is the error for an xdstp name whose authority is not configured.
// For the client, the resource does not exist.
type UnknownAuthorityError struct {
	Name      string // as the client spelled it
	Authority string
}

func (e *UnknownAuthorityError) Error() string {
	return fmt.Sprintf("xdstp name %q: authority %q is not configured at this relay", e.Name, e.Authority)
}

// MissingParameterError is the error for an xdstp name without a context parameter that its
// authority requires.
type MissingParameterError struct {
	Name       string // as the client spelled it
	Authority  string
	Parameters []string // keys, or prefixes of keys followed by *
}

func (e *MissingParameterError) Error() string {
	return fmt.Sprintf("xdstp name %q: authority %q requires the context parameter %s", e.Name, e.Authority, strings.Join(e.Parameters, ", and "))
}

// NoRuleError is the error for a client that requests old-style names and matches no rule.
type NoRuleError struct {
	Node, Cluster string // the client's Node's id and cluster
	TypeURL       string
}

func (e *NoRuleError) Error() string {
	return fmt.Sprintf("old-style names: no rule of old_style_names matches node %q of cluster %q for type %q", e.Node, e.Cluster, e.TypeURL)
}

// PartitionError is the error for a client for which the partition of a rule cannot be
// evaluated.
type PartitionError struct {
	Rule      int    // its index
	Partition string // its expression
	Node      string // the client's Node's id
	Err       error  // the error of CEL
}

func (e *PartitionError) Error() string {
	return fmt.Sprintf("old_style_names[%d].partition: %s for node %q: %v", e.Rule, oneLine(e.Partition), e.Node, e.Err)
}

// Unwrap returns e.Err.
func (e *PartitionError) Unwrap() error { return e.Err }

// oneLine joins the lines of an expression.
func oneLine(expression string) string { return strings.Join(strings.Fields(expression), " ") }
