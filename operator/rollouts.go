package operator

// The rollouts on the admin listener: their status as JSON, a page with buttons, and the actions of the buttons and
// of `xds-relay rollout`.

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"google.golang.org/grpc/credentials"
	grpcpeer "google.golang.org/grpc/peer"

	"github.com/xds-relay/xds-relay/admin"
	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/downstream/session"
	"github.com/xds-relay/xds-relay/identity"
	"github.com/xds-relay/xds-relay/internal/fleet"
	"github.com/xds-relay/xds-relay/internal/loglines"
	"github.com/xds-relay/xds-relay/internal/secrets"
	"github.com/xds-relay/xds-relay/internal/xdstype"
	"github.com/xds-relay/xds-relay/rollout/gate"
)

// RolloutStatus is one rollout, as /rollouts shows it.
type RolloutStatus struct {
	// Relay is the relay of the fleet that has the rollout.
	Relay     string `json:"relay,omitempty"`
	Authority string `json:"authority"`
	Partition string `json:"partition"`
	Phase     string `json:"phase"` // idle, rolling, stopped or held
	Frozen    bool   `json:"frozen"`
	// Step is 0 for the first clients, and Steps is how many steps follow. Ends is when the soak of the step ends.
	Step       int                `json:"step"`
	Steps      int                `json:"steps"`
	Ends       *time.Time         `json:"ends,omitempty"`
	Cohorts    []CohortStatus     `json:"cohorts"`
	Rejections []RolloutRejection `json:"rejections,omitempty"`
	Deaths     []string           `json:"deaths,omitempty"`
	Reason     string             `json:"reason,omitempty"`
	// PassedOver are the identities and addresses whose rejections do not count because others accept the change.
	PassedOver []string `json:"passed_over,omitempty"`
	// Changes are the first of the changes that are not accepted yet, and Total counts all of them.
	Changes []RolloutChange `json:"changes"`
	Total   int             `json:"total"`
}

// CohortStatus counts the clients of a cohort, and those of them that were sent the new state, have acknowledged it,
// and have sent a NACK.
type CohortStatus struct {
	Name    string `json:"name"`
	Clients int    `json:"clients"`
	Shown   int    `json:"shown"`
	Taken   int    `json:"taken"`
	NACKed  int    `json:"nacked"`
	// Behind counts the identities and addresses behind other relays whose clients of this cohort have sent a NACK.
	Behind int `json:"behind,omitempty"`
}

// Unanswered counts the clients that were sent the new state, and have not answered.
func (c CohortStatus) Unanswered() int { return max(c.Shown-c.Taken-c.NACKed, 0) }

// Sums returns the sums over all cohorts.
func (s RolloutStatus) Sums() (all CohortStatus) {
	for _, c := range s.Cohorts {
		all.Clients += c.Clients
		all.Shown += c.Shown
		all.Taken += c.Taken
		all.NACKed += c.NACKed
	}
	return all
}

// RolloutRejection is a client that rejected a change, with its own words.
type RolloutRejection struct {
	Client string `json:"client"`
	Words  string `json:"words"`
}

// RolloutChange is a resource whose newest version is not accepted yet.
type RolloutChange struct {
	Type  string `json:"type"`
	Name  string `json:"name"`
	What  string `json:"what"`            // added, changed or removed
	Waits string `json:"waits,omitempty"` // why a person has to approve it
	// NACKedBy is a client that has rejected the change, in words that name the resource.
	NACKedBy string `json:"nacked_by,omitempty"`
}

// waitsBecause returns why a change waits for a person, "" if it does not. While a rollout is frozen, all its changes
// wait.
func (s *RolloutStatus) waitsBecause(c *RolloutChange) string {
	switch {
	case c.Waits != "":
		return c.Waits
	case s.Phase == "held" && s.Frozen:
		return "the rollout is frozen"
	}
	return ""
}

// ChangeState is the state of a change: waits, nacked, taken_back or rolling.
type ChangeState struct {
	RolloutChange
	State string
	// Because is why it waits.
	Because string
}

