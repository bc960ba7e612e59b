package operator

// Propagation times of the last hour, on the operator's page.

import (
	"net/url"
	"slices"
	"time"

	"github.com/xds-relay/xds-relay/admin/page"
	"github.com/xds-relay/xds-relay/internal/propagation"
	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// PropagationStatus has the propagation times of changes, as /api/propagation shows it.
type PropagationStatus struct {
	// Until is the end of the newest step. Step is the length of a step in seconds, and Steps the number of steps.
	Until time.Time `json:"until"`
	Step  int       `json:"step_seconds"`
	Steps int       `json:"steps"`
	// Kinds are the authorities and types with changes in this time. Unshown counts those that only the metrics have.
	Kinds   []PropagationKind `json:"kinds"`
	Unshown int               `json:"unshown,omitempty"`
	// Shown is the kind that Times is about.
	Shown *PropagationKind `json:"shown,omitempty"`
	// Times are the steps with changes.
	Times []PropagationStep `json:"times"`
}

// PropagationKind is an authority and type with measured changes, with the longest times of all steps.
type PropagationKind struct {
	Authority string `json:"authority"`
	Type      string `json:"type"`
	// RolledOut: the changes waited for a rollout, and their times include the wait.
	RolledOut bool `json:"rollout"`
	PropagationTimes
}

// PropagationStep has the changes of one step.
type PropagationStep struct {
	At time.Time `json:"at"`
	PropagationTimes
}

// PropagationTimes are the longest times among some changes, measured from the receipt of the control plane's
// response.
type PropagationTimes struct {
	Changes int         `json:"changes"`
	Sent    ClientTimes `json:"sent"`
	ACKed   ClientTimes `json:"acked"`
	// NotSent and NotACKed count the clients that were not sent a change, or did not send an ACK, in time.
	NotSent  int64 `json:"not_sent,omitempty"`
	NotACKed int64 `json:"not_acked,omitempty"`
}

// ClientTimes are the times in seconds until the first client, half of the clients, and the last client have the
// change. 0 means not yet.
type ClientTimes struct {
	First  float64 `json:"first"`
	Median float64 `json:"median"`
	Last   float64 `json:"last"`
}

func viewOfPeriod(p *propagation.Period) PropagationTimes {
	times := func(s propagation.Stage) ClientTimes {
		return ClientTimes{p.Longest(s, propagation.First).Seconds(), p.Longest(s, propagation.Median).Seconds(), p.Longest(s, propagation.Last).Seconds()}
	}
	return PropagationTimes{p.Changes, times(propagation.Sent), times(propagation.ACKed), p.Missed(propagation.Sent), p.Missed(propagation.ACKed)}
}

// propagationTimes answers a query for one authority and type. Without these, it selects those with the most changes.
func (r *Observer) propagationTimes(q url.Values) (*PropagationStatus, error) {
	const step = int64(propagation.Step / time.Second)
	s := &PropagationStatus{
		Until: time.Unix(time.Now().Unix()/step*step+step, 0), Step: int(step), Steps: int(propagation.Kept / propagation.Step),
		Kinds: []PropagationKind{}, Times: []PropagationStep{},
	}
	kinds, unshown := r.Changes.Kinds()
	s.Unshown = unshown
	wanted, shown := q.Has("authority") || q.Has("type"), -1
	for _, of := range kinds {
		all := r.Changes.History(of)
		if len(all) == 0 {
			continue
		}
		var sum propagation.Period
		for i := range all {
			sum.Include(&all[i])
		}
		k := PropagationKind{of.Authority, xdstype.Word(xdstype.Prefix + of.Type), of.RolledOut, viewOfPeriod(&sum)}
		s.Kinds = append(s.Kinds, k)
		if wanted && (k.Authority != q.Get("authority") || k.Type != q.Get("type") || k.RolledOut != (q.Get("rollout") == "true")) ||
			shown >= 0 && s.Kinds[shown].Changes >= k.Changes {
			continue
		}
		shown = len(s.Kinds) - 1
		s.Times = s.Times[:0]
		for i := range all {
			s.Times = append(s.Times, PropagationStep{all[i].Begins, viewOfPeriod(&all[i])})
		}
	}
	if shown >= 0 {
		s.Shown = &s.Kinds[shown]
	} else if wanted {
		return nil, page.Missing("no change of this authority and type was measured in the last hour")
	}
	return s, nil
}

// NewestFirst returns Times, the newest first.
func (s *PropagationStatus) NewestFirst() []PropagationStep {
	all := slices.Clone(s.Times)
	slices.Reverse(all)
	return all
}
