package relay

import (
	"log/slog"
	"math/rand/v2"
	"time"

	"go.opentelemetry.io/otel/attribute"

	"github.com/xds-relay/xds-relay/admin"
	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/configs"
	"github.com/xds-relay/xds-relay/downstream"
	"github.com/xds-relay/xds-relay/internal/loglines"
	"github.com/xds-relay/xds-relay/rollout"
	"github.com/xds-relay/xds-relay/rollout/gate"
)

// The rollouts of the configured authorities.

// newRollouts returns the controller of rollouts, which follows the newest generation.
func newRollouts(newest func() *generation, c *cache.Cache, log *slog.Logger) *gate.Controller {
	return gate.NewController(c, func(scope cache.Scope) *gate.Options {
		of := newest()
		if a, ok := of.router.Source(scope); ok {
			return of.rollouts[a.Name]
		}
		return nil
	}, func(name string) string {
		if a, ok := newest().router.Source(cache.Scope{Authority: name}); ok {
			return a.Name
		}
		return name
	}, log)
}

// rolloutInstruments returns the metrics of the rollouts, if there are any.
func (r *Relay) rolloutInstruments() []instrument {
	samples := func(of func(gate.Stats) int64) func() []admin.Sample {
		return func() (all []admin.Sample) {
			now := r.now()
			for _, s := range r.rollouts.Stats() {
				if now.rollouts[s.Authority] == nil {
					continue // it has none any more
				}
				all = append(all, admin.Sample{Value: of(s), Labels: []attribute.KeyValue{authorityLabel(s.Authority)}})
			}
			return all
		}
	}
	return []instrument{
		{r.metrics.Counter, "xds_relay.rollout.accepted", "Changes that the relay accepted for all clients, after a rollout or because an operator approved them.", samples(func(s gate.Stats) int64 { return int64(s.Accepted) })},
		{r.metrics.Counter, "xds_relay.rollout.refused", "Changes that the relay refused because clients rejected them or died, or because an operator rejected them.", samples(func(s gate.Stats) int64 { return int64(s.Refused) })},
		{r.metrics.Gauge, "xds_relay.rollout.pending", "Resources with changes that are not accepted for all clients.", samples(func(s gate.Stats) int64 { return int64(s.Pending) })},
		{r.metrics.Gauge, "xds_relay.rollout.waiting", "Resources with changes that need an operator's approval, because the resources grew too much or clients rejected them.", samples(func(s gate.Stats) int64 { return int64(s.Waiting) })},
		{r.metrics.Gauge, "xds_relay.rollout.clients", "Connected clients that have a change that is not accepted for all clients.", samples(func(s gate.Stats) int64 { return int64(s.Clients) })},
	}
}

// salt determines the order in which clients are chosen. The same clients are first each time as long as the relay
// runs, and no one can choose an id that comes first.
var salt = rand.Uint64()

func gateOptions(r *configs.Rollout) *gate.Options {
	return &gate.Options{
		Options: rollout.Options{
			First: r.First, Steps: r.Parts(), Soak: rollout.Time(r.Soak / time.Nanosecond),
			Rejections: r.Rejections, Deaths: r.Deaths, Frozen: r.Frozen, Salt: salt,
		},
		RollsOut: r.RollsOut,
		Types:    configs.Fingerprint(r.Types),
		Cohort:   r.Cohort,
		Grow:     float64(r.Grow),
	}
}

// rollouts implements downstream.Rollouts.
type rollouts struct {
	*gate.Controller
	newest func() *generation
	log    *slog.Logger
	lines  loglines.Shared // limits log lines about cohorts that cannot be evaluated
}

// RollsOut implements downstream.RolledOutScopes.
func (r *rollouts) RollsOut(scope cache.Scope) bool {
	return r.newest().router.Rollout(scope) != nil
}

// Join implements downstream.Rollouts.
func (r *rollouts) Join(scope cache.Scope, c downstream.TrialClient) (t downstream.Trial, showing uint64) {
	o := r.newest().router.Rollout(scope)
	if o == nil {
		return nil, 0
	}
	name, is := c.Name, configs.Client{Node: c.Node, Identity: c.Identity}
	m, showing := r.Controller.Join(scope, gate.Client{
		Node: name, Conn: c.Conn, Cohort: r.cohortOf(o, scope, name, is), Who: c.Who, Eligible: c.Eligible, Resumed: c.Resumed, Wake: c.Wake,
		CohortNow: func(scope cache.Scope) string {
			if o := r.newest().router.Rollout(scope); o != nil {
				return r.cohortOf(o, scope, name, is)
			}
			return ""
		},
		CohortOfAgent: func(agent string) string {
			if o := r.newest().router.Rollout(scope); o != nil {
				cohort, _ := o.CohortOfAgent(agent)
				return cohort
			}
			return ""
		},
	})
	if m == nil {
		return nil, 0
	}
	return m, showing
}

// cohortOf returns the cohort of a client, "" if it cannot be evaluated.
func (r *rollouts) cohortOf(o *configs.Rollout, scope cache.Scope, name string, is configs.Client) string {
	cohort, err := o.CohortOf(is)
	if err == nil {
		return cohort
	}
	if log, ok := r.lines.Next(r.log); ok {
		log.Warn("the cohort of a client cannot be evaluated", "authority", scope.Authority, "client", name, "reason", err)
	}
	return ""
}
