package rollout

import "slices"

// Status is a Machine's state for an operator.
type Status struct {
	Phase  Phase
	Frozen bool
	// Step is 0 for the first clients, and Steps how many steps follow. SoakEnds is when the step
	// has lasted long enough. They are of a Machine that is Rolling.
	Step, Steps int
	SoakEnds    Time
	Cohorts     []CohortStatus
	// Rejections and Deaths are those of this rollout, or of the one that was stopped, and Reason
	// is why it was.
	Rejections []Rejection
	Deaths     []string
	Reason     string
	// PassedOver are those whose rejections do not count where others accept.
	PassedOver []string
}

// CohortStatus is the part of one cohort: how many clients it has, and how many of them were shown
// the new state, have taken it, and have rejected it.
type CohortStatus struct {
	Name                            string
	Clients, Shown, Taken, Rejected int
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
	return s
}
