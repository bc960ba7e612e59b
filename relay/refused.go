package relay

import (
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"

	"github.com/xds-relay/xds-relay/authority"
	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/downstream"
	"github.com/xds-relay/xds-relay/loglines"
)

// Why names mean nothing to a client: what it is told, and what the operator is told.

// tell tells the operator that a name was refused: of each reason once.
func (n *clientNames) tell(typeURL, name string, refused, why error) {
	var as *downstream.RefusedError
	if n.lines == nil || !errors.As(refused, &as) || n.told&(1<<as.Refusal) != 0 {
		return
	}
	n.told |= 1 << as.Refusal
	if log, ok := n.lines.Next(n.log); ok {
		log.Warn("client's names cannot be served", "client", n.node.GetId(), "type_url", typeURL,
			"name", name, "refused", as.Refusal.String(), "reason", why.Error())
	}
}

// refused is the error of a name that can mean nothing.
func refused(why downstream.Refusal, code codes.Code, err error) *downstream.RefusedError {
	return &downstream.RefusedError{Refusal: why, Client: &cache.Error{Code: code, Message: loglines.Clip(err.Error())}}
}

// refusalOf is why an xdstp name is refused.
func refusalOf(err error) downstream.Refusal {
	var unknown *authority.UnknownAuthorityError
	var missing *authority.MissingParameterError
	switch {
	case errors.As(err, &unknown):
		return downstream.RefusedAuthority
	case errors.As(err, &missing):
		return downstream.RefusedParameter
	default:
		return downstream.RefusedName
	}
}

// oldStyleRefused is the error of old-style names. The expressions of the configuration
// are for the operator only.
func oldStyleRefused(err error) *downstream.RefusedError {
	var hidden *authority.PartitionError
	if !errors.As(err, &hidden) {
		return refused(downstream.RefusedRule, codes.FailedPrecondition, err)
	}
	return refused(downstream.RefusedPartition, codes.FailedPrecondition, fmt.Errorf(
		"the partition of node %q cannot be told: old_style_names[%d].partition cannot be evaluated for this Node, which may lack a field that it reads (the relay's log says more)",
		hidden.Node, hidden.Rule))
}
