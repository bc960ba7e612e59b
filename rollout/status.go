package rollout

import "slices"

// Status is the state of a Machine, for operators.
type Status struct {
	Phase  Phase
	Frozen bool
	// Step is 0 for the first clients, and Steps is the number of steps that follow. SoakEnds is when the step's soak
	// ends. All three are set only while the machine is Rolling.
	Step, Steps int
	SoakEnds    Time
	Cohorts     []CohortStatus
	// Rejections and Deaths are those of the current rollout, or of the one that was stopped. Reason is why that
	// rollout was stopped.
	Rejections []Rejection
	Deaths     []string
	Reason     string
	// PassedOver are the identities or addresses whose rejections do not count while other clients accept.
	PassedOver []string
}

// CohortStatus describes one cohort: how many clients it has, and how many of them were shown the new state, have
// accepted it, and have rejected it.
type CohortStatus struct {
	Name                            string
	Clients, Shown, Taken, Rejected int
	// Behind counts the identities or addresses behind relays whose clients of this cohort have rejected it, if the
	// relays say so.
	Behind int
}

// Status returns the machine's state.
func (m *Machine) Status() Status {
	s := Status{
		Phase: m.phase, Frozen: m.frozen, Rejections: slices.Clone(m.rejections), Deaths: slices.Clone(m.deaths), Reason: m.reason,
	}
	if m.phase == Rolling {
		s.Step, s.Steps, s.SoakEnds = m.step, len(m.opts.Steps), m.soakEnds()
	}
	for _, of := range m.strikes {
		if of.n >= maxStrikes {
			s.PassedOver = append(s.PassedOver, of.who)
		}
	}
	for _, of := range m.cohorts() {
		s.Cohorts = append(s.Cohorts, CohortStatus{
			Name: of[0].cohort, Clients: of.count(func(c *client) bool { return c.present }),
			Shown: of.count(func(c *client) bool { return c.present && c.shown }), Taken: of.count(m.took),
			Rejected: of.count(func(c *client) bool { return m.trying(c) && c.present && c.shown && c.rejected }),
		})
	}
	m.countBehind(&s)
	return s
}

// countBehind counts the rejections behind relays in their own cohorts. No other client need be in these.
func (m *Machine) countBehind(s *Status) {
	for _, p := range m.rejected() {
		if !p.relayed || p.cohort == p.c.cohort {
			continue
		}
		at := slices.IndexFunc(s.Cohorts, func(c CohortStatus) bool { return c.Name == p.cohort })
		if at < 0 {
			at = len(s.Cohorts)
			s.Cohorts = append(s.Cohorts, CohortStatus{Name: p.cohort})
		}
		s.Cohorts[at].Behind++
	}
}