// ChangeStates returns Changes, each with its state.
func (s RolloutStatus) ChangeStates() (all []ChangeState) {
	for _, c := range s.Changes {
		is := ChangeState{c, "rolling", s.waitsBecause(&c)}
		switch {
		case c.NACKedBy != "":
			is.State = "nacked"
		case is.Because != "":
			is.State = "waits"
		case s.Phase == "stopped":
			is.State = "taken_back"
		case s.Phase == "held":
			is.State = "waits"
		}
		all = append(all, is)
	}
	return all
}

func viewOfRollout(s gate.Status) RolloutStatus {
	v := RolloutStatus{
		Authority: s.Authority, Partition: s.Partition, Phase: s.Phase.String(), Frozen: s.Frozen, Step: s.Step, Steps: s.Steps,
		Cohorts: []CohortStatus{}, Reason: words(s.Reason), Changes: []RolloutChange{}, Total: s.Total,
	}
	if !s.Ends.IsZero() {
		v.Ends = &s.Ends
	}
	for _, c := range s.Cohorts {
		v.Cohorts = append(v.Cohorts, CohortStatus{loglines.Clip(c.Name), c.Clients, c.Shown, c.Taken, c.Rejected, c.Behind})
	}
	for _, r := range s.Rejections {
		v.Rejections = append(v.Rejections, RolloutRejection{loglines.Clip(r.Client), words(r.Message)})
	}
	for _, client := range s.Deaths {
		v.Deaths = append(v.Deaths, loglines.Clip(client))
	}
	for _, who := range s.PassedOver {
		v.PassedOver = append(v.PassedOver, loglines.Clip(who))
	}
	for _, c := range s.Changes {
		change := RolloutChange{Type: xdstype.Word(c.TypeURL), Name: loglines.Clip(c.Name), What: c.What, Waits: c.Waits}
		for _, r := range v.Rejections {
			if session.NamesResource(r.Words, change.Name) {
				change.NACKedBy = r.Client
				break
			}
		}
		v.Changes = append(v.Changes, change)
	}
	return v
}

// words returns the words of a client or a person, clipped and without secrets.
func words(text string) string { return secrets.Words(loglines.Clip(text)) }

// RolloutAction is the response to a POST: what was done, and to how many rollouts.
type RolloutAction struct {
	Action   string `json:"action"`
	Rollouts int    `json:"rollouts"`
	// NoAnswer are relays of the fleet where it may not have been done.
	NoAnswer []NoAnswer `json:"no_answer,omitempty"`
}

// rolloutActions are the actions of an operator on rollouts.
var rolloutActions = map[string]func(c *gate.Controller, w gate.Which, reason string) int{
	"approve": func(c *gate.Controller, w gate.Which, _ string) int { return c.Approve(w) },
	"reject":  func(c *gate.Controller, w gate.Which, reason string) int { return c.Reject(w, reason) },
	"freeze":  func(c *gate.Controller, w gate.Which, _ string) int { return c.Freeze(w) },
	"thaw":    func(c *gate.Controller, w gate.Which, _ string) int { return c.Thaw(w) },
	"trust":   func(c *gate.Controller, w gate.Which, _ string) int { return c.Trust(w) },
}

// observeRollouts adds the rollouts to the admin listener. The pages are there even if no rollout is configured, and
// say so.
func (r *Observer) observeRollouts() {
	r.Admin.Page("/rollouts", "rollouts, with their cohorts, changes and rejections", r.selectRollouts(func(w http.ResponseWriter, req *http.Request, which gate.Which) {
		writeJSON(w, r.fleetRollouts(req.URL.Query(), which))
	}))
	r.Admin.Action("/rollout/{action}", r.selectRollouts(r.actOnRollouts))
}

func (r *Observer) rolloutViews(which gate.Which) []RolloutStatus {
	views := []RolloutStatus{}
	for _, s := range r.Rollouts.Status(which) {
		views = append(views, viewOfRollout(s))
	}
	return views
}

// fleetRollouts returns rollouts of all relays of the fleet, unless the query is for this one.
func (r *Observer) fleetRollouts(q url.Values, which gate.Which) []RolloutStatus {
	all, m := r.rolloutViews(which), r.wholeFleet(q)
	if m == nil {
		return all
	}
	for i := range all {
		all[i].Relay = m.Address()
	}
	silent := askAll(m, fleet.Question{Method: http.MethodGet, Path: "/rollouts", Values: q}, func(relay string, of *[]RolloutStatus) {
		for _, s := range *of {
			s.Relay = relay
			all = append(all, s)
		}
	})
	for _, s := range silent {
		all = append(all, RolloutStatus{Relay: s.Relay, Phase: "unknown", Reason: s.Reason, Cohorts: []CohortStatus{}, Changes: []RolloutChange{}})
	}
	return all
}

