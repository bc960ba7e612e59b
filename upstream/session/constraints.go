package session

import (
	"errors"
	"fmt"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"

	"github.com/xds-relay/xds-relay/cache"
)

// xDS: TP2, "Dynamic Parameter Constraints": which parameters match a variant of a
// resource.

// maxConstraintDepth bounds the nesting of constraints.
const maxConstraintDepth = 32

// constraints are the decoded constraints of a variant. They are nil for a resource without any.
type constraints struct {
	message *discoveryv3.DynamicParameterConstraints
}

// parseConstraints decodes encoded DynamicParameterConstraints, empty for none.
func parseConstraints(b string) (*constraints, error) {
	if b == "" {
		return nil, nil
	}
	c := &constraints{message: &discoveryv3.DynamicParameterConstraints{}}
	if err := proto.Unmarshal([]byte(b), c.message); err != nil {
		return nil, err
	}
	return c, checkConstraints(c.message, maxConstraintDepth)
}

func checkConstraints(c *discoveryv3.DynamicParameterConstraints, depth int) error {
	if depth == 0 {
		return fmt.Errorf("nested more than %d deep", maxConstraintDepth)
	}
	switch t := c.GetType().(type) {
	case *discoveryv3.DynamicParameterConstraints_Constraint:
		if t.Constraint.GetConstraintType() == nil {
			return errors.New("a constraint with neither value nor exists")
		}
	case *discoveryv3.DynamicParameterConstraints_OrConstraints:
		return checkAll(t.OrConstraints, depth)
	case *discoveryv3.DynamicParameterConstraints_AndConstraints:
		return checkAll(t.AndConstraints, depth)
	case *discoveryv3.DynamicParameterConstraints_NotConstraints:
		return checkConstraints(t.NotConstraints, depth-1)
	case nil:
		// No constraint: everything matches.
	}
	return nil
}

func checkAll(list *discoveryv3.DynamicParameterConstraints_ConstraintList, depth int) error {
	for _, c := range list.GetConstraints() {
		if err := checkConstraints(c, depth-1); err != nil {
			return err
		}
	}
	return nil
}

// match reports whether the variant matches the parameters. Parameters that the
// constraints do not have do not matter.
func (c *constraints) match(p cache.Params) bool {
	return c == nil || match(c.message, p)
}

func match(c *discoveryv3.DynamicParameterConstraints, p cache.Params) bool {
	switch t := c.GetType().(type) {
	case *discoveryv3.DynamicParameterConstraints_Constraint:
		value, there := p[t.Constraint.GetKey()]
		if v, ok := t.Constraint.GetConstraintType().(*discoveryv3.DynamicParameterConstraints_SingleConstraint_Value); ok {
			return there && value == v.Value
		}
		return there // exists
	case *discoveryv3.DynamicParameterConstraints_OrConstraints:
		for _, o := range t.OrConstraints.GetConstraints() {
			if match(o, p) {
				return true
			}
		}
		return false
	case *discoveryv3.DynamicParameterConstraints_AndConstraints:
		for _, a := range t.AndConstraints.GetConstraints() {
			if !match(a, p) {
				return false
			}
		}
		return true
	case *discoveryv3.DynamicParameterConstraints_NotConstraints:
		return !match(t.NotConstraints, p)
	}
	return true
}
