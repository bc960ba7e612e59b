package collections

import (
	"errors"
	"fmt"
	"strings"

	"google.golang.org/grpc/codes"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/loglines"
	"github.com/xds-relay/xds-relay/urn"
)

// Results of lookups: making and comparing them.

// failure returns a failed result.
func failure(code codes.Code, format string, args ...any) result {
	return result{State: cache.State{Status: cache.Failed, Err: &cache.Error{Code: code, Message: loglines.Clip(fmt.Sprintf(format, args...))}}}
}

// stateOfError returns the state of a name for which Names.Key has an error.
func stateOfError(err error) cache.State {
	var why *cache.Error
	if !errors.As(err, &why) {
		why = &cache.Error{Code: codes.NotFound, Message: err.Error()}
	}
	if why.Code == codes.NotFound {
		return cache.State{Status: cache.Absent, Err: why}
	}
	return cache.State{Status: cache.Failed, Err: why}
}

// same reports whether two results do not differ for their users.
func (r *result) same(is *result) bool {
	return r.Status == is.Status && r.Resource == is.Resource && r.Heartbeats == is.Heartbeats &&
		r.origin == is.origin && r.leaf == is.leaf && r.aliasOf == is.aliasOf && r.unreachable == is.unreachable && r.withinGrace == is.withinGrace && sameError(r.Err, is.Err)
}

// sameError reports whether two errors are the same to clients.
func sameError(a, b *cache.Error) bool {
	return a == b || a != nil && b != nil && *a == *b
}

// doesNotExist reports whether the resource does not exist, as far as the relay can know: a
// SotW server reports that by silence.
func doesNotExist(status cache.Status, err *cache.Error) bool {
	return status == cache.Absent || status == cache.Failed && err.Unanswered
}

// reasonOf describes why a result has no resource.
func reasonOf(r *result) string {
	switch {
	case r.Status == cache.Failed:
		return "failed: " + r.Err.Error()
	case r.Err != nil:
		return "does not exist: " + r.Err.Message
	}
	return "does not exist"
}

// bothFailed returns the failure of a URL and its alternative.
func (r *result) bothFailed(alt urn.URL, second *result) result {
	err := cache.Error{Code: codes.Unavailable, Message: r.origin + " " + reasonOf(r)}
	if r.Status == cache.Failed && strings.HasPrefix(r.Err.Message, acrossRelaysPrefix) {
		// The message of a loop must stay the same at all relays.
		return result{State: cache.State{Status: cache.Failed, Err: r.Err}, origin: r.origin, unreachable: r.unreachable || second.unreachable}
	}
	switch {
	case r.Status == cache.Failed:
		err = *r.Err
	case second.Status == cache.Failed:
		err.Code, err.Outage = second.Err.Code, second.Err.Outage
	}
	err.Unanswered = doesNotExist(r.Status, r.Err) && doesNotExist(second.Status, second.Err)
	err.Message = loglines.Clip(fmt.Sprintf("%s; and its alternative %s %s", err.Message, alt.Key().Name, reasonOf(second)))
	return result{State: cache.State{Status: cache.Failed, Err: &err}, origin: r.origin, unreachable: r.unreachable || second.unreachable}
}

// asError returns the error of a name for which Names.Key has an error.
func asError(err error) *cache.Error { return stateOfError(err).Err }

const (
	viaPrefix          = "via redirects "
	acrossRelaysPrefix = "redirects in a loop across relays: "
)