func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	_ = e.Encode(v) // the operator's connection has gone
}

// selectRollouts rejects requests for rollouts that cannot exist, and passes the others on with the rollouts that
// they select: by authority and partition, which are both optional.
func (r *Observer) selectRollouts(next func(http.ResponseWriter, *http.Request, gate.Which)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		values := req.Form // of a POST
		if values == nil {
			values = req.URL.Query()
		}
		which := gate.Which{Authority: values.Get("authority"), Partition: values.Get("partition"), AnyPartition: !values.Has("partition")}
		if err := r.canRollOut(values, which.Authority); err != nil {
			http.Error(w, err.Error(), http.StatusNotFound)
			return
		}
		next(w, req, which)
	})
}

// canRollOut returns why an authority has no rollouts. If authority is empty, it returns why no authority has one.
func (r *Observer) canRollOut(values url.Values, authority string) error {
	switch {
	case len(r.now().Rollouts) == 0:
		return errors.New("no authority has a rollout (authorities[].rollout in the configuration)")
	case !values.Has("authority"):
		return nil
	case r.now().Router.Rollout(cache.Scope{Authority: authority}) == nil:
		return fmt.Errorf("authority %q has no rollout (authorities[].rollout in the configuration)", loglines.Clip(authority))
	}
	return nil
}

// actOnRollouts performs an operator's action, and writes an audit line: by whom, what, and on how many rollouts.
func (r *Observer) actOnRollouts(w http.ResponseWriter, req *http.Request, which gate.Which) {
	action := req.PathValue("action")
	act := rolloutActions[action]
	if act == nil {
		http.NotFound(w, req)
		return
	}
	reason := loglines.Clip(strings.TrimSpace(req.Form.Get("reason")))
	if action == "reject" && reason == "" {
		reason = "an operator rejected it"
	}
	n := act(r.Rollouts, which, reason)
	all := RolloutAction{Action: action, Rollouts: n}
	if m := r.wholeFleet(req.Form); m != nil {
		values := maps.Clone(req.Form)
		values.Set("reason", reason)
		question := fleet.Question{Method: http.MethodPost, Path: "/rollout/" + action, Values: values, Operator: Caller(req)}
		all.NoAnswer = askAll(m, question, func(_ string, did *RolloutAction) { all.Rollouts += did.Rollouts })
	}
	partition := which.Partition
	if which.AnyPartition {
		partition = "(any)"
	}
	r.Log.Info("audit: an operator acted on rollouts", "action", action, "operator", Caller(req), "peer", req.RemoteAddr,
		"authority", loglines.Clip(which.Authority), "partition", loglines.Clip(partition), "rollouts", n, "reason", reason,
		"no_answer", relaysOf(all.NoAnswer), "event", "approval")
	if strings.Contains(req.Header.Get("Accept"), "text/html") {
		http.Redirect(w, req, "/rollout", http.StatusSeeOther)
		return
	}
	writeJSON(w, all)
}

// Caller returns who sent a request: the identity in the certificate, the user at the other end of a unix socket,
// or that the request came over loopback.
func Caller(req *http.Request) string {
	if by, ok := req.Context().Value(askedBy{}).(string); ok {
		return by
	}
	p := &grpcpeer.Peer{}
	if conn := admin.SocketOf(req); conn != nil {
		p.Addr, p.LocalAddr = conn.RemoteAddr(), conn.LocalAddr()
		if unix, ok := conn.(*net.UnixConn); ok {
			p.Addr = identity.UnixAddrOf(unix)
		}
	}
	if req.TLS != nil {
		p.AuthInfo = credentials.TLSInfo{State: *req.TLS}
	}
	id := identity.Proof{Peer: p}.Connection()
	switch {
	case id.Authenticated() && id.UID != nil:
		return fmt.Sprintf("unix uid %d", *id.UID)
	case id.Authenticated():
		return loglines.Clip(id.String())
	case id.Local:
		return "loopback"
	}
	return "unknown"
}
