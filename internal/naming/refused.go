package naming

import (
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"

	"github.com/xds-relay/xds-relay/authority"
	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/downstream"
	"github.com/xds-relay/xds-relay/internal/loglines"
)

// refused returns the error for a name that the relay cannot serve a client.
func refused(why downstream.Refusal, code codes.Code, err error) *downstream.RefusedError {
	return &downstream.RefusedError{Refusal: why, Client: &cache.Error{Code: code, Message: loglines.Clip(err.Error())}}
}

// refusalOf returns the reason why an xdstp name is refused.
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

// oldStyleRefused returns the error for old-style names. It does not show clients the expressions of the
// configuration.
func oldStyleRefused(err error) *downstream.RefusedError {
	var hidden *authority.PartitionError
	if !errors.As(err, &hidden) {
		return refused(downstream.RefusedRule, codes.FailedPrecondition, err)
	}
	return refused(downstream.RefusedPartition, codes.FailedPrecondition, fmt.Errorf(
		"the partition of node %q cannot be determined: old_style_names[%d].partition cannot be evaluated for this Node, which may lack a field that it reads (the relay's log says more)",
		hidden.Node, hidden.Rule))
}
